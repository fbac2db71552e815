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

from bootstrap.data import published_text
from bootstrap.data.corpus import read_corpus, split
from bootstrap.data.encoding import END_OF_TEXT_ID, tokenize, train_tokenizer
from protocol.errors import FormatError, ManifestError, ResourceError
from protocol.files import replacing, write_atomically
from protocol.layout import NGRAM_PREFIX, Layout, Shape, elements, model_layout, writes_residual
from protocol.manifest import Manifest, first_difference
from protocol.run.hugging_face import ModelFolder, open_checkpoint, read_tokenizer
from protocol.run.prepared import is_prepared, note_prepared_text, require_same
from protocol.run.run_files import (
    BASIS,
    DESCRIPTOR,
    HELD_OUT,
    TOKENIZER,
    TRAIN,
    Descriptor,
    check_file,
    descriptor_of,
    file_names,
    genesis_file,
    measure_file,
    read_kept,
    require_sizes,
)
from protocol.tensor_formats import array_to_units
from protocol.trust.keys import load_or_create

STANDARD_DEVIATION = 0.02
"""The standard deviation of the first weights (GPT-2). Projections into the residual stream are narrower by √(2 ·
layers)."""

GenesisProgress = Callable[[str], object]
"""Is told in sentences what is being done."""


def create_run(
    manifest: Manifest,
    directory: Path,
    corpus_path: Path | None = None,
    progress: GenesisProgress = lambda sentence: None,
    weights: Path | None = None,
) -> Descriptor:
    """Write all files of a run and its descriptor; or, if they are there, check them and return it.

    `weights` is a checkpoint (`protocol/run/hugging_face.py`) to begin from, with its tokenizer and, if it has one, its
    basis; else all of these are drawn and trained. The descriptor is written last, so a run that was cut short is
    made anew. The text and the checkpoint are read only to make a run, not to check one: a prepared folder may have
    moved since.

    Raises:
        ManifestError: the directory holds a run of another manifest, or it needs a checkpoint; the message names the
            field.
        ResourceError: no or too little text, a file cannot be written, or a file of the old run is damaged.
        UserError: the run cannot begin from the checkpoint.
    """
    if (directory / DESCRIPTOR).exists():
        existing = load_run(directory)
        if field := first_difference(manifest, existing.manifest):
            raise ManifestError(f"{directory} holds a run of another manifest: {field}")
        if is_prepared(corpus_path):
            require_same(existing, corpus_path)
            note_prepared_text(directory, corpus_path)
        return existing
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot make the folder {directory}: {error.strerror}") from None
    checkpoint = open_checkpoint(weights) if weights is not None else None
    prepared_text = corpus_path if is_prepared(corpus_path) else None
    if checkpoint is not None:
        checkpoint.require(manifest)
    elif prepared_text is None and manifest.model.end_of_text != END_OF_TEXT_ID:
        raise ManifestError(
            f"model.end_of_text = {manifest.model.end_of_text} is of a checkpoint's tokenizer: give the checkpoint, "
            f"with --weights; of the tokenizer that a run trains itself it is {END_OF_TEXT_ID}"
        )
    operator = load_or_create(directory).peer_id
    if prepared_text is not None:
        progress(published_text.take(manifest, prepared_text, directory, checkpoint))
    else:
        _write_text(manifest, directory, corpus_path, progress, checkpoint)
    progress(f"Making the basis of {manifest.model.d} dimensions.")
    if checkpoint is None:
        run_basis = basis(manifest)
    else:
        kept_basis = checkpoint.basis()
        run_basis = principal_basis(checkpoint) if kept_basis is None else kept_basis
    write_atomically(directory / BASIS, save({"basis": run_basis}))
    taken_over = {} if checkpoint is None else checkpoint.layout
    for part, layout in model_layout(manifest).items():
        doing = "Drawing" if checkpoint is None else "Taking over"
        progress(f"{doing} the first weights of {part}: {elements(layout) / 1e6:.1f} million.")
        tensors = (
            checkpoint.units(name)
            if checkpoint is not None and name in taken_over
            else genesis_tensor(manifest, name, shape)
            for name, shape in layout.items()
        )
        _write_int32_tensors(directory / genesis_file(part), layout, tensors)
    names = file_names(manifest, prepared_text is not None)
    descriptor = descriptor_of(manifest, operator, (measure_file(directory / name) for name in names))
    try:
        require_sizes(descriptor)  # nobody would join it
    except FormatError as error:
        raise ResourceError(f"{error}: prepare a larger text, with `hetpeer data prepare`") from None
    write_atomically(directory / DESCRIPTOR, descriptor.canonical())
    return descriptor


