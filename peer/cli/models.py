"""`hetpeer export` and `sample`: the model of a run as a folder that transformers loads, and what a model writes."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from peer.cli.options import DeviceOption, JsonOption, ThreadsOption, takes, terminal
from protocol.errors import UserError

if TYPE_CHECKING:
    import asyncio

    from rich.table import Table
    from tokenizers import Tokenizer
    from torch import Tensor

    from peer.data.batches import Batch
    from peer.data.text import Text
    from peer.export.written import Collected, Export, HeldOutLosses
    from peer.model.language_model import LanguageModel
    from peer.process import Terminal
    from protocol.model_sizes import Model, NgramTables
    from protocol.trust.ticket import Ticket

    WeightReader = Callable[[str], Tensor]
    """Reads a weight by its name."""

EXPORT_EXAMPLES = (
    "Examples:\n\n  hetpeer export hetpeer1-… --out ~/model\n\n"
    "  hetpeer export ~/.hetpeer/bootstrap-first-run --out ~/model --evaluate\n\n"
    "  hetpeer export ~/node ~/stage-0 ~/stage-1 --out ~/model --round 40"
)
SAMPLE_EXAMPLES = (
    'Examples:\n\n  hetpeer sample ~/model "The people"\n\n'
    '  hetpeer sample ~/model "The people" --tokens 40 --temperature 0\n\n'
    '  hetpeer sample ~/model "The people" --seed 7 --top-p 0.9 --json'
)

UNFINISHED = "\ufffd"
"""The character at the end of a text of which further tokens are to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The options of `hetpeer export`."""

    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE…",
            help="The run's ticket, to take the model from the swarm; or the folder of a datacenter, an observer or a "
            "bootstrap node that evaluates; or of volunteers, of every stage one, and of the bootstrap node. Default: "
            "HETPEER_TICKET, or the ticket last used on this machine.",
        ),
    ] = None
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the model goes; made if it is missing.")]
    format: Annotated[Literal["hf"], typer.Option(help="hf: what transformers loads, in safetensors.")] = "hf"
    round: Annotated[
        int | None, typer.Option(min=0, help="The model after this round, if it is kept. Default: the last one.")
    ] = None
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Measure the held-out loss, on the CPU, and note it in the model card.")
    ] = False
    force: Annotated[bool, typer.Option("--force", help="Replace the model in DIR.")] = False
    threads: ThreadsOption = 0
    json: JsonOption = False


@takes(ExportOptions)
def export(options: ExportOptions) -> None:
    """Write a run's model, all its stages after one round, as a folder that transformers loads."""
    sys.exit(export_model(options, terminal(options.json)))


def export_model(options: ExportOptions, terminal: "Terminal") -> int:
    """Collect the model after one round, and write it; the exit code."""
    import torch

    from peer.compute.capacity import cores
    from peer.export.written import require_room
    from peer.process import exit_code_of
    from peer.store.home import ticket_folders
    from protocol.events.activity import Notice
    from protocol.trust.ticket import TICKET_PREFIX, find_ticket

    def work() -> int:
        torch.set_num_threads(options.threads or cores())
        out = options.out.expanduser().resolve()
        require_room(out, options.force)
        if not options.source:
            ticket = find_ticket(None, *ticket_folders())
            terminal.emit(Notice(f"from the swarm of run {ticket.run_id[:12]}, by the ticket last used here"))
            return _export_live(options, ticket, out, terminal)
        folders = [os.path.expanduser(path) for path in options.source]
        missing = next((path for path in folders if not os.path.isdir(path)), None)  # Path refuses so long a ticket
        if missing is None:
            return _export(options, [*map(Path, folders)], out, terminal)
        if len(options.source) > 1:
            raise UserError(f"{missing[:80]} is no folder: give one ticket, or folders of peers of one run")
        source = options.source[0]
        if not source.startswith(TICKET_PREFIX) and not os.path.isfile(source):
            raise UserError(f"{source[:80]} is neither a ticket nor a folder of a peer")
        return _export_live(options, find_ticket(source, Path()), out, terminal)

    return exit_code_of(terminal.emit, work)


