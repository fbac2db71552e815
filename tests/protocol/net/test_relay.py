"""A relay between two who do not know where the other is, by real daemons of libp2p."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import HetpeerError, RefusedError, UnreachableError
from protocol.identity import PeerId
from protocol.limits import RELAY_BYTES_PER_SECOND, RELAY_BYTES_SAVED
from protocol.net import relay as relays
from protocol.net import streams
from protocol.net.relay import Budget, Relay, be_held, call_by, ping
from protocol.net.streams import TUNNEL, Stream, Streams
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Card, issue
from tests.reference.libp2p import RUN, Libp2pNode, authority, nodes, operator


class Stage:
    """A relay, a peer that is held by it and echoes, and one that calls."""

    def __init__(self, folder: Path, relay: Relay, at: Libp2pNode, hidden: Libp2pNode, caller: Libp2pNode) -> None:
        self.folder, self.relay, self.at, self.hidden, self.caller = folder, relay, at, hidden, caller
        self.objections: dict[PeerId, str] = {}
        self.opened: list[Stream] = []
        relay.objection = lambda peer: self.objections.get(peer, "")

    async def held(self) -> Stream:
        _, stream = await be_held(self.hidden.streams, self.at.address, self.hidden.card)
        self.opened.append(stream)
        return stream

    async def called(self) -> Stream:
        self.opened.append(await call_by(self.caller.streams, self.at.address, self.caller.card, self.hidden.id))
        return self.opened[-1]

    async def asked(self, greeting: bytes) -> Stream:
        """A stream to the relay, as somebody else's program might open it."""
        self.opened.append(await self.caller.streams.open(self.at.id, relays.RELAY))
        await self.opened[-1].send_message(greeting)
        return self.opened[-1]


Scene = Callable[[Stage], Awaitable[None]]


def play(folder: Path, scene: Scene) -> None:
    async def whole() -> None:
        async with nodes(folder, "relay", "hidden", "caller") as (at, hidden, caller):
            relay = Relay(at.streams, authority(folder))
            await relay.open()
            await hidden.streams.serve(TUNNEL, hidden.echo)
            on = Stage(folder, relay, at, hidden, caller)
            try:
                await scene(on)
            finally:
                for stream in on.opened:
                    stream.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


async def echoed(stream: Stream, piece: bytes) -> bool:
    stream.writer.write(piece)
    await stream.writer.drain()
    return await stream.reader.readexactly(len(piece)) == piece


async def hung_up(stream: Stream) -> bool:
    return await stream.reader.read() == b""


async def hung_up_after_reason(stream: Stream) -> bool:
    return b"no greeting" in await stream.reader.read()


def test_bytes_go_both_ways_between_peers_that_have_not_dialled_each_other(tmp_path: Path):
    async def scene(on: Stage) -> None:
        await on.held()
        stream = await on.called()
        big = bytes(range(256)) * 8192
        writing = asyncio.create_task(echoed(stream, big))
        assert await writing
        other = await on.called()
        assert await echoed(other, b"a second stream")
        stream.close()
        assert await echoed(other, b"goes on")

    play(tmp_path, scene)


def test_what_is_carried_for_others_takes_its_turn_on_the_relays_own_line(tmp_path: Path):
    async def scene(on: Stage) -> None:
        paid = list[int]()

        async def pay(count: int) -> None:
            paid.append(count)

        on.relay.pay = pay
        await on.held()
        stream = await on.called()
        stream.writer.write(b"hello")
        assert await stream.reader.readexactly(5) == b"hello"
        assert paid == [5, 5]

    play(tmp_path, scene)


def test_who_is_held_asks_whether_the_relay_is_there_and_learns_when_it_is_not(tmp_path: Path):
    async def scene(on: Stage) -> None:
        stream = await on.held()
        assert await ping(stream)
        assert await ping(stream)
        assert list(on.relay.held) == [on.hidden.id]
        await on.at.streams.close()
        assert not await ping(stream)
        assert not on.relay.held

    play(tmp_path, scene)


def test_who_says_nothing_for_a_while_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relays, "RELAY_PING_SECONDS", 0.05)
    monkeypatch.setattr(relays, "RELAY_SILENCE_SECONDS", 0.1)

    async def scene(on: Stage) -> None:
        assert await hung_up(await on.held())
        with pytest.raises(RefusedError, match="is not behind this relay"):
            await on.called()

    play(tmp_path, scene)


