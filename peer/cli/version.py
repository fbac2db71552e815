"""`hetpeer --version`."""

from typing import Annotated

import typer


def _show(asked: bool) -> None:
    if asked:
        from peer import version

        typer.echo(f"hetpeer {version()}")
        raise typer.Exit


def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_show, is_eager=True, help="Show the version, and end.")
    ] = False,
) -> None:
    """What `hetpeer` is told before a command."""
