"""The command `xattr-explain`."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"captum-xattr {importlib.metadata.version('captum-xattr')}")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Explain vision models in PyTorch."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Existing folder for the picture.")] = Path(),
) -> None:
    """Explain small trained vision transformers, and photographs if the extra `demo` is installed: tables and PNGs."""
    if not out.is_dir():
        raise typer.BadParameter(f"{str(out)!r} is no existing folder; create it first.", param_hint="--out")
    from .demo import PHOTOGRAPHS, run

    result = run(show_progress=True)
    typer.echo(result.table)
    typer.echo(f"\nPicture: {result.save(out)}")
    for name, make in PHOTOGRAPHS.items():
        try:
            shown = make()
        except ModuleNotFoundError as error:
            typer.echo(f"\nNot shown: {name}; {error}")
        else:
            typer.echo(f"\n{shown.table}\nPicture: {shown.save(out)}")


@app.command()
def image(
    photo: Annotated[Path, typer.Argument(help="A picture file.")],
    model: Annotated[
        str, typer.Option(help="timm/NAME, hf/NAME, hf/FOLDER, torchvision/NAME or FILE.py:factory.", metavar="SPEC")
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A method: gradskip, lrp:gamma (or :attnlrp, :epsilon, :cp, :libra), gradcam, ig, rollout, "
            "gradientxtoken. May be repeated; default: gradskip, lrp:gamma and gradcam.",
            metavar="NAME",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The class to explain; default: the best one.", metavar="INDEX|NAME")
    ] = None,
    out: Annotated[Path, typer.Option(help="Existing folder for the picture.")] = Path(),
) -> None:
    """Explain what a model sees in a photograph: its best classes, and a picture of the maps."""
    import warnings

    from .trace.errors import XattrError

    try:
        if not out.is_dir():
            raise FileNotFoundError(f"there is no folder {str(out)!r} to write the picture into; create it first.")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default", UserWarning)
            from .photo import explain

            result = explain(photo, model, method or None, target, show_progress=True)
        typer.echo(result.table)
        path = result.save(out)
    except (XattrError, OSError) as error:
        typer.echo(f"Error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    except (RuntimeError, ValueError, KeyError, TypeError) as error:  # of the model, or of its transform
        typer.echo(f"Error: {type(error).__name__}: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    for note in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)):
        typer.echo(f"Note: {' '.join(note.split())}", err=True)
    typer.echo(f"\nPicture: {path}")


def main() -> None:
    """Entry point of the command."""
    app()
