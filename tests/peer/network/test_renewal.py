"""A certificate is replaced before its end, and who cannot replace it says so. Time is played: nobody waits."""

import asyncio
import time
from collections.abc import Callable

import pytest

from peer.network.renewal import LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS, keep_renewing
from peer.telemetry.events import CertificateRenewed, Event, Progress
from protocol.errors import HetpeerError, RefusedError, UnreachableError
from protocol.net.channels import Credentials
from protocol.trust import certificates
from tests.reference.admitted import certified, identity

LIFE = 3600.0
PEER, OPERATOR = identity("peer"), identity("operator")


class DoneError(Exception):
    """The scene has seen enough."""


class Played:
    """A peer that renews, in a time that passes only while it sleeps. `away` says whether nobody opens at a time."""

    def __init__(self, away: Callable[[float], HetpeerError | None] = lambda passed: None, life: float = LIFE) -> None:
        self.begun = self.now = float(int(time.time()))
        self.away, self.life = away, life
        self.credentials: Credentials = certified(PEER, OPERATOR)
        self.credentials.chain = self._certificate()
        self.asked: list[float] = []
        """When, in seconds since the beginning."""
        self.said: list[Event] = []

    def _certificate(self) -> bytes:
        return certificates.certify(OPERATOR, PEER.key.public_key(), self.now, self.life)

    async def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        if self.now > self.ends:
            raise DoneError

    async def _renew(self) -> bytes:
        self.asked.append(self.now - self.begun)
        if error := self.away(self.now - self.begun):
            raise error
        return self._certificate()

    def until(self, passed: float) -> "Played":
        """Let it renew for so many seconds."""
        self.ends = self.begun + passed

        async def scene() -> None:
            await keep_renewing(self.credentials, self._renew, self.said.append, lambda: self.now, self._sleep)

        with pytest.raises(DoneError):
            asyncio.run(scene())
        return self

    def words(self) -> list[str]:
        return [event.doing for event in self.said if isinstance(event, Progress)]


def test_each_certificate_is_replaced_long_before_its_end():
    played = Played().until(10 * LIFE)
    gaps = [later - sooner for sooner, later in zip([0.0, *played.asked], played.asked, strict=False)]
    assert len(gaps) >= 13
    assert all(0.55 * LIFE < gap < 0.7 * LIFE for gap in gaps)
    assert played.said == [
        CertificateRenewed(pytest.approx(played.begun + at + LIFE, abs=1.5))  # type: ignore[arg-type]
        for at in played.asked
    ]
    assert played.credentials.ends > played.now


def test_a_node_that_is_away_is_told_of_and_asked_again_until_it_is_back():
    back = 0.9 * LIFE
    played = Played(lambda passed: UnreachableError("no answer from h:1") if passed < back else None).until(LIFE)
    assert len(played.asked) > 2
    assert played.asked[-2] < back <= played.asked[-1]
    assert played.asked[-1] - back < (LIFE - back) / 2  # the nearer the end, the more often
    assert isinstance(played.said[-1], CertificateRenewed)
    for line in played.words():
        assert line.startswith("this peer's certificate ends in ")
        assert "and cannot be renewed: no answer from h:1; trying again in" in line


def test_after_its_end_it_says_what_that_means_and_goes_on_trying():
    back = 3 * LIFE
    played = Played(lambda passed: UnreachableError("away") if passed < back else None).until(4 * LIFE)
    ended = "this peer's certificate has ended: nobody new talks to it until it is renewed, and cannot be renewed: away"
    assert sum(line.startswith(ended) for line in played.words()) > 3
    assert any(isinstance(event, CertificateRenewed) for event in played.said)
    first = next(at for at in played.asked if at >= back)
    assert first - back < 1.25 * MOST_PAUSE_SECONDS


def test_a_peer_that_is_refused_says_so_and_goes_on_with_what_it_has():
    played = Played(lambda passed: RefusedError("revoked")).until(2 * LIFE)
    assert not any(isinstance(event, CertificateRenewed) for event in played.said)
    assert all("cannot be renewed: revoked" in line for line in played.words())
    assert len(played.asked) < 80  # with patience


def test_a_certificate_of_seconds_is_renewed_within_them():
    played = Played(life=20.0).until(100.0)
    assert len(played.asked) >= 6
    assert not played.words()


def test_one_that_has_ended_already_is_renewed_at_once():
    played = Played()
    played.credentials.chain = certified(PEER, OPERATOR, -60.0).chain
    played.until(10.0)
    assert played.asked == [0.0]


def test_a_clock_that_is_far_ahead_is_told_of_and_does_not_flood_the_node():
    played = Played(life=-2.0).until(3600.0)
    assert any("this machine's clock, which must be wrong" in line for line in played.words())
    assert len(played.asked) <= 3600.0 / min(MOST_PAUSE_SECONDS, 60.0 * LEAST_PAUSE_SECONDS)
