"""The `hetpeer` command, assembled from the command families in this folder. What is heavy is imported when it runs."""

import gc
import os
from typing import Annotated

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # gRPC's fork handlers crash libp2p's daemon at its start
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # absl writes to stderr past Python's logging

import typer

from peer.cli.admin import admin
from peer.cli.bootstrap import BOOTSTRAP_EPILOG, bootstrap
from peer.cli.credit import CREDIT_EXAMPLES, credit
from peer.cli.dashboard import DASHBOARD_EXAMPLES, dashboard
from peer.cli.data import data_commands
from peer.cli.doctor import DOCTOR_EXAMPLES, doctor
from peer.cli.import_ import IMPORT_EXAMPLES, import_
from peer.cli.join import (
    JOIN_EXAMPLES,
    JOIN_OPTIONS,
    OBSERVE_EXAMPLES,
    OBSERVE_OPTIONS,
    PAUSE_EXAMPLES,
    REPLICA_EXAMPLES,
    REPLICA_OPTIONS,
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
from peer.cli.runs import RUNS_EXAMPLES, runs
from peer.cli.status import STATUS_EXAMPLES, status
from peer.cli.testnet import TESTNET_EXAMPLES, testnet
from peer.cli.usual_options import Sister, usual_help
from peer.cli.why import WHY_EXAMPLES, why

HELP_EXAMPLES = (
    "Examples:\n\n  hetpeer testnet\n\n  hetpeer doctor hetpeer1-…\n\n  hetpeer join hetpeer1-…\n\n"
    "  hetpeer bootstrap run.toml --dry-run\n\n"
    "docs/ has guides for volunteers, operators, datacenters and researchers, and every error by its words."
)

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


TAKE_PART, SEE, RUN_A_RUN, MODELS, EXPERIMENTS = "Take part", "See", "Run a run", "Models", "Experiments"
"""The panels of `hetpeer --help`. The commands of each follow here in its order."""

app.command(cls=usual_help(JOIN_OPTIONS), epilog=JOIN_EXAMPLES, rich_help_panel=TAKE_PART)(join)
app.command(cls=usual_help(REPLICA_OPTIONS), epilog=REPLICA_EXAMPLES, rich_help_panel=TAKE_PART)(replica)
app.command(cls=usual_help(OBSERVE_OPTIONS), epilog=OBSERVE_EXAMPLES, rich_help_panel=TAKE_PART)(observe)
app.command(epilog=PAUSE_EXAMPLES, rich_help_panel=TAKE_PART)(pause)
app.command(epilog=RESUME_EXAMPLES, rich_help_panel=TAKE_PART)(resume)
app.command(cls=Sister, epilog=DOCTOR_EXAMPLES, rich_help_panel=SEE)(doctor)
app.command(epilog=STATUS_EXAMPLES, rich_help_panel=SEE)(status)
app.command(epilog=RUNS_EXAMPLES, rich_help_panel=SEE)(runs)
app.command(epilog=DASHBOARD_EXAMPLES, rich_help_panel=SEE)(dashboard)
app.command(epilog=WHY_EXAMPLES, rich_help_panel=SEE)(why)
app.command(epilog=CREDIT_EXAMPLES, rich_help_panel=SEE)(credit)
app.command(cls=Sister, epilog=BOOTSTRAP_EPILOG, rich_help_panel=RUN_A_RUN)(bootstrap)
app.command(epilog=PLAN_EXAMPLES, rich_help_panel=RUN_A_RUN)(plan)
app.command(epilog=EXPORT_EXAMPLES, rich_help_panel=MODELS)(export)
app.command(epilog=SAMPLE_EXAMPLES, rich_help_panel=MODELS)(sample)
app.command("import", epilog=IMPORT_EXAMPLES, rich_help_panel=MODELS)(import_)
app.command(epilog=TESTNET_EXAMPLES, rich_help_panel=EXPERIMENTS)(testnet)
admin.command(epilog=REWIND_EXAMPLES)(rewind)
app.add_typer(admin, name="admin", rich_help_panel=RUN_A_RUN)
app.add_typer(data_commands, name="data", rich_help_panel=RUN_A_RUN)
app.add_typer(lab, name="lab", rich_help_panel=EXPERIMENTS)


def main() -> None:
    """Entry point of the `hetpeer` command."""
    gc.disable()  # a fifth of what importing takes; on again in `peer.process.exit_code_of`
    app()


if __name__ == "__main__":
    main()