def test_a_peer_that_comes_back_is_held_over_a_new_connection_and_not_beside_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hang_up, hung_up_on = Streams.hang_up, list[tuple[Streams, PeerId]]()

    async def noted(streams: Streams, peer: PeerId) -> None:
        hung_up_on.append((streams, peer))
        await hang_up(streams, peer)

    monkeypatch.setattr(Streams, "hang_up", noted)

    async def scene(on: Stage) -> None:
        first = await on.held()
        second = await on.held()
        assert (on.at.streams, on.hidden.id) in hung_up_on
        assert await hung_up(first)
        assert await ping(second)
        assert await echoed(await on.called(), b"still here")

    play(tmp_path, scene)


def test_members_of_the_run_alone_are_held_and_carried(tmp_path: Path):
    async def scene(on: Stage) -> None:
        at, hidden, caller = on.at, on.hidden, on.caller
        foreign = issue(hidden.identity, RUN, Card(hidden.id, "volunteer", 0, 0))
        gateway = load_or_create(on.folder / "gateway")
        theirs = issue(operator(on.folder), RUN, Card(gateway.peer_id, "gateway", 0, 0))
        fallen = issue(gateway, RUN, Card(hidden.id, "volunteer", 0, 0), theirs)
        on.relay.authority = replace(on.relay.authority, fallen=lambda issuer: issuer == gateway.peer_id)
        for card in (b"", b"card", caller.card, foreign, fallen):
            with pytest.raises(RefusedError):
                await be_held(hidden.streams, at.address, card)
        assert not on.relay.held
        await on.held()
        for card in (b"", hidden.card, issue(caller.identity, RUN, Card(caller.id, "volunteer", 0, 0))):
            with pytest.raises(RefusedError):
                await call_by(caller.streams, at.address, card, hidden.id)
        with pytest.raises(RefusedError, match="is not behind this relay"):
            await call_by(caller.streams, at.address, caller.card, operator(on.folder).peer_id)

    play(tmp_path, scene)


def test_who_is_revoked_is_refused_and_its_streams_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relays, "RELAY_POLL_SECONDS", 0.05)

    async def scene(on: Stage) -> None:
        holding = await on.held()
        stream = await on.called()
        assert await echoed(stream, b"before")
        on.objections[on.caller.id] = "the operator has taken this peer out"
        assert await hung_up(stream)
        with pytest.raises(RefusedError, match="the operator has taken this peer out"):
            await on.called()
        on.objections = {on.hidden.id: "the operator has taken this peer out"}
        with pytest.raises(RefusedError, match="the operator has taken this peer out"):
            await on.called()
        assert not await ping(holding)

    play(tmp_path, scene)


def test_a_stream_that_is_idle_or_old_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relays, "RELAY_POLL_SECONDS", 0.05)

    async def scene(on: Stage) -> None:
        now = 0.0
        on.relay.clock = lambda: now
        await on.held()
        stream = await on.called()
        now = 50.0
        assert await echoed(stream, b"every now and then")
        now = 100.0
        assert await echoed(stream, b"something is said")
        now = 161.0
        assert await hung_up(stream)
        stream = await on.called()
        now += 12 * 3600.0 + 1
        assert await hung_up(stream)

    play(tmp_path, scene)


def test_two_peers_have_so_many_streams_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relays, "RELAY_STREAMS_OF_PAIR", 2)

    async def scene(on: Stage) -> None:
        await on.held()
        first, _ = [await on.called() for _ in range(2)]
        with pytest.raises(RefusedError, match="carries as many streams as it can"):
            await on.called()
        first.close()
        third: Stream | None = None
        while third is None:  # until the relay has noticed
            with suppress(RefusedError):
                third = await on.called()
        assert await echoed(third, b"there is room again")

    play(tmp_path, scene)


def test_of_a_full_relay_who_opened_most_loses_its_newest_to_who_has_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(relays, "RELAY_STREAMS", 4)

    async def scene(on: Stage) -> None:
        await on.held()
        await on.caller.streams.serve(TUNNEL, on.caller.echo)
        _, held = await be_held(on.caller.streams, on.at.address, on.caller.card)
        on.opened.append(held)
        greedy = [await on.called() for _ in range(4)]
        with pytest.raises(RefusedError, match="as many streams as it can"):
            await on.called()
        late = await call_by(on.hidden.streams, on.at.address, on.hidden.card, on.caller.id)
        on.opened.append(late)
        assert await echoed(late, b"a place")
        assert await hung_up(greedy[-1])
        for stream in greedy[:-1]:
            assert await echoed(stream, b"goes on")

    play(tmp_path, scene)


def test_one_peer_opens_so_many_streams_to_however_many_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relays, "RELAY_STREAMS_OF_PEER", 2)

    async def scene(on: Stage) -> None:
        await on.held()
        first, _ = await on.called(), await on.called()
        with pytest.raises(RefusedError, match="as many streams as it can"):
            await on.called()
        first.close()
        again = None
        while again is None:  # the relay sees it before long
            with suppress(RefusedError):
                again = await on.called()
        assert await echoed(again, b"again")

    play(tmp_path, scene)


