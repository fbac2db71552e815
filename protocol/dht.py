"""The DHT: the only place that imports hivemind.

It runs inside our own asyncio loop (`DHTNode`, never the forking `hivemind.DHT`); beside it runs only
libp2p's daemon, a child that ends with us. Nothing here is on the hot path: a hung node costs seconds.
"""

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import msgpack

from protocol.addresses import WILDCARDS, is_ip, join, multiaddress
from protocol.errors import FormatError, ResourceError, UnreachableError
from protocol.keys import Identity
from protocol.limits import CLOCK_SLACK_SECONDS, RECORD_BYTES, RECORD_SECONDS, RECORDS_READ

WAIT_SECONDS = 2.0
"""How long one node may take to answer before it is passed over."""

ATTACH_SECONDS = 5.0

ATTACH_AGAIN_SECONDS = 30.0

DEATH_SECONDS = 1.0
"""A dead daemon shows in failing calls a moment before the system tells of its end."""

START_SECONDS = 60.0

SUBKEY_BYTES = 66
"""A peer id of 64 characters in msgpack."""

VALUE_BYTES = RECORD_BYTES + 3
"""A record in msgpack."""


class Rules(Protocol):
    """What may lie in the DHT. Our nodes neither store nor pass on nor read anything else, whoever sends it."""

    @property
    def keys(self) -> Sequence[str]:
        """All there are."""

    def expiration(self, key: str, subkey: str, value: object) -> float:
        """Check a value; when it expires, in seconds since 1970.

        Raises:
            FormatError: it may not lie there.
        """


