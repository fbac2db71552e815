"""The files of a run, and the descriptor that pins them.

The operator makes them once: the genesis weights, the basis U, the tokenizer and the tokens. None can be
made again bit by bit on another machine, so they are shipped and named by SHA-256. The descriptor holds the
manifest and the hash and size of every file; its own hash is the run's id, so whoever has a ticket can
take all of it from anybody.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protocol import manifest as manifests
from protocol.errors import FormatError, ManifestError, ResourceError, UnknownFieldError
from protocol.identity import Part, PeerId, RunId
from protocol.layout import Layout, elements, model_layout, parts_followed
from protocol.limits import DESCRIPTOR_BYTES
from protocol.manifest import Manifest
from protocol.run.dataset import BLOCKS, DATA, MANIFEST_BYTES
from protocol.toml_tables import MOST_QUOTED_CHARACTERS

DESCRIPTOR = "run.json"
"""The file that keeps the canonical descriptor beside the run's files; it is not one of them."""

BASIS = "basis.safetensors"
"""The file of U: tensor `basis`, float32 [d, d], orthonormal columns of which the first k are used (nested
subspaces)."""

TOKENIZER = "tokenizer.json"
"""The tokenizer, in Hugging Face's `tokenizers` format. Training needs only the tokens; this is for whoever uses the
model."""

TRAIN = "train.bin"
"""The file of tokens to train on: flat, no header, little-endian numbers of `token_dtype`."""

HELD_OUT = "heldout.bin"
"""The file of tokens never trained on, in the same format. A run on prepared text has neither, but `data.json` and the
digests of its blocks (`protocol/run/dataset.py`), which are read when they are needed."""

TEXT_BYTES = 2**34
"""The size of the largest TRAIN or HELD_OUT, 16 GiB: eight thousand million tokens of two bytes. Who makes a run holds
their text in memory, some four times as much; a larger text is prepared."""

BLOCKS_BYTES = 2**27
"""The size of the digests of four million blocks, a million million tokens in blocks of the usual size. Who reads text
holds them."""

TOKENIZER_BYTES_PER_TOKEN = 256
"""The most bytes of a tokenizer for each token: those of Llama 3, Qwen and Gemma have 80 to 140, with its merge."""

TOKENIZER_BASE_BYTES = 2**20

HEADER_BYTES_PER_TENSOR = 256
"""The most bytes of a safetensors header for each tensor: a name, a number format, a shape and two offsets take 150."""

HEX_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RunFile:
    """One file of the run. `sha256` is hex, `size` in bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A run: its manifest, the operator by whose word peers are admitted, and its files, sorted by name, exactly those
    of `file_names`."""

    manifest: Manifest
    operator: PeerId
    files: tuple[RunFile, ...]

    @property
    def run_id(self) -> RunId:
        """The run's id: the hex SHA-256 of the canonical form."""
        return RunId(hashlib.sha256(self.canonical()).hexdigest())

    def canonical(self) -> bytes:
        """The one byte string of this descriptor: JSON with sorted keys and no spaces."""
        files = {file.name: {"sha256": file.sha256, "size": file.size} for file in self.files}
        document = {"files": files, "manifest": self.manifest.model_dump(mode="json"), "operator": self.operator}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @property
    def prepared(self) -> bool:
        """Whether the tokens are prepared text, in blocks, and not among the files."""
        return any(file.name == DATA for file in self.files)

    def file(self, name: str) -> RunFile:
        """The file of that name. Raises KeyError if the run has none."""
        for file in self.files:
            if file.name == name:
                return file
        raise KeyError(name)


def descriptor_of(manifest: Manifest, operator: PeerId, files: Iterable[RunFile]) -> Descriptor:
    """Make the descriptor of a run from its files, which are in any order."""
    return Descriptor(manifest, operator, tuple(sorted(files, key=lambda file: file.name)))


def parse_descriptor(data: bytes, run_id: RunId) -> Descriptor:
    """Parse what `Descriptor.canonical` made, from another peer.

    Raises:
        FormatError: the bytes do not hash to `run_id`, or are not a descriptor with exactly the run's files, none of
            which is larger than its manifest lets it be.
    """
    if len(data) > DESCRIPTOR_BYTES:
        raise FormatError(f"a descriptor of {len(data)} bytes, where {DESCRIPTOR_BYTES} are allowed")
    if hashlib.sha256(data).hexdigest() != run_id:
        raise FormatError("not the descriptor of this run: its hash is not the run id")
    try:
        document = json.loads(data)
        manifest = manifests.check_manifest(document["manifest"])
        files = [_parse_file(name, fields) for name, fields in document["files"].items()]
        operator = PeerId(str(document["operator"]))
    except UnknownFieldError as error:
        raise FormatError(f"this run needs a newer hetpeer: {error}"[:MOST_QUOTED_CHARACTERS]) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, ManifestError) as error:
        raise FormatError(f"not a run's descriptor: {error}"[:MOST_QUOTED_CHARACTERS]) from None
    descriptor = descriptor_of(manifest, operator, files)
    if [file.name for file in descriptor.files] != file_names(manifest, descriptor.prepared):
        raise FormatError("not a run's descriptor: its files are not those of its manifest")
    require_sizes(descriptor)
    if descriptor.canonical() != data:
        raise FormatError("not a run's descriptor in canonical form; it may be of another version of hetpeer")
    return descriptor


