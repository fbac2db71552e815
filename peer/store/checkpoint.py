"""Everything a peer must keep to go on after a crash: written before its contribution goes out, read at its next start.

<folder>/checkpoint-00000007/            numbered as they are written
    state.json                           the round, what was sent, and the SHA-256 of every file beside it
    <part>.error_feedback.safetensors    the error feedback of a part that this peer authors
    <part>.contribution                  this peer's own of the round, published only once this is durable
    optimizer.safetensors                the optimizer's moments, by parameter
    bequest.safetensors                  what is set aside for a successor (protocol/trust/handovers.py)
<folder>/settled.json                    the round that the outer state is of, and its digests
<folder>/snapshots/                      the closed rounds (peer/store/served.py)
<folder>/contributions/                  the open rounds (peer/store/served.py)
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from peer.store.disk import CHECKPOINTS_KEPT
from peer.store.tensor_file import TensorFile, write_tensors
from protocol.errors import ResourceError
from protocol.files import sync_folder, write_atomically
from protocol.identity import Part, PeerId
from protocol.trust.handovers import Handovers

SETTLED = "settled.json"

NAME = re.compile(r"checkpoint-[0-9]{8,}")

STATE_FILE = "state.json"
OPTIMIZER = "optimizer.safetensors"
HANDOVER = "bequest.safetensors"


class PartState(BaseModel):
    """One part in `state.json`. `sent` and `returned`: round → SHA-256 of this peer's own contribution."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sent: dict[str, str]
    returned: dict[str, str]


