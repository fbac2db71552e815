"""The position of the others in the run, as far as their contributions show it: no peer's bare statement counts.
Pure."""

from collections.abc import Iterable, Mapping

from protocol.identity import PeerId


def borne_out(said: Mapping[PeerId, int], shown: Mapping[PeerId, int], silent: int, liars: int) -> list[int]:
    """The rounds that others have finished. Each of those who have signed contributions, the last to the round that is
    `shown`, has finished what it `said`, but none beyond the one after that: it may have ended one without. Of `liars`
    and fewer, all may lie; then the `silent`, so many who train and have shown nothing, are where they began."""
    finished = [min(said.get(peer, 0), round + 1) for peer, round in shown.items() if round]
    return finished + [0] * (silent if len(finished) <= liars else 0)


def common_round(finished: Iterable[int], liars: int) -> int:
    """The latest round that more than `liars` peers say they have finished: no liar alone can push it. Of fewer peers,
    the round that all of them have; 0 of none."""
    rounds = sorted(finished, reverse=True)
    return rounds[min(liars, len(rounds) - 1)] if rounds else 0
