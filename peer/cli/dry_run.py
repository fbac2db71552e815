"""`hetpeer bootstrap --dry-run`: what a run would ask of those who join it, before there is one."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from peer.cli.tables import TableRow, show
from peer.compute.capacity import BASE_BYTES, stage_bytes, whole_bytes
from peer.planning.model import work_of
from peer.process import Terminal
from protocol.identity import EMBEDDING, parts_authored
from protocol.layout import elements, layers_of_stage, model_layout, parameter_count
from protocol.manifest import Manifest
from protocol.wording import millions, size


@dataclass(frozen=True, slots=True)
class Participant:
    """What one participant trains and needs: `parameters`, and bytes of memory (an upper estimate, activations and
    the process itself included), of a microbatch's frame to a neighbour, and of a round's contribution."""

    who: str
    layers: int
    parameters: int
    memory_bytes: int
    frame_bytes: int
    contribution_bytes: int


def seats(manifest: Manifest) -> list[Participant]:
    """A volunteer of each stage, if the run has groups, and a datacenter replica, if it has any."""
    model, replicas, layout = manifest.model, manifest.replicas, model_layout(manifest)
    found = [
        Participant(
            f"stage {stage}",
            len(layers_of_stage(model.layers, replicas.stages, stage)),
            sum(elements(layout[part]) for part in parts_authored(stage)),
            stage_bytes(manifest, stage) + BASE_BYTES,
            int(work_of(manifest).backward_bytes) if replicas.stages > 1 else 0,
            int(work_of(manifest, stage=stage).contribution),
        )
        for stage in range(replicas.stages if replicas.groups else 0)
    ]
    if replicas.datacenters:
        contribution = sum(int(work_of(manifest, stage=stage).contribution) for stage in range(replicas.stages))
        memory = whole_bytes(manifest) + BASE_BYTES
        found.append(Participant("datacenter", model.layers, parameter_count(manifest), memory, 0, contribution))
    return found


def dry_run(manifest: Manifest, terminal: Terminal) -> int:
    """Show it; the exit code."""
    found = seats(manifest)
    show(terminal, _rows(found), _drawn(manifest, found))
    return 0


def _rows(found: list[Participant]) -> Iterable[TableRow]:
    for each in found:
        yield asdict(each)


def _drawn(manifest: Manifest, found: list[Participant]) -> RenderableType:
    """The run in a few lines, and a row for each kind of participant."""
    model, replicas, inner, outer = manifest.model, manifest.replicas, manifest.inner, manifest.outer
    a_round = manifest.tokens_per_step * inner.steps * replicas.total
    embeddings = elements(model_layout(manifest)[EMBEDDING])
    k = "k by each group's links" if replicas.compression == "auto" else f"k = {manifest.k}"
    lines = (
        f"{manifest.run.name}: {millions(parameter_count(manifest))} parameters, {millions(embeddings)} of them "
        f"token embeddings; a tokenizer of up to {model.vocabulary:,} ids, sequences of {model.context:,} tokens",
        f"replicas: {replicas.groups} of {replicas.stages} volunteers each, d = {model.d}, {k}; and "
        f"{replicas.datacenters} in datacenters",
        f"H = {inner.steps} inner steps of {manifest.tokens_per_step:,} tokens a replica, "
        f"{inner.microbatches} microbatches of {inner.microbatch * model.context:,}",
        f"{millions(a_round)} tokens a round, {outer.rounds:,} rounds, {a_round * outer.rounds / 1e9:,.3f} B in all",
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("who", "layers", "parameters", "memory", "frame", "contribution"):
        table.add_column(name, justify="left" if name == "who" else "right", no_wrap=True)
    for each in found:
        table.add_row(
            each.who,
            str(each.layers),
            millions(each.parameters),
            size(each.memory_bytes),
            size(each.frame_bytes) if each.frame_bytes else "–",
            size(each.contribution_bytes),
        )
    last = "Memory is an upper estimate. Nothing was made; without --dry-run the run is created and served."
    return Group(*(Text(each, no_wrap=True) for each in lines), "", table, "", Text(last, no_wrap=True))
