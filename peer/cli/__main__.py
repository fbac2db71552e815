"""The `hetpeer` command: a few lines a command. Everything heavy is imported inside."""

import gc
import os
import sys
from typing import Annotated, Literal

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # gRPC's fork handlers crash libp2p's daemon at its start
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # absl writes to stderr past Python's logging

import typer

from peer.cli.admin import admin
from peer.cli.bootstrap import BOOTSTRAP_EPILOG, bootstrap
from peer.cli.credit import CREDIT_EXAMPLES, credit
from peer.cli.data import data_commands
from peer.cli.doctor import doctor
from peer.cli.help import EXAMPLES, arrange
from peer.cli.lab import DeviceOption, JsonOption, lab, terminal
from peer.cli.limits import GivenLimits, pause, resume, with_manners
from peer.cli.models import EXPORT_EXAMPLES, IMPORT_EXAMPLES, SAMPLE_EXAMPLES, export, import_, sample
from peer.cli.options import (
    AnnounceOption,
    AuditOption,
    CopyOption,
    DirOption,
    ListenOption,
    ManifestOption,
    ReachOption,
    RelayOption,
    StayOption,
    StdinOption,
    ThreadsOption,
    TicketArgument,
)
from peer.cli.plan import plan
from peer.cli.status import STATUS_EXAMPLES, status
from peer.cli.testnet import EPILOG, testnet
from peer.cli.version import program
from peer.cli.why import WHY_EXAMPLES, LogJsonOption, MetricsOption, why

app = typer.Typer(
    help="Pre-train one language model together, over home internet links and in datacenters.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.callback()(program)
app.command(epilog=BOOTSTRAP_EPILOG)(bootstrap)


@app.command(
    epilog="Examples:\n\n  hetpeer join --stage 2 hetpeer1-…\n\n  HETPEER_TICKET=hetpeer1-… hetpeer join\n\n"
    "  hetpeer join --max-up 5 --max-down 40 --max-memory 8GB --quiet-hours 18:30-23:00 hetpeer1-…\n\n"
    "  hetpeer join --metrics 9477 --log-json hetpeer1-… 2>> hetpeer.log"
)
@with_manners("low")
def join(
    asked: GivenLimits,
    ticket: TicketArgument = None,
    stage: Annotated[
        int | None, typer.Option(min=0, help="The pipeline stage to serve. Default: the scarcest.")
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    directory: DirOption = None,
    listen: ListenOption = None,
    announce: AnnounceOption = None,
    reach: ReachOption = "auto",
    relay: RelayOption = False,
    data: CopyOption = None,
    schedule: Annotated[
        Literal["1f1b", "zero-bubble"],
        typer.Option(
            help="zero-bubble leaves the gradients of weights for when this stage would wait. They are the same to the "
            "bit; it pays where a step has few microbatches for each stage."
        ),
    ] = "1f1b",
    manifest: ManifestOption = None,
    metrics: MetricsOption = None,
    log_json: LogJsonOption = False,
    json: JsonOption = False,
    until_stdin_closes: StdinOption = False,
) -> None:
    """Volunteer: serve one stage of a replica group."""
    from peer.cli.commands.join import JoinOptions
    from peer.cli.commands.join import join as run
    from peer.network.reach.reach import Wish

    wish = Wish(listen, announce, reach)
    options = JoinOptions(
        "volunteer",
        ticket,
        device,
        threads,
        directory,
        wish,
        stage,
        manifest,
        False,
        relay,
        asked,
        schedule,
        data,
        metrics=metrics,
    )
    sys.exit(run(options, terminal(json, until_stdin_closes, log_json)))


@app.command(
    epilog="Examples:\n\n  hetpeer replica hetpeer1-… --device cuda\n\n"
    "  hetpeer replica hetpeer1-… --device cuda --nproc 8 --precision bf16 --compile"
)
@with_manners("normal")
def replica(
    asked: GivenLimits,
    ticket: TicketArgument = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    directory: DirOption = None,
    listen: ListenOption = None,
    announce: AnnounceOption = None,
    reach: ReachOption = "auto",
    relay: RelayOption = True,
    data: CopyOption = None,
    manifest: ManifestOption = None,
    audit: AuditOption = False,
    nproc: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Processes that train the replica together, each on a GPU of its own, or with its share of --threads. "
            "Each holds an N-th of weights, gradients and moments; N must divide the run's inner.sequences.",
        ),
    ] = 1,
    precision: Annotated[
        Literal["fp32", "bf16"],
        typer.Option(help="bf16: matrix products and attention are of bf16; weights and all sums stay fp32."),
    ] = "fp32",
    compiled: Annotated[
        bool, typer.Option("--compile", help="Let torch compile the layers: a minute at first, then faster steps.")
    ] = False,
    metrics: MetricsOption = None,
    log_json: LogJsonOption = False,
    json: JsonOption = False,
    until_stdin_closes: StdinOption = False,
) -> None:
    """Datacenter: train a whole, uncompressed replica. The first also evaluates each round."""
    from peer.cli.commands.join import JoinOptions
    from peer.cli.commands.join import join as run
    from peer.compute.arithmetic import Arithmetic
    from peer.network.reach.reach import Wish

    wish = Wish(listen, announce, reach)
    options = JoinOptions(
        "datacenter",
        ticket,
        device,
        threads,
        directory,
        wish,
        None,
        manifest,
        audit,
        relay,
        asked,
        data=data,
        processes=nproc,
        arithmetic=Arithmetic(precision, compiled),
        metrics=metrics,
    )
    sys.exit(run(options, terminal(json, until_stdin_closes, log_json)))


