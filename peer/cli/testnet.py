"""`hetpeer testnet`: a whole swarm on this machine."""

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import DeviceOption, MemoryOption, TextOption, takes, terminal

if TYPE_CHECKING:
    from peer.testnet.testnet_options import TestnetOptions

CHAOS_NOTATION = (
    "Chaos is WHAT:WHOM@WHEN[+Ns], several with commas. WHOM is stage=S, group=G, group=G/stage=S, datacenter=N "
    "(all from 0), bootstrap or all. WHEN is round=R, round=R.S (inner step S) or Ns (N seconds after the first step). "
    "kill (with +Ns it comes back), pause, leave, join:stage=S, join:datacenter"
)
TESTNET_EXAMPLES = (
    "Examples:\n\n  hetpeer testnet\n\n  hetpeer testnet --groups 2 --stages 4 --rounds 3 --inner-steps 5\n\n"
    "  hetpeer testnet --chaos kill:stage=1@round=2.3+5s,pause:datacenter=0@round=3+3s\n\n"
    "  hetpeer testnet --chaos leave:group=1/stage=0@round=2,join:stage=0@round=3,kill:bootstrap@40s+5s\n\n"
    f"{CHAOS_NOTATION}."
)

NOT_TESTNET_OPTIONS = ("chaos", "no_compare")
"""The options that the command itself uses. All others are fields of `TestnetOptions`, by the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestnetArguments:
    """The options of `hetpeer testnet`, in the order of their help."""

    preset: Annotated[str, typer.Option(help="Model: pico, nano, mini, micro, tiny, 178m, 512m or 1b.")] = "nano"
    groups: Annotated[int, typer.Option(min=0, help="Replica groups, one volunteer a stage.")] = 2
    stages: Annotated[
        int | None, typer.Option(min=1, help="Pipeline stages. Default: 2, or as many as --layers has numbers.")
    ] = None
    layers: Annotated[str | None, typer.Option(metavar="N,N,…", help="Layers of each stage, with commas: 3,4,5,4.")] = (
        None
    )
    balance: Annotated[
        str | None,
        typer.Option(metavar="count|memory|compute", help="Without --layers: what to balance between stages."),
    ] = None
    datacenters: Annotated[int, typer.Option(min=0, help="Datacenter replicas.")] = 1
    compression: Annotated[
        str | None,
        typer.Option(
            metavar="D/K|auto",
            help="Between stages, in bf16; 1: whole activations; auto: what links carry. Default: half, in 4 bits.",
        ),
    ] = None
    ngrams: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Stages look up the last 1 to N tokens, at most 3, in tables: `replicas.ngrams`."
        ),
    ] = 0
    rounds: Annotated[int, typer.Option(min=1, help="Outer rounds.")] = 6
    inner_steps: Annotated[int, typer.Option(min=1, help="Inner steps in a round (H).")] = 20
    optimizer: Annotated[
        str, typer.Option(metavar="adamw|muon", help="Of inner steps; muon: for the matrices of the layers.")
    ] = "adamw"
    data: TextOption = None
    report: Annotated[
        Path | None, typer.Option(help="Where the report goes; loss.png beside it. Default: ./report.json.")
    ] = None
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep everything the processes write here. Default: a temporary folder."),
    ] = None
    chaos: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Break the swarm on purpose while it trains; see below.")
    ] = None
    no_compare: Annotated[
        bool, typer.Option("--no-compare", help="After chaos, do not run the undisturbed lab to compare the loss with.")
    ] = False
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Begin each round at once; contributions are applied one round later.")
    ] = False
    step_overlap: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="The groups' inner steps follow each other without draining the pipeline: `inner.overlap`.",
        ),
    ] = 0
    most_steps: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Quick replicas take up to N inner steps while slow ones take H: `inner.most_steps`.",
        ),
    ] = 0
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Audit contributions beside the bootstrap node, and revoke whoever does harm."),
    ] = False
    memory: MemoryOption = "auto"
    device: DeviceOption = "auto"

    __test__ = False

    def options(self) -> "TestnetOptions":
        """The swarm that these options ask for."""
        from peer.compute.capacity import find_device
        from peer.testnet.testnet_options import TestnetOptions

        chosen = {
            option.name: getattr(self, option.name) for option in fields(self) if option.name not in NOT_TESTNET_OPTIONS
        }
        named = self.layers.split(",") if self.layers is not None else []
        chosen["device"] = find_device(self.device).type
        chosen["layers"] = tuple(int(number) if number.isdecimal() else number for number in named)
        chosen["stages"] = self.stages or len(named) or 2
        if self.compression and self.compression.isdecimal():
            chosen["compression"] = int(self.compression)
        return TestnetOptions(**chosen, compare=not self.no_compare)


@takes(TestnetArguments)
def testnet(arguments: TestnetArguments) -> None:
    """Watch a whole swarm train on this machine: real processes, loopback, live table, verdict."""
    from peer.process import exit_code_of, run_command
    from peer.telemetry.run_report import COMPLETED, Report
    from peer.telemetry.terminal import TestnetScreen
    from peer.testnet.chaos import NOTATIONS, check_chaos, parse_chaos
    from peer.testnet.run import run_testnet
    from peer.testnet.testnet_options import check_testnet_manifest

    shown = terminal()

    def work() -> int:
        options = arguments.options()
        report = Report(check_testnet_manifest(options))
        faults = parse_chaos(arguments.chaos, NOTATIONS) if arguments.chaos is not None else ()
        check_chaos(faults, options)
        code = run_command(lambda stop: run_testnet(options, faults, TestnetScreen(report), stop), shown)
        return code or int(report.verdict() != COMPLETED)

    sys.exit(exit_code_of(shown.emit, work))
