"""The command `xattr-explain`."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

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
        str,
        typer.Option(
            help="timm/NAME, hf/NAME, hf/FOLDER, torchvision/NAME, embedded/NAME or FILE.py:factory.", metavar="SPEC"
        ),
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

    with _plain_errors(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", UserWarning)
        if not out.is_dir():
            raise FileNotFoundError(f"there is no folder {str(out)!r} to write the picture into; create it first.")
        from .photo import explain

        result = explain(photo, model, method or None, target, show_progress=True)
        typer.echo(result.table)
        path = result.save(out)
    for note in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)):
        typer.echo(f"Note: {' '.join(note.split())}", err=True)
    typer.echo(f"\nPicture: {path}")


@app.command()
def benchmark(
    plan: Annotated[Path, typer.Argument(help="A plan, a TOML file.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: the plan's name with -run.", show_default=False)
    ] = None,
    workers: Annotated[int, typer.Option(help="How many processes; 0 works in this one.")] = 1,
    engine: Annotated[
        Literal["local", "torchrun", "ray"] | None,
        typer.Option(help="local, ray or torchrun; torchrun is found by itself.", show_default=False),
    ] = None,
    gpus: Annotated[float, typer.Option(help="That Ray gives each worker.")] = 0,
    retry: Annotated[bool, typer.Option("--retry", help="Measure again what failed.")] = False,
) -> None:
    """Compare explainers as a plan says; goes on where an earlier run stopped, and writes tables and a report."""
    with _plain_errors():
        from .benchmark import run
        from .benchmark.export import save

        folder = out or Path(f"{plan.stem}-run")
        results = run(
            plan,
            folder,
            workers=workers,
            engine=engine,
            num_gpus=gpus,
            retry=retry,
            show_progress=True,
        )
        if results is None:  # another rank of torchrun tells
            return
        for kind in ("csv", "latex"):
            save(results, kind)
        typer.echo(save(results, "markdown").read_text(encoding="utf-8"))
        typer.echo(f"Report: {results.save_report()}")


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Folder of a run, finished or not.")]) -> None:
    """Write the HTML report of a benchmark anew."""
    with _plain_errors():
        from .benchmark import Results

        typer.echo(f"Report: {Results.read(run).save_report()}")


@app.command(name="list")
def list_(what: Annotated[str, typer.Argument(help="methods, metrics, models or data.")]) -> None:
    """What a plan can name."""
    with _plain_errors():
        from .benchmark.names import NAMES

        if what not in NAMES:
            raise ValueError(f"found {what!r}; expected {', '.join(NAMES)}.")
        typer.echo(NAMES[what]())


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors as one line and exit code 1."""
    from .trace.errors import XattrError

    try:
        yield
    except (XattrError, OSError, ModuleNotFoundError) as error:
        typer.echo(f"Error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    except (RuntimeError, ValueError, KeyError, TypeError) as error:  # of the model, or of its transform
        typer.echo(f"Error: {type(error).__name__}: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None


def main() -> None:
    """Entry point of the command."""
    app()
