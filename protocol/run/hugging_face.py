"""A model in the format everyone uses: a folder as transformers has it, `LlamaForCausalLM` for a LLaMA.

    config.json                     its sizes; and, if it has n-gram tables, what they are
    model.safetensors               its weights; or, in several files,
    model.safetensors.index.json    the file of each tensor
    tokenizer.json                  Hugging Face `tokenizers` format
    hetpeer/basis.safetensors       U of the run it comes from, if it comes from one that compresses

A model with n-gram tables is none that transformers knows: `modeling_hetpeer.py`, by which it runs, lies beside it.

A checkpoint is a stranger's, and so is its tokenizer: sizes are checked before anything is read by them, and nothing
is unpickled.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from protocol.architectures import architecture_of
from protocol.errors import ResourceError, UserError
from protocol.layout import EMBEDDING_TENSOR, HEAD_TENSOR, Layout, Shape, whole_layout
from protocol.manifest import Manifest
from protocol.model_sizes import Model, NgramTables
from protocol.run.checkpoint_cures import (
    RESAVE,
    damaged_file_cure,
    missing_config_cure,
    missing_tensors_cure,
    missing_weights_cure,
    quantized_words,
)
from protocol.run.model_config import NO_NGRAMS, read_cut, read_ngrams, read_sizes
from protocol.run.run_files import BASIS, TOKENIZER, tokenizer_bytes
from protocol.tensor_formats import FORMATS, array_to_units
from protocol.toml_tables import MOST_QUOTED_CHARACTERS

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
BASIS_OF_THE_RUN = f"hetpeer/{BASIS}"

ORTHONORMAL_TOLERANCE = 1e-5
"""The largest |UᵀU − 1| of a basis."""

JSON_BYTES = 2**25
"""The largest config, index or header: those of a model of 1024 layers have 1 MiB."""

STORED = {number_format.stored: number_format for number_format in FORMATS.values() if number_format.stored}
"""Number formats of weights, by the names that safetensors has for them."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a safetensors file: `start` is its first byte there."""

    path: Path
    dtype: str
    shape: Shape
    start: int

    def read(self) -> NDArray[np.float32]:
        """Read the tensor's values.

        Raises:
            UserError: the file cannot be read, or is shorter than it was.
        """
        kind = "u" if self.dtype == "BF16" else "f"  # bf16, which numpy has not, is the upper half of a float32
        count, dtype = math.prod(self.shape), np.dtype(f"<{kind}{STORED[self.dtype].bits // 8}")
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                data = file.read(count * dtype.itemsize)
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from None
        if len(data) != count * dtype.itemsize:
            raise UserError(f"{self.path} ends within a tensor")
        values = np.frombuffer(data, dtype).reshape(self.shape)
        if self.dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The folder of a checkpoint whose config and list of tensors have been checked. `model.context` is the longest
    context that it was trained for. `tied`: the head is the embedding, and has no tensor of its own. `cut` has the
    number of layers of each stage of the run that it comes from; empty: it is not known."""

    folder: Path
    model: Model
    tied: bool
    stored: Mapping[str, Stored]
    cut: tuple[int, ...]
    ngrams: NgramTables = NO_NGRAMS

    @property
    def layout(self) -> Layout:
        """Every tensor of the model."""
        return whole_layout(self.model, self.ngrams)

    @property
    def tokenizer(self) -> Path:
        """The file of the checkpoint's tokenizer, which need not be there."""
        return self.folder / TOKENIZER

    def read(self, name: str) -> NDArray[np.float32]:
        """Read one tensor, by its name in the layout.

        Raises:
            UserError: it cannot be read.
        """
        return self.stored[EMBEDDING_TENSOR if self.tied and name == HEAD_TENSOR else name].read()

    def units(self, name: str) -> NDArray[np.int32]:
        """Read one tensor in units of 2⁻²⁶.

        Raises:
            UserError: it cannot be read, or a value is none that a run can hold.
        """
        try:
            return array_to_units(self.read(name))
        except OverflowError:
            raise UserError(
                f"{self.folder}: {name} has a value outside ±32, or one that is no number: a run cannot hold it"
            ) from None

    def basis(self) -> NDArray[np.float32] | None:
        """Read U [d, d] of the run that the model comes from; None where there is none.

        Raises:
            UserError: it is no orthonormal matrix of the model's width.
        """
        path, d = self.folder / BASIS_OF_THE_RUN, self.model.d
        if not path.exists():
            return None
        stored = tensors_in(path).get("basis")
        if stored is None or (stored.dtype, stored.shape) != ("F32", (d, d)):
            raise UserError(f"{path} is no basis of {d} dimensions: remove it, and the run makes one")
        basis = stored.read()
        error = np.abs(basis.T.astype(np.float64) @ basis - np.eye(d)).max()
        if not error <= ORTHONORMAL_TOLERANCE:  # so written, NaN fails too
            raise UserError(f"{path} is no basis: its columns are not orthonormal; remove it, and the run makes one")
        return basis

    def require(self, manifest: Manifest) -> None:
        """Check that a run can begin from this checkpoint: its context may be shorter, and it may have n-gram tables
        that the checkpoint has not.

        Raises:
            UserError: they differ; the message names the first field.
        """
        ours = dict(self.model)
        for field, value in manifest.model:
            if value != ours[field] and not (field == "context" and value < ours[field]):
                raise UserError(
                    f"model.{field} is {value} in the manifest, and {ours[field]} in {self.folder}: "
                    "`hetpeer import` writes a manifest that fits"
                )
        if self.ngrams.most and manifest.ngrams != self.ngrams:
            raise UserError(
                f"{self.folder} has n-gram tables for the last {self.ngrams.most} tokens, {self.ngrams.width} wide, "
                f"before the layers {_numbers(self.ngrams.layers)}, and the manifest has others: replicas.ngrams = "
                f"{manifest.ngrams.most}, ngram_width = {manifest.ngrams.width}, stages that begin with the layers "
                f"{_numbers(layers.start for layers in manifest.cut[1:])}. `hetpeer import` writes a manifest that fits"
            )


