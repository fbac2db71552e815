"""Which tokens a replica reads: a function of the run's seed, the round, the inner step and its slot.

The text is cut into N sequences of `context` tokens. All slots together read numbers k = 0, 1, 2, … in fixed
shares, and number k is sequence P(k mod N) of the permutation P of epoch ⌊k / N⌋. So no two replicas read the
same sequence within an epoch, nobody has to ask anybody, and the place in the data is the round alone. What
an absent replica would have read is left out in that epoch.
"""

import numpy as np
from numpy.typing import NDArray

from peer.data.blocks import BlockedTokens
from peer.data.order import in_order
from peer.data.tokens import Tokens
from protocol.errors import FormatError
from protocol.manifest import Manifest

Text = Tokens | BlockedTokens
"""All tokens in one file, or in blocks."""

Batch = NDArray[np.int64]
"""Token ids [sequences, context + 1]: inputs are [:, :-1], targets [:, 1:]."""


ORDERS_APART = 2**20
"""Epochs between the orders of different generations of slots: more than any run has."""


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
    """How many neighbouring sequences are read one after the other: those of a block."""
    return max(1, tokens.stream.block_tokens // manifest.model.context) if isinstance(tokens, BlockedTokens) else 1


def sequence_ids(
    manifest: Manifest, sequences_available: int, round: int, step: int, slot: int, together: int = 1
) -> NDArray[np.int64]:
    """Sequences one replica reads in one inner step: int64 [inner.sequences] in [0, sequences_available).

    Rounds count from 1; steps from 0 to H − 1; slots from 0. Those beyond `replicas.total`, of who came beside the
    replicas that the run began with, read the same text in other orders.

    Raises:
        ValueError: a round, step or slot that the manifest does not have.
    """
    steps, sequences, slots = manifest.inner.steps, manifest.inner.sequences, manifest.replicas.total
    if round < 1 or not 0 <= step < steps or slot < 0:
        raise ValueError(f"no round {round}, step {step}, slot {slot} in a run of {steps} steps")
    order, slot = divmod(slot, slots)
    first = (((round - 1) * slots + slot) * steps + step) * sequences
    ids: list[NDArray[np.int64]] = []
    while sequences:
        epoch, start = divmod(first, sequences_available)
        count = min(sequences, sequences_available - start)  # the rest is in the next epoch
        numbers = np.arange(start, start + count, dtype=np.int64)
        ids.append(in_order(numbers, sequences_available, together, manifest.run.seed, epoch + order * ORDERS_APART))
        first, sequences = first + count, sequences - count
    return np.concatenate(ids)


def batch(tokens: Text, manifest: Manifest, round: int, step: int, slot: int) -> Batch:
    """What one replica reads in one inner step: int64 [inner.sequences, context + 1].

    Raises:
        FormatError: there are too few tokens for one sequence.
        ValueError: a round, step or slot that the manifest does not have.
    """
    return _read(tokens, positions(tokens, manifest, round, step, slot))


def positions(tokens: Text, manifest: Manifest, round: int, step: int, slot: int) -> NDArray[np.int64]:
    """Where in the text that is: int64 [inner.sequences, context + 1]. Raises as `batch` does."""
    available = sequences_in(tokens, manifest)
    ids = sequence_ids(manifest, available, round, step, slot, together(tokens, manifest))
    return _positions(ids, manifest.model.context)


def held_out_batch(tokens: Text, manifest: Manifest) -> Batch:
    """The first `evaluation.sequences` sequences, or as many as there are: int64 [E, context + 1].

    Raises:
        FormatError: there are too few tokens for one sequence.
    """
    return _read(tokens, held_out_positions(tokens, manifest))


def held_out_positions(tokens: Text, manifest: Manifest) -> NDArray[np.int64]:
    """Where in the text that is. Raises as `held_out_batch` does."""
    count = min(manifest.evaluation.sequences, sequences_in(tokens, manifest))
    return _positions(np.arange(count), manifest.model.context)


def _positions(ids: NDArray[np.int64], context: int) -> NDArray[np.int64]:
    """Sequence i is tokens [i · context, i · context + context]. int64 [n] → int64 [n, context + 1]."""
    return ids[:, None] * context + np.arange(context + 1)


def _read(tokens: Text, positions: NDArray[np.int64]) -> Batch:
    sequences: Batch = tokens[positions].astype(np.int64)
    return sequences
