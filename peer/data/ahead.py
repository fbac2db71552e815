"""Which blocks of the text training will read next: known long before, as what is read is a function of the place."""

from peer.data.batches import positions
from peer.data.blocks import BlockedTokens
from protocol.manifest import Manifest

AHEAD_BLOCKS = 16
"""Of 512 KiB: four million tokens, a second of a datacenter's training and a minute of a group's."""

AHEAD_STEPS = 512
"""Looked through for them at most."""


class Ahead:
    """One replica's way through a text. Steps are counted through all rounds; those that were passed are forgotten."""

    def __init__(self, tokens: BlockedTokens, manifest: Manifest, slot: int) -> None:
        self.tokens, self.manifest, self.slot = tokens, manifest, slot
        self._planned: dict[int, list[int]] = {}

    def plan(self, round: int, step: int) -> tuple[list[int], list[int]]:
        """The blocks of this step, and those that come after it in the order in which they are needed, this step's not
        again."""
        steps, rounds = self.manifest.inner.steps, self.manifest.outer.rounds
        now = (round - 1) * steps + step
        self._planned = {place: blocks for place, blocks in self._planned.items() if place >= now}
        ahead: dict[int, None] = {}
        for place in range(now, min(rounds * steps, now + AHEAD_STEPS)):
            if place not in self._planned:
                where = positions(self.tokens, self.manifest, place // steps + 1, place % steps, self.slot)
                self._planned[place] = self.tokens.needed(where)
            ahead.update(dict.fromkeys(self._planned[place]))
            if len(ahead) > AHEAD_BLOCKS and place > now:  # the next step's at least, however large a step is
                break
        needed = self._planned.get(now, [])  # none after the last round
        return needed, [block for block in ahead if block not in needed]
