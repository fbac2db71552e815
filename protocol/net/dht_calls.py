"""The calls between hivemind's node and others, bounded, and checked before hivemind sees them.

hivemind checks signatures where it runs, which is the loop that training runs on, takes calls of any number of records
from anybody, and believes much of an answer that is not signed. So libp2p's handlers are given to it with this in
between: what others ask for and offer is counted against what they may cost, new records are checked on a thread of
their own (`protocol.net.dht_checks`), and what is passed on, either way, has been checked. Dictionaries, which hivemind
passes around whole, come apart here: one bad record costs itself, and no other.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from protocol.clock import monotonic, unix_time
from protocol.errors import RefusedError
from protocol.limits import (
    DHT_ANSWER_BYTES,
    DHT_ASKED_OF_PEER,
    DHT_ASKED_SECONDS,
    DHT_CALLS_AT_ONCE,
    DHT_CALLS_OF_SOURCE,
    DHT_KEYS,
    DHT_NEIGHBOURS,
    DHT_NEW_NODE_COST,
    DHT_NODES_KEPT,
    DHT_REFUSED,
    DHT_SILENT_SECONDS,
    RECORDS_READ,
)
from protocol.net.dht_checks import Checks, DhtEntry, is_plausible, packed_dictionary, unpacked
from protocol.net.tasks import Children

KEY_BYTES = 20

BYTES_A_CALL = 64 * 1024
"""The bytes of an answer that cost as much as a call."""

_DICTIONARY = b""
"""The subkey where the value is all that is under a key."""

DhtHandler = Callable[[Any, Any], Awaitable[Any]]
"""A handler of hivemind's, of a request and its context, which tells who sent it."""


