"""The model of a run after a round, and the same as a folder that transformers loads, with its model card:
`protocol/run/hugging_face.py` has the format."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from peer.optim.grid import to_float
from peer.optim.outer import Grid
from protocol.architectures import architecture_of
from protocol.errors import FormatError, ResourceError, UserError
from protocol.events.activity import Progress
from protocol.events.event import Listener
from protocol.files import sync_folder
from protocol.identity import Part, PeerId, stage_part
from protocol.layout import parameter_count
from protocol.outer.history import History
from protocol.run.hugging_face import BASIS_OF_THE_RUN, CONFIG, TOKENIZER_CONFIG, WEIGHTS, read_tokenizer
from protocol.run.model_config import MODELING, config_of
from protocol.run.run_files import BASIS, TOKENIZER, Descriptor, check_file

CARD = "README.md"

MODELING_FILE = f"{MODELING}.py"

OURS = {CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG, CARD, MODELING_FILE, "hetpeer"}
"""The files of an export: `--force` replaces a folder only if nothing else is in it."""


CONTRIBUTORS_NAMED = 50


@dataclass(frozen=True, slots=True)
class Collected:
    """The outer state of every part after `round`, with its digest, and which rounds of which authors are in it.

    `folders` are where the run's files are, some here and some there.
    """

    descriptor: Descriptor
    round: int
    grids: dict[Part, Grid]
    digests: dict[Part, str]
    counted: dict[Part, History]
    folders: tuple[Path, ...]

    def file(self, name: str) -> Path:
        """One of the run's files, checked.

        Raises:
            ResourceError: no folder has it as it should be.
        """
        return run_file(self.descriptor, self.folders, name)


def run_file(descriptor: Descriptor, folders: Sequence[Path], name: str) -> Path:
    """A file of the run, in whichever folder has it, checked against its hash. Raises ResourceError if none has."""
    paths = [folder / name for folder in folders if (folder / name).exists()]
    for path in paths:
        try:
            check_file(path, descriptor.file(name))
        except FormatError:
            continue
        return path
    if paths:
        raise ResourceError(f"{paths[0]} is damaged: it does not have the SHA-256 that the run's descriptor gives")
    raise ResourceError(
        f"{name} is not in {named(folders)}: give the folder of the bootstrap node, a datacenter or an observer, too"
    )


def named(folders: Sequence[Path]) -> str:
    """Folders as a sentence names them."""
    return " and ".join(map(str, folders))


@dataclass(frozen=True, slots=True)
class HeldOutLosses:
    """Held-out, in nats per token: through the boundaries of a group, and plain."""

    through: float
    plain: float


@dataclass(frozen=True, slots=True)
class Export:
    """The result of an export."""

    folder: Path
    parameters: int
    bytes: int


def require_room(folder: Path, force: bool) -> None:
    """Check, before the work begins, that an export may go to `folder`.

    Raises:
        UserError: something is there that would be lost.
    """
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name} if folder.exists() else set()
    if there and not force:
        raise UserError(f"{folder} is not empty: name another folder, or replace the model in it with --force")
    if foreign := sorted(there - OURS):
        raise UserError(f"{folder} holds {foreign[0]}, which is of no export: remove it, or name another folder")


def write_export(collected: Collected, folder: Path, losses: HeldOutLosses | None, emit: Listener) -> Export:
    """Write the model. `folder` appears once it is complete. Empties `collected.grids` on the way, as memory may not
    hold a large model twice.

    Raises:
        ResourceError: the disk is full, or cannot be written.
    """
    manifest = collected.descriptor.manifest
    text, architecture = card(collected, losses), architecture_of(manifest.model)
    with _replacing(folder) as partial:
        emit(Progress(f"writing {WEIGHTS}"))
        tensors = {}
        for part in list(collected.grids):
            grid = collected.grids.pop(part)
            for name in list(grid):
                tensors[architecture.tensor_name(name)] = to_float(grid.pop(name))
        parameters = sum(tensor.numel() for tensor in tensors.values())
        save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        in_groups = manifest.compressed and manifest.replicas.groups > 0
        cut = manifest.replicas.layers if in_groups else ()
        _write_json(partial / CONFIG, config_of(manifest.model, cut, manifest.ngrams))
        if manifest.ngrams.most:
            shutil.copyfile(architecture.modeling, partial / MODELING_FILE)
        tokenizer = collected.file(TOKENIZER)
        shutil.copyfile(tokenizer, partial / TOKENIZER)
        end = read_tokenizer(tokenizer, manifest.model.vocabulary).id_to_token(manifest.model.end_of_text)
        _write_json(partial / TOKENIZER_CONFIG, tokenizer_config(end, manifest.model.context))
        (partial / CARD).write_text(text, encoding="utf-8")
        if in_groups:
            (partial / BASIS_OF_THE_RUN).parent.mkdir()
            shutil.copyfile(collected.file(BASIS), partial / BASIS_OF_THE_RUN)
    emit(Progress(f"the model is in {folder}"))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Export(folder, parameters, size)


def tokenizer_config(end_of_text: str | None, context: int) -> dict[str, object]:
    """Return the settings that transformers' `AutoTokenizer` needs beside `tokenizer.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end_of_text,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: Path, document: dict[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `folder` at the end of the block, or is removed if the block fails."""
    partial, old = (folder.with_name(f".{folder.name}.{kind}") for kind in ("partial", "old"))
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            os.replace(folder, old)
        os.replace(partial, folder)
        sync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise ResourceError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        shutil.rmtree(partial, ignore_errors=True)


