"""The estimate of a run before anybody joins: `hetpeer plan` for a link and a device, and `hetpeer bootstrap --dry-run`
for each participant."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import RowsOption, takes, terminal
from protocol.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from peer.planning.memory import Duty
    from peer.planning.model import RoundEstimate, Volunteer
    from peer.process import Terminal
    from protocol.manifest import Manifest

HIDDEN = 0.97
"""The share of a step's time in compute from which links count as hidden."""

WORTH_SAYING = 0.05
"""A share of a round's time that is worth another setting."""

LIMIT_SENTENCES = {
    "compute": "the device: links are hidden",
    "upload": "the upload",
    "download": "the download",
    "latency": "the latency",
}

PLAN_EXAMPLES = (
    "Examples:\n\n  hetpeer plan run.toml --up 20 --down 100 --teraflops 30\n\n"
    "  hetpeer plan --model 1b --up 100 --down 100\n\n  hetpeer plan --figure2 figures.png"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of `hetpeer plan`."""

    run_toml: Annotated[
        Path | None, typer.Argument(metavar="RUN.toml", help="The run's manifest. Default: a preset's model.")
    ] = None
    model: Annotated[str, typer.Option(help="Without a manifest: the preset, in 4 stages.")] = "512m"
    up: Annotated[float, typer.Option(metavar="MBIT/S", help="The volunteer's upload, Mb/s.")] = 20.0
    down: Annotated[float, typer.Option(metavar="MBIT/S", help="Its download, Mb/s.")] = 100.0
    latency: Annotated[float, typer.Option(metavar="MS", help="To its neighbours, one way, ms.")] = 20.0
    teraflops: Annotated[
        float, typer.Option(help="What its device really does: some 40 % of what its data sheet says.")
    ] = 30.0
    overlap: Annotated[bool, typer.Option("--overlap", help="As if the manifest had outer.overlap.")] = False
    figure2: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the paper's Figures 2 and 3 by this model instead.")
    ] = None
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="With --figure2: what benchmarks/utilization.py --json printed."),
    ] = None
    json: RowsOption = False


@takes(PlanOptions)
def plan(options: PlanOptions) -> None:
    """Compute what a round would take on a link and a device, for each k, and what it would wait for."""
    sys.exit(show_plan(options, terminal(options.json)))


def show_plan(options: PlanOptions, terminal: "Terminal") -> int:
    """Show the plan of a run, or draw the paper's figures; the exit code."""
    from peer.cli.tables import print_table
    from peer.planning.model import COMPRESSIONS_TRIED, HEADERS_SHARE, Volunteer, round_of, work_of
    from peer.process import exit_code_of
    from protocol import manifest as manifests
    from protocol.events.activity import Progress

    def work() -> int:
        if options.figure2 is not None:
            from peer.planning.paper_figures import draw_figures, read_measured

            draw_figures(options.figure2, read_measured(options.measured) if options.measured else ())
            terminal.emit(Progress(f"wrote {options.figure2}"))
            return 0
        if min(options.up, options.down, options.teraflops) <= 0 or options.latency < 0:
            raise UserError("--up, --down and --teraflops must be more than 0, and --latency not less")
        if options.run_toml is not None:
            manifest = manifests.load_manifest(options.run_toml)
        else:
            manifest = manifests.check_manifest({"model": {"preset": options.model}, "replicas": {"stages": 4}})
        up, down = options.up * 1e6, options.down * 1e6
        on = Volunteer(options.teraflops * 1e12, up, down, options.latency / 1e3, HEADERS_SHARE)
        overlap = options.overlap or manifest.outer.overlap
        planned = {
            compression: round_of(work_of(manifest, compression), on, overlap)
            for compression in sorted({*COMPRESSIONS_TRIED, compression_of(manifest, on)})
            if manifest.model.d % compression == 0
        }
        stages = stages_of(manifest)
        rows = [
            {"compression": compression, **asdict(estimate), "step_utilization": estimate.step.utilization}
            | {"stages": [asdict(stage) for stage in stages]}
            for compression, estimate in planned.items()
        ]
        print_table(terminal, rows, plan_tables(manifest, on, planned, overlap, stages))
        return 0

    return exit_code_of(terminal.emit, work)


def compression_of(manifest: "Manifest", on: "Volunteer") -> int:
    """The d / k of the run, or the one that its groups come to."""
    from peer.planning.model import compression_at, work_of

    return compression_at(manifest, lambda compression: work_of(manifest, compression), on)


@dataclass(frozen=True, slots=True)
class StageShare:
    """The part of the model that one stage has: `layers`, the share of its operations, and bytes of memory (an upper
    estimate, activations and the process itself included), and the least with activations that are computed again."""

    layers: int
    compute: float
    memory_bytes: int
    least_memory_bytes: int


def memories(manifest: "Manifest", duty: "Duty") -> tuple[int, int]:
    """Bytes of memory that a duty takes: with the activations of layers kept, and computed again."""
    from dataclasses import replace

    from peer.planning.memory import memory_of

    kept, again = (memory_of(manifest, replace(duty, recompute=recompute)).total for recompute in (False, True))
    return kept, again


def stages_of(manifest: "Manifest") -> list[StageShare]:
    """The cut of a run: what each stage has."""
    from peer.planning.memory import Duty
    from peer.planning.model import shares_of

    return [
        StageShare(len(layers), share, *memories(manifest, Duty("volunteer", stage)))
        for stage, (layers, share) in enumerate(zip(manifest.cut, shares_of(manifest), strict=True))
    ]


def memory_note() -> str:
    """The meaning of the columns of memory, and the difference from what is said on a participant's own machine."""
    from peer.planning.memory import PROCESS_BYTES
    from protocol.wording import size

    return (
        f"Memory is an upper estimate for any machine, with {size(PROCESS_BYTES)} for the process itself: doctor and "
        "join count what that takes on theirs. Recomputed: with --memory recompute."
    )


def plan_tables(
    manifest: "Manifest",
    on: "Volunteer",
    planned: dict[int, "RoundEstimate"],
    overlap: bool,
    stages: list[StageShare],
) -> "RenderableType":
    """The run and the volunteer in a line each, a row for each stage and for each k, and what it comes to."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from peer.planning.model import work_of
    from protocol.layout import parameter_count
    from protocol.wording import abbreviated, lasting, size

    inner, replicas, own_compression = manifest.inner, manifest.replicas, compression_of(manifest, on)
    lines = (
        f"{abbreviated(parameter_count(manifest))} parameters in {replicas.stages} stages, {replicas.total} replicas, "
        f"H = {inner.steps}, {inner.microbatches} microbatches of {inner.microbatch * manifest.model.context:,} tokens",
        f"a volunteer with {on.up / 1e6:g} Mb/s up, {on.down / 1e6:g} down, {1e3 * on.latency:g} ms to its neighbours, "
        f"{on.operations / 1e12:g} TFLOP/s; frames in {replicas.wire}",
    )
    cut = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("stage", "layers", "compute", "memory", "recomputed"):
        cut.add_column(name, justify="right", no_wrap=True)
    for number, stage in enumerate(stages):
        cut.add_row(
            str(number),
            str(stage.layers),
            f"{stage.compute:.1%}",
            size(stage.memory_bytes),
            size(stage.least_memory_bytes),
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("d / k", "frame", "link", "trip", "step", "exchange", "round", "used", "limit"):
        table.add_column(name, justify="left" if name == "limit" else "right", no_wrap=True)
    for compression, estimate in planned.items():
        step = estimate.step
        frame = work_of(manifest, compression).backward_bytes
        table.add_row(
            f"{'→ ' if compression == own_compression else ''}{compression}",
            size(frame),
            lasting(step.carry, exact=True),
            lasting(step.trip(inner.microbatches), exact=True),
            lasting(step.seconds, exact=True),
            lasting(estimate.exchange, exact=True),
            lasting(estimate.seconds, exact=True),
            f"{estimate.used:.1%}",
            estimate.limit,
        )
    sums = (
        f"passes of a microbatch: {lasting(planned[own_compression].step.passes, exact=True)} with each k, while the "
        "link carries others; trip: the first one's way through all stages and back. "
        f"step = {inner.microbatches - 1} × the longer of passes and link + trip, "
        f"round = {inner.steps} × step + exchange. {memory_note()}"
    )
    last = advice(manifest, on, planned[own_compression], overlap)
    return Group(*map(Text, lines), "", cut, "", table, "", Text(sums), "", Text(last))


def advice(manifest: "Manifest", on: "Volunteer", here: "RoundEstimate", overlap: bool) -> str:
    """Advice for the run's operator, in a sentence or two."""
    from peer.planning.model import COMPRESSIONS_TRIED, best_compression, best_overlap, work_of
    from protocol.wording import size

    compression = compression_of(manifest, on)
    best = best_compression(
        manifest,
        on,
        [compression_tried for compression_tried in COMPRESSIONS_TRIED if manifest.model.d % compression_tried == 0],
        HIDDEN,
    )
    moved = f"A round moves {size(here.up_bytes)} up and {size(here.down_bytes)} down"
    sentence = (
        f"{moved}, and uses {here.used:.1%} of the device; what it waits for is {LIMIT_SENTENCES[here.limit]}. "
        f"{_in_all(manifest, here)}"
    )
    steps, shorter = best_overlap(work_of(manifest, compression), on, overlap)
    if steps > manifest.inner.overlap and shorter >= WORTH_SAYING:
        sentence += (
            f" `overlap = {steps}` in [inner] would take {shorter:.0%} off a round, and costs a little of the loss."
        )
    if best is None:
        return f"{sentence} {_what_would_hide(manifest, on)}"
    if best > compression:
        return f"{sentence} k = d/{best} would hide the links within a step."
    if here.exchange > 0.02 * here.seconds and not overlap:
        return f"{sentence} `overlap = true` in [outer] would hide the exchange, too."
    return sentence


def _what_would_hide(manifest: "Manifest", on: "Volunteer") -> str:
    """The change that would hide the links, where no k does: a quicker link, if a frame takes longer than the passes
    of its microbatch however small it is; else more microbatches for each trip through the stages."""
    from peer.planning.model import COMPRESSIONS_TRIED, step_of, work_of

    d = manifest.model.d
    steps = {tried: step_of(work_of(manifest, tried), on) for tried in COMPRESSIONS_TRIED if d % tried == 0}
    least = next((tried for tried, step in steps.items() if step.carry <= step.passes), None)
    if least is None:
        return "No k hides the links: at each, a frame takes longer than a microbatch's passes. A quicker link would."
    return (
        f"No k hides the links in steps of so few microbatches ({manifest.inner.microbatches}): more of them in fewer "
        f"steps would, from k = d/{least} on."
    )


def _in_all(manifest: "Manifest", here: "RoundEstimate") -> str:
    """The time and the traffic that the whole run takes of a volunteer, and a day of it."""
    from protocol.wording import lasting, size

    rounds, a_day = manifest.outer.rounds, 86400 / here.seconds
    up, down = here.up_bytes, here.down_bytes
    return (
        f"The run's {rounds:,} rounds take {lasting(rounds * here.seconds)}, and move {size(rounds * up)} up and "
        f"{size(rounds * down)} down; a day of it, {size(a_day * up)} up and {size(a_day * down)} down."
    )


# A dry run


@dataclass(frozen=True, slots=True)
class Participant:
    """The work and the needs of one participant: `parameters`; bytes of memory (an upper estimate, activations and the
    process itself included), and the least of it, with activations that are computed again; bytes of a microbatch's
    frame to a neighbour, of a round's contribution, and of all that it sends in a round, of which it receives as much.
    """

    who: str
    layers: int
    parameters: int
    memory_bytes: int
    least_memory_bytes: int
    frame_bytes: int
    contribution_bytes: int
    sent_bytes: int


def seats(manifest: "Manifest") -> list[Participant]:
    """A volunteer of each stage, if the run has groups, a datacenter replica, if it has any, and an observer, as the
    operator's node has one beside it."""
    from peer.planning.memory import Duty
    from peer.planning.model import work_of
    from peer.planning.welcome import bytes_of_a_round
    from protocol.identity import parts_authored
    from protocol.layout import elements, model_layout, parameter_count

    model, replicas, layout = manifest.model, manifest.replicas, model_layout(manifest)
    participants = [
        Participant(
            f"stage {stage}",
            len(manifest.cut[stage]),
            sum(elements(layout[part]) for part in parts_authored(stage)),
            *memories(manifest, Duty("volunteer", stage)),
            int(work_of(manifest).backward_bytes) if replicas.stages > 1 else 0,
            int(work_of(manifest, stage=stage).contribution),
            int(bytes_of_a_round(manifest, "volunteer", stage)),
        )
        for stage in range(replicas.stages if replicas.groups else 0)
    ]
    if replicas.datacenters:
        contribution = sum(int(work_of(manifest, stage=stage).contribution) for stage in range(replicas.stages))
        memory = memories(manifest, Duty("datacenter"))
        sent = int(bytes_of_a_round(manifest, "datacenter", 0))
        participants.append(
            Participant("datacenter", model.layers, parameter_count(manifest), *memory, 0, contribution, sent)
        )
    memory = memories(manifest, Duty("observer"))
    return [*participants, Participant("observer", model.layers, parameter_count(manifest), *memory, 0, 0, 0)]


def dry_run(manifest: "Manifest", terminal: "Terminal") -> int:
    """Show what a run would ask of those who join it; the exit code."""
    from peer.cli.tables import print_table

    found = seats(manifest)
    print_table(terminal, map(asdict, found), _drawn(manifest, found))
    return 0


def _drawn(manifest: "Manifest", found: list[Participant]) -> "RenderableType":
    """The run in a few lines, and a row for each kind of participant."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from protocol.identity import EMBEDDING
    from protocol.layout import elements, model_layout, parameter_count
    from protocol.wording import abbreviated, millions, size

    model, replicas, inner, outer = manifest.model, manifest.replicas, manifest.inner, manifest.outer
    a_round = manifest.tokens_per_step * inner.steps * replicas.total
    embeddings = elements(model_layout(manifest)[EMBEDDING])
    tables = manifest.ngrams.values(model.vocabulary) * len(manifest.ngrams.layers)
    looked_up = f" and {abbreviated(tables)} n-gram tables" if tables else ""
    k = "k by each group's links" if replicas.compression == "auto" else f"k = {manifest.k}"
    lines = (
        f"{manifest.run.name}: {abbreviated(parameter_count(manifest))} parameters, {abbreviated(embeddings)} of them "
        f"token embeddings{looked_up}; a tokenizer of up to {model.vocabulary:,} ids, sequences of {model.context:,} "
        "tokens",
        f"replicas: {replicas.groups} of {replicas.stages} volunteers each, d = {model.d}, {k}; and "
        f"{replicas.datacenters} in datacenters",
        f"H = {inner.steps} inner steps of {manifest.tokens_per_step:,} tokens a replica, "
        f"{inner.microbatches} microbatches of {inner.microbatch * model.context:,}",
        f"{abbreviated(a_round)} tokens a round, {outer.rounds:,} rounds, {abbreviated(a_round * outer.rounds)} in all",
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("who", "layers", "parameters", "memory", "recomputed", "contribution", "sent a round"):
        table.add_column(name, justify="left" if name == "who" else "right", no_wrap=True)
    for row in found:
        table.add_row(
            row.who,
            str(row.layers),
            millions(row.parameters),
            size(row.memory_bytes),
            size(row.least_memory_bytes),
            size(row.contribution_bytes) if row.contribution_bytes else "–",
            size(row.sent_bytes) if row.sent_bytes else "–",
        )
    last = (
        f"{memory_note()} Each receives as much as it sends, an observer the contributions of all. "
        "Nothing was made; without --dry-run the run is created and served."
    )
    return Group(*map(Text, lines), "", table, "", Text(last))
