"""`hetpeer testnet`: a whole swarm on this machine."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.options import MemoryOption, TextOption, terminal

TESTNET_EXAMPLES = (
    "Examples:\n\n  hetpeer testnet\n\n  hetpeer testnet --groups 2 --stages 4 --rounds 3 --inner-steps 5\n\n"
    "  hetpeer testnet --chaos kill:stage=1@round=2.3+5s,pause:datacenter=0@round=3+3s\n\n"
    "  hetpeer testnet --chaos 'partition:group=0|group=1+datacenter=0@rounds=2-3'\n\n"
    "  hetpeer testnet --chaos slow:group=1/stage=0=1mbit@round=2+10s,leave:bootstrap@round=3\n\n"
    "  hetpeer testnet --rounds 12 --chaos random:7:6:kill+pause\n\n"
    "  hetpeer testnet --chaos attacker:garbage\n\n"
    "  hetpeer testnet --rounds 12 --chaos crowd:all*10@round=2+30s\n\n"
    "Chaos is WHAT:WHOM@WHEN[+Ns], several with commas. WHOM is stage=S, group=G, group=G/stage=S, datacenter=N "
    "(all from 0), bootstrap or all. WHEN is round=R, round=R.S (inner step S) or Ns (N seconds after the first step). "
    "kill (with +Ns it comes back), pause, leave, join:stage=S, join:datacenter, "
    "partition:A|B@rounds=F-L (A and B are WHOM joined by +, or `half` instead of both), slow:WHOM=RATE, "
    "random:SEED:RATE[:KINDS] (RATE faults a minute), attacker:KIND (one hostile peer more; KIND is garbage, shapes, "
    "lengths, loris, spam, stale, equivocation, scaled, copied or flipped), crowd:KIND*N (N hostile names for a while; "
    "KIND is clock, spam, slow, equivocation, flood, replay, slots, gateway, door, dht, dashboard or all). "
    "partition and slow need root, and iproute2 and nftables."
)


def testnet(
    preset: Annotated[str, typer.Option(help="Model: pico, nano, mini, micro, tiny, 178m, 512m or 1b.")] = "nano",
    groups: Annotated[int, typer.Option(min=0, help="Replica groups, one volunteer a stage.")] = 2,
    stages: Annotated[
        int | None, typer.Option(min=1, help="Pipeline stages. Default: 2, or as many as --layers has numbers.")
    ] = None,
    layers: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Layers of each stage, with commas: 3,4,5,4.")
    ] = None,
    balance: Annotated[
        str | None,
        typer.Option(metavar="count|memory|compute", help="Without --layers: what stages have about as much of."),
    ] = None,
    datacenters: Annotated[int, typer.Option(min=0, help="Datacenter replicas.")] = 1,
    compression: Annotated[
        str | None,
        typer.Option(
            metavar="D/K|auto",
            help="Between stages, in bf16; 1: whole activations; auto: what links carry. Default: half, in 4 bits.",
        ),
    ] = None,
    ngrams: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Stages look up the last 1 to N tokens, at most 3, in tables: `replicas.ngrams`."
        ),
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Outer rounds.")] = 6,
    inner_steps: Annotated[int, typer.Option(min=1, help="Inner steps in a round (H).")] = 20,
    optimizer: Annotated[
        str, typer.Option(metavar="adamw|muon", help="Of inner steps; muon: for the matrices of the layers.")
    ] = "adamw",
    data: TextOption = None,
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
    step_overlap: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="The groups' inner steps follow each other without draining the pipeline: `inner.overlap`.",
        ),
    ] = 0,
    most_steps: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Quick replicas take up to N inner steps while slow ones take H: `inner.most_steps`.",
        ),
    ] = 0,
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Audit contributions beside the bootstrap node, and revoke whoever does harm."),
    ] = False,
    memory: MemoryOption = "auto",
) -> None:
    """Watch a whole swarm train on this machine: real processes, loopback, live table, verdict."""
    from peer.process import exit_code_of, run_command
    from peer.telemetry.run_report import COMPLETED, Report
    from peer.telemetry.terminal import TestnetScreen
    from peer.testnet.chaos import check_chaos, parse_chaos
    from peer.testnet.run import run_testnet as run_swarm
    from peer.testnet.testnet_options import TestnetOptions, check_manifest

    named = layers.split(",") if layers is not None else []
    counts = tuple(int(each) if each.isdecimal() else each for each in named)
    options = TestnetOptions(
        preset=preset,
        groups=groups,
        stages=stages or len(counts) or 2,
        datacenters=datacenters,
        compression=int(compression) if compression and compression.isdecimal() else compression,
        ngrams=ngrams,
        rounds=rounds,
        inner_steps=inner_steps,
        data=data,
        directory=directory,
        report=report,
        chaos=chaos,
        compare=not no_compare,
        overlap=overlap,
        step_overlap=step_overlap,
        most_steps=most_steps,
        audit=audit,
        layers=counts,
        balance=balance,
        memory=memory,
        optimizer=optimizer,
    )
    shown = terminal()

    def work() -> int:
        report = Report(check_manifest(options))
        faults = parse_chaos(options.chaos) if options.chaos is not None else ()
        check_chaos(faults, options)
        code = run_command(lambda stop: run_swarm(options, faults, TestnetScreen(report), stop), shown)
        return code or int(report.verdict() != COMPLETED)

    sys.exit(exit_code_of(shown.emit, work))