# The model card


def card(collected: Collected, losses: HeldOutLosses | None) -> str:
    """The text of `README.md`: what an export is, in words."""
    manifest, descriptor = collected.descriptor.manifest, collected.descriptor
    model, replicas, outer = manifest.model, manifest.replicas, manifest.outer
    authors = contributors(collected)
    architecture = architecture_of(model)
    what, trusting = architecture.title, ""
    if manifest.ngrams.most:
        what, trusting = f"{what} with n-gram tables (`{MODELING_FILE}`)", ", trust_remote_code=True"
    loss = "not measured (the option `--evaluate` does)"
    if losses is not None:
        loss = f"{losses.plain:.4f} nats per token; {losses.through:.4f} through the boundaries of a group"
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        f"tags: [hetpeer, {model.architecture}]",
        "---",
        "",
        f"# {manifest.run.name}",
        "",
        f"A {what} of {parameter_count(manifest) / 1e6:,.1f} million parameters, trained by volunteers and datacenters "
        "together, with hetpeer.",
        "",
        "| | |",
        "|---|---|",
        f"| run | `{descriptor.run_id}` |",
        f"| operator | `{descriptor.operator}` |",
        f"| outer round | {collected.round} of {outer.rounds} |",
        f"| tokens seen | at most {tokens_at_most(collected):,} |",
        f"| contributors | {len(authors)} |",
        f"| model | {model.layers} layers, d = {model.d}, {architecture.describe(model)}, "
        f"context {model.context}, vocabulary {model.vocabulary} |",
        f"| replicas | {replicas.groups} of volunteers, one for each of {replicas.stages} stages, "
        f"d / k = {replicas.compression}; {replicas.datacenters} of datacenters |",
        f"| held-out loss | {loss} |",
        "",
        "## Load it",
        "",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("."{trusting})',
        f'model = AutoModelForCausalLM.from_pretrained("."{trusting})',
        'inputs = tokenizer("The", return_tensors="pt", return_token_type_ids=False)',
        "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))",
        "```",
        "",
        'Or `hetpeer sample . "The"`. `hetpeer import . --out run.toml` begins another run from it.',
        "",
        "## Who made it",
        "",
        "Each peer signed what it contributed; peers that trained a stage contributed to that stage alone.",
        "",
        "| peer | rounds |",
        "|---|---|",
        *(f"| `{author}` | {rounds} |" for author, rounds in list(authors.items())[:CONTRIBUTORS_NAMED]),
        *([f"| and {len(authors) - CONTRIBUTORS_NAMED} more | |"] if len(authors) > CONTRIBUTORS_NAMED else []),
        "",
        "## Digests",
        "",
        "SHA-256 of the outer state of each part; every peer of the run that holds this round tells the same.",
        "",
        *(f"* {part}: `{digest}`" for part, digest in collected.digests.items()),
        "",
    ]
    return "\n".join(lines)


def contributors(collected: Collected) -> dict[PeerId, int]:
    """Return the authors with the number of rounds of each, of whichever part it contributed to most; most rounds
    first."""
    rounds: dict[PeerId, int] = {}
    for history in collected.counted.values():
        for author in history.ranges:
            rounds[author] = max(rounds.get(author, 0), rounds_of(history, author))
    return dict(sorted(rounds.items(), key=lambda item: (-item[1], item[0])))


def rounds_of(history: History, author: PeerId) -> int:
    """The number of rounds in which an author counts."""
    return sum(last - first + 1 for first, last in history.ranges.get(author, []))


def tokens_at_most(collected: Collected) -> int:
    """Tokens behind what stage 0 was contributed, had every replica done all steps of its rounds."""
    manifest = collected.descriptor.manifest
    return collected.counted[stage_part(0)].total() * manifest.inner.steps_at_most * manifest.tokens_per_step
