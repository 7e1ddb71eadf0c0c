"""The command `xattr-explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Explain vision models in PyTorch.")


@app.callback()
def _commands() -> None:
    """A callback keeps `demo` a subcommand while it is the only one."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Existing folder for the picture.")] = Path(),
) -> None:
    """Explain small trained vision transformers with every method: a table, and xattr-demo.png."""
    if not out.is_dir():
        raise typer.BadParameter(f"there is no folder {str(out)!r}; create it first.", param_hint="--out")
    from .demo import run

    result = run(show_progress=True)
    typer.echo(result.table)
    typer.echo(f"\nPicture: {result.save(out)}")


def main() -> None:
    """Entry point of the command."""
    app()