def test_a_stranger_that_says_nothing_keeps_no_others_greeting_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relays, "RELAY_STREAMS", 10)
    monkeypatch.setattr(relays, "RELAY_GREETINGS_OF_STRANGERS", 10)
    monkeypatch.setattr(relays, "RELAY_OPEN_SECONDS", 60.0)  # none of the silent is hung up on before it is counted

    async def scene(on: Stage) -> None:
        assert await on.caller.streams.connect(on.at.address) == on.at.id
        silent = [await on.caller.streams.open(on.at.id, relays.RELAY) for _ in range(12)]
        on.opened.extend(silent)
        refusals = asyncio.as_completed([stream.reader.read() for stream in silent])
        for _ in silent[relays.RELAY_GREETINGS_OF_PEER :]:  # whichever the daemons brought last
            await next(refusals)
        assert on.relay.greeting[on.caller.id] == relays.RELAY_GREETINGS_OF_PEER
        assert await ping(await on.held())

    play(tmp_path, scene)


def test_while_strangers_greet_the_runs_peers_are_heard(tmp_path: Path):
    async def scene(on: Stage) -> None:
        await on.held()
        for number in range(relays.RELAY_GREETINGS_OF_STRANGERS):
            on.relay.greeting[PeerId(f"stranger {number}")] = 1
        assert await ping(await on.held())
        with pytest.raises(HetpeerError, match="hung up"):
            await on.called()

    play(tmp_path, scene)


def test_a_relay_holds_so_many_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relays, "RELAY_PEERS", 1)

    async def scene(on: Stage) -> None:
        await on.held()
        await on.held()
        with pytest.raises(RefusedError, match="holds as many peers as it can"):
            await be_held(on.caller.streams, on.at.address, on.caller.card)

    play(tmp_path, scene)


def test_what_is_said_first_is_short_and_makes_sense(tmp_path: Path):
    async def scene(on: Stage) -> None:
        await on.caller.streams.connect(on.at.address)
        for nonsense in (b"\xc1", b"\x93\x01\x02\x03", b"", b"\xdd\xff\xff\xff\xff"):
            stream = await on.asked(nonsense)
            assert b"no greeting of a relay's" in await stream.receive_message(200)
            assert on.at.streams.refusing  # it hangs up after us: what it said last might be lost otherwise
            stream.close()
        assert await hung_up(await on.asked(bytes(4096)))

    play(tmp_path, scene)


def test_who_is_refused_and_does_not_hang_up_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streams, "REFUSAL_SECONDS", 0.2)
    monkeypatch.setattr(streams, "REFUSALS", 1)

    async def scene(on: Stage) -> None:
        await on.caller.streams.connect(on.at.address)
        first, second = await on.asked(b"nonsense"), await on.asked(b"nonsense")
        assert await hung_up_after_reason(second)
        assert await hung_up_after_reason(first)
        assert not on.at.streams.refusing

    play(tmp_path, scene)


def test_a_peer_that_takes_no_tunnel_is_told_of(tmp_path: Path):
    async def scene(on: Stage) -> None:
        on.hidden.refuses = b"not from there"
        await on.held()
        with pytest.raises(RefusedError, match="not from there"):
            await on.called()
        await on.hidden.dht.stop()
        with pytest.raises(HetpeerError):
            await on.called()

    play(tmp_path, scene)


def test_a_relay_that_is_not_there_is_unreachable(tmp_path: Path):
    async def scene(on: Stage) -> None:
        nowhere = f"/ip4/127.0.0.1/tcp/9/p2p/{operator(on.folder).peer_id}"
        for address in (nowhere, "/ip4/127.0.0.1", "no address"):
            with pytest.raises(UnreachableError):
                await be_held(on.hidden.streams, address, on.hidden.card)
        with pytest.raises(UnreachableError):
            await be_held(on.hidden.streams, on.caller.address, on.hidden.card)

    play(tmp_path, scene)


def test_two_peers_are_slowed_down_to_their_rate_once_what_was_saved_is_spent():
    now, saved, second = 100.0, int(RELAY_BYTES_SAVED), int(RELAY_BYTES_PER_SECOND)
    budget = Budget()

    def passed_on(count: int) -> float:
        return budget.wait_seconds(count, now)

    assert passed_on(saved) == 0.0
    assert passed_on(second) == pytest.approx(1.0)
    now += 1.0
    assert passed_on(0) == pytest.approx(0.0)
    assert passed_on(second // 2) == pytest.approx(0.5)
    now += 10**6
    assert passed_on(saved) == 0.0
