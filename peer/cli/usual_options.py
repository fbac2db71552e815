"""Help in two lengths: `--help` shows the options that people use, `--help-all` all of them."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

ALWAYS = frozenset({"help", "help_all", "ticket"})
"""The options and arguments that every help shows."""


class UsualHelp(TyperCommand):
    """A command whose `--help` shows its `usual` options alone."""

    usual: frozenset[str] = frozenset()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        options = [option for option in self.params if isinstance(option, TyperOption) and not option.hidden]
        rare = [option for option in options if option.name not in self.usual | ALWAYS]
        for option in rare:
            option.hidden = True
        try:
            super().format_help(ctx, formatter)
        finally:
            for option in rare:
                option.hidden = False

    def show_all(self, context: Any) -> None:
        """Print the help with all options, and end."""
        super().format_help(context, context.make_formatter())
        raise typer.Exit


def usual_help(options: str) -> type[UsualHelp]:
    """The kind of a command whose `--help` shows these options, named with spaces between them."""
    return type("UsualHelp", (UsualHelp,), {"usual": frozenset(options.split())})


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked and isinstance(context.command, UsualHelp):
        context.command.show_all(context)


HelpAllOption = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options, and exit.")
]
