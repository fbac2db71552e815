"""Help in two lengths: `--help` shows the options that people use, `--help-all` all of them. And for an option that
only another command has, where it is."""

from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperOption

ALWAYS = frozenset({"help", "help_all", "ticket"})
"""The options and arguments that every help shows."""


INSTEAD = {"--dry-run": "`hetpeer doctor TICKET` says, without joining, what this machine would do and take"}
"""The way to what an option would do that commands lack, and that people try."""

UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""The base of all errors in how a command is called: Typer does not export it."""


class Sister(TyperCommand):
    """A command that says of an option that it lacks which other commands have it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if hasattr(error, "possibilities") and (words := self._elsewhere(ctx, getattr(error, "option_name", ""))):
                vars(error).update(message=f"{vars(error)['message']}. {words}", possibilities=None)
            raise

    def _elsewhere(self, ctx: Any, option: str) -> str:
        """The way to what an option would do, in a sentence; empty: no command has it."""
        if option in INSTEAD:
            return f"{INSTEAD[option]}."
        sisters = getattr(ctx.parent and ctx.parent.command, "commands", {})
        owners = [
            f"`hetpeer {name}`"
            for name, command in sisters.items()
            if isinstance(command, Sister) and option in _options_of(command)
        ]
        return f"It is an option of {' and '.join(owners)}." if owners else ""


def _options_of(command: TyperCommand) -> set[str]:
    """The options that a command's help shows, as they are typed."""
    shown = [option for option in command.params if isinstance(option, TyperOption) and not option.hidden]
    return {typed for option in shown for typed in option.opts}


class UsualHelp(Sister):
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
