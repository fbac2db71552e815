"""The model of a run as a folder that transformers loads: `protocol/run/hugging_face.py` has the format."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from peer.export.card import HeldOutLosses, card
from peer.export.collected import Collected
from peer.optim.grid import to_float
from peer.telemetry.events import Listener, Progress
from protocol.errors import ResourceError, UserError
from protocol.files import sync_folder
from protocol.run.hugging_face import BASIS_OF_THE_RUN, CONFIG, TOKENIZER_CONFIG, WEIGHTS, config, read_tokenizer
from protocol.run.run_files import BASIS, TOKENIZER

CARD = "README.md"

OURS = {CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG, CARD, "hetpeer"}
"""What an export consists of: `--force` replaces a folder only if nothing else is in it."""


@dataclass(frozen=True, slots=True)
class Export:
    """What was written."""

    folder: Path
    parameters: int
    bytes: int


def require_room(folder: Path, force: bool) -> None:
    """Check, before the work begins, that an export may go to `folder`.

    Raises:
        UserError: something is there that would be lost.
    """
    there = {each.name for each in folder.iterdir()} if folder.is_dir() else {folder.name} if folder.exists() else set()
    if there and not force:
        raise UserError(f"{folder} is not empty: name another folder, or replace the model in it with --force")
    if foreign := sorted(there - OURS):
        raise UserError(f"{folder} holds {foreign[0]}, which is of no export: remove it, or name another folder")


def write_export(collected: Collected, folder: Path, losses: HeldOutLosses | None, emit: Listener) -> Export:
    """Write the model; it is in `folder` once it is whole, and not before. The grids are used up: of a large model
    there is no room for two.

    Raises:
        ResourceError: the disk is full, or cannot be written.
    """
    manifest = collected.descriptor.manifest
    text = card(collected, losses)
    with _replacing(folder) as partial:
        emit(Progress(f"writing {WEIGHTS}"))
        tensors = dict(_as_floats(collected))
        parameters = sum(tensor.numel() for tensor in tensors.values())
        save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        _write_json(partial / CONFIG, config(manifest.model))
        tokenizer = collected.file(TOKENIZER)
        shutil.copyfile(tokenizer, partial / TOKENIZER)
        end = read_tokenizer(tokenizer, manifest.model.vocabulary).id_to_token(manifest.model.end_of_text)
        _write_json(partial / TOKENIZER_CONFIG, tokenizer_config(end, manifest.model.context))
        (partial / CARD).write_text(text, encoding="utf-8")
        if manifest.compressed and manifest.replicas.groups:
            (partial / BASIS_OF_THE_RUN).parent.mkdir()
            shutil.copyfile(collected.file(BASIS), partial / BASIS_OF_THE_RUN)
    emit(Progress(f"the model is in {folder}"))
    size = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    return Export(folder, parameters, size)


def tokenizer_config(end_of_text: str | None, context: int) -> dict[str, object]:
    """What transformers' `AutoTokenizer` needs beside `tokenizer.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end_of_text,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }


def _as_floats(collected: Collected) -> Iterator[tuple[str, Tensor]]:
    """Float32 weights; each part's grid goes as it is used."""
    for part in list(collected.grids):
        grid = collected.grids.pop(part)
        for name in list(grid):
            yield name, to_float(grid.pop(name))


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
