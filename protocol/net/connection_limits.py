"""Decide which connections to one port go on, wait, or are closed. Pure: the clock is an argument.

A connection is silent until its first bytes, then queued until there is room for it, then forwarded to the server. It
is pending until it has authenticated, and established from then on. Silent connections go first, and an established one
never goes for one that is not: a stranger cannot take the connections of the run's peers.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from protocol.addresses import site, subscriber
from protocol.identity import NO_PEER, PeerId
from protocol.limits import (
    CONNECTIONS,
    CONNECTIONS_OF_PEER,
    CONNECTIONS_PENDING,
    CONNECTIONS_PENDING_OF_ADDRESS,
    CONNECTIONS_PENDING_OF_SITE,
    CONNECTIONS_WAITING,
    CONNECTIONS_WAITING_OF_ADDRESS,
    LIBP2P_CONNECTIONS,
    LIBP2P_HANDSHAKE_SECONDS,
    REGISTRATION_CONNECTIONS,
    REGISTRATION_CONNECTIONS_OF_ADDRESS,
    REGISTRATION_CONNECTIONS_OF_SITE,
    REGISTRATION_SECONDS,
    REGISTRATION_TURN_SECONDS,
    REGISTRATION_WAITING,
    REGISTRATION_WAITING_OF_ADDRESS,
    TLS_SECONDS,
)
from protocol.net.allowances import RateLimit
from protocol.patience import CALL_SECONDS

FORWARDED_DESCRIPTORS = 3
"""The descriptors of a forwarded connection: the caller's socket, and both ends of the one to the server."""