@app.command(epilog="Examples:\n\n  hetpeer observe hetpeer1-…\n\n  hetpeer observe hetpeer1-… --audit")
@with_manners("normal")
def observe(
    asked: GivenLimits,
    ticket: TicketArgument = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    directory: DirOption = None,
    listen: ListenOption = None,
    announce: AnnounceOption = None,
    reach: ReachOption = "auto",
    relay: RelayOption = False,
    data: CopyOption = None,
    audit: AuditOption = False,
    stay: StayOption = False,
    metrics: MetricsOption = None,
    log_json: LogJsonOption = False,
    json: JsonOption = False,
    until_stdin_closes: StdinOption = False,
) -> None:
    """Follow a run without contributing, and evaluate each round."""
    from peer.cli.commands.join import JoinOptions
    from peer.cli.commands.join import join as run
    from peer.network.reach.reach import Wish

    wish = Wish(listen, announce, reach)
    options = JoinOptions(
        "observer",
        ticket,
        device,
        threads,
        directory,
        wish,
        audit=audit,
        relay=relay,
        stay=stay,
        asked=asked,
        data=data,
        metrics=metrics,
    )
    sys.exit(run(options, terminal(json, until_stdin_closes, log_json)))


app.command(epilog=EPILOG)(testnet)
app.command(epilog=STATUS_EXAMPLES)(status)
app.command(
    epilog="Examples:\n\n  hetpeer plan run.toml --up 20 --down 100 --teraflops 30\n\n"
    "  hetpeer plan --model 1b --up 100 --down 100\n\n  hetpeer plan --figure2 figures.png"
)(plan)
app.command(epilog="Examples:\n\n  hetpeer pause\n\n  hetpeer pause --dir ~/peer")(pause)
app.command(epilog="Examples:\n\n  hetpeer resume\n\n  hetpeer resume --dir ~/peer")(resume)
app.command(
    epilog="Examples:\n\n  hetpeer doctor hetpeer1-…\n\n  hetpeer doctor hetpeer1-… --listen 0.0.0.0:7800\n\n"
    "  hetpeer doctor --preset 512m --stages 4 --device cpu"
)(doctor)
app.command(epilog=WHY_EXAMPLES)(why)
app.command(epilog=CREDIT_EXAMPLES)(credit)
app.command(epilog=EXPORT_EXAMPLES)(export)
app.command(epilog=SAMPLE_EXAMPLES)(sample)
app.command("import", epilog=IMPORT_EXAMPLES)(import_)
app.add_typer(lab, name="lab")
app.add_typer(admin, name="admin")
app.add_typer(data_commands, name="data")
arrange(app)


def main() -> None:
    """Entry point of the `hetpeer` command."""
    gc.disable()  # a fifth of what importing takes; on again in `peer.process.told`
    app()


if __name__ == "__main__":
    main()