class CheckpointState(BaseModel):
    """`state.json`. `round` is the last one finished, `contributed` the last one contributed to; `given`, `heir` and
    `taken` are those of `Handovers`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: int = 1
    round: int
    contributed: int
    parts: dict[str, PartState]
    files: dict[str, str]
    given: int = 0
    heir: str = ""
    taken: dict[str, int] = {}


class Settled(BaseModel):
    """`settled.json`, for who reads this folder while its peer is at work, or after: the last round this peer has
    finished, and the digests (part → hex) that its outer state had then. What is late changes it, as everywhere.
    `compared`: it was the last round, and this peer has looked whether the others hold what it holds. `run` and `held`
    are the run's progress as this peer knows it (`protocol/outer/progress.py`)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    round: int = Field(ge=0)
    digests: dict[str, str]
    compared: bool = False
    run: int = Field(0, ge=0)
    held: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class PartCheckpoint:
    """One part: its error feedback (empty where this peer authors nothing), and its own last contribution, if any."""

    state: PartState
    error_feedback: Mapping[str, Tensor] = field(default_factory=dict)
    contribution: bytes | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint, as `write_checkpoint` takes it and `candidates` returns it: tensors in memory, or in its files."""

    round: int
    contributed: int
    parts: dict[Part, PartCheckpoint]
    optimizer: Mapping[str, Tensor]
    handovers: Handovers = field(default_factory=Handovers)


def write_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int = CHECKPOINTS_KEPT) -> Mapping[str, Tensor]:
    """Write a checkpoint, tensor by tensor; when this returns, it outlives a power cut. Of all there are, the last
    `keep` stay. Returns the optimizer's state as it lies in this one, to be read from there.

    Raises:
        ResourceError: the disk is full, or cannot be written.
    """
    number = max(map(_number, _newest_first(folder)), default=0) + 1
    final = folder / f"checkpoint-{number:08d}"
    partial = final.with_suffix(".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        files = {name: write_tensors(partial / name, tensors) for name, tensors in _tensors(checkpoint)}
        for name, data in _blobs(checkpoint):
            write_atomically(partial / name, data)
            files[name] = hashlib.sha256(data).hexdigest()
        handovers = checkpoint.handovers
        state = CheckpointState(
            round=checkpoint.round,
            contributed=checkpoint.contributed,
            parts={str(part): part_state.state for part, part_state in checkpoint.parts.items()},
            files=files,
            given=handovers.given,
            heir=handovers.successor,
            taken={str(giver): number for giver, number in handovers.taken.items()},
        )
        write_atomically(partial / STATE_FILE, state.model_dump_json().encode())
        os.replace(partial, final)
        sync_folder(folder)
    except OSError as error:
        raise ResourceError(f"cannot write the checkpoint {final}: {error.strerror or error}") from None
    for old in _newest_first(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return TensorFile(final / OPTIMIZER, tuple(sorted(checkpoint.optimizer))) if checkpoint.optimizer else {}


def _tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    if checkpoint.optimizer:
        yield OPTIMIZER, checkpoint.optimizer
    for part, state in checkpoint.parts.items():
        if state.error_feedback:
            yield f"{part}.error_feedback.safetensors", state.error_feedback


def _blobs(checkpoint: Checkpoint) -> Iterator[tuple[str, bytes]]:
    if checkpoint.handovers.blob:
        yield HANDOVER, checkpoint.handovers.blob
    for part, state in checkpoint.parts.items():
        if state.contribution is not None:
            yield f"{part}.contribution", state.contribution


def note_settled(
    folder: Path, round: int, digests: Mapping[str, str], compared: bool, run: int, held: Mapping[Part, int]
) -> None:
    """Write down which round the outer state is of, with its digests, whether it was `compared` after the last, and
    the run's progress.

    Raises:
        ResourceError: the disk is full, or cannot be written.
    """
    parts = {str(part): held_round for part, held_round in held.items()}
    settled = Settled(round=round, digests=dict(digests), compared=compared, run=run, held=parts)
    write_atomically(folder / SETTLED, settled.model_dump_json().encode())


def last_settled(folder: Path) -> Settled | None:
    """Read what `note_settled` wrote last; None if nothing is there that can be read."""
    try:
        return Settled.model_validate_json((folder / SETTLED).read_bytes())
    except (OSError, ValidationError):
        return None


def candidates(folder: Path) -> list[Checkpoint]:
    """Every checkpoint in a folder that is whole, the newest first; damaged ones are passed over. Tensors are read when
    they are asked for."""
    found = []
    for path in _newest_first(folder):
        try:
            found.append(_read(path))
        except (OSError, ValueError, ValidationError, RecursionError, SafetensorError):
            continue
    return found


def after_leaving(folder: Path) -> Checkpoint:
    """The checkpoint of a peer that has left its stage to serve another, and brings nothing along but numbers: of what
    it has given and taken, and of the last round that it has contributed to. By these nothing counts twice.

    Raises:
        ResourceError: it has what nobody else has: error feedback, or what is set aside for a successor that has not
            answered.
    """
    for candidate in candidates(folder)[:1]:
        errors = (tensor for part in candidate.parts.values() for tensor in part.error_feedback.values())
        if candidate.handovers.successor or any(bool(tensor.any()) for tensor in errors):
            raise ResourceError("nobody has taken over its error feedback")
        handovers = Handovers(given=candidate.handovers.given, taken=candidate.handovers.taken)
        return Checkpoint(0, candidate.contributed, {}, {}, handovers)
    return Checkpoint(0, 0, {}, {})


def leave_stage(folder: Path) -> None:
    """Delete the state of the stage that a peer has served from its folder, and keep the numbers of `after_leaving`. A
    peer that is killed in the middle starts as a newcomer, at its old stage or at the new one.

    Raises:
        ResourceError: the folder has something that nobody else has, and nothing was deleted; or the disk cannot be
            written.
    """
    write_checkpoint(folder, after_leaving(folder), keep=1)
    (folder / SETTLED).unlink(missing_ok=True)
    stored = [path for path in (folder / "contributions").glob("*") if path.name != "revocations"]
    for path in (folder / "snapshots", *stored):
        shutil.rmtree(path, ignore_errors=True)


def _newest_first(folder: Path) -> list[Path]:
    paths = (path for path in folder.glob("checkpoint-*") if NAME.fullmatch(path.name))
    return sorted(paths, key=_number, reverse=True)


def _number(path: Path) -> int:
    return int(path.name.split("-")[1])


def _read(path: Path) -> Checkpoint:
    """The checkpoint in one folder.

    Raises:
        OSError, ValueError: a file of it is missing or damaged.
    """
    state = CheckpointState.model_validate(json.loads((path / STATE_FILE).read_bytes()))
    for name, sha256 in state.files.items():
        with (path / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise ValueError(f"{path / name} is damaged")

    def tensors(name: str) -> Mapping[str, Tensor]:
        return TensorFile.open(path / name) if name in state.files else {}

    def blob(name: str) -> bytes | None:
        return (path / name).read_bytes() if name in state.files else None

    parts = {
        Part(part): PartCheckpoint(
            part_state, tensors(f"{part}.error_feedback.safetensors"), blob(f"{part}.contribution")
        )
        for part, part_state in state.parts.items()
    }
    numbers = {PeerId(giver): number for giver, number in state.taken.items()}
    handovers = Handovers(state.given, PeerId(state.heir) if state.heir else "", blob(HANDOVER) or b"", numbers)
    return Checkpoint(state.round, state.contributed, parts, tensors(OPTIMIZER), handovers)
