"""Probes of the links to a run's nodes and peers, by a machine that has no place in the run yet.

A node's registration port answers pieces of bytes (`Run.Measure`), so the way to it can be timed and filled in both
directions. Peers let nobody call who has no certificate; but a TLS handshake with one gets as far as its certificate,
and the time until its port takes the connection is a round trip.
"""

import asyncio
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from peer.network.admission import registration_channel
from protocol.clock import unix_time
from protocol.errors import FormatError, HetpeerError, RefusedError
from protocol.limits import CHUNK_BYTES, REGISTRATION_STREAMS, TLS_SECONDS
from protocol.net.tls_probe import probe
from protocol.patience import CALL_SECONDS
from protocol.schemas import run_pb2 as pb
from protocol.schemas import run_pb2_grpc
from protocol.trust.ticket import Ticket

PINGS = 8
PROBE_PIECES = 32
"""The pieces that are sent each way: 8 MiB, for which a link of 20 Mb/s takes 3 s."""

FILLING_SECONDS = 4.0
"""The time after which no piece is sent any more: slow links carry fewer."""

PROBE_WARMUP_BYTES = 16 * 1024
PIECE_SECONDS = 0.1
"""The time that a piece takes, about: a slow link carries short ones, so that there are some to count."""

AT_ONCE = REGISTRATION_STREAMS // 2
"""The pieces under way at once: 1 MiB, what a link of 100 Mb/s has room for at a round trip of 80 ms. It is half of
what a registration port takes: the registration port counts a call for a moment after its caller has the answer, and
hangs up on the one that would be too many."""

RANDOM_PIECE = os.urandom(CHUNK_BYTES)
"""The bytes of which pieces are made: no link can compress them."""


@dataclass(frozen=True, slots=True)
class MeasuredWay:
    """The way to a node: seconds of a round trip (the quickest of some), bits a second up and down, how far this
    machine's clock is ahead of the node's in seconds, and by how much that may be wrong."""

    address: str
    round_trip: float
    up: float
    down: float
    ahead: float
    uncertain: float
    round: int
    """The last round that the swarm has finished, as the node says."""
    round_seconds: float
    """The seconds that the swarm takes for a round; 0: the node does not know yet."""


@dataclass(frozen=True, slots=True)
class NoWay:
    """A node, or a peer, that could not be measured, and why; `answers` if it refused."""

    address: str
    reason: str
    answers: bool = False


@dataclass(frozen=True, slots=True)
class Handshake:
    """The way to a peer: seconds until its port takes a connection, a round trip; and until TLS stands, from there."""

    address: str
    round_trip: float
    tls: float


async def measure_nodes(ticket: Ticket) -> list[MeasuredWay | NoWay]:
    """Measure the links to all nodes of a ticket, one after the other: at once they would share this machine's link."""
    found: list[MeasuredWay | NoWay] = []
    for address in ticket.node_addresses:
        try:
            async with registration_channel(ticket, address) as (channel, node):
                found.append(await _measure(run_pb2_grpc.RunStub(channel), node.address))
        except HetpeerError as error:
            found.append(NoWay(address, str(error), isinstance(error, RefusedError)))
    return found


async def _measure(stub: run_pb2_grpc.RunStub, address: str) -> MeasuredWay:
    """Measure the link to one node.

    Raises:
        grpc.aio.AioRpcError: a call failed.
        FormatError: an answer is no measurement.
    """
    trips, ahead, last = list[float](), 0.0, pb.MeasureReply()
    for _ in range(PINGS + 1):
        sent, started = unix_time(), time.perf_counter()
        last = await _ask(stub, 0, 0)
        trip = time.perf_counter() - started
        if trip <= min(trips, default=math.inf):
            ahead = sent + trip / 2 - last.time
        trips.append(trip)
    trip = min(trips[1:])  # the first one waits for the handler to be warm
    up = await _fill(stub, trip, upwards=True)
    down = await _fill(stub, trip, upwards=False)
    return MeasuredWay(address, trip, up, down, ahead, trip / 2, last.round, last.round_seconds)


async def _ask(stub: run_pb2_grpc.RunStub, sent: int, wanted: int) -> pb.MeasureReply:
    request = pb.MeasureRequest(piece=RANDOM_PIECE[:sent], wanted=wanted)
    reply: pb.MeasureReply = await stub.Measure(request, timeout=CALL_SECONDS)
    if len(reply.piece) != wanted or not (math.isfinite(reply.time) and 0 <= reply.round_seconds < math.inf):
        raise FormatError("the node's answer to a measurement is none")
    return reply


async def _fill(stub: run_pb2_grpc.RunStub, trip: float, upwards: bool) -> float:
    """Measure the rate of a link in one direction, in bits a second. One small piece shows how large the others must be
    to take `PIECE_SECONDS` each; then `AT_ONCE` of these at a time keep the link full. `trip`: seconds of a round
    trip."""
    arrivals: list[float] = []

    async def transfer(count: int) -> None:
        sent, wanted = (count, 0) if upwards else (0, count)
        await _ask(stub, sent, wanted)
        arrivals.append(time.perf_counter())

    started = time.perf_counter()
    await transfer(PROBE_WARMUP_BYTES)
    warmup_seconds = max(arrivals.pop() - started - trip, 1e-4)
    piece = int(min(CHUNK_BYTES, max(PROBE_WARMUP_BYTES, PROBE_WARMUP_BYTES / warmup_seconds * PIECE_SECONDS)))
    started, pieces_left = time.perf_counter(), PROBE_PIECES

    async def transfer_pieces() -> None:
        nonlocal pieces_left
        while pieces_left and time.perf_counter() - started < FILLING_SECONDS:
            pieces_left -= 1
            await transfer(piece)

    await asyncio.gather(*(transfer_pieces() for _ in range(AT_ONCE)))
    return rate_of(started, arrivals, piece)


def rate_of(begun: float, came: Sequence[float], piece: int) -> float:
    """The rate in bits a second, by the times at which pieces of `piece` bytes were through. The first `AT_ONCE`
    pieces, or half of them if there are few, are left out, as the connection is still finding its window. One piece
    alone counts from `begun`."""
    since = sorted(came)[min(AT_ONCE, len(came) // 2) - 1 :] if len(came) > 1 else [begun, *came]
    return 8.0 * piece * (len(since) - 1) / max(since[-1] - since[0], 1e-6)


async def shake_hands(addresses: Sequence[str]) -> list[Handshake | NoWay]:
    """Measure the links to some peers."""
    return list(await asyncio.gather(*map(_shake_hands, addresses)))


async def _shake_hands(address: str) -> Handshake | NoWay:
    """Shake hands up to the certificate that the peer shows; it hangs up on a caller that has none."""
    try:
        shown = await probe(address, TLS_SECONDS)
    except (OSError, ValueError, FormatError) as error:  # the last: it is no address
        return NoWay(address, str(error) or type(error).__name__)
    return Handshake(address, shown.round_trip, shown.tls)


def usual_round_trip(shaken: Sequence[Handshake | NoWay]) -> float | None:
    """The usual round trip to a neighbour, in seconds; None where no peer answers."""
    trips = [handshake.round_trip for handshake in shaken if isinstance(handshake, Handshake)]
    return median(trips) if trips else None
