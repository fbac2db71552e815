"""The window of rounds that are open, and how timeliness is made part of the content.

A contribution of round t counts if the peers of its part learn of it in time. "In time" must not differ from
peer to peer, or their sets split at the edge. So lateness has a price in signatures, as in Dolev and Strong's
authenticated broadcast (SIAM J. Comput. 12(4), 1983): a peer that accepts a contribution signs a *receipt* and
passes both on, and a peer whose clock reads R accepts one of round t only with

    ⌈(R − t − grace) / SKEW⌉        receipts of distinct other peers; none while R ≤ t + grace.

Rounds beyond the window are folded: grace + SKEW · (liars + 1) rounds after t nothing of t is accepted.

Why no set splits while at most `liars` peers of a part lie: let H be the first honest peer to accept c. All receipts
it saw are liars', at most `liars`, so it accepted at most SKEW · liars rounds after the grace; it adds its
own and passes c on; whoever hears of it within SKEW rounds of H's clock needs at most one receipt more than H
did, and has it. All honest peers that can hear each other accept c, or none does. A contribution withheld from all of
them has liars' receipts only, and counts nowhere.
Where H is the author itself, who needs no receipt and gives none, the others must not need one either when
they hear of it: so grace is at least SKEW.
"""

from dataclasses import dataclass

from protocol.manifest import Manifest

SKEW = 2
"""The rounds in which a message of one honest peer reaches the others, the difference of their clocks included."""


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a run. `grace` is the number of rounds in which a contribution may come without receipts, `liars`
    the number of peers of a part that may lie."""

    grace: int
    liars: int

    def __post_init__(self) -> None:
        """An author accepts its own contribution at once; all others must be able to, a message later."""
        if self.grace < SKEW or self.liars < 0:
            raise ValueError(f"a window needs a grace of at least {SKEW} rounds, and no fewer than 0 liars")

    @staticmethod
    def of(manifest: Manifest) -> "Window":
        """The window of a run, by its manifest."""
        return Window(manifest.outer.grace, manifest.outer.liars)

    @property
    def width(self) -> int:
        """The number of rounds by which the clock may be ahead of a round that is still open."""
        return self.grace + SKEW * (self.liars + 1)

    @property
    def most_receipts(self) -> int:
        """The most receipts that a contribution ever needs: more are neither made nor kept."""
        return self.liars + 1

    @property
    def most_told(self) -> int:
        """The most receipts that come with an entry: those that are needed, and one that may be the hearer's own."""
        return self.most_receipts + 1

    @property
    def revocable(self) -> int:
        """The number of rounds by which a revocation reaches back from the one it was issued in: they are open
        everywhere yet."""
        return self.width - SKEW

    def receipts_needed(self, clock: int, round: int) -> int:
        """The number of receipts that a contribution of `round` needs to be accepted by a peer whose clock reads
        `clock`."""
        late = clock - round - self.grace
        return max(0, -(-late // SKEW))

    def is_past(self, clock: int, round: int) -> bool:
        """Whether the round is closed for a peer whose clock reads `clock`."""
        return clock - round > self.width

    def is_open(self, clock: int, round: int) -> bool:
        """Whether anything of the round can still be accepted. A round ahead of the clock is not yet open."""
        return round <= clock + SKEW and not self.is_past(clock, round)
