"""What the directory of peers in the DHT costs, computed: it is not played, and its traffic waits for nothing.

A read asks the nodes nearest to each of its keys, and everyone of them that holds the key answers with all records
under it. A write finds those nodes, and stores one record at each holder.
"""

from dataclasses import dataclass

from peer.network.gossip_policy import read_seconds
from protocol.patience import HEARTBEAT_SECONDS

from .sizes import Sizes

HOLDERS = 5
"""Nodes that keep a key (hivemind's `num_replicas`)."""

ASKED = 20
"""Nodes that one search asks (hivemind's `bucket_size`); each names as many that are nearer."""

NAMED_BYTES = 80
"""A node's id, and its address at libp2p."""

CHANGES = 2
"""Of a peer's record in a round, beside its heartbeats: it has contributed; it has finished."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Of one peer in a round: `busiest_up` is what a node sends, in bytes a second, that holds a key."""

    reads: float
    writes: float
    calls: float
    bytes: float
    busiest_up: float


def directory(peers: int, keys: int, seconds: float, sizes: Sizes) -> Directory:
    """In a swarm of so many peers, in a round that takes so long, with the records under so many keys."""
    asked, holders = min(ASKED, peers - 1), min(HOLDERS, peers - 1)
    search = asked * (2 * sizes.call + asked * NAMED_BYTES)
    period = read_seconds(peers - 1)
    reads, writes = seconds / period, seconds / HEARTBEAT_SECONDS + CHANGES
    return Directory(
        reads=reads,
        writes=writes,
        calls=reads * keys * asked + writes * (asked + holders),
        bytes=reads * (keys * search + holders * peers * sizes.record) + writes * (search + holders * sizes.record),
        busiest_up=peers * peers / keys * sizes.record / period,
    )
