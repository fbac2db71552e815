"""Which blocks of the text training will read next: known long before, as what is read is planned."""

from collections.abc import Iterable
from itertools import islice

from peer.data.batches import positions
from peer.data.blocks import BlockedTokens
from protocol.manifest import Manifest

AHEAD_BLOCKS = 16
"""Of 512 KiB: four million tokens, a second of a datacenter's training and a minute of a group's."""

AHEAD_STEPS = 512
"""Looked through for them at most."""


class Ahead:
    """One replica's way through a text: chunks (`protocol/outer/data_plan.py`), one for each inner step."""

    def __init__(self, tokens: BlockedTokens, manifest: Manifest) -> None:
        self.tokens, self.manifest = tokens, manifest
        self._blocks: dict[int, list[int]] = {}

    def plan(self, chunks: Iterable[int]) -> tuple[list[int], list[int]]:
        """The blocks of the first of these chunks, and those of the ones after it in the order in which they are
        needed, the first's not again."""
        found: dict[int, list[int]] = {}
        ahead: dict[int, None] = {}
        for chunk in islice(chunks, AHEAD_STEPS):
            found[chunk] = self._blocks.get(chunk) or self.tokens.needed(positions(self.tokens, self.manifest, chunk))
            ahead.update(dict.fromkeys(found[chunk]))
            if len(ahead) > AHEAD_BLOCKS and len(found) > 1:  # the next step's at least, however large a step is
                break
        self._blocks = found
        needed = next(iter(found.values()), [])
        return needed, [block for block in ahead if block not in needed]
