"""`hetpeer import`: a manifest for a run that begins from a checkpoint."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from peer.cli.tables import show
from peer.process import Terminal, told
from peer.telemetry.events import Progress
from protocol import manifest as manifests
from protocol.atomic import write_atomically
from protocol.errors import UserError
from protocol.layout import elements, whole_layout
from protocol.run.hugging_face import ModelFolder, open_checkpoint
from protocol.run.tokenizer import read_tokenizer

MOST_CONTEXT = 2048
"""Of the manifest that is proposed: longer sequences make larger frames."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the command line said."""

    checkpoint: Path
    out: Path
    force: bool


def import_(options: ImportOptions, terminal: Terminal) -> int:
    """Check the whole checkpoint, and write a manifest; the exit code."""

    def work() -> int:
        if options.out.exists() and not options.force:
            raise UserError(f"{options.out} is there already: name another file, or replace it with --force")
        checkpoint = open_checkpoint(options.checkpoint.expanduser().resolve())
        read_tokenizer(checkpoint.tokenizer, checkpoint.model.vocabulary)
        has_basis = checkpoint.basis() is not None
        _check_values(checkpoint, terminal)
        text = run_toml(checkpoint)
        manifests.check(tomllib.loads(text), str(options.out))
        write_atomically(options.out, text.encode())
        terminal.emit(Progress(f"a run can begin from every tensor of {checkpoint.folder}"))
        _tell(checkpoint, has_basis, options.out, terminal)
        return 0

    return told(terminal.emit, work)


def _check_values(checkpoint: ModelFolder, terminal: Terminal) -> None:
    """Raises UserError if a value is none that a run can hold."""
    layout, done = whole_layout(checkpoint.model), 0
    total = elements(layout)
    for name, shape in layout.items():
        terminal.emit(Progress(f"checking {name}", 4 * done, 4 * total))
        checkpoint.units(name)
        done += elements({name: shape})


def run_toml(checkpoint: ModelFolder) -> str:
    """A manifest that fits, for a person to go on with: its model's sizes, and a modest run around them."""
    model, folder = checkpoint.model, checkpoint.folder
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name)[:64] or "imported"
    compression = next(each for each in (8, 4, 2, 1) if model.d % each == 0)
    return f"""\
# A run that begins from the checkpoint {str(folder)!r}, which `hetpeer bootstrap` takes with --weights.
[run]
name = "{name}"

[model]  # the checkpoint's; a context may be shorter than the {model.context} it was made for
layers = {model.layers}
d = {model.d}
heads = {model.heads}
kv_heads = {model.kv_heads}
ffn = {model.ffn}
context = {min(model.context, MOST_CONTEXT)}
vocabulary = {model.vocabulary}
rope_theta = {model.rope_theta!r}
norm_epsilon = {model.norm_epsilon!r}
end_of_text = {model.end_of_text}

[replicas]
groups = 2
datacenters = 1
stages = {min(model.layers, 2)}
compression = {compression}  # d / k between the stages of a group

[inner]
learning_rate = 3e-4  # gentler than from scratch
warmup = 200

[outer]
rounds = 100
"""


def _tell(checkpoint: ModelFolder, has_basis: bool, out: Path, terminal: Terminal) -> None:
    """What was found, and what comes next."""
    model = checkpoint.model
    count = elements(whole_layout(model))
    basis = (
        "its run's, taken over: groups go on as they were"
        if has_basis
        else "none: groups get one that fits these weights, and begin at a somewhat higher loss than datacenters"
    )
    row = {
        "manifest": str(out),
        "weights": str(checkpoint.folder),
        "parameters": count,
        "basis": has_basis,
        "tied": checkpoint.tied,
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("model", f"{count / 1e6:,.1f} M parameters, {model.layers} layers, d = {model.d}")
    table.add_row("basis", basis)
    if checkpoint.tied:
        table.add_row("embeddings", "tied here; in a run the head is a matrix of its own, which begins as a copy")
    table.add_row("manifest", f"{out}: read it, and set replicas, rounds and learning rate")
    table.add_row("then", f"hetpeer bootstrap {out} --weights {checkpoint.folder}")
    show(terminal, [row], table)
