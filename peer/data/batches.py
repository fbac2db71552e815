"""The tokens of an inner step: a function of the run's seed and a chunk's number.

The text is cut into N sequences of `context` tokens. The run reads numbers k = 0, 1, 2, …, and number k is sequence
P(k mod N) of the order P of epoch ⌊k / N⌋. A *chunk* is as many numbers as a replica reads in one inner step; who reads
which chunks, so that each is read once, is in `protocol/outer/data_plan.py`.

The order P is random, but sequences whose tokens come together are read together: over the internet a sequence alone
costs a round trip. So the blocks are permuted, and the sequences within each block.
"""

import hashlib
from collections.abc import Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from peer.data.text import BlockedTokens, Text
from protocol.errors import FormatError
from protocol.manifest import Manifest

Batch = NDArray[np.int64]
"""Token ids [sequences, context + 1]: inputs are [:, :-1], targets [:, 1:]."""

UInt64Array = NDArray[np.uint64]

LARGEST_SIZE = 2**62
"""The largest size of a permutation: both halves of a number and their sum stay within 64 bits."""

AHEAD_BLOCKS = 16
"""The number of blocks of 512 KiB that are fetched ahead: four million tokens, a second of a datacenter's training and
a minute of a group's."""

AHEAD_STEPS = 512
"""Looked through for them at most."""


def sequences_in(tokens: Text, manifest: Manifest) -> int:
    """N: how many sequences of context + 1 tokens there are; neighbours share one token.

    Raises:
        FormatError: not even one.
    """
    available = (len(tokens) - 1) // manifest.model.context
    if available < 1:
        raise FormatError(f"{len(tokens)} tokens are too few for one sequence of {manifest.model.context} + 1")
    return available


