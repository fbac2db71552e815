"""What `hetpeer --help` itself shows: where to begin, and the commands by what they are for."""

import typer
from typer.models import CommandInfo, TyperInfo

EXAMPLES = (
    "Examples:\n\n  hetpeer testnet\n\n  hetpeer doctor hetpeer1-…\n\n  hetpeer join hetpeer1-…\n\n"
    "  hetpeer bootstrap run.toml --dry-run\n\n"
    "docs/ has guides for volunteers, operators, datacenters and researchers, and every error by its words."
)

PANELS = {
    "Take part": "join replica observe pause resume",
    "See": "doctor status why credit",
    "Run a run": "bootstrap admin data plan",
    "Models": "export sample import",
    "Experiments": "testnet lab",
}
"""Which command is shown where."""


def arrange(app: typer.Typer) -> None:
    """Put each command into its panel, in this order."""
    order = [(panel, name) for panel, names in PANELS.items() for name in names.split()]
    everything: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
    for each in everything:
        each.rich_help_panel = next((panel for panel, name in order if name == _name(each)), None)
    places = {name: place for place, (_, name) in enumerate(order)}
    app.registered_commands.sort(key=lambda each: places.get(_name(each), len(places)))


def _name(info: CommandInfo | TyperInfo) -> str:
    return info.name or str(getattr(info.callback, "__name__", ""))
