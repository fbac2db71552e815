"""A certificate is replaced before its end, and who cannot replace it says so: time is played, and nobody waits. A
newcomer on trial asks for a better card, and one of two with the same slot for another."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.network.discovery import Discovery
from peer.network.kept_place import (
    LEAST_PAUSE_SECONDS,
    MOST_PAUSE_SECONDS,
    has_first_claim,
    keep_a_slot,
    keep_renewing,
    stand_trial,
)
from protocol.errors import HetpeerError, RefusedError, UnreachableError
from protocol.events.activity import CertificateRenewed, Progress
from protocol.events.event import Event
from protocol.identity import PeerId
from protocol.net.channels import Credentials
from protocol.trust import certificates
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.records import PeerRecord, read_record
from tests.reference.admitted import certified, identity
from tests.reference.loopback_peers import RUN
from tests.reference.small_manifest import small_manifest

# The certificate

LIFE = 3600.0
PEER, OPERATOR, ANN = identity("peer"), identity("operator"), identity("ann")
AUTHORITY = Authority(RUN, OPERATOR.peer_id)


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
        self.asleep: list[float] = []
        """For so long the machine sleeps while an answer is on its way."""

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
        fresh = self._certificate()
        self.now += self.asleep.pop() if self.asleep else 0.0
        return fresh

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


def test_a_certificate_that_ended_while_the_machine_slept_is_renewed_at_once():
    """The answer was on its way: that says nothing of the clock."""
    played = Played(life=20.0)
    played.asleep = [30.0]
    played.until(200.0)
    assert not played.words()
    first, second = played.asked[:2]
    assert second - first <= 30.0 + LEAST_PAUSE_SECONDS


# The trial


def card(on_trial: bool) -> Card:
    return Card(ANN.peer_id, "volunteer", 1, 0, on_trial)


@dataclass
class StoredRecords:
    """A DHT that only takes."""

    last: bytes = b""

    async def store(self, key: str, subkey: str, value: bytes, expiration: float) -> bool:
        self.last = value
        return True


@dataclass
class Newcomer:
    """A peer whose operator answers as the test says: None where it does not."""

    answers: list[bool | None]
    on_trial: bool = True
    said: list[Event] = field(default_factory=list)
    asked_in: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dht, self.answered = StoredRecords(), asyncio.Queue[int]()
        signer = Signer(ANN, AUTHORITY, issue(OPERATOR, RUN, card(self.on_trial)))
        record = PeerRecord(
            peer_id=ANN.peer_id, address="h:1", role="volunteer", stage=1, slot=0, on_trial=self.on_trial
        )
        self.discovery = Discovery(self.dht, signer, small_manifest(), record)  # type: ignore[arg-type]

    async def ask(self) -> Any:
        self.asked_in.append(self.discovery.record.round)
        answer = self.answers.pop(0)
        self.answered.put_nowait(self.discovery.record.round)
        if answer is None:
            raise UnreachableError("no answer from h:1")
        return SimpleNamespace(card=card(answer), signed_card=issue(OPERATOR, RUN, card(answer)))

    async def stand(self, rounds: int) -> None:
        """Go through so many rounds, and no further than the trial's end."""
        standing = asyncio.create_task(stand_trial(self.discovery, self.ask, self.said.append))
        for round in range(1, rounds + 1):
            await asyncio.sleep(0)
            self.discovery.update_record(round=round)
            await self.answered.get()
        await standing


def test_it_asks_after_each_round_until_its_contributions_count(tmp_path: Path):
    newcomer = Newcomer([True, None, False])
    asyncio.run(asyncio.wait_for(newcomer.stand(3), 30))
    assert newcomer.asked_in == [1, 2, 3]
    first, silent, over = newcomer.said
    assert [each for each in newcomer.said if not isinstance(each, Progress)] == []
    assert "on trial" in first.doing  # type: ignore[union-attr]
    assert silent == Progress("still on trial: no answer from h:1")
    assert "trial is over" in over.doing  # type: ignore[union-attr]


def test_then_its_record_and_its_card_say_so_and_go_together():
    newcomer = Newcomer([False])
    asyncio.run(asyncio.wait_for(newcomer.stand(1), 30))
    told = read_record(newcomer.dht.last, ANN.peer_id, AUTHORITY)
    assert (told.on_trial, newcomer.discovery.record.on_trial) == (False, False)
    assert AUTHORITY.read(newcomer.discovery.signer.card) == card(on_trial=False)


def test_who_is_not_on_trial_asks_nobody():
    newcomer = Newcomer([], on_trial=False)
    asyncio.run(asyncio.wait_for(newcomer.stand(0), 30))
    assert (newcomer.asked_in, newcomer.said) == ([], [])


# The slot

FIRST, LAST = PeerId("Qm1"), PeerId("Qmzzzzzz")  # whatever Ann's is


def beside(peer: PeerId, **changes: Any) -> PeerRecord:
    fields = {"peer_id": peer, "address": "h:2", "role": "volunteer", "stage": 1, "slot": 0, "sequence": 1}
    return PeerRecord(**fields | changes)


@pytest.mark.parametrize(
    ("other", "first"),
    [
        (beside(FIRST), True),
        (beside(LAST), False),
        (beside(FIRST, slot=1), False),
        (beside(FIRST, stage=2), False),
        (beside(FIRST, role="datacenter"), False),
        (beside(FIRST, gone=True), False),
    ],
)
def test_who_has_the_first_claim_on_a_slot(other: PeerRecord, first: bool):
    discovery = Newcomer([], on_trial=False).discovery
    assert FIRST < ANN.peer_id < LAST
    assert has_first_claim(discovery) is None
    discovery.meet(other, in_person=False)
    assert (has_first_claim(discovery) is not None) == first


def test_of_two_observers_neither_gives_way():
    discovery = Newcomer([], on_trial=False).discovery
    discovery.update_record(role="observer", stage=0)
    discovery.meet(beside(FIRST, role="observer", stage=0), in_person=False)
    assert has_first_claim(discovery) is None


def test_who_has_no_claim_to_its_slot_takes_another_with_the_card_for_it():
    ann = Newcomer([], on_trial=False)
    moved = Card(ANN.peer_id, "volunteer", 1, 5, False)
    asked = []

    async def ask() -> Any:
        asked.append(ann.discovery.record.slot)
        return SimpleNamespace(card=moved, signed_card=issue(OPERATOR, RUN, moved))

    async def scene() -> None:
        keeping = asyncio.create_task(keep_a_slot(ann.discovery, ask, ann.said.append))
        await asyncio.sleep(0)
        assert asked == []
        ann.discovery.meet(beside(FIRST), in_person=False)
        while not ann.said:
            await ann.discovery.news.wait(1.0)
        ann.discovery.meet(beside(LAST, slot=5), in_person=False)  # who comes later to the new one, and has to go
        await asyncio.sleep(0)
        keeping.cancel()

    asyncio.run(asyncio.wait_for(scene(), 30))
    assert asked == [0]
    assert read_record(ann.dht.last, ANN.peer_id, AUTHORITY).slot == 5
    assert AUTHORITY.read(ann.discovery.signer.card) == moved
    assert ann.said == [Progress("peer Qm1 had slot 0 as well; this peer has 5 now")]