def together(tokens: Text, manifest: Manifest) -> int:
    """Return the number of neighbouring sequences that are read one after the other: those of a block."""
    return max(1, tokens.stream.block_tokens // manifest.model.context) if isinstance(tokens, BlockedTokens) else 1


def in_turn(manifest: Manifest, round: int, step: int, slot: int) -> int:
    """The chunk that a replica reads in an inner step where all of the manifest's take every step, as in the lab.

    Rounds count from 1; steps from 0 to H − 1; slots from 0 to M − 1.

    Raises:
        ValueError: a round, step or slot that the manifest does not have.
    """
    steps, slots = manifest.inner.steps, manifest.replicas.total
    if round < 1 or not 0 <= step < steps or not 0 <= slot < slots:
        raise ValueError(f"no round {round}, step {step}, slot {slot} in a run of {slots} replicas and {steps} steps")
    return ((round - 1) * slots + slot) * steps + step


def sequence_ids(manifest: Manifest, sequences_available: int, chunk: int, together: int = 1) -> NDArray[np.int64]:
    """The sequences of a chunk: int64 [inner.sequences] in [0, sequences_available)."""
    sequences = manifest.inner.sequences
    first = chunk * sequences
    ids: list[NDArray[np.int64]] = []
    while sequences:
        epoch, start = divmod(first, sequences_available)
        count = min(sequences, sequences_available - start)  # the rest is in the next epoch
        numbers = np.arange(start, start + count, dtype=np.int64)
        ids.append(in_order(numbers, sequences_available, together, manifest.run.seed, epoch))
        first, sequences = first + count, sequences - count
    return np.concatenate(ids)


def batch(tokens: Text, manifest: Manifest, chunk: int) -> Batch:
    """Return the tokens that a replica reads in one inner step: int64 [inner.sequences, context + 1].

    Raises:
        FormatError: there are too few tokens for one sequence.
    """
    return _read(tokens, positions(tokens, manifest, chunk))


def positions(tokens: Text, manifest: Manifest, chunk: int) -> NDArray[np.int64]:
    """Return the positions of these tokens in the text: int64 [inner.sequences, context + 1]. Raises as `batch`
    does."""
    ids = sequence_ids(manifest, sequences_in(tokens, manifest), chunk, together(tokens, manifest))
    return _positions(ids, manifest.model.context)


def held_out_batch(tokens: Text, manifest: Manifest) -> Batch:
    """The first `evaluation.sequences` sequences, or as many as there are: int64 [E, context + 1].

    Raises:
        FormatError: there are too few tokens for one sequence.
    """
    return _read(tokens, held_out_positions(tokens, manifest))


def held_out_positions(tokens: Text, manifest: Manifest) -> NDArray[np.int64]:
    """Return the positions of these tokens in the text. Raises as `held_out_batch` does."""
    count = min(manifest.evaluation.sequences, sequences_in(tokens, manifest))
    return _positions(np.arange(count), manifest.model.context)


def _positions(ids: NDArray[np.int64], context: int) -> NDArray[np.int64]:
    """Sequence i is tokens [i · context, i · context + context]. int64 [n] → int64 [n, context + 1]."""
    return ids[:, None] * context + np.arange(context + 1)


def _read(tokens: Text, positions: NDArray[np.int64]) -> Batch:
    sequences: Batch = tokens[positions].astype(np.int64)
    return sequences


class Ahead:
    """The blocks of a text that training will read next, known long before, as reading is planned.

    This is one replica's way through it: chunks (`protocol/outer/data_plan.py`), one for each inner step.
    """

    def __init__(self, tokens: BlockedTokens, manifest: Manifest) -> None:
        self.tokens, self.manifest = tokens, manifest
        self._blocks: dict[int, list[int]] = {}

    def plan(self, chunks: Iterable[int]) -> tuple[list[int], list[int]]:
        """The blocks of the first of these chunks, and those of the ones after it in the order in which they are
        needed, the first's not again."""
        missing_blocks: dict[int, list[int]] = {}
        ahead: dict[int, None] = {}
        for chunk in islice(chunks, AHEAD_STEPS):
            missing_blocks[chunk] = self._blocks.get(chunk) or self.tokens.needed(
                positions(self.tokens, self.manifest, chunk)
            )
            ahead.update(dict.fromkeys(missing_blocks[chunk]))
            if (
                len(ahead) > AHEAD_BLOCKS and len(missing_blocks) > 1
            ):  # the next step's at least, however large a step is
                break
        self._blocks = missing_blocks
        needed = next(iter(missing_blocks.values()), [])
        return needed, [block for block in ahead if block not in needed]


def in_order(numbers: NDArray[np.int64], sequences: int, together: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Map turns of an epoch to the sequences that are read in them: int64 [n] in [0, sequences) → int64 [n], a
    permutation that the seed and the epoch choose.

    Each block of `together` neighbouring sequences is read in consecutive turns: the blocks are permuted, and the
    sequences within each block. With `together` = 1 single sequences are. What is left after the last whole block is
    read last in every epoch, permuted as well.

    Raises:
        ValueError: a number is outside [0, sequences), or `together` is less than 1.
    """
    if together < 1:
        raise ValueError(f"no blocks of {together} sequences")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < sequences):
        raise ValueError(f"a number is outside [0, {sequences})")
    blocks = sequences // together
    block_turns = numbers // together
    ids = np.empty_like(numbers)
    whole = block_turns < blocks
    if whole.any():
        ids[whole] = permute(block_turns[whole], blocks, seed, epoch) * together
    ids[~whole] = blocks * together
    if together > 1:
        for block_turn in np.unique(block_turns):
            inside = block_turns == block_turn
            size = together if block_turn < blocks else sequences - blocks * together
            order = f"{epoch} block {int(block_turn)}"  # the order within the block that is read in this turn
            ids[inside] += permute(numbers[inside] - block_turn * together, size, seed, order)
    return ids


def permute(numbers: NDArray[np.int64], size: int, seed: int, epoch: int | str) -> NDArray[np.int64]:
    """Map each number by the permutation of [0, size) named (seed, epoch): int64 [n] → int64 [n].

    It keeps no list: any member of any epoch in O(1), the same everywhere. A Feistel network permutes the pairs of
    half-words whatever its round function is; four rounds of a good one are as good as random (Luby & Rackoff, 1988).
    Numbers that it takes outside [0, size) are moved on until they are inside ("cycle walking": Black & Rogaway, 2002),
    which is again a permutation.

    Raises:
        ValueError: a number is outside [0, size), or size outside [1, 2**62].
    """
    if not 1 <= size <= LARGEST_SIZE:
        raise ValueError(f"no permutation of {size} numbers")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < size):
        raise ValueError(f"a number is outside [0, {size})")
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = np.frombuffer(hashlib.sha256(f"hetpeer order {seed} {epoch}".encode()).digest(), dtype="<u8")
    moved = _feistel(numbers.astype(np.uint64), half, keys)
    outside = np.flatnonzero(moved >= size)
    while outside.size:
        moved[outside] = _feistel(moved[outside], half, keys)
        outside = outside[moved[outside] >= size]
    return moved.astype(np.int64)


def _feistel(words: UInt64Array, half: int, keys: UInt64Array) -> UInt64Array:
    """A permutation of [0, 2^(2·half)), one round for each key. uint64 [n] → uint64 [n]."""
    mask, shift = np.uint64(2**half - 1), np.uint64(half)
    left, right = words >> shift, words & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return left << shift | right


def _mix(words: UInt64Array) -> UInt64Array:
    """The finalizer of SplitMix64 (Steele, Lea & Flood, 2014): every bit depends on all bits."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