def open_checkpoint(folder: Path) -> ModelFolder:
    """Read a checkpoint's config, and find its tensors.

    Raises:
        UserError: it is no model that a run can train; the message says why, and what can be done.
    """
    if not folder.is_dir():
        hub = "" if folder.exists() else "; a model of a hub is downloaded first, as with `hf download`"
        raise UserError(f"{folder} is no folder: give one with {CONFIG}, {WEIGHTS} and {TOKENIZER} in it{hub}")
    if os.access(folder, os.X_OK) and not os.path.exists(folder / CONFIG):
        raise UserError(f"{folder} has no {CONFIG}: {missing_config_cure(folder)}")
    config = read_json(folder / CONFIG)
    model = read_sizes(config, folder / CONFIG)
    ngrams = read_ngrams(config, model, folder / CONFIG)
    cut = read_cut(config, model, ngrams, folder / CONFIG)
    architecture, layout, stored = architecture_of(model), whole_layout(model, ngrams), _find_tensors(folder)
    names = {architecture.tensor_name(name): name for name in layout}
    ours = {names.get(name, name): tensor for name, tensor in stored.items() if not name.endswith(architecture.ignored)}
    tied = config.get("tie_word_embeddings") is True and HEAD_TENSOR not in ours  # a head of its own counts
    try:
        _require_layout(layout, ours, tied, folder)
    except UserError:
        if words := quantized_words(config):
            raise UserError(f"{folder} {words}") from None
        raise
    return ModelFolder(folder, model, tied, ours, cut, ngrams)


def _numbers(layers: Iterable[int]) -> str:
    return ", ".join(map(str, layers)) or "(none)"