def _export_live(options: ExportOptions, ticket: "Ticket", out: Path, terminal: "Terminal") -> int:
    """Export from the swarm. What is fetched stays in a folder of its own, so that the next time is quick."""
    from peer.compute.capacity import cores
    from peer.export.collected import bring_up_to_date
    from peer.process import INTERRUPTED, run_command
    from peer.store.home import VISIT, locked, peer_folder
    from protocol.events.activity import Progress

    with locked(peer_folder(ticket, VISIT)) as folder:
        held_out, stopped = None, True

        async def follow(stop: "asyncio.Event") -> None:
            nonlocal held_out, stopped
            threads = options.threads or cores()
            held_out = await bring_up_to_date(ticket, folder, threads, options.evaluate, stop, terminal.emit)
            stopped = stop.is_set()

        code = run_command(follow, terminal)
        if code or stopped:  # its state is not the run's newest
            return code or INTERRUPTED
        stays = f"what came stays in {folder}, for a quick next export, and may be removed"
        terminal.emit(Progress(f"the swarm has given its state; {stays}"))
        return _export(options, [folder], out, terminal, held_out)


def _export(
    options: ExportOptions, folders: list[Path], out: Path, terminal: "Terminal", held_out: "Batch | None" = None
) -> int:
    """Export from folders. `held_out`: the batch to evaluate on; None: it is in the folders."""
    from peer.cli.tables import print_table
    from peer.export.collected import collect
    from peer.export.written import write_export

    collected = collect(folders, options.round, terminal.emit)
    losses = _losses(collected, held_out, terminal) if options.evaluate else None
    written = write_export(collected, out, losses, terminal.emit)
    row, table = _row(collected, losses, written), _table(collected, losses, written)
    print_table(terminal, [row], table)
    return 0


def _losses(collected: "Collected", held_out: "Batch | None", terminal: "Terminal") -> "HeldOutLosses":
    import torch

    from peer.compute.evaluation import Evaluator
    from peer.data.batches import held_out_batch
    from peer.export.written import HeldOutLosses
    from peer.model.first_weights import read_basis
    from protocol.events.activity import Progress
    from protocol.run.run_files import BASIS

    manifest = collected.descriptor.manifest
    if held_out is None:
        held_out = held_out_batch(_held_out(collected), manifest)
    terminal.emit(Progress(f"evaluating on {manifest.evaluation.sequences} held-out sequences"))
    basis = read_basis(collected.file(BASIS).parent, manifest)
    evaluator = Evaluator(manifest, basis, torch.from_numpy(held_out), torch.device("cpu"))
    return HeldOutLosses(*evaluator.evaluate(collected.grids))


def _held_out(collected: "Collected") -> "Text":
    from peer.data.text import open_text, open_tokens
    from protocol.run.prepared import linked
    from protocol.run.run_files import HELD_OUT

    descriptor = collected.descriptor
    if not descriptor.prepared:
        return open_tokens(collected.file(HELD_OUT), descriptor.manifest.model.vocabulary)
    folder = next((candidate for candidate in collected.folders if linked(candidate) is not None), None)
    if folder is None:
        raise UserError(
            "this run is on prepared text, and none of these folders says where that is: give the bootstrap node's "
            "folder, too, or the ticket instead, or leave out --evaluate"
        )
    return open_text(descriptor, folder)[1]


def _row(collected: "Collected", losses: "HeldOutLosses | None", written: "Export") -> dict[str, object]:
    """The export for a program."""
    from peer.export.written import contributors, tokens_at_most

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


def _table(collected: "Collected", losses: "HeldOutLosses | None", written: "Export") -> "Table":
    """The export for a person."""
    from rich.table import Table

    from peer.export.written import contributors, tokens_at_most
    from protocol.wording import abbreviated, size

    table = Table(box=None, pad_edge=False, show_header=False)
    rounds = collected.descriptor.manifest.outer.rounds
    rows = [
        ("model", f"{abbreviated(written.parameters)} parameters, {size(written.bytes)} in {written.folder}"),
        ("round", f"{collected.round} of {rounds}, of run {collected.descriptor.run_id[:12]}"),
        ("trained on", f"at most {tokens_at_most(collected):,} tokens, by {len(contributors(collected))} peers"),
    ]
    if losses is not None:
        loss = f"{losses.plain:.4f} nats per token; through the boundaries {losses.through:.4f}"
        rows.append(("held-out loss", loss))
    rows.append(("try it", f'hetpeer sample {written.folder} "The"'))
    for row in rows:
        table.add_row(*row)
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """The options of `hetpeer sample`."""

    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="What `hetpeer export` wrote, any LLaMA of transformers that a run could begin from, or the folder of "
            "a peer that has the whole model.",
        ),
    ]
    prompt: Annotated[
        list[str] | None, typer.Argument(help="What the text begins with, of several words; it may be empty.")
    ] = None
    tokens: Annotated[int, typer.Option(min=1, help="At most so many; fewer where the text ends.")] = 100
    temperature: Annotated[
        float, typer.Option(min=0, help="0 takes the likeliest token each time; 1 draws as the model expects.")
    ] = 0.8
    top_p: Annotated[
        float, typer.Option(min=0, max=1, help="Draw from the likeliest tokens that are so probable together.")
    ] = 0.95
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed, the same text. Default: random.")] = None
    device: DeviceOption = "auto"
    threads: ThreadsOption = 0
    json: JsonOption = False


