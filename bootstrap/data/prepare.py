"""The preparation of anybody's text as a folder of shards that a run can train on. The folder is there whole, or not at
all.

Most of the time goes into tokenizing; one that was stopped in it goes on where it was.
"""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bootstrap.data.documents import DocumentSource, Meter, Piece, after, find
from bootstrap.data.encoding import Encoder, encode, read_encoder, train_encoder
from bootstrap.data.shards import KEPT, SHARD_BLOCKS, ShardWriter, Shuffle, measure
from protocol.errors import ResourceError, UserError
from protocol.files import open_regular, reason_of, sync_folder, try_lock, write_atomically
from protocol.run.dataset import BLOCK_TOKENS, BLOCKS, DATA, DataManifest, base_urls
from protocol.run.run_files import TOKENIZER, token_dtype

SAY_SECONDS = 0.5
"""The interval of progress events, in seconds."""

TRAINING_PROGRESS_SECONDS = 5.0
"""The interval of progress events while a tokenizer is trained, which says nothing of how far it is, in seconds."""

KEEP_SECONDS = 30.0
"""The interval at which progress is kept on disk, in seconds: a preparation that is stopped loses no more."""

WANTED, SHUFFLE, SKIPPED = "wanted.json", "shuffle", "skipped.txt"

LEAST_OF_HELD_OUT = 0.5
"""The share of the tokens that are to be held out below which the user is told: documents differ in length."""

LEAST_VOCABULARY = 258
"""256 bytes, the end of a text, and one that is trained."""

PrepareProgress = Callable[[str, int, int], object]
"""Is told what is being done, and of that how many bytes are done and how many there are (0: nobody knows)."""


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """A request to prepare text: `sources` as the user names them, a tokenizer or the vocabulary to train one for, the
    share of the documents to hold out, that of the records that may be skipped as unreadable, the seed of their order,
    and the mirrors that will have the folder."""

    sources: Sequence[str]
    tokenizer: Path | None = None
    train_tokenizer: int | None = None
    field: str = "text"
    held_out: float = 0.02
    most_bad: float = 0.001
    seed: int = 1
    end_of_text: str | None = None
    mirrors: Sequence[str] = ()
    block_tokens: int = BLOCK_TOKENS
    shard_blocks: int = SHARD_BLOCKS


def prepare_text(wanted: PrepareRequest, out: Path, progress: PrepareProgress) -> DataManifest:
    """Read, tokenize, shuffle and write. Until all is done it is in a folder beside `out`, from which the same call
    goes on after one that was stopped, or failed, while it tokenized.

    Raises:
        UserError: what is wanted does not fit together.
        ResourceError: there is no text, it cannot be read, or `out` cannot be written.
    """
    if (wanted.tokenizer is None) == (wanted.train_tokenizer is None):
        raise UserError("give the tokenizer with --tokenizer FILE, or train one with --train-tokenizer VOCAB")
    if wanted.train_tokenizer is not None and wanted.train_tokenizer < LEAST_VOCABULARY:
        raise UserError(f"--train-tokenizer {wanted.train_tokenizer}: at least {LEAST_VOCABULARY} tokens are needed")
    mirrors = base_urls(wanted.mirrors)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ResourceError(f"{out} is not empty: give another folder, or delete this one to prepare it anew")
    sources = find(wanted.sources, wanted.field, lambda sentence: progress(sentence, 0, 0))
    partial = out.absolute().with_name(f".{out.absolute().name}.partial")
    with _alone(partial.with_suffix(".lock"), out):
        return _prepare(wanted, sources, mirrors, out, partial, progress)


