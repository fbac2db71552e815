"""One round of a swarm, played, and what it cost."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from protocol.identity import Part
from protocol.manifest import Manifest
from protocol.trust.records import peers_keys

from .directory import Directory, directory
from .network import Clock, Link, Network, Traffic
from .sizes import RUN, sizes
from .swarm import Swarm


@dataclass(frozen=True, slots=True)
class Conditions:
    """Links in bits a second; `datacenters` is the share of peers with `datacenter` both ways; `latency` one way."""

    up: float
    down: float
    datacenter: float
    datacenters: float
    latency: float
    inner: float
    """Seconds between two rounds, in which nobody has anything new."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one quantity over all peers."""

    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds from when all contribute; bytes and messages of one peer until all have everything."""

    replicas: int
    blob: int
    seconds: float
    seconds_99: float
    bound_down: float
    bound_up: float
    messages: Spread
    control_up: Spread
    control_down: Spread
    blobs_up: Spread
    blobs_down: Spread
    directory: Directory
    real_ledgers: int
    real_comparisons: int

    @property
    def bound(self) -> float:
        """Each must download M − 1 blobs, and all uplinks together must carry M (M − 1)."""
        return max(self.bound_down, self.bound_up)


def measure(manifest: Manifest, part: Part, replicas: int, conditions: Conditions, real: int, seed: int) -> Measured:
    """Play one round. `real` peers have real ledgers."""
    said = sizes(manifest, part)
    links = _links(replicas, conditions)
    clock = Clock()
    network = Network(clock, links, conditions.latency)
    swarm = Swarm(clock, network, said, real, seed)
    swarm.start()
    clock.run(lambda: not swarm.incomplete)
    seconds = max(peer.complete for peer in swarm.peers)

    def over_peers(quantity: Callable[[Traffic], int]) -> Spread:
        values = [quantity(each) for each in network.traffic]
        return Spread(statistics.mean(values), max(values))

    return Measured(
        replicas=replicas,
        blob=said.blob,
        seconds=seconds,
        seconds_99=max(peer.nearly for peer in swarm.peers),
        bound_down=(replicas - 1) * said.blob / min(link.down for link in links),
        bound_up=replicas * (replicas - 1) * said.blob / sum(link.up for link in links),
        messages=over_peers(lambda traffic: traffic.messages),
        control_up=over_peers(lambda traffic: traffic.control_up),
        control_down=over_peers(lambda traffic: traffic.control_down),
        blobs_up=over_peers(lambda traffic: traffic.blobs_up),
        blobs_down=over_peers(lambda traffic: traffic.blobs_down),
        directory=directory(replicas, _keys(manifest, replicas), conditions.inner + seconds, said),
        real_ledgers=sum(peer.ledger is not None for peer in swarm.peers),
        real_comparisons=swarm.compared,
    )


def _keys(manifest: Manifest, replicas: int) -> int:
    """Over how many keys of the DHT the records of so many peers are spread."""
    sized = manifest.replicas.model_copy(update={"groups": 0, "datacenters": replicas})
    return len(peers_keys(RUN, manifest.model_copy(update={"replicas": sized})))


def _links(replicas: int, conditions: Conditions) -> list[Link]:
    fast = round(replicas * conditions.datacenters)
    home = Link(conditions.up / 8, conditions.down / 8)
    return [Link(conditions.datacenter / 8, conditions.datacenter / 8)] * fast + [home] * (replicas - fast)
