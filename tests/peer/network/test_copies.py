"""A copy of a running peer's folder does not start, and the one that runs is told; a peer that has moved starts."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from peer.network import copies as module
from peer.network.copies import Copies, elsewhere, stays
from protocol.errors import UserError
from protocol.events.activity import Warned
from protocol.events.event import Event
from protocol.trust.records import PeerRecord, sign_record
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest
from tests.reference.waiting import until

MANIFEST = small_manifest()


class OneDht:
    """A DHT in a dictionary."""

    def __init__(self) -> None:
        self.held: dict[str, object] = {}

    async def read(self, key: str) -> Mapping[str, object]:
        return self.held

    def put(self, peer: LoopbackPeer, **changes: object) -> None:
        """As the peer publishes its record, or one like it."""
        record = peer.outer.discovery.record.model_copy(update=changes)
        self.held[record.peer_id] = sign_record(peer.signer, record)


def play(folder: Path, scene: Callable[[Village, OneDht], Awaitable[None]]) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder, "a", "b") as made:
            await asyncio.wait_for(scene(made, OneDht()), 60)

    asyncio.run(run())


def copies_of(peer: LoopbackPeer, dht: Any, said: list[Event]) -> Copies:
    peer.outer.discovery.dht = dht
    return Copies(peer.outer.discovery, peer.outer.reconciler.contacts, said.append)


def record(address: str, **changes: object) -> PeerRecord:
    made = PeerRecord(peer_id="QmA", address=address, role="datacenter", stage=0, slot=0)  # type: ignore[arg-type]
    return made.model_copy(update=changes)


def test_a_record_of_another_address_that_has_not_said_goodbye_is_of_another_process():
    own = record("10.0.0.1:7700")
    assert elsewhere(own, record("10.0.0.2:7700"))
    assert elsewhere(own, record("10.0.0.1:7700", via=["/ip4/192.0.2.1/tcp/1/p2p/QmR"]))
    assert not elsewhere(own, record("10.0.0.1:7700", round=7))
    assert not elsewhere(own, record("10.0.0.2:7700", gone=True))


def test_of_two_copies_exactly_one_stays():
    places = [
        record("10.0.0.1:7700"),
        record("10.0.0.2:7700"),
        record("10.0.0.1:7700", via=["/ip4/1.1.1.1/tcp/1/p2p/Q"]),
    ]
    for one in places:
        assert [stays(one, other) != stays(other, one) for other in places if other is not one] == [True, True]


def test_a_copy_of_a_running_peers_folder_does_not_start_and_the_one_that_runs_says_where_it_was_started(
    tmp_path: Path,
):
    async def scene(made: Village, dht: OneDht) -> None:
        a, _ = made.peers
        said: list[Event] = []
        a.outer.reconciler.on_copy = copies_of(a, dht, said).on_call
        dht.put(a)
        copy = await made.start("a")
        for _ in range(3):
            with pytest.raises(UserError, match=f"runs already, at {a.outer.discovery.record.address}, with a copy"):
                await copies_of(copy, dht, []).require_none()
        where = copy.outer.discovery.record.address
        words = f"WARNING: a copy of this peer's folder was started at {where} and did not start"
        assert [event.doing.startswith(words) for event in said if isinstance(event, Warned)] == [True]
        assert a.outer.discovery.namesake is None
        assert not a.outer.reconciler.bans.offenders

    play(tmp_path, scene)


@pytest.mark.parametrize("was", ["dead", "another peer's by now", "gone", "this one's own", "nowhere", "damaged"])
def test_a_peer_that_has_moved_or_was_killed_starts(tmp_path: Path, was: str):
    async def scene(made: Village, dht: OneDht) -> None:
        a, b = made.peers
        again = await made.start("a")
        match was:
            case "dead":
                await a.server.stop(None)
                dht.put(a)
            case "another peer's by now":
                dht.put(a, address=b.outer.discovery.record.address)
            case "gone":
                dht.put(a, gone=True)
            case "this one's own":
                dht.put(a, address=again.outer.discovery.record.address)
            case "damaged":
                dht.put(a)
                dht.held[a.id] = b"damaged"
        await copies_of(again, dht, []).require_none()

    play(tmp_path, scene)


def test_copies_that_started_in_the_same_moment_find_each_other_and_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.01)

    async def scene(made: Village, dht: OneDht) -> None:
        first, copy = made.peers[0], await made.start("a")
        both = sorted((first, copy), key=lambda peer: peer.outer.discovery.record.address)
        lower, higher = (peer.outer.discovery for peer in both)
        said: list[Event] = []
        staying = asyncio.create_task(copies_of(both[0], dht, said).watch())
        ending = asyncio.create_task(copies_of(both[1], dht, []).watch())
        for mine, theirs in ((lower, higher), (higher, lower)):  # each reads what the other has published last
            theirs.update_record(round=1)
            mine.update_record(sequence=0)
            mine.record = mine.record.model_copy(update={"sequence": theirs.record.sequence - 1})
            mine.meet(theirs.record, in_person=False)
        with pytest.raises(UserError, match=f"runs already, at {lower.record.address}"):
            await ending
        await until(lambda: bool(said))
        assert [f"runs at {higher.record.address}: stop it" in str(event) for event in said] == [True]
        staying.cancel()

    play(tmp_path, scene)


@pytest.mark.parametrize("renewed", [False, True])
def test_a_copy_that_cannot_be_dialled_runs_if_its_record_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renewed: bool
):
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.01)

    async def scene(made: Village, dht: OneDht) -> None:
        a, _ = made.peers
        discovery, said = a.outer.discovery, list[Event]()
        hidden = {"address": "127.0.0.2:9", "via": ["/ip4/192.0.2.1/tcp/1/p2p/QmR"]}
        watching = asyncio.create_task(copies_of(a, dht, said).watch())
        for number in range(3):  # its clock was set back: an older record of its own looks newer
            sequence = discovery.record.sequence + 1000 + number * renewed
            discovery.meet(discovery.record.model_copy(update={**hidden, "sequence": sequence}), in_person=False)
            await until(lambda: discovery.namesake is None)
        if renewed:
            await until(lambda: bool(said) or watching.done())
        assert bool(said or watching.done()) == renewed
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    play(tmp_path, scene)
