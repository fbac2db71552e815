"""What `join`, `replica` and `observe` have in common: the limits that their owner sets. And `pause` and `resume`.

A few lines a command, as in `peer/cli/__main__.py`.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from peer.cli.lab import JsonOption, terminal

MaxUpOption = Annotated[
    float | None, typer.Option(metavar="MBIT/S", help="Send at most so much, Mb/s on the wire. Default: no limit.")
]
MaxDownOption = Annotated[float | None, typer.Option(metavar="MBIT/S", help="Receive at most so much, Mb/s.")]
QuietOption = Annotated[
    str | None,
    typer.Option(metavar="HH:MM-HH:MM", help="Pause at these hours, local time; several ranges with commas."),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Plan with at most so much memory (8GB): join and keep in flight only what fits it."
    ),
]
DiskOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Keep at most so much of the run on this disk (20GB). Default: nine tenths of what is free at the start.",
    ),
]
MirrorsOption = Annotated[
    bool,
    typer.Option(
        "--private-mirrors",
        help="The run's text may come from mirrors in this machine's own network. Without it, from public ones alone.",
    ),
]
CacheOption = Annotated[
    float,
    typer.Option(metavar="GB", min=0.1, help="Keep so much of the run's prepared text on this disk, once fetched."),
]
PriorityOption = Annotated[
    Literal["low", "normal"],
    typer.Option(help="Computing: low lets everything else on this machine go first. For volunteers the default."),
]


CACHE_GIGABYTES = 4.0
"""By default: two thousand million tokens of two bytes."""

GivenLimits = Mapping[str, Any]
"""What the command line said of these, not read yet: the arguments of `peer.settings.Manners.of`."""


def with_manners(priority: Literal["low", "normal"]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options, in the place of its argument `asked`. `priority` is the default."""
    kinds = {
        "max_up": MaxUpOption,
        "max_down": MaxDownOption,
        "max_memory": MemoryOption,
        "max_disk": DiskOption,
        "data_cache": CacheOption,
        "private_mirrors": MirrorsOption,
        "quiet_hours": QuietOption,
        "priority": PriorityOption,
    }
    defaults = {"priority": priority, "data_cache": CACHE_GIGABYTES, "private_mirrors": False}
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(name, keyword, default=defaults.get(name), annotation=kinds[name]) for name in kinds]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(asked={each.name: given.pop(each.name) for each in options}, **given)

        own = [each for each in inspect.signature(command).parameters.values() if each.name != "asked"]
        parameters = [each.replace(kind=keyword) for each in own] + options
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Typer reads both
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return decorate


FolderOption = Annotated[
    Path | None, typer.Option("--dir", help="The peer's folder. Default: every peer that runs here.")
]
RunArgument = Annotated[
    str | None, typer.Argument(metavar="TICKET", help="Only peers of this run. Default: of all runs.")
]


def pause(ticket: RunArgument = None, directory: FolderOption = None, json: JsonOption = False) -> None:
    """Let the peers of this machine leave their groups in order, and compute and serve nothing until `resume`."""
    from peer.cli.commands.pausing import pause as run

    sys.exit(run(ticket, directory, terminal(json)))


def resume(ticket: RunArgument = None, directory: FolderOption = None, json: JsonOption = False) -> None:
    """Let paused peers go on: they catch up with their run, and train again."""
    from peer.cli.commands.pausing import resume as run

    sys.exit(run(ticket, directory, terminal(json)))