@dataclass(slots=True)
class Dht:
    """A node of the run's DHT."""

    p2p: Any
    node: Any
    addresses: tuple[str, ...]
    rules: Rules

    async def attach(self, addresses: Sequence[str]) -> int:
        """Meet other nodes at their libp2p addresses; how many answered."""
        results = await asyncio.gather(*(self._meet(address) for address in addresses))
        if any(results):
            await self.node.find_nearest_nodes([self.node.node_id])
        return sum(results)

    async def keep_attached(self, addresses: Callable[[], Sequence[str]]) -> None:
        """Meet them again and again, for as long as this node lives. Who has been away, for a restart or behind a dead
        line, is in nobody's routing table any more, and may have nobody in its own."""
        while True:
            await self.attach(addresses())
            await asyncio.sleep(ATTACH_AGAIN_SECONDS * random.uniform(0.75, 1.25))

    async def _meet(self, address: str) -> bool:
        from hivemind.p2p import PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
        from hivemind.utils.multiaddr import Multiaddr

        where, _, peer = address.rpartition("/p2p/")
        try:
            peer_id = PeerID.from_base58(peer)
            async with asyncio.timeout(ATTACH_SECONDS):
                await self.p2p._client.connect(peer_id, [Multiaddr(where)])
            return await self.node.protocol.call_ping(peer_id, validate=True, strict=False) is not None
        except (ControlFailure, TimeoutError, OSError, ValueError, AssertionError):
            return False  # the last two: it is no address, and what it says is no id of a node

    async def store(self, key: str, subkey: str, value: bytes, expiration: float) -> bool:
        """Store `value` under (`key`, `subkey`) until then, in seconds since 1970.

        False means little: a node that had heard of it from another already says so too.
        """
        return bool(await self.node.store(key, subkey=subkey, value=value, expiration_time=expiration))

    async def read(self, key: str) -> dict[str, object]:
        """What is stored under `key` now, by subkey; of more than `RECORDS_READ`, any."""
        found = await self.node.get(key, latest=True)
        if found is None or not isinstance(found.value, dict):
            return {}
        subkeys = list(found.value)
        if len(subkeys) > RECORDS_READ:
            subkeys = random.sample(subkeys, RECORDS_READ)  # at the next reading others
        return {str(subkey): found.value[subkey].value for subkey in subkeys}

    async def read_all(self) -> dict[str, object]:
        """What is stored under all keys of the rules."""
        found: dict[str, object] = {}
        for each in await asyncio.gather(*map(self.read, self.rules.keys)):
            found |= each
        return found

    async def while_alive(self, work: Coroutine[Any, Any, object]) -> None:
        """Do `work`, unless libp2p's daemon dies first: hivemind itself would go on and find nothing.

        Raises:
            ResourceError: it died.
        """
        daemon = self.p2p._child
        death = asyncio.ensure_future(daemon.wait())
        task = asyncio.create_task(work)
        try:
            await asyncio.wait((death, task), return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled() and task.exception() is not None:
                await asyncio.wait((death,), timeout=DEATH_SECONDS)
            if daemon.returncode is not None:
                raise ResourceError(f"libp2p's daemon, a child of this process, died (exit code {daemon.returncode})")
            await task
        finally:
            death.cancel()
            task.cancel()
            await asyncio.wait((task,))

    async def stop(self) -> None:
        """Leave; libp2p's daemon ends, if it has not already."""
        if self.p2p._child.returncode is None:
            await self.node.shutdown()
        await self.p2p.shutdown()


def is_valid(rules: Rules, key: str, subkey: bytes, value: bytes, expiration: float, now: float) -> bool:
    """Whether the rules, and the clock, let a value lie under a key. `subkey` and `value` are msgpack, as nodes send
    them; a value without subkey has nil there."""
    if not isinstance(value, bytes) or len(value) > VALUE_BYTES or len(subkey) > SUBKEY_BYTES:
        return False
    try:
        owner = msgpack.unpackb(subkey)
        due = rules.expiration(key, owner, msgpack.unpackb(value)) if isinstance(owner, str) else None
    except (ValueError, msgpack.UnpackException, FormatError):
        return False
    return expiration == due and due <= latest(now)


def latest(now: float) -> float:
    """The latest expiry that is still believed, in seconds since 1970 like `now`.

    It moves in steps, so that nodes whose clocks differ by seconds agree at nearly all times: hivemind refuses answers
    whole, and a record that its holder believes and a reader does not would hide all others under its key.
    """
    return (now // CLOCK_SLACK_SECONDS + 2) * CLOCK_SLACK_SECONDS + RECORD_SECONDS


def _validator(rules: Rules) -> Any:
    """The rules as hivemind applies them: to what others want stored, and to what they answer."""
    from hivemind.dht.routing import DHTID
    from hivemind.dht.validation import DHTRecord, RecordValidatorBase

    keys = {DHTID.generate(key).to_bytes(): key for key in rules.keys}

    class Validator(RecordValidatorBase):  # type: ignore[misc]
        def validate(self, record: DHTRecord) -> bool:
            key = keys.get(record.key)
            found = (record.subkey, record.value, record.expiration_time)
            return key is not None and is_valid(rules, key, *found, time.time())

    return Validator()


async def start(
    identity: Identity, host: str, port: int, rules: Rules, bootstraps: Sequence[str] = (), hidden: bool = False
) -> Dht:
    """Start a node that listens on `host:port` (0: any port), and meet `bootstraps`. One that is `hidden`, as others
    cannot dial it, asks and keeps nothing for others.

    Raises:
        ResourceError: libp2p's daemon does not start.
        UnreachableError: none of `bootstraps` answered.
    """
    from hivemind.dht import DHTNode
    from hivemind.p2p import P2P
    from hivemind.p2p.p2p_daemon import P2PDaemonError

    logging.getLogger("hivemind").setLevel(logging.CRITICAL)  # what matters is raised
    _keep_from_terminals()
    listens = _require_free(host, port)
    try:
        p2p = await P2P.create(
            host_maddrs=listens,
            identity_path=str(identity.path),
            check_if_identity_free=False,
            nat_port_map=False,
            auto_nat=False,
            use_relay=False,
            startup_timeout=START_SECONDS,
        )
    except P2PDaemonError as error:
        raise ResourceError(f"libp2p's daemon did not start on {join(host, port)}: {error}") from None
    node = await DHTNode.create(
        p2p=p2p, wait_timeout=WAIT_SECONDS, record_validator=_validator(rules), client_mode=hidden
    )
    addresses = tuple(str(address) for address in await p2p.get_visible_maddrs())
    dht = Dht(p2p, node, addresses, rules)
    if bootstraps and not await dht.attach(bootstraps):
        await dht.stop()
        raise UnreachableError(f"no bootstrap node answered; tried {', '.join(bootstraps)}")
    return dht


def _keep_from_terminals() -> None:
    """Give libp2p's daemons sessions of their own: Ctrl-C is for us, who still have to say goodbye through them."""
    from hivemind.p2p import p2p_daemon

    spawn = partial(asyncio.create_subprocess_exec, start_new_session=True)
    subprocess = SimpleNamespace(**(vars(asyncio.subprocess) | {"create_subprocess_exec": spawn}))
    p2p_daemon.asyncio = SimpleNamespace(**(vars(asyncio) | {"subprocess": subprocess}))


def _require_free(host: str, port: int) -> list[str]:
    """The multiaddresses of `host`, on all of which the port is free: one, but for `::`, which is IPv4 as well.

    Two libp2p daemons on one port both start without error (SO_REUSEPORT); so look first.

    Raises:
        ResourceError: the port is taken, or the address is not this machine's.
    """
    try:
        addresses = WILDCARDS if host == "::" else (host if is_ip(host) else _resolved(host),)
        for address in addresses:
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if probe.family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
    except OSError as error:
        raise ResourceError(f"cannot listen on {join(host, port)}: {error.strerror}; try another --listen") from None
    return [multiaddress(address, port) for address in addresses]


def _resolved(host: str) -> str:
    """The address of a name, of IPv4 if it has one."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])
