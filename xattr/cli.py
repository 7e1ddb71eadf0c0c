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
    """Explain small trained vision transformers with every method: a table, and xattr-demo.png."""
    if not out.is_dir():
        raise typer.BadParameter(f"{str(out)!r} is no existing folder; create it first.", param_hint="--out")
    from .demo import run

    result = run(show_progress=True)
    typer.echo(result.table)
    typer.echo(f"\nPicture: {result.save(out)}")


def main() -> None:
    """Entry point of the command."""
    app()