def read_kept(directory: Path) -> Descriptor:
    """Read the descriptor in a folder of this machine, whose run is what it says.

    Raises:
        ResourceError: there is none, or it is damaged.
    """
    try:
        with (directory / DESCRIPTOR).open("rb") as file:
            data = file.read(DESCRIPTOR_BYTES + 1)
        return parse_descriptor(data, RunId(hashlib.sha256(data).hexdigest()))
    except OSError as error:
        raise ResourceError(f"there is no run in {directory}: {DESCRIPTOR}: {error.strerror}") from None
    except FormatError as error:
        raise ResourceError(f"the run in {directory} is damaged: {error}") from None


def _parse_file(name: str, fields: dict[str, Any]) -> RunFile:
    """Check what a descriptor says of one file.

    Raises:
        FormatError: it is not a hash and a size.
    """
    sha256, size = fields["sha256"], fields["size"]
    if not isinstance(sha256, str) or not HEX_SHA256.fullmatch(sha256):
        raise FormatError(f"{name[:60]!r}: not a SHA-256 of 64 lower-case hex digits")
    if type(size) is not int or size < 0:
        raise FormatError(f"{name[:60]!r}: not a size in bytes")
    return RunFile(name, sha256, size)


def genesis_file(part: Part) -> str:
    """The name of the file of a part's first weights: one int32 tensor in units of 2⁻²⁶ for each of its layout."""
    return f"genesis-{part}.safetensors"


def file_names(manifest: Manifest, prepared: bool = False) -> list[str]:
    """The names of all files of a run, sorted. A run on prepared text has other ones for its tokens."""
    tokens = [DATA, BLOCKS] if prepared else [TRAIN, HELD_OUT]
    return sorted([BASIS, TOKENIZER, *tokens, *map(genesis_file, model_layout(manifest))])


def files_needed(descriptor: Descriptor, stage: int | None) -> list[str]:
    """The names of the files that a newcomer downloads, sorted: those of a volunteer's stage; for None, a datacenter's
    whole model, all.

    Stage 0 alone reads training data, since token ids travel with the microbatch.
    """
    manifest = descriptor.manifest
    if stage is None:
        return file_names(manifest, descriptor.prepared)
    names = [genesis_file(part) for part in parts_followed(manifest, stage)]
    if manifest.compressed:
        names.append(BASIS)
    if stage == 0:
        names += [DATA, BLOCKS] if descriptor.prepared else [TRAIN]
    return sorted(names)


def most_bytes(manifest: Manifest) -> dict[str, int]:
    """The most bytes of each file that a run of this manifest may have: tensors have what their layout takes, all else
    has a bound of its own."""
    model = manifest.model
    parts = {genesis_file(part): _stored_bytes(layout) for part, layout in model_layout(manifest).items()}
    return parts | {
        BASIS: _stored_bytes({"basis": (model.d, model.d)}),
        TOKENIZER: tokenizer_bytes(model.vocabulary),
        TRAIN: TEXT_BYTES,
        HELD_OUT: TEXT_BYTES,
        DATA: MANIFEST_BYTES,
        BLOCKS: BLOCKS_BYTES,
    }


def tokenizer_bytes(vocabulary: int) -> int:
    """The most bytes of a tokenizer of so many tokens."""
    return TOKENIZER_BASE_BYTES + TOKENIZER_BYTES_PER_TOKEN * vocabulary


def _stored_bytes(layout: Layout) -> int:
    """The most bytes of a safetensors file of values of four bytes."""
    return 8 + header_bytes(layout) + 4 * elements(layout)


def header_bytes(layout: Layout) -> int:
    """The most bytes of the header of a safetensors file of these tensors."""
    return HEADER_BYTES_PER_TENSOR * (len(layout) + 1)


def require_sizes(descriptor: Descriptor) -> None:
    """Check the sizes of a run's files against its manifest.

    Raises:
        FormatError: a file is larger than the manifest lets it be; the message names both sizes.
    """
    most = most_bytes(descriptor.manifest)
    for file in descriptor.files:
        if file.size > most[file.name]:
            raise FormatError(
                f"the run's {file.name} has {file.size} bytes, and by its manifest it takes {most[file.name]} at most"
            )


def measure_file(path: Path) -> RunFile:
    """Measure the name, hash and size of a file on this disk, which is read in pieces.

    Raises:
        ResourceError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return RunFile(path.name, sha256, file.tell())
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None


def check_file(path: Path, expected: RunFile) -> None:
    """Check a file on this disk against the descriptor: first its size, then, in pieces, its hash.

    Raises:
        FormatError: it has another size or hash.
        ResourceError: it cannot be read.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
    if size != expected.size:
        raise FormatError(f"{path} has {size} bytes instead of {expected.size}")
    if measure_file(path).sha256 != expected.sha256:
        raise FormatError(f"{path} does not have the SHA-256 that the run's descriptor gives")


def token_dtype(vocabulary: int) -> np.dtype[np.unsignedinteger]:
    """The number format of the tokens: uint16 where it holds every id, else uint32; little-endian."""
    return np.dtype("<u2" if vocabulary <= 2**16 else "<u4")
