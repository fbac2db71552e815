"""Making the files of a run: tokens, tokenizer, basis and the first weights. Done once, by the operator.

What is random here need not come out the same on another machine (QR and the tails of the normal
distribution do not, to the last bit): the files are shipped, and the descriptor pins them.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from bootstrap import corpus, prepared
from protocol.atomic import replacing, write_atomically
from protocol.errors import FormatError, ManifestError, ResourceError
from protocol.identity import Part, RunId
from protocol.keys import load_or_create
from protocol.layout import Layout, Shape, elements, model_layout
from protocol.manifest import Manifest, difference
from protocol.prepared import is_prepared, link, require_same
from protocol.run_files import (
    BASIS,
    DESCRIPTOR,
    HELD_OUT,
    TOKENIZER,
    TRAIN,
    Descriptor,
    check_file,
    describe,
    file_names,
    genesis_file,
    measure_file,
    parse,
)
from protocol.units import to_units

STANDARD_DEVIATION = 0.02
"""Of the first weights (GPT-2). Projections into the residual stream are narrower by √(2 · layers)."""

RESIDUAL_PROJECTIONS = ("o_proj.weight", "down_proj.weight")

Progress = Callable[[str], object]
"""Is told in sentences what is being done."""


def create_run(
    manifest: Manifest,
    directory: Path,
    corpus_path: Path | None = None,
    progress: Progress = lambda sentence: None,
) -> Descriptor:
    """Write all files of a run and its descriptor; or, if they are there, check them and return it.

    The descriptor is written last, so a run that was cut short is made anew. The text is read only to make
    a run, not to check one; a prepared folder may have moved since.

    Raises:
        ManifestError: the directory holds a run of another manifest; the message names the field.
        ResourceError: no or too little text, a file cannot be written, or a file of the old run is damaged.
    """
    if (directory / DESCRIPTOR).exists():
        existing = load_run(directory)
        if field := difference(manifest, existing.manifest):
            raise ManifestError(f"{directory} holds a run of another manifest: {field}")
        if corpus_path is not None and is_prepared(corpus_path):
            require_same(existing, corpus_path)
            link(directory, corpus_path)
        return existing
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot make the folder {directory}: {error.strerror}") from None
    operator = load_or_create(directory).peer_id
    blocks = corpus_path is not None and is_prepared(corpus_path)
    if corpus_path is not None and blocks:
        progress(prepared.take(manifest, corpus_path, directory))
    else:
        _write_text(manifest, directory, corpus_path, progress)
    progress(f"Drawing the basis of {manifest.model.d} dimensions.")
    write_atomically(directory / BASIS, save({"basis": basis(manifest)}))
    for part, layout in model_layout(manifest).items():
        progress(f"Drawing the first weights of {part}: {elements(layout) / 1e6:.1f} million.")
        _write_weights(manifest, directory, part, layout)
    names = file_names(manifest, blocks)
    descriptor = describe(manifest, operator, (measure_file(directory / name) for name in names))
    write_atomically(directory / DESCRIPTOR, descriptor.canonical())
    return descriptor


def load_run(directory: Path) -> Descriptor:
    """The descriptor of a run made earlier, with every file of it checked against its hash.

    Raises:
        ResourceError: there is no run, or a file of it is missing or damaged.
    """
    try:
        data = (directory / DESCRIPTOR).read_bytes()
    except OSError as error:
        raise ResourceError(f"there is no run in {directory}: {DESCRIPTOR}: {error.strerror}") from None
    try:
        descriptor = parse(data, RunId(hashlib.sha256(data).hexdigest()))
        for file in descriptor.files:
            check_file(directory / file.name, file)
    except FormatError as error:
        raise ResourceError(f"the run in {directory} is damaged: {error}") from None
    return descriptor


def basis(manifest: Manifest) -> NDArray[np.float32]:
    """U: float32 [d, d] with orthonormal columns, uniformly random: QR of a Gaussian, diag(R) > 0.

    The paper's U [d, k] is its first k columns, for any k.
    """
    d = manifest.model.d
    q, r = np.linalg.qr(_random(manifest, "basis").standard_normal((d, d)))
    return (q * np.sign(np.diag(r))).astype(np.float32)


def genesis_tensor(manifest: Manifest, name: str, shape: Shape) -> NDArray[np.int32]:
    """The first weights of one tensor, in units of 2⁻²⁶: normal, and one for the scale of a norm."""
    if name.endswith("norm.weight"):
        return to_units(np.ones(shape, np.float32))
    deviation = STANDARD_DEVIATION
    if name.endswith(RESIDUAL_PROJECTIONS):
        deviation /= math.sqrt(2 * manifest.model.layers)
    values = _random(manifest, name).standard_normal(shape, dtype=np.float32)
    values *= np.float32(deviation)
    return to_units(values)


def _random(manifest: Manifest, name: str) -> np.random.Generator:
    """A stream of its own for each thing drawn, so that no tensor depends on how the model is cut."""
    key = hashlib.sha256(f"hetpeer genesis {manifest.run.seed} {name}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))


def _write_text(manifest: Manifest, directory: Path, path: Path | None, progress: Progress) -> None:
    """The tokenizer and the tokens. Raises ResourceError unless there is a sequence of each kind."""
    text = corpus.read_corpus(path)
    progress(text.source)
    documents, held_out = corpus.split(text.documents, manifest.evaluation.held_out, manifest.run.seed)
    vocabulary, context = manifest.model.vocabulary, manifest.model.context
    progress(f"Training a tokenizer of {vocabulary} tokens.")
    tokenizer = corpus.train_tokenizer(documents, vocabulary)
    write_atomically(directory / TOKENIZER, tokenizer.to_str().encode())
    for name, texts in ((HELD_OUT, held_out), (TRAIN, documents)):
        tokens = corpus.tokenize(tokenizer, texts, vocabulary)
        if len(tokens) <= context:
            raise ResourceError(
                f"too little text: {name} has {len(tokens)} tokens, but a sequence takes {context + 1}. "
                f"{text.source} Give more text."
            )
        write_atomically(directory / name, tokens.tobytes())
        progress(f"{name}: {len(tokens)} tokens in {(len(tokens) - 1) // context} sequences.")


def _write_weights(manifest: Manifest, directory: Path, part: Part, layout: Layout) -> None:
    """The genesis file of one part."""
    tensors = (genesis_tensor(manifest, name, shape) for name, shape in layout.items())
    _write_int32_tensors(directory / genesis_file(part), layout, tensors)


def _write_int32_tensors(path: Path, layout: Layout, tensors: Iterable[NDArray[np.int32]]) -> None:
    """A safetensors file of int32 tensors, of which one at a time is in memory (the library needs all twice).

    The format: the header's length as a little-endian uint64, the header in JSON padded with spaces to a
    multiple of 8 bytes, then the tensors' bytes.
    """
    header, end = {}, 0
    for name, shape in layout.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "I32", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with replacing(path) as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors:
            file.write(tensor.astype("<i4", copy=False).data)
