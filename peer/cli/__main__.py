"""The `hetpeer` command, assembled from the command families in this folder. What is heavy is imported when it runs."""

import gc
import os
from typing import Annotated

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # gRPC's fork handlers crash libp2p's daemon at its start
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # absl writes to stderr past Python's logging

import typer
from typer.models import CommandInfo, TyperInfo

from peer.cli.admin import admin
from peer.cli.bootstrap import BOOTSTRAP_EPILOG, bootstrap
from peer.cli.credit import CREDIT_EXAMPLES, credit
from peer.cli.data import data_commands
from peer.cli.doctor import DOCTOR_EXAMPLES, doctor
from peer.cli.import_ import IMPORT_EXAMPLES, import_
from peer.cli.join import (
    JOIN_EXAMPLES,
    OBSERVE_EXAMPLES,
    PAUSE_EXAMPLES,
    REPLICA_EXAMPLES,
    RESUME_EXAMPLES,
    join,
    observe,
    pause,
    replica,
    resume,
)
from peer.cli.lab import lab
from peer.cli.models import EXPORT_EXAMPLES, SAMPLE_EXAMPLES, export, sample
from peer.cli.plan import PLAN_EXAMPLES, plan
from peer.cli.rewind import REWIND_EXAMPLES, rewind
from peer.cli.status import STATUS_EXAMPLES, status
from peer.cli.testnet import TESTNET_EXAMPLES, testnet
from peer.cli.why import WHY_EXAMPLES, why

HELP_EXAMPLES = (
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
"""The panels of `hetpeer --help`, and the commands in each, in their order."""

app = typer.Typer(
    help="Pre-train one language model together, over home internet links and in datacenters.",
    epilog=HELP_EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        from peer import version

        typer.echo(f"hetpeer {version()}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version, and end.")
    ] = False,
) -> None:
    """The options of `hetpeer` before a command."""


app.command(epilog=BOOTSTRAP_EPILOG)(bootstrap)
app.command(epilog=JOIN_EXAMPLES)(join)
app.command(epilog=REPLICA_EXAMPLES)(replica)
app.command(epilog=OBSERVE_EXAMPLES)(observe)
app.command(epilog=TESTNET_EXAMPLES)(testnet)
app.command(epilog=STATUS_EXAMPLES)(status)
app.command(epilog=PLAN_EXAMPLES)(plan)
app.command(epilog=PAUSE_EXAMPLES)(pause)
app.command(epilog=RESUME_EXAMPLES)(resume)
app.command(epilog=DOCTOR_EXAMPLES)(doctor)
app.command(epilog=WHY_EXAMPLES)(why)
app.command(epilog=CREDIT_EXAMPLES)(credit)
app.command(epilog=EXPORT_EXAMPLES)(export)
app.command(epilog=SAMPLE_EXAMPLES)(sample)
app.command("import", epilog=IMPORT_EXAMPLES)(import_)
admin.command(epilog=REWIND_EXAMPLES)(rewind)
app.add_typer(lab, name="lab")
app.add_typer(admin, name="admin")
app.add_typer(data_commands, name="data")


def arrange(app: typer.Typer) -> None:
    """Put each command into its panel, in the order of `PANELS`."""
    order = [(panel, name) for panel, names in PANELS.items() for name in names.split()]
    everything: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
    for each in everything:
        each.rich_help_panel = next((panel for panel, name in order if name == _name(each)), None)
    places = {name: place for place, (_, name) in enumerate(order)}
    app.registered_commands.sort(key=lambda each: places.get(_name(each), len(places)))


def _name(info: CommandInfo | TyperInfo) -> str:
    return info.name or str(getattr(info.callback, "__name__", ""))


arrange(app)


def main() -> None:
    """Entry point of the `hetpeer` command."""
    gc.disable()  # a fifth of what importing takes; on again in `peer.process.told`
    app()


if __name__ == "__main__":
    main()
