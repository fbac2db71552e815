"""The DHT, by hivemind.

It runs inside our own asyncio loop (`DHTNode`, never the forking `hivemind.DHT`); beside it runs only
libp2p's daemon, a child that ends with us. Nothing here is on the hot path: a hung node costs seconds.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.clock import monotonic
from protocol.errors import ResourceError, UnreachableError
from protocol.identity import PeerId
from protocol.limits import LIBP2P_BYTES, LIBP2P_SHARE, RECORDS_READ
from protocol.net import gate as gates
from protocol.net import libp2p
from protocol.net.allowances import pause_after
from protocol.net.connection_limits import OF_LIBP2P
from protocol.net.dht_calls import Calls
from protocol.net.dht_checks import Checks, Offence, Rules, no_offence
from protocol.net.gate import Gate
from protocol.net.streams import BROKEN_STREAM_ERRORS, Streams
from protocol.net.tasks import Children, Notifier, apart, first_of, wait_at_most
from protocol.trust.keys import Identity

WAIT_SECONDS = 2.0
"""The time within which one node has to answer before it is passed over."""

SEARCH_SECONDS = 20.0
"""The time for a search, which asks a few nodes after each other and may meet some that do not answer."""

ATTACH_SECONDS = 5.0

ATTACH_AGAIN_SECONDS = 30.0

P2PD_HEARTBEAT_SECONDS = 2.0
"""The interval at which libp2p's daemon is asked whether it is there."""

BEATS_MISSED = 2
"""The number of unanswered questions after which the daemon is started anew: one may be missed because this process was
busy."""

STARTS = 5
"""The failed starts in a row after which the daemon is given up."""

FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 60.0
"""The pauses before another daemon is started where one has died at once: training goes on meanwhile."""


