"""`hetpeer export`: a run's model as a folder that transformers loads."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

from peer.cli.tables import show
from peer.compute.evaluation import Evaluator
from peer.compute.machine import cores
from peer.data.batches import Batch, Text, held_out_batch
from peer.data.text import open_text
from peer.data.tokens import open_tokens
from peer.export.card import HeldOutLosses, contributors, tokens_at_most
from peer.export.collected import Collected, collect
from peer.export.live import bring_up_to_date
from peer.export.written import Export, require_room, write
from peer.model.genesis import read_basis
from peer.process import Terminal, run, told
from peer.store.home import locked, peer_folder
from peer.telemetry.events import Progress
from protocol.errors import UserError
from protocol.run.prepared import linked
from protocol.run.run_files import BASIS, HELD_OUT
from protocol.trust.ticket import PREFIX, find


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the command line said. `sources` are folders, or one ticket; `round` None: the last. 0 threads are all
    cores."""

    sources: list[str]
    out: Path
    round: int | None
    evaluate: bool
    force: bool
    threads: int


def export(options: ExportOptions, terminal: Terminal) -> int:
    """Collect the model after one round, and write it; the exit code."""

    def work() -> int:
        torch.set_num_threads(options.threads or cores())
        out = options.out.expanduser().resolve()
        require_room(out, options.force)
        folders = [os.path.expanduser(each) for each in options.sources]
        missing = next((each for each in folders if not os.path.isdir(each)), None)  # Path refuses so long a ticket
        if missing is None:
            return _export(options, [*map(Path, folders)], out, terminal)
        if len(options.sources) > 1:
            raise UserError(f"{missing[:80]} is no folder: give one ticket, or folders of peers of one run")
        return _export_live(options, out, terminal)

    return told(terminal.emit, work)


def _export_live(options: ExportOptions, out: Path, terminal: Terminal) -> int:
    """From the swarm. What is fetched stays in a folder of its own, so that the next time is quick."""
    (source,) = options.sources
    if not source.startswith(PREFIX) and not os.path.isfile(source):
        raise UserError(f"{source[:80]} is neither a ticket nor a folder of a peer")
    ticket = find(source, Path())
    with locked(peer_folder(ticket, "export")) as folder:
        held_out: Batch | None = None

        async def follow(stop: asyncio.Event) -> None:
            nonlocal held_out
            threads = options.threads or cores()
            held_out = await bring_up_to_date(ticket, folder, threads, options.evaluate, stop, terminal.emit)

        return run(follow, terminal) or _export(options, [folder], out, terminal, held_out)


def _export(
    options: ExportOptions, folders: list[Path], out: Path, terminal: Terminal, held_out: Batch | None = None
) -> int:
    """`held_out`: the batch to evaluate on; None: it is in the folders."""
    collected = collect(folders, options.round, terminal.emit)
    losses = _losses(collected, held_out, terminal) if options.evaluate else None
    written = write(collected, out, losses, terminal.emit)
    row, table = _row(collected, losses, written), _table(collected, losses, written)
    show(terminal, [row], table)
    return 0


def _losses(collected: Collected, held_out: Batch | None, terminal: Terminal) -> HeldOutLosses:
    manifest = collected.descriptor.manifest
    if held_out is None:
        held_out = held_out_batch(_held_out(collected), manifest)
    terminal.emit(Progress(f"evaluating on {manifest.evaluation.sequences} held-out sequences"))
    basis = read_basis(collected.file(BASIS).parent, manifest)
    evaluator = Evaluator(manifest, basis, torch.from_numpy(held_out), torch.device("cpu"))
    return HeldOutLosses(*evaluator.evaluate(collected.grids))


def _held_out(collected: Collected) -> Text:
    descriptor = collected.descriptor
    if not descriptor.prepared:
        return open_tokens(collected.file(HELD_OUT), descriptor.manifest.model.vocabulary)
    folder = next((each for each in collected.folders if linked(each) is not None), None)
    if folder is None:
        raise UserError(
            "this run is on prepared text, and none of these folders says where that is: give the bootstrap node's "
            "folder, too, or the ticket instead, or leave out --evaluate"
        )
    return open_text(descriptor, folder)[1]


def _row(collected: Collected, losses: HeldOutLosses | None, written: Export) -> dict[str, object]:
    """For a program."""
    return {
        "out": str(written.folder),
        "run": collected.descriptor.run_id,
        "round": collected.round,
        "parameters": written.parameters,
        "bytes": written.bytes,
        "contributors": contributors(collected),
        "tokens_at_most": tokens_at_most(collected),
        "loss": losses.through if losses else None,
        "loss_plain": losses.plain if losses else None,
        "digests": dict(collected.digests),
    }


def _table(collected: Collected, losses: HeldOutLosses | None, written: Export) -> Table:
    """For a person."""
    table = Table(box=None, pad_edge=False, show_header=False)
    rounds = collected.descriptor.manifest.outer.rounds
    rows = [
        ("model", f"{written.parameters / 1e6:,.1f} M parameters, {written.bytes / 1e6:,.1f} MB in {written.folder}"),
        ("round", f"{collected.round} of {rounds}, of run {collected.descriptor.run_id[:12]}"),
        ("trained on", f"at most {tokens_at_most(collected):,} tokens, by {len(contributors(collected))} peers"),
    ]
    if losses is not None:
        loss = f"{losses.plain:.4f} nats per token; through the boundaries {losses.through:.4f}"
        rows.append(("held-out loss", loss))
    rows.append(("try it", f'hetpeer sample {written.folder} "The"'))
    for each in rows:
        table.add_row(*each)
    return table
