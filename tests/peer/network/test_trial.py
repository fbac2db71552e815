"""What a newcomer does while it is on trial."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from peer.network.discovery import Discovery
from peer.network.renewal import stand_trial
from peer.telemetry.events import Event, Progress
from protocol.errors import UnreachableError
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.records import PeerRecord, read_record
from tests.reference.admitted import identity
from tests.reference.loopback_peers import RUN
from tests.reference.small_manifest import small_manifest

OPERATOR, ANN = identity("operator"), identity("ann")
AUTHORITY = Authority(RUN, OPERATOR.peer_id)


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
            self.discovery.tell(round=round)
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