@dataclass(slots=True)
class Dht:
    """A node of the run's DHT."""

    identity: Identity
    gate: Gate
    announces: list[str]
    """The multiaddresses at which others dial this node."""
    hidden: bool
    checks: Checks
    streams: Streams
    """The streams of the node's daemon, whichever that is by now."""
    p2p: Any = None
    node: Any = None
    calls: Calls = field(init=False)
    addresses: tuple[str, ...] = ()
    met: tuple[str, ...] = ()
    """The addresses to which this node went last."""
    say: Callable[[str], None] = lambda said: None
    """A function that is told when a daemon is started anew."""
    move_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    attach_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    started: Notifier = field(default_factory=Notifier)

    async def move(self, host: str, hidden: bool) -> None:
        """Listen at another host from now on, at the same port if it is free there: another daemon takes the place of
        this one, whose connections may all be dead. Returns once it runs; `while_alive` starts it.

        Raises:
            ResourceError: the host is no address of this machine.
        """
        await self.gate.move([host])
        self.announces, self.hidden = libp2p.announced(host, self.gate.address), hidden
        self.move_wanted.set()
        await self.started.wait()

    async def attach(self, addresses: Sequence[str]) -> int:
        """Meet other nodes at their libp2p addresses, of which one node may have several. Returns how many answered."""
        self.met = tuple(addresses) or self.met
        meetings = [self._meet(peer, its_addresses) for peer, its_addresses in by_peer(addresses).items()]
        results = await asyncio.gather(*meetings)
        if any(results):
            await apart(self.node.find_nearest_nodes([self.node.node_id]))
        return sum(results)

    async def keep_attached(self, addresses: Callable[[], Sequence[str]]) -> None:
        """Meet other nodes again and again, for as long as this node lives. A node that has been away, for a restart or
        behind a dead line, is in nobody's routing table any more, and may have nobody in its own. If one of those that
        it has met answers no more, it does so sooner, once: many peers may be at the same node."""
        was_early = False
        while True:
            await self.attach(addresses())
            self.attach_wanted.clear()
            seconds = ATTACH_AGAIN_SECONDS * random.uniform(0.75, 1.25)
            await wait_at_most(seconds, asyncio.sleep(seconds) if was_early else self.attach_wanted.wait())
            was_early = self.attach_wanted.is_set() and not was_early

    async def _meet(self, peer: str, addresses: Sequence[str]) -> bool:
        """Meet a node at its addresses. A connection to it that is there may be dead, since an address of one of its
        ends is gone: if nothing comes back over it, the node is dialled anew. Returns whether it answered."""
        if await self._answers(peer, addresses):
            return True
        if PeerId(peer) not in await self.streams.connected():
            return False
        await self.streams.hang_up(PeerId(peer))
        return await self._answers(peer, addresses)

    async def _answers(self, peer: str, addresses: Sequence[str]) -> bool:
        from hivemind.p2p import PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
        from hivemind.utils.multiaddr import Multiaddr

        try:
            peer_id = PeerID.from_base58(peer)
            async with asyncio.timeout(ATTACH_SECONDS):
                await self.p2p._client.connect(peer_id, [Multiaddr(address) for address in addresses])
            self.checks.friends.add(peer)
            return await self.node.protocol.call_ping(peer_id, validate=False) is not None
        except (ControlFailure, ValueError, AssertionError, *BROKEN_STREAM_ERRORS):
            return False  # the last two: it is no address, and what it says is no id of a node

    async def store(self, key: str, subkey: str, value: bytes, expiration: float) -> bool:
        """Store `value` under (`key`, `subkey`) until `expiration`, in seconds since 1970.

        False means little: a node that had heard of it from another already says so too.
        """
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                storing = self.node.store(key, subkey=subkey, value=value, expiration_time=expiration)
                return bool(await apart(storing))
        except TimeoutError:
            return False

    async def read(self, key: str) -> dict[str, object]:
        """Read what is stored under `key` now, by subkey; where that is more than `RECORDS_READ`, a random choice of
        it."""
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                value = await apart(self.node.get(key, latest=True))
        except TimeoutError:
            return {}
        if value is None or not isinstance(value.value, dict):
            return {}
        subkeys = list(value.value)
        if len(subkeys) > RECORDS_READ:
            subkeys = random.sample(subkeys, RECORDS_READ)  # at the next reading others
        return {str(subkey): value.value[subkey].value for subkey in subkeys}

    async def read_all(self) -> dict[str, object]:
        """Read what is stored now under all keys of the rules, by subkey."""
        found: dict[str, object] = {}
        for records in await asyncio.gather(*map(self.read, self.checks.rules.keys)):
            found |= records
        return found

    async def while_alive(self, work: Coroutine[Any, Any, object]) -> None:
        """Do `work`, and watch meanwhile that this node lives: hivemind itself would go on and find nothing.

        Raises:
            ResourceError: libp2p's daemon is gone, and no other can be started.
        """
        await first_of(work, self._keep_alive())

    async def _keep_alive(self) -> None:
        """Start another daemon for each that dies, falls silent, or holds too much."""
        failures = 0
        while True:
            began = monotonic()
            trouble = await self._trouble()
            lived = monotonic() - began
            failures = 0 if lived > MOST_PAUSE_SECONDS or not trouble else failures + 1
            if trouble:
                self.say(f"libp2p's daemon {trouble}: another is started")
            await self._start_again(trouble, failures)

    async def _trouble(self) -> str:
        """Wait until something is wrong with the daemon, or it is to listen elsewhere. Returns what is wrong, as the
        end of a sentence; empty: nothing."""
        missed = large = 0
        async with Children() as watching:
            died, moves = watching.spawn(self.p2p._child.wait()), watching.spawn(self.move_wanted.wait())
            while max(missed, large) < BEATS_MISSED:
                await asyncio.wait((died, moves), timeout=P2PD_HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if moves.done():
                    return ""
                if died.done():
                    return f"died (exit code {self.p2p._child.returncode})"
                missed = 0 if await libp2p.p2pd_answers(self.p2p, self.calls.tasks) else missed + 1
                large = large + 1 if libp2p.held_bytes(self.p2p) > LIBP2P_BYTES else 0
                if large:
                    for peer in await self.streams.connected():
                        if not self.checks.is_member(peer):
                            await self.streams.hang_up(peer)
                libp2p.forget_ended(self.p2p)
                self.calls.let_go_of_silent()
                if self.calls.silent() & by_peer(self.met).keys():
                    self.attach_wanted.set()
        return "does not answer" if missed else f"holds more than {LIBP2P_BYTES >> 20} MiB"

    async def _start_again(self, trouble: str, failures: int) -> None:
        """Start another daemon in the place of one that has `trouble`, after so many that have failed in a row.

        Raises:
            ResourceError: `STARTS` attempts have failed.
        """
        await self._end()
        for attempt in range(STARTS):
            await asyncio.sleep(pause_after(failures + attempt, FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS))
            self.move_wanted.clear()
            try:
                await self.start()
                break
            except ResourceError as error:
                if attempt == STARTS - 1:
                    raise ResourceError(
                        f"libp2p's daemon, a child of this process, {trouble}, and cannot be started again: {error}"
                    ) from None
        await self.attach(self.met)

    async def start(self) -> None:
        """Start the daemon, and a node of the DHT that uses it.

        Raises:
            ResourceError: libp2p's daemon does not start.
        """
        from hivemind.dht import DHTNode

        async def hang_up(peer: str) -> None:
            await self.streams.hang_up(PeerId(peer))

        self.calls = Calls(self.checks, hang_up)
        self.p2p = await libp2p.begin(self.calls.between(), self.identity, self.announces)
        await self.gate.forward_to(await asyncio.to_thread(libp2p.port_of, self.p2p))
        self.node = self.calls.node = await DHTNode.create(
            p2p=self.p2p,
            node_id=self.node and self.node.node_id,
            wait_timeout=WAIT_SECONDS,
            record_validator=self.calls.validator(),
            client_mode=self.hidden,
            cache_locally=False,  # each reading looks for the newest
            cache_nearest=0,
        )
        self.addresses = tuple(str(address) for address in await self.p2p.get_visible_maddrs())
        await self.streams.move(self.p2p)
        self.started.ring()

    async def _end(self) -> None:
        self.calls.stop()
        await libp2p.end(self.p2p)

    async def stop(self) -> None:
        """Leave the DHT; libp2p's daemon ends, if it has not already."""
        await self._end()
        await self.gate.close(0.0)
        self.checks.stop()


def by_peer(addresses: Sequence[str]) -> dict[str, list[str]]:
    """The addresses of each node, by its peer id."""
    peers: dict[str, list[str]] = {}
    for address in addresses:
        where, _, peer = address.rpartition("/p2p/")
        peers.setdefault(peer, []).append(where)
    return peers


async def start(
    identity: Identity,
    host: str,
    port: int,
    rules: Rules,
    bootstraps: Sequence[str] = (),
    hidden: bool = False,
    say: Callable[[str], None] = lambda said: None,
    offence: Offence = no_offence,
) -> Dht:
    """Start a node that listens on `host:port` (0: any port), and meet `bootstraps`. A node that is `hidden`, as others
    cannot dial it, asks others and keeps nothing for them. `say` is told when a daemon is started anew, `offence` of
    peers of the run that passed on what is valid nowhere.

    Raises:
        ResourceError: libp2p's daemon does not start.
        UnreachableError: none of `bootstraps` answered.
    """
    logging.getLogger("hivemind").setLevel(logging.CRITICAL)  # what matters is raised
    gate = await gates.bind(host, port, OF_LIBP2P, LIBP2P_SHARE)
    dht = Dht(
        identity, gate, libp2p.announced(host, gate.address), hidden, Checks(rules, offence), Streams(None), say=say
    )
    try:
        await dht.start()
    except BaseException:
        await gate.close(0.0)
        raise
    if bootstraps and not await dht.attach(bootstraps):
        await dht.stop()
        raise UnreachableError(f"no bootstrap node answered; tried {', '.join(bootstraps)}")
    return dht