def _find_tensors(folder: Path) -> dict[str, Stored]:
    """Find every tensor of a checkpoint, in one file or in those of its index.

    Raises:
        UserError: there is no weight file that is read, or one cannot be read.
    """
    if (folder / WEIGHTS).exists():
        return tensors_in(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        pickled = ", but pickled weights, which are never read: let transformers save them as safetensors"
        cure = pickled if list(folder.glob("*.bin")) else f": {missing_weights_cure(folder)}"
        raise UserError(f"{folder} has no {WEIGHTS} and no {INDEX}{cure}")
    files = read_json(folder / INDEX).get("weight_map")
    if not isinstance(files, dict) or not all(map(_is_file_name, files.values())):
        raise UserError(f"{folder / INDEX} names no safetensors files beside it: download it again")
    if missing := sorted(name for name in set(files.values()) if not os.path.exists(folder / name)):
        first = missing[0][:MOST_QUOTED_CHARACTERS]
        raise UserError(f"{folder} lacks {len(missing)} of the files that {INDEX} names, {first!r} first: download it")
    stored_tensors: dict[str, Stored] = {}
    for name in sorted(set(files.values())):
        stored_tensors |= {
            tensor: entry for tensor, entry in tensors_in(folder / name).items() if files.get(tensor) == name
        }
    return stored_tensors


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def _require_layout(layout: Layout, stored: Mapping[str, Stored], tied: bool, folder: Path) -> None:
    """Check that a checkpoint's tensors are those of the layout, of its shapes, in a number format that is read.

    Raises:
        UserError: they are not; the message names the first.
    """
    wanted = {name: shape for name, shape in layout.items() if not (tied and name == HEAD_TENSOR)}
    if missing := [name for name in wanted if name not in stored]:
        cure = missing_tensors_cure(missing, HEAD_TENSOR, any(name in stored for name in wanted))
        raise UserError(
            f"{folder} lacks {len(missing)} of the tensors that {CONFIG} promises, {missing[0]} first: {cure}"
        )
    if unknown := sorted(stored.keys() - layout.keys()):
        name = unknown[0][:MOST_QUOTED_CHARACTERS]
        raise UserError(f"{folder} has {name!r}, which the model of a run does not have: a run cannot train this model")
    for name, shape in wanted.items():
        if stored[name].shape != shape:
            raise UserError(
                f"{folder}: {name} is {stored[name].shape}, and by {CONFIG} it would be {shape}: take both of one model"
            )
        if stored[name].dtype not in STORED:
            read = ", ".join(STORED)
            raise UserError(
                f"{folder}: {name} is in {stored[name].dtype}: a run begins from {read}: {RESAVE} in float32"
            )


def tensors_in(path: Path) -> dict[str, Stored]:
    """Find the tensors of one safetensors file. The library checks that the file's header is well-formed, and that
    tensors neither overlap nor leave the file; it has no way to tell where they are.

    Raises:
        UserError: the file cannot be read, or is no safetensors file.
    """
    try:
        with safe_open(path, "np"):
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > JSON_BYTES:
                raise UserError(f"{path} has a header of {length} bytes, more than {JSON_BYTES}")
            header = json.loads(file.read(length))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (SafetensorError, ValueError, RecursionError) as error:
        message = " ".join(str(error).split())  # it may quote the file
        raise UserError(
            f"{path} is no safetensors file: {message[:MOST_QUOTED_CHARACTERS]}; {damaged_file_cure(path)}"
        ) from None
    header.pop("__metadata__", None)
    return {
        name: Stored(path, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }


def read_json(path: Path) -> dict[str, Any]:
    """Read the one JSON object that a file holds.

    Raises:
        UserError: the file cannot be read, or holds none, or is too large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(JSON_BYTES + 1)
        document = json.loads(data) if len(data) <= JSON_BYTES else None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        message = str(error)[:MOST_QUOTED_CHARACTERS]
        raise UserError(f"{path} is not valid JSON: {message}; {damaged_file_cure(path)}") from None
    if not isinstance(document, dict):
        raise UserError(f"{path} holds no JSON object of {JSON_BYTES} bytes at most")
    return document


def read_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """Read a tokenizer whose token ids are all below `vocabulary`, with truncation and padding turned off.

    Raises:
        ResourceError: there is none, it cannot be read, is larger than one of this vocabulary, or has tokens beyond it.
    """
    most = tokenizer_bytes(vocabulary)
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ResourceError(
            f"cannot read the tokenizer {path}: {error.strerror}; AutoTokenizer of transformers writes one with "
            "save_pretrained"
        ) from None
    if len(data) > most:
        raise ResourceError(f"{path} has more than {most} bytes, too many for a vocabulary of {vocabulary}")
    with _as_resource_error(f"{path} is no tokenizer", damaged_file_cure(path)):
        tokenizer = Tokenizer.from_str(data.decode())
    last = max(tokenizer.get_vocab().values(), default=0)
    if last >= vocabulary:
        raise ResourceError(
            f"{path} has a token {last}, and the vocabulary of the model is {vocabulary}: "
            "give the model's own, or let transformers widen the model (resize_token_embeddings)"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """The token ids of a text, with the special tokens that the tokenizer adds.

    Raises:
        ResourceError: the tokenizer cannot take it, as one whose regular expression explodes.
    """
    with _as_resource_error("the tokenizer cannot take this text"):
        ids: list[int] = tokenizer.encode(text).ids
        return ids


@contextmanager
def _as_resource_error(failure: str, cure: str = "") -> Iterator[None]:
    """Turn what the `tokenizers` library raises into a ResourceError that begins with `failure` and ends with `cure`. A
    panic in its Rust is a BaseException, and no Exception."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError | GeneratorExit):
            raise
        reason = " ".join(str(error).split())  # it may quote the file
        words = f"{failure}: {reason}"[:MOST_QUOTED_CHARACTERS]
        raise ResourceError(f"{words}; {cure}" if cure else words) from None