@dataclass(slots=True)
class Calls:
    """The calls of one node, both ways. `hang_up` ends the connection to a peer; `node` is hivemind's."""

    checks: Checks
    hang_up: Callable[[str], Coroutine[Any, Any, None]]
    node: Any = None
    answering: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    asked: dict[asyncio.Task[Any], tuple[str, float]] = field(default_factory=dict)
    """Our calls that are not answered yet: of whom each was asked, and since when."""
    hanging_up: set[str] = field(default_factory=set)
    tasks: Children = field(default_factory=Children)
    keys: dict[bytes, str] = field(init=False)
    """The keys that may be asked for: their names by hivemind's ids."""

    def __post_init__(self) -> None:
        from hivemind.dht.routing import DHTID

        self.keys = {DHTID.generate(key).to_bytes(): key for key in self.checks.rules.keys}

    def stop(self) -> None:
        """Wait for no call any longer."""
        self.tasks.cancel()

    # What others ask

    async def answer(self, handler: DhtHandler, request: Any, context: Any) -> Any:
        """Answer a call, if its caller may make it.

        Raises:
            RefusedError: it may not; hivemind sends that back.
        """
        from hivemind.proto import dht_pb2

        source = context.remote_id.to_base58()
        busy = self.answering.total() >= DHT_CALLS_AT_ONCE or self.answering[source] >= DHT_CALLS_OF_SOURCE
        if busy or not self.checks.costs.spend(source, 1.0):
            self.refused[source] += 1
            if self.refused[source] > DHT_REFUSED:
                self.let_go(source)
            raise RefusedError("too many calls to this node of the DHT: wait a moment")
        self.refused.pop(source, None)
        self.answering[source] += 1
        try:
            self._meet(request.peer, context.remote_id, source)
            if isinstance(request, dht_pb2.StoreRequest):
                return await self._store(handler, request, context, source)
            if isinstance(request, dht_pb2.FindRequest):
                if len(request.keys) > DHT_KEYS:
                    raise RefusedError(f"more than {DHT_KEYS} keys")
                response = await handler(request, context)
                shorten_answer(response)
                self.checks.costs.charge(source, len(request.keys) + response.ByteSize() / BYTES_A_CALL)
                return response
            return await handler(request, context)
        finally:
            self.answering[source] -= 1
            if not self.answering[source]:
                del self.answering[source]

    def let_go(self, source: str) -> None:
        """Begin to hang up on a peer."""
        self.refused.pop(source, None)
        if source not in self.hanging_up:
            self.hanging_up.add(source)
            self.tasks.spawn(self.hang_up(source)).add_done_callback(lambda _: self.hanging_up.discard(source))

    def _meet(self, said: Any, peer: Any, source: str) -> None:
        """Note under which id a caller says that it is a node. A caller that changes its id pays; of too many nodes,
        one goes."""
        from hivemind.dht.routing import DHTID

        if len(said.node_id) != KEY_BYTES:
            said.node_id = b""
        if not said.node_id or self.node is None:
            return
        table, node_id = self.node.protocol.routing_table, DHTID.from_bytes(said.node_id)
        if table.get(node_id=node_id) == peer:
            return
        if node_id in table or not self.checks.costs.spend(source, DHT_NEW_NODE_COST):  # another's, or too many
            said.node_id = b""
        elif len(table.uid_to_peer_id) >= DHT_NODES_KEPT:
            del table[random.choice(list(table.uid_to_peer_id))]

    async def _store(self, handler: DhtHandler, request: Any, context: Any, source: str) -> Any:
        """Hand on the records of a call that are valid and new, one by one. Nothing is taken into the cache, which our
        nodes do without."""
        sizes = {len(item) for item in (request.keys, request.subkeys, request.values, request.expiration_time)}
        if sizes != {len(request.in_cache)} or sizes.pop() > RECORDS_READ:
            raise RefusedError(f"more than {RECORDS_READ} records, or not as many of each")
        count, offered = len(request.keys), list[tuple[int, DhtEntry]]()
        for number, key in enumerate(request.keys):
            if (name := self.keys.get(key)) is not None and not request.in_cache[number]:
                subkey, value = request.subkeys[number], request.values[number]
                values_found = (
                    unpacked(value) if subkey == _DICTIONARY else [(subkey, value, request.expiration_time[number])]
                )
                offered += [(number, DhtEntry(name, *item)) for item in values_found]
        now = unix_time()
        new = []
        for number, entry in offered[:RECORDS_READ]:
            if not is_plausible(entry, now):
                continue
            held = self._held(entry)
            owned = held.get(entry.owner) if held is not None else None
            if owned is None or owned.expiration_time < entry.expiration:
                new.append((number, entry))
        valid = set(await self.checks.valid([item for _, item in new], source))
        accepted = [(number, item) for number, item in new if item in valid]
        del request.keys[:], request.subkeys[:], request.values[:], request.expiration_time[:], request.in_cache[:]
        ids = {name: key for key, name in self.keys.items()}
        for _, entry in accepted:
            held = self._held(entry)
            if held is not None and len(held) >= RECORDS_READ and entry.owner not in held:
                del held[random.choice(list(held.data))]  # for another: who is there renews its own record
            request.keys.append(ids[entry.key])
            request.subkeys.append(entry.subkey)
            request.values.append(entry.value)
            request.expiration_time.append(entry.expiration)
            request.in_cache.append(False)
        response = await handler(request, context)
        stored = {number for (number, _), ok in zip(accepted, response.store_ok, strict=True) if ok}
        del response.store_ok[:]
        response.store_ok.extend(number in stored for number in range(count))
        return response

    def _held(self, entry: DhtEntry) -> Any:
        """The records that this node holds under an entry's key, by subkey; None: nothing."""
        from hivemind.dht.routing import DHTID

        found = self.node.protocol.storage.get(DHTID.generate(entry.key)) if self.node is not None else None
        return found.value if found is not None else None

    # What this node asks

    async def ask(self, call: Callable[[], Coroutine[Any, Any, Any]], peer: str, request: Any) -> Any:
        """Ask another node. Returns what of its answer can be believed.

        A call that was sent is never cancelled: an answer that comes in the same moment would end hivemind's reading
        of its daemon for good, without a word. Who leaves calls open is hung up on, which ends them.

        Raises:
            RefusedError: it has left too many unanswered, or this node's daemon has gone meanwhile.
        """
        from hivemind.proto import dht_pb2

        if isinstance(request, dht_pb2.StoreRequest) and _DICTIONARY in request.subkeys:
            # to a node that is new: all that this one holds. Each peer renews its own within a quarter of a minute
            return dht_pb2.StoreResponse(store_ok=[False] * len(request.keys))
        if sum(other == peer for other, _ in self.asked.values()) >= DHT_ASKED_OF_PEER:
            raise RefusedError(f"node {peer[-8:]} does not answer")
        task = self.tasks.spawn(call())
        self.asked[task] = peer, monotonic()
        task.add_done_callback(self._ended)
        try:
            response = await asyncio.shield(task)
        except asyncio.CancelledError:
            if (asker := asyncio.current_task()) is not None and asker.cancelling():
                raise
            raise RefusedError("libp2p's daemon has gone") from None  # `stop`: for hivemind a call that failed
        if len(response.peer.node_id) != KEY_BYTES:
            response.peer.node_id = b""
        if isinstance(response, dht_pb2.FindResponse):
            await self._believe(request, response, peer)
        return response

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.asked.pop(task, None)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone

    def let_go_of_silent(self) -> None:
        """Hang up on peers that have not answered for long."""
        now = monotonic()
        for peer, since in list(self.asked.values()):
            if now - since > DHT_ASKED_SECONDS:
                self.let_go(peer)

    def silent(self) -> set[str]:
        """The peers that leave a call unanswered for longer than an answer takes: their connections may be dead."""
        now = monotonic()
        return {peer for peer, since in self.asked.values() if now - since > DHT_SILENT_SECONDS}

    async def _believe(self, request: Any, response: Any, peer: str) -> None:
        """Leave in an answer what is valid. What an answer says of a dictionary as a whole is not signed: an expiry
        that was made up would end a search, and keep what was found for ever."""
        from hivemind.proto import dht_pb2

        del response.results[len(request.keys) :]
        for key, result in zip(request.keys, response.results, strict=False):
            del result.nearest_node_ids[DHT_NEIGHBOURS:], result.nearest_peer_ids[DHT_NEIGHBOURS:]
            name, valid = self.keys.get(key), list[DhtEntry]()
            if name is not None and result.type == dht_pb2.FOUND_DICTIONARY:
                entries = [DhtEntry(name, *entry) for entry in unpacked(result.value)]
                valid = await self.checks.valid(random.sample(entries, min(len(entries), RECORDS_READ)), peer)
            result.type = dht_pb2.FOUND_DICTIONARY if valid else dht_pb2.NOT_FOUND
            result.value = packed_dictionary(valid) if valid else b""
            result.expiration_time = max((entry.expiration for entry in valid), default=0.0)

    # What hivemind is given

    def validator(self) -> Any:
        """The rules in the form in which hivemind applies them. Records that came through here are known by now; any
        other is this node's own."""
        from hivemind.dht.validation import DHTRecord, RecordValidatorBase

        calls = self

        class Validator(RecordValidatorBase):  # type: ignore[misc]
            def validate(self, record: DHTRecord) -> bool:
                if (key := calls.keys.get(record.key)) is None:
                    return False
                entry = DhtEntry(key, record.subkey, record.value, record.expiration_time)
                return calls.checks.holds(entry)

        return Validator()

    def between(self) -> Any:
        """The class by which hivemind reaches libp2p's daemon, with these calls in between."""
        from hivemind.p2p import P2P

        calls = self

        class Between(P2P):  # type: ignore[misc]
            async def add_protobuf_handler(self, name: str, handler: DhtHandler, *rest: Any, **options: Any) -> None:
                await super().add_protobuf_handler(name, partial(calls.answer, handler), *rest, **options)

            async def call_protobuf_handler(self, peer_id: Any, name: str, request: Any, kind: Any) -> Any:
                call = partial(super().call_protobuf_handler, peer_id, name, request, kind)
                return await calls.ask(call, peer_id.to_base58(), request)

        return Between


def shorten_answer(response: Any) -> None:
    """Shorten an answer so that it can be sent: a random half of the longest dictionary goes, until it is short
    enough."""
    while sum(len(result.value) for result in response.results) > DHT_ANSWER_BYTES:
        longest = max(response.results, key=lambda result: len(result.value))
        found = [DhtEntry("", *fields) for fields in unpacked(longest.value)]
        longest.value = packed_dictionary(random.sample(found, len(found) // 2))