def load_run(directory: Path) -> Descriptor:
    """The descriptor of a run made earlier, with every file of it checked against its hash.

    Raises:
        ResourceError: there is no run, or a file of it is missing or damaged.
    """
    descriptor = read_kept(directory)
    try:
        for file in descriptor.files:
            check_file(directory / file.name, file)
    except FormatError as error:
        raise ResourceError(f"the run in {directory} is damaged: {error}") from None
    return descriptor


def basis(manifest: Manifest) -> NDArray[np.float32]:
    """U: float32 [d, d] with orthonormal columns, uniformly random: QR of a Gaussian, diag(R) > 0.

    The paper's U [d, k] is its first k columns, for any k. In a run with n-gram tables, whose rows lie in the first
    coordinates, the last columns are these coordinates: no boundary spends any of k on what both of its ends look up.
    """
    d, looked_up = manifest.model.d, manifest.ngrams.width
    q, r = np.linalg.qr(_random(manifest, "basis").standard_normal((d - looked_up, d - looked_up)))
    made = np.eye(d, k=d - looked_up, dtype=np.float32)
    made[looked_up:, : d - looked_up] = q * np.sign(np.diag(r))
    return made


def principal_basis(checkpoint: ModelFolder) -> NDArray[np.float32]:
    """U for a model that was trained without one: float32 [d, d], the directions of the residual stream in which its
    layers write most come first, so that the first k keep most of it. Eigenvectors of Σ W Wᵀ over all that writes
    there, W [d, inputs]."""
    d = checkpoint.model.d
    written = np.zeros((d, d))
    for name in checkpoint.layout:
        if writes_residual(checkpoint.model, name):
            weight = checkpoint.read(name)
            written += weight @ weight.T
    return np.linalg.eigh(written)[1][:, ::-1].astype(np.float32)


def genesis_tensor(manifest: Manifest, name: str, shape: Shape) -> NDArray[np.int32]:
    """The first weights of one tensor, in units of 2⁻²⁶: normal; one for gains and nothing for biases; and nothing
    in n-gram tables, so that a model begins as it would without."""
    if name.startswith(NGRAM_PREFIX):
        return np.zeros(shape, np.int32)
    if len(shape) == 1:
        return array_to_units(np.full(shape, name.endswith(".weight"), np.float32))
    deviation = STANDARD_DEVIATION
    if writes_residual(manifest.model, name):
        deviation /= math.sqrt(2 * manifest.model.layers)
    values = _random(manifest, name).standard_normal(shape, dtype=np.float32)
    values *= np.float32(deviation)
    return array_to_units(values)


def _random(manifest: Manifest, name: str) -> np.random.Generator:
    """A stream of its own for each thing drawn, so that no tensor depends on how the model is cut."""
    key = hashlib.sha256(f"hetpeer genesis {manifest.run.seed} {name}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))


def _write_text(
    manifest: Manifest, directory: Path, path: Path | None, progress: GenesisProgress, checkpoint: ModelFolder | None
) -> None:
    """The tokenizer and the tokens. Raises ResourceError unless there is a sequence of each kind."""
    text = read_corpus(path)
    progress(text.source)
    documents, held_out = split(text.documents, manifest.evaluation.held_out, manifest.run.seed)
    vocabulary, context = manifest.model.vocabulary, manifest.model.context
    if checkpoint is None:
        progress(f"Training a tokenizer of {vocabulary} tokens.")
        tokenizer = train_tokenizer(documents, vocabulary)
        write_atomically(directory / TOKENIZER, tokenizer.to_str().encode())
    else:
        tokenizer = read_tokenizer(checkpoint.tokenizer, vocabulary)
        write_atomically(directory / TOKENIZER, checkpoint.tokenizer.read_bytes())
    for name, texts in ((HELD_OUT, held_out), (TRAIN, documents)):
        tokens = tokenize(tokenizer, texts, vocabulary, manifest.model.end_of_text)
        if len(tokens) <= context:
            raise ResourceError(
                f"too little text: {name} has {len(tokens)} tokens, but a sequence takes {context + 1}. "
                f"{text.source} Give more text."
            )
        write_atomically(directory / name, tokens.tobytes())
        use = "to train on" if name == TRAIN else "held out"
        progress(f"Text {use}: {len(tokens):,} tokens in {(len(tokens) - 1) // context:,} sequences.")


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
