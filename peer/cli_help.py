"""What `hetpeer --help` itself shows: where to begin, and the commands by what they are for."""

import typer

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
    """Put each command into its panel."""
    for each in (*app.registered_commands, *app.registered_groups):
        name = each.name or getattr(each.callback, "__name__", "")
        each.rich_help_panel = next((panel for panel, names in PANELS.items() if name in names.split()), None)
