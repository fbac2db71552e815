"""The address book: what a peer tells in the DHT, another finds there."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from peer.network import discovery as module
from peer.network.discovery import Discovery
from protocol import clock
from protocol.identity import PeerId, RunId
from protocol.net import dht as dhts
from protocol.net.dht import Dht
from protocol.net.tasks import Notifier
from protocol.patience import RECORD_SECONDS
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.records import PeerRecord, Register
from tests.reference.loopback_peers import NoDht
from tests.reference.small_manifest import small_manifest

RUN, MANIFEST = RunId("ab" * 32), small_manifest()


@dataclass
class SetClocks:
    """Clocks that a test sets."""

    monotonic_seconds: float
    unix_seconds: float

    def monotonic(self) -> float:
        return self.monotonic_seconds

    def time(self) -> float:
        return self.unix_seconds


def discovery(folder: Path, operator: Identity, dht: Dht, authority: Authority) -> Discovery:
    """Of a volunteer of stage 1 whom this operator has admitted."""
    identity = load_or_create(folder)
    signer = Signer(identity, authority, issue(operator, RUN, Card(identity.peer_id, "volunteer", 1, 0)))
    record = PeerRecord(peer_id=identity.peer_id, address="h:1", role="volunteer", stage=1, slot=0)
    return Discovery(dht, signer, MANIFEST, record)


def test_peers_find_each_other_and_each_others_news_and_no_stranger(tmp_path: Path):
    operator = load_or_create(tmp_path / "operator")
    authority = Authority(RUN, operator.peer_id)
    register = Register(authority, MANIFEST)

    async def scene() -> None:
        first = await dhts.start(load_or_create(tmp_path / "a"), "127.0.0.1", 0, register)
        second = await dhts.start(load_or_create(tmp_path / "b"), "127.0.0.1", 0, register, first.addresses)
        try:
            a = discovery(tmp_path / "a", operator, first, authority)
            b = discovery(tmp_path / "b", operator, second, authority)
            stranger = discovery(tmp_path / "c", load_or_create(tmp_path / "no operator"), second, authority)
            for each in (a, b, stranger):
                await each.publish()
            await a.read()
            assert a.others() == (b.record,)
            await b.publish(round=3, scores={a.record.peer_id: 0.25})
            await a.read()
            (found,) = a.others()
            assert (found.round, found.scores) == (3, {a.record.peer_id: 0.25})
        finally:
            await second.stop()
            await first.stop()

    asyncio.run(scene())


def test_who_is_avoided_is_not_there_and_is_again_afterwards(tmp_path: Path):
    operator = load_or_create(tmp_path / "operator")
    authority = Authority(RUN, operator.peer_id)
    ours, theirs = (discovery(tmp_path / name, operator, NoDht(), authority) for name in ("a", "b"))
    peer = theirs.record.peer_id
    ours.meet(theirs.record, in_person=True)
    avoided = {peer}
    ours.objection = lambda each: "it broke the protocol" if each in avoided else ""
    assert ours.peers() == (ours.record,)
    ours.lose(peer)
    assert ours.missed() == []
    avoided.clear()
    assert ours.missed() == [peer]
    ours.meet(theirs.record, in_person=True)
    assert ours.others() == (theirs.record,)


@pytest.mark.parametrize("turns", range(5))
def test_who_is_told_to_stop_while_news_come_stops(turns: int):
    """The operator's word rings the bell, and ends the work of who waits for it."""

    async def scene() -> None:
        news = Notifier()

        async def work() -> None:
            while True:
                await news.wait(60.0)

        task = asyncio.create_task(work())
        for _ in range(5):
            await asyncio.sleep(0)  # until it waits
        news.ring()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=5.0)
        assert done == {task}

    asyncio.run(scene())


def test_of_too_many_peers_the_one_unheard_of_for_longest_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PEERS_KEPT", 3)
    operator = load_or_create(tmp_path / "operator")
    none: Any = NoDht()
    a = discovery(tmp_path / "a", operator, none, Authority(RUN, operator.peer_id))
    peers = [a.record.model_copy(update={"peer_id": PeerId(f"Qm{number}")}) for number in range(5)]
    for number, each in enumerate(peers[:3]):
        a.meet(each, in_person=True)
        a.seen[each.peer_id] = float(number)
        a.trips[each.peer_id] = 0.1
    a.lose(peers[0].peer_id)
    for each in peers[3:]:
        a.meet(each, in_person=True)
    assert {*a.records} == {each.peer_id for each in peers[2:]} == {*a.seen}
    assert {*a.trips} == {peers[2].peer_id}
    assert not a.lost
    assert a.missed() == []


def test_who_is_silent_for_as_long_as_a_record_holds_is_not_there(tmp_path: Path):
    operator = load_or_create(tmp_path / "operator")
    authority = Authority(RUN, operator.peer_id)
    ours, theirs = (discovery(tmp_path / name, operator, NoDht(), authority) for name in ("a", "b"))
    clocks = SetClocks(monotonic_seconds=1000.0, unix_seconds=1_800_000_000.0)
    with clock.read_from(clocks):
        ours.meet(theirs.record, in_person=True)
        clocks.monotonic_seconds += RECORD_SECONDS - 1
        clocks.unix_seconds -= 7200  # somebody sets the clock on the wall
        assert ours.others() == (theirs.record,)
        clocks.monotonic_seconds += 2
        assert ours.others() == ()
        assert ours.missed() == []  # it may have gone: nobody waits for it


def test_a_peer_that_gives_up_an_address_is_said_to_have_moved_and_one_that_names_more_is_not(tmp_path: Path):
    operator = load_or_create(tmp_path / "operator")
    authority = Authority(RUN, operator.peer_id)
    ours, theirs = (discovery(tmp_path / name, operator, NoDht(), authority) for name in ("a", "b"))
    moves = list[tuple[str, str]]()
    ours.report_moves_to(lambda before, now: moves.append((before.address, now.address)))
    first = theirs.record.address

    def hear(**says: object) -> None:
        theirs.update_record(**says)
        ours.meet(theirs.record, in_person=False)

    ours.meet(theirs.record, in_person=True)
    hear(round=2)
    hear(other_addresses=["10.8.0.2:4000"])
    hear(address="10.8.0.2:4000", other_addresses=[first])
    assert moves == []
    hear(other_addresses=[])
    hear(address="10.0.0.3:4000")
    assert moves == [("10.8.0.2:4000", "10.8.0.2:4000"), ("10.8.0.2:4000", "10.0.0.3:4000")]
    earlier = theirs.record.model_copy(update={"address": first, "sequence": 1})
    ours.meet(earlier, in_person=True)
    assert len(moves) == 2
