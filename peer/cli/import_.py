"""`hetpeer import`: a manifest for a run that begins from a checkpoint."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import JsonOption, terminal
from protocol.errors import UserError

if TYPE_CHECKING:
    from peer.process import Terminal
    from protocol.run.hugging_face import ModelFolder

IMPORT_EXAMPLES = (
    "Examples:\n\n  hetpeer import ~/model --out run.toml\n\n"
    "  hetpeer bootstrap run.toml --weights ~/model --data ~/texts"
)

PROPOSED_CONTEXT = 2048
"""The longest context of the manifest that is proposed: longer sequences make larger frames."""


def import_(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="DIR", help="A LLaMA: config.json, safetensors (also sharded), tokenizer.json.")
    ],
    out: Annotated[Path, typer.Option(metavar="RUN.toml", help="Where the manifest goes.")],
    force: Annotated[bool, typer.Option("--force", help="Replace RUN.toml.")] = False,
    json: JsonOption = False,
) -> None:
    """Check that a run can begin from a checkpoint, and write a manifest for it."""
    import tomllib

    from peer.process import exit_code_of
    from protocol import manifest as manifests
    from protocol.events.activity import Progress
    from protocol.files import write_atomically
    from protocol.run.hugging_face import open_checkpoint, read_tokenizer

    shown = terminal(json)

    def work() -> int:
        if out.exists() and not force:
            raise UserError(f"{out} is there already: name another file, or replace it with --force")
        folder = open_checkpoint(checkpoint.expanduser().resolve())
        read_tokenizer(folder.tokenizer, folder.model.vocabulary)
        has_basis = folder.basis() is not None
        _check_values(folder, shown)
        text = run_toml(folder)
        manifests.check_manifest(tomllib.loads(text), str(out))
        write_atomically(out, text.encode())
        shown.emit(Progress(f"a run can begin from every tensor of {folder.folder}"))
        _tell(folder, has_basis, out, shown)
        return 0

    sys.exit(exit_code_of(shown.emit, work))


def _check_values(checkpoint: "ModelFolder", terminal: "Terminal") -> None:
    """Read every value of the checkpoint.

    Raises:
        UserError: one is none that a run can hold.
    """
    from protocol.events.activity import Progress
    from protocol.layout import elements

    layout, done = checkpoint.layout, 0
    total = elements(layout)
    for name, shape in layout.items():
        terminal.emit(Progress(f"checking {name}", 4 * done, 4 * total))
        checkpoint.units(name)
        done += elements({name: shape})


def run_toml(checkpoint: "ModelFolder") -> str:
    """A manifest that fits, for a person to go on with: its model's sizes, and a modest run around them."""
    model, folder = checkpoint.model, checkpoint.folder
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name)[:64] or "imported"
    cut = f"layers = {[*checkpoint.cut]}  # of each stage, as groups had them" if checkpoint.cut else "stages = 2"
    tables = ""
    if checkpoint.ngrams.most:
        tables = f"\nngrams = {checkpoint.ngrams.most}\nngram_width = {checkpoint.ngrams.width}"
    sizes = checkpoint.model.model_dump() | {"context": min(model.context, PROPOSED_CONTEXT)}
    fields = "\n".join(f"{field} = {value!r}" for field, value in sizes.items())
    return f"""\
# A run that begins from the checkpoint {str(folder)!r}, which `hetpeer bootstrap` takes with --weights.
[run]
name = "{name}"

[model]  # the checkpoint's; a context may be shorter than the {model.context} it was made for
{fields}

[replicas]
groups = 2
datacenters = 1
{cut if model.layers > 1 else "stages = 1"}{tables}
preset = "int4"  # between the stages of a group: half of the numbers, in 4 bits

[inner]
learning_rate = 3e-4  # gentler than from scratch
warmup = 200

[outer]
rounds = 100
"""


def _tell(checkpoint: "ModelFolder", has_basis: bool, out: Path, terminal: "Terminal") -> None:
    """Show what was found, and what comes next."""
    from rich.table import Table

    from peer.cli.tables import print_table
    from protocol.layout import elements
    from protocol.wording import abbreviated

    model = checkpoint.model
    count = elements(checkpoint.layout)
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
    table.add_row("model", f"{abbreviated(count)} parameters, {model.layers} layers, d = {model.d}")
    table.add_row("basis", basis)
    if checkpoint.tied:
        table.add_row("embeddings", "tied here; in a run the head is a matrix of its own, which begins as a copy")
    table.add_row("manifest", f"{out}: read it, and set replicas, rounds and learning rate")
    table.add_row("then", f"hetpeer bootstrap {out} --weights {checkpoint.folder}")
    print_table(terminal, [row], table)