CONNECTIONS_BURST, CONNECTION_INTERVAL_SECONDS = 512, 0.1
"""The connections that one address opens at once, and the seconds for each further one: a lecture hall behind one
address that joins at once makes four connections each, and `hetpeer doctor` three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The connections that one port takes at once."""

    waiting: int
    waiting_of_address: int
    waiting_seconds: float
    """The longest wait of a connection that has spoken. A silent one waits `TLS_SECONDS`."""
    pending: int
    pending_of_address: int
    pending_of_site: int
    pending_seconds: float
    """The time in which a connection authenticates, or has asked all it wants where nobody authenticates."""
    established: int = 0
    established_of_peer: int = 0
    settles: bool = False
    """A connection counts as established once it has lasted `pending_seconds`: the server has closed it by then if its
    handshake has failed."""

    @property
    def descriptors(self) -> int:
        """The descriptors that all these connections take together."""
        return self.waiting + FORWARDED_DESCRIPTORS * (self.pending + self.established)

    def within(self, descriptors: int) -> "ConnectionLimits":
        """The limits of a process that has so many descriptors for this port. First there are fewer established
        connections, as many as pending ones at least; then fewer that wait; then fewer of all."""
        if descriptors >= self.descriptors:
            return self
        most = min(self.established, self.pending)
        over = self.descriptors - descriptors
        fewer = max(most, self.established - -(-over // FORWARDED_DESCRIPTORS))
        limits = replace(self, established=fewer)
        over = max(0, limits.descriptors - descriptors)
        limits = replace(limits, waiting=max(min(self.waiting, self.pending), self.waiting - over))
        share = min(1.0, descriptors / limits.descriptors)
        waiting = max(1, int(limits.waiting * share))
        return replace(
            limits,
            waiting=waiting,
            waiting_of_address=min(self.waiting_of_address, (waiting + 1) // 2),
            pending=max(1, int(self.pending * share)),
            pending_of_address=max(1, int(self.pending_of_address * share)),
            pending_of_site=max(1, int(self.pending_of_site * share)),
            established=int(limits.established * share),
        )


OF_REGISTRATION = ConnectionLimits(
    waiting=REGISTRATION_WAITING,
    waiting_of_address=REGISTRATION_WAITING_OF_ADDRESS,
    waiting_seconds=REGISTRATION_TURN_SECONDS,
    pending=REGISTRATION_CONNECTIONS,
    pending_of_address=REGISTRATION_CONNECTIONS_OF_ADDRESS,
    pending_of_site=REGISTRATION_CONNECTIONS_OF_SITE,
    pending_seconds=REGISTRATION_SECONDS,
)
"""The limits of the registration port, where nobody authenticates."""

OF_PEERS = ConnectionLimits(
    waiting=CONNECTIONS_WAITING,
    waiting_of_address=CONNECTIONS_WAITING_OF_ADDRESS,
    waiting_seconds=CALL_SECONDS,
    pending=CONNECTIONS_PENDING,
    pending_of_address=CONNECTIONS_PENDING_OF_ADDRESS,
    pending_of_site=CONNECTIONS_PENDING_OF_SITE,
    pending_seconds=CALL_SECONDS,
    established=CONNECTIONS,
    established_of_peer=CONNECTIONS_OF_PEER,
)
"""The limits of a port that peers of the run call: a connection is established by the first call of a peer."""

OF_LIBP2P = replace(OF_PEERS, pending_seconds=LIBP2P_HANDSHAKE_SECONDS, established=LIBP2P_CONNECTIONS, settles=True)
"""The limits of a libp2p port, where the gate does not see who authenticates."""


class State(Enum):
    """The state of a connection."""

    SILENT = auto()
    QUEUED = auto()
    PENDING = auto()
    ESTABLISHED = auto()


@dataclass(eq=False, slots=True)
class Connection:
    """A connection from `host`. `since` is when it came into its state; `peer` is known once it has authenticated."""

    host: str
    since: float = 0.0
    state: State = State.SILENT
    peer: PeerId = NO_PEER
    address: str = field(init=False)
    """The subscriber that the connection comes from: an IPv4 address, or a /64."""
    site: str = field(init=False)
    """The network around it: a /24, or a /48."""

    def __post_init__(self) -> None:
        self.address, self.site = subscriber(self.host), site(self.host)


@dataclass(slots=True)
class ConnectionTable:
    """The connections of one port. Whoever is returned by a method for closing is in the table no longer."""

    limits: ConnectionLimits
    rate: RateLimit = field(default_factory=lambda: RateLimit(CONNECTIONS_BURST, CONNECTION_INTERVAL_SECONDS))
    silent: OrderedDict[Connection, None] = field(default_factory=OrderedDict)
    queued: OrderedDict[str, OrderedDict[Connection, None]] = field(default_factory=OrderedDict)
    """Queued connections by address. The first address has waited longest for a turn."""
    pending: OrderedDict[Connection, None] = field(default_factory=OrderedDict)
    established: OrderedDict[Connection, None] = field(default_factory=OrderedDict)
    waiting: Counter[str] = field(default_factory=Counter)
    """The silent and queued connections of each address."""

    def arrive(self, connection: Connection, now: float) -> list[Connection]:
        """Take in a new connection. Returns the connections to close: itself if there is no room, or a silent one."""
        address, limits, closed = connection.address, self.limits, list[Connection]()
        if self.waiting[address] >= limits.waiting_of_address or self.rate.wait_seconds(address, now):
            return [connection]
        if self.waiting.total() >= limits.waiting:
            if not self.silent:
                return [connection]
            counts = Counter(other.address for other in self.silent)
            most = max(counts.values())
            closed = [next(other for other in self.silent if counts[other.address] == most)]
            self.remove(closed[0])
        connection.since = now
        self.silent[connection] = None
        self.waiting[address] += 1
        return closed

    def speak(self, connection: Connection, now: float) -> None:
        """Queue a silent connection, whose first bytes have come."""
        if connection in self.silent:
            del self.silent[connection]
            connection.since, connection.state = now, State.QUEUED
            self.queued.setdefault(connection.address, OrderedDict())[connection] = None

    def admit(self, now: float) -> tuple[list[Connection], list[Connection]]:
        """Choose queued connections to forward, one address after the other. Returns these, and those to close for
        them."""
        forwarded, closed = list[Connection](), list[Connection]()
        by_address = Counter(connection.address for connection in self.pending)
        by_site = Counter(connection.site for connection in self.pending)
        for address in [*self.queued]:
            while connection := next(iter(self.queued.get(address, ())), None):
                if by_address[address] >= self.limits.pending_of_address:
                    break
                if by_site[connection.site] >= self.limits.pending_of_site:
                    break
                if len(self.pending) >= self.limits.pending:
                    victim = self._least(by_address, address, now)
                    if victim is None:
                        return forwarded, closed
                    self.remove(victim)
                    by_address[victim.address] -= 1
                    by_site[victim.site] -= 1
                    closed.append(victim)
                self.remove(connection)
                if address in self.queued:
                    self.queued.move_to_end(address)
                connection.since, connection.state = now, State.PENDING
                self.pending[connection] = None
                by_address[address] += 1
                by_site[connection.site] += 1
                forwarded.append(connection)
        return forwarded, closed

    def _least(self, by_address: Counter[str], address: str, now: float) -> Connection | None:
        """The pending connection that makes room for one of `address`: the oldest of an address that has more than this
        one would have, or else of all, once its handshake has had its time."""
        most, count = by_address.most_common(1)[0]
        if count > by_address[address] + 1:
            return next(connection for connection in self.pending if connection.address == most)
        oldest = next(iter(self.pending))
        return oldest if now - oldest.since >= TLS_SECONDS else None

    def authenticate(self, connection: Connection, peer: PeerId, now: float) -> list[Connection]:
        """Establish a pending connection, of a peer if it is known. Returns the connections to close: the peer's oldest
        if it has too many, or the newest of the address that has most if all together have."""
        if connection not in self.pending:
            return []
        del self.pending[connection]
        connection.since, connection.state, connection.peer = now, State.ESTABLISHED, peer
        self.established[connection] = None
        of_peer = [other for other in self.established if peer and other.peer == peer]
        closed = of_peer[:1] if len(of_peer) > self.limits.established_of_peer else []
        if not closed and len(self.established) > self.limits.established:
            most = Counter(other.address for other in self.established).most_common(1)[0][0]
            closed = [next(other for other in reversed(self.established) if other.address == most)]
        for other in closed:
            self.remove(other)
        return closed

    def expire(self, now: float) -> list[Connection]:
        """Remove the connections whose time is over. Returns them, to close."""
        limits = self.limits
        expired = [silent for silent in self.silent if now - silent.since >= TLS_SECONDS]
        for of_address in self.queued.values():
            expired += [queued for queued in of_address if now - queued.since >= limits.waiting_seconds]
        lasted = [pending for pending in self.pending if now - pending.since >= limits.pending_seconds]
        if limits.settles:
            expired += [surplus for settled in lasted for surplus in self.authenticate(settled, NO_PEER, now)]
        else:
            expired += lasted
        for connection in expired:
            self.remove(connection)
        return expired

    def remove(self, connection: Connection) -> None:
        """Forget a connection, which is closed; nothing if it is not there."""
        of_address = self.queued.get(connection.address)
        if of_address is not None and connection in of_address:
            del of_address[connection]
            if not of_address:
                del self.queued[connection.address]
        elif connection in self.silent:
            del self.silent[connection]
        else:
            self.pending.pop(connection, None)
            self.established.pop(connection, None)
            return
        self.waiting[connection.address] -= 1
        if not self.waiting[connection.address]:
            del self.waiting[connection.address]