@contextmanager
def _alone(lock: Path, out: Path) -> Iterator[None]:
    """Hold the lock of a preparation into `out`.

    Raises:
        ResourceError: another preparation holds it, or it cannot be made.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_regular(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ResourceError(f"cannot write {out}: {reason_of(error)}") from None
    try:
        is_ours = try_lock(descriptor) and lock.exists() and os.path.samestat(lock.stat(), os.fstat(descriptor))
        if not is_ours:  # held by another, or let go by one just now
            raise ResourceError(f"another preparation writes {out}: give this one another folder, or wait for that one")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _prepare(
    wanted: PrepareRequest,
    sources: list[DocumentSource],
    mirrors: tuple[str, ...],
    out: Path,
    partial: Path,
    progress: PrepareProgress,
) -> DataManifest:
    """Prepare text in the folder `partial`, which becomes `out`."""
    try:
        request = _cache_key(wanted, sources)
        if not ((partial / WANTED).is_file() and (partial / WANTED).read_bytes() == request):
            shutil.rmtree(partial, ignore_errors=True)  # of another call, which asked for something else
            partial.mkdir(parents=True)
            write_atomically(partial / WANTED, request)
        manifest = _write(wanted, sources, mirrors, partial, progress)
        if out.exists():
            out.rmdir()
        os.replace(partial, out)
        sync_folder(out.absolute().parent)
    except OSError as error:
        raise ResourceError(f"cannot write {out}: {error.strerror or error}") from None
    finally:
        if (partial / SHUFFLE / KEPT).exists():
            progress(f"the same command goes on from what is in {partial}; delete that if you do not want it", 0, 0)
        else:
            shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _cache_key(wanted: PrepareRequest, sources: list[DocumentSource]) -> bytes:
    """All that the shuffled documents depend on."""
    tokenizer = read_encoder(wanted.tokenizer, wanted.end_of_text).sha256 if wanted.tokenizer else ""
    how = [wanted.field, wanted.seed, wanted.train_tokenizer, wanted.end_of_text, tokenizer]
    return json.dumps([how, [source.stamp for source in sources]]).encode()


def _write(
    wanted: PrepareRequest,
    sources: list[DocumentSource],
    mirrors: tuple[str, ...],
    folder: Path,
    progress: PrepareProgress,
) -> DataManifest:
    """Tokenize the documents, shuffle them, write them as shards into `folder`, and describe these in its manifest.
    `folder` is complete once its `WANTED` is gone. A call that was stopped while it tokenized is resumed."""
    encoder = _encoder(wanted, sources, folder / TOKENIZER, progress)
    dtype = token_dtype(encoder.vocabulary)
    shuffle = Shuffle(folder / SHUFFLE, dtype, wanted.seed)
    meter = _tokenize(sources, encoder, shuffle, wanted.most_bad, progress)
    if shuffle.documents == 0:
        raise ResourceError(f"there is no text in {', '.join(wanted.sources)}"[:300])
    shard_tokens = wanted.shard_blocks * wanted.block_tokens
    train = ShardWriter(lambda number: folder / f"train-{number:05d}.bin", dtype, shard_tokens)
    held_out = ShardWriter(lambda number: folder / "heldout.bin", dtype, shuffle.tokens)
    documents = _split(shuffle, train, held_out, wanted.held_out, progress)
    shutil.rmtree(shuffle.folder)
    if min(train.tokens, held_out.tokens) < 2:
        raise ResourceError(f"too little text: {train.tokens} tokens to train on, {held_out.tokens} held out")
    if (share := held_out.tokens / (train.tokens + held_out.tokens)) < LEAST_OF_HELD_OUT * wanted.held_out:
        progress(
            f"held out are {held_out.tokens:,} tokens, {share:.2%} of all, where --held-out {wanted.held_out:g} of the "
            "documents was asked for: these differ in length, and another --seed draws others",
            0,
            0,
        )
    progress("hashing", 0, 0)
    measured = [measure(path, dtype, 0, wanted.block_tokens) for path in (*train.paths, *held_out.paths)]
    digests = b"".join(shard_measured.digests for shard_measured in measured)
    manifest = DataManifest(
        dtype="uint16" if dtype.itemsize == 2 else "uint32",
        vocabulary=encoder.vocabulary,
        tokenizer=encoder.sha256,
        end_of_text=encoder.end_of_text,
        block_tokens=wanted.block_tokens,
        documents=documents,
        shards=tuple(shard_measured.shard for shard_measured in measured[:-1]),
        held_out_documents=max(1, shuffle.documents - documents),  # a single document is cut, and counts in both
        held_out=measured[-1].shard,
        blocks=hashlib.sha256(digests).hexdigest(),
        mirrors=mirrors,
    )
    if meter.skipped:
        write_atomically(folder / SKIPPED, "".join(f"{record}\n" for record in meter.bad).encode())
    write_atomically(folder / BLOCKS, digests)
    write_atomically(folder / DATA, manifest.canonical())
    (folder / WANTED).unlink()
    return manifest


def _encoder(wanted: PrepareRequest, sources: list[DocumentSource], kept: Path, progress: PrepareProgress) -> Encoder:
    """The tokenizer that is wanted, of which the file is `kept`, unless it was already."""
    if wanted.tokenizer is not None:
        encoder = read_encoder(wanted.tokenizer, wanted.end_of_text)
    elif kept.exists():
        return read_encoder(kept, None)
    else:
        encoder = _train_encoder(wanted, sources, progress)
    write_atomically(kept, encoder.file)
    return encoder


def _train_encoder(wanted: PrepareRequest, sources: list[DocumentSource], progress: PrepareProgress) -> Encoder:
    """Train a tokenizer in a thread, for which Ctrl-C does not wait: the library heeds no signal for minutes."""
    doing, started, read = f"training a tokenizer of {wanted.train_tokenizer} tokens", time.monotonic(), 0
    trained: Future[Encoder] = Future()

    def note(characters: int) -> None:
        nonlocal read
        read += characters

    def train() -> None:
        try:
            trained.set_result(train_encoder(sources, wanted.train_tokenizer or 0, wanted.most_bad, note))
        except BaseException as error:
            trained.set_exception(error)

    progress(doing, 0, 0)
    threading.Thread(target=train, name="tokenizer", daemon=True).start()
    while not wait((trained,), timeout=TRAINING_PROGRESS_SECONDS).done:
        seconds = time.monotonic() - started
        progress(f"{doing}: {read / 1e6:.0f} million characters read, {seconds:.0f} s so far", 0, 0)
    return trained.result()


def _tokenize(
    sources: list[DocumentSource], encoder: Encoder, shuffle: Shuffle, most_bad: float, progress: PrepareProgress
) -> Meter:
    """Tokenize all documents of all sources, each with the end of a text behind it. Returns what was read."""
    is_known = all(source.size for source in sources)
    meter = Meter(sum(source.size for source in sources) if is_known else 0, most_bad=most_bad)
    said_at, kept_at = 0.0, time.monotonic()
    if shuffle.documents:
        progress(f"going on after {shuffle.documents} documents, where it was stopped", 0, 0)

    def pieces() -> Iterator[Piece]:
        for source in sources:
            yield from source.pieces(meter)

    for tokens, ends in encode(encoder, after(pieces(), shuffle.documents)):
        shuffle.add(np.append(tokens, np.array([encoder.end_of_text], tokens.dtype)) if ends else tokens, ends)
        if ends and (now := time.monotonic()) >= kept_at + KEEP_SECONDS:
            shuffle.keep()
            kept_at = now
        if (now := time.monotonic()) >= said_at + (SAY_SECONDS if meter.total else 20 * SAY_SECONDS):
            said_at = now
            words = f"tokenizing: {shuffle.documents} documents, {shuffle.tokens / 1e6:.1f} million tokens"
            progress(words, meter.done if meter.total else 0, meter.total)
    meter.require_few_bad()
    if meter.skipped:
        first = "; ".join(meter.bad[:3])
        progress(f"left out {meter.skipped:,} of {meter.records:,} records, which {SKIPPED} lists: {first}", 0, 0)
    return meter


def _split(shuffle: Shuffle, train: ShardWriter, held_out: ShardWriter, share: float, progress: PrepareProgress) -> int:
    """The first documents of the new order are held out, `share` of them and one at least; of a single one its end.
    Returns how many are trained on."""
    count = max(1, round(shuffle.documents * share))
    item = train.dtype.itemsize
    for number, document in enumerate(shuffle.shuffled()):
        if shuffle.documents == 1:
            cut = round(len(document) * (1 - share))
            train.write(document[:cut])
            held_out.write(document[cut:])
        else:
            (held_out if number < count else train).write(document)
        if number % 4096 == 0:
            progress("writing shards", item * (train.tokens + held_out.tokens), item * shuffle.tokens)
    train.close()
    held_out.close()
    return max(1, shuffle.documents - count)
