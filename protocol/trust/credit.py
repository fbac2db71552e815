"""Credit: what a peer's receipts show together, the work that its neighbours saw and which of its contributions
count."""

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.identity import Part, PeerId
from protocol.manifest import Manifest
from protocol.trust.receipts import CountedReceipt, Receipt, Work


@dataclass(frozen=True, slots=True)
class RoundCredit:
    """The credit of one round. With two neighbours both sign the same work: `tokens` and `microbatches` are what the
    receipts of one side show, the side that says more; `tokens_of_both` what those of both sides show. `contradicted`:
    of one part, signers name different contributions."""

    round: int
    tokens: int = 0
    microbatches: int = 0
    tokens_of_both: int = 0
    neighbours: tuple[PeerId, ...] = ()
    counted_by: tuple[PeerId, ...] = ()
    steps: int = 0
    contradicted: bool = False

    @property
    def signers(self) -> tuple[PeerId, ...]:
        """The peers that signed any of the receipts."""
        return tuple(sorted({*self.neighbours, *self.counted_by}))

    @property
    def counts(self) -> bool:
        """Whether somebody says that the contribution counted, and nobody that another one did."""
        return bool(self.counted_by) and not self.contradicted


def standing(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Select the receipts that no later one has replaced, each once, in order."""
    kept: dict[tuple[object, ...], Receipt] = {}
    for each in receipts:
        known = kept.get(each.stands_for)
        if known is None or each.amount > known.amount:
            kept[each.stands_for] = each
    return sorted(kept.values(), key=lambda each: (each.round, isinstance(each, CountedReceipt), each.signer))


def by_round(receipts: Iterable[Receipt]) -> list[RoundCredit]:
    """Sum up the receipts of one receiver, by round."""
    rounds: dict[int, list[Receipt]] = {}
    for each in standing(receipts):
        rounds.setdefault(each.round, []).append(each)
    return [_sum(round, found) for round, found in sorted(rounds.items())]


def _sum(round: int, receipts: list[Receipt]) -> RoundCredit:
    work = [each for each in receipts if isinstance(each, Work)]
    counted = [each for each in receipts if isinstance(each, CountedReceipt)]
    tokens = microbatches = of_both = 0
    for stage in {each.stage for each in work}:
        sides = [(0, 0), (0, 0)]
        for side, beside in enumerate((stage - 1, stage + 1)):
            seen = [each for each in work if (each.stage, each.beside) == (stage, beside)]
            pairs = sum(min(each.forward, each.backward) for each in seen)
            sides[side] = sum(each.tokens for each in seen), pairs
        more = max(sides)
        tokens, microbatches, of_both = tokens + more[0], microbatches + more[1], of_both + min(sides)[0]
    named: dict[Part, set[str]] = {}
    for each in counted:
        named.setdefault(each.part, set()).add(each.sha256)
    return RoundCredit(
        round,
        tokens,
        microbatches,
        of_both,
        tuple(sorted({each.signer for each in work})),
        tuple(sorted({each.signer for each in counted})),
        max((each.steps for each in counted), default=0),
        any(len(digests) > 1 for digests in named.values()),
    )


def microbatch_tokens(manifest: Manifest) -> int:
    """The number of tokens of one microbatch."""
    return manifest.inner.microbatch * manifest.model.context