@takes(SampleOptions)
def sample(options: SampleOptions) -> None:
    """Write text with a model, token by token."""
    import json
    import random

    import torch
    from rich.console import Console

    from peer.compute.capacity import cores
    from peer.model.language_model import Sampling, generate
    from peer.process import exit_code_of
    from protocol.run.hugging_face import encode_text

    shown, prompt_text = terminal(options.json), " ".join(options.prompt or ())

    def work() -> int:
        sampling = Sampling(options.temperature, options.top_p)
        torch.set_num_threads(options.threads or cores())
        with Console(stderr=True).status("loading the model"):
            model, tokenizer = _load(options)
        prompt = encode_text(tokenizer, prompt_text) or [model.sizes.end_of_text]
        if len(prompt) >= model.sizes.context:
            raise UserError(f"the prompt has {len(prompt)} tokens, and the model reads {model.sizes.context} at most")
        seed = random.getrandbits(32) if options.seed is None else options.seed
        written, printed = [], 0
        _show(prompt_text, shown)
        for token in generate(model, prompt, options.tokens, sampling, seed):
            written.append(token)
            text = _text(tokenizer, prompt, written)
            whole = text.rstrip(UNFINISHED)
            _show(whole[printed:], shown)
            printed = max(printed, len(whole))
        text = _text(tokenizer, prompt, written)
        _show(text[printed:] + "\n", shown)
        if shown.json:
            stopped = _stopped(written, options.tokens, model.sizes)
            result = {"prompt": prompt_text, "text": text, "tokens": written, "seed": seed, "stopped": stopped}
            print(json.dumps(result), flush=True)
        return 0

    sys.exit(exit_code_of(shown.emit, work))


def _text(tokenizer: "Tokenizer", prompt: list[int], written: list[int]) -> str:
    """The text behind the prompt. It is decoded with it, as some tokenizers drop a space at the beginning of a text."""
    before, all_of_it = tokenizer.decode(prompt), tokenizer.decode(prompt + written)
    return all_of_it[len(before) :]


def _show(text: str, terminal: "Terminal") -> None:
    """Print text for a person, as it comes."""
    if not terminal.json:
        print(text, end="", flush=True)


def _stopped(written: list[int], most: int, sizes: "Model") -> str:
    """The reason why no more tokens came."""
    if written and written[-1] == sizes.end_of_text:
        return "end of text"
    return "tokens" if len(written) == most else "context"


def _load(options: SampleOptions) -> tuple["LanguageModel", "Tokenizer"]:
    """A model of an export, of any other checkpoint that a run could begin from, or of a peer's folder.

    Raises:
        UserError: it is none of these, or not whole.
    """
    from peer.compute.capacity import find_device
    from peer.model.language_model import LanguageModel
    from protocol.run.hugging_face import CONFIG, read_tokenizer
    from protocol.run.run_files import DESCRIPTOR

    folder = options.checkpoint.expanduser()
    of_a_peer = (folder / DESCRIPTOR).exists() and not (folder / CONFIG).exists()
    sizes, ngrams, tokenizer, read = (_of_a_run if of_a_peer else _of_a_checkpoint)(folder)
    with find_device(options.device):
        model = LanguageModel(sizes, ngrams)
    model.load(read)
    return model, read_tokenizer(tokenizer, sizes.vocabulary)


def _of_a_checkpoint(folder: Path) -> tuple["Model", "NgramTables", Path, "WeightReader"]:
    import torch

    from protocol.run.hugging_face import open_checkpoint

    found = open_checkpoint(folder)
    return found.model, found.ngrams, found.tokenizer, lambda name: torch.from_numpy(found.read(name))


def _of_a_run(folder: Path) -> tuple["Model", "NgramTables", Path, "WeightReader"]:
    from peer.export.collected import collect
    from peer.optim.grid import to_float
    from protocol.run.run_files import TOKENIZER

    found = collect([folder], None, lambda event: None)
    grids = {name: tensor for grid in found.grids.values() for name, tensor in grid.items()}
    manifest = found.descriptor.manifest
    return manifest.model, manifest.ngrams, found.file(TOKENIZER), lambda name: to_float(grids[name])
