"""Peers and a node whose addresses change while a run goes on: real processes, each in a network namespace of its own.
Skipped, with the reason, without root or tools."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.events.activity import GroupBroken, GroupFormed, Joined, RoundDone, StepDone
from tests.chaos import namespaces
from tests.reference.processes import RUN, Peer
from tests.system.test_reach import World, digests_after, hosts

pytestmark = pytest.mark.skipif(namespaces.missing() is not None, reason=f"needs {namespaces.missing()}")

GROUP, BOTH = (
    RUN.format(datacenters=datacenters, sequences=2) + "steps = 6\n[outer]\nrounds = 500\n" for datacenters in (0, 1)
)
"""A run of one group, and one of a group and a datacenter."""

SAFETY_SECONDS = 60.0
"""The bound on each wait after a change, on a busy machine. The seconds that it takes are printed."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with hosts(tmp_path) as made:
        yield made


def join_group(world: World, behind_router: bool = False) -> tuple[Peer, Peer]:
    """Start the two volunteers of a group, the second of them perhaps behind a router."""
    leader = world.join("leader", "join", "--stage", "0")
    member = world.join("member", "join", "--stage", "1", behind_router=behind_router)
    return leader, member


def has_both(done: RoundDone) -> bool:
    """Whether the contributions of the group and the datacenter are in a round."""
    return set(done.contributions.values()) == {2}


def last_round(peer: Peer) -> int:
    return max(done.round for done in peer.said if isinstance(done, RoundDone))


def soon(peer: Peer, kind: type, after: int, holds=lambda event: True):
    return peer.wait_for(kind, holds, after=after, seconds=SAFETY_SECONDS)


def move(world: World, name: str, add_first: bool) -> None:
    """Give a host another address in the place of its own."""
    old = world.network.addresses[name]
    if add_first:
        asyncio.run(world.network.add_address(name))
    asyncio.run(world.network.remove_address(name, old))
    if not add_first:
        asyncio.run(world.network.add_address(name))


@pytest.mark.parametrize(
    ("name", "add_first", "behind_router"), [("member", True, False), ("leader", False, False), ("member", True, True)]
)
def test_a_group_trains_again_after_the_address_of_a_volunteer_has_changed(
    world: World, name: str, add_first: bool, behind_router: bool
):
    world.begin(GROUP)
    peers = join_group(world, behind_router)
    for peer in peers:
        peer.wait_for(RoundDone)
    counts = [len(peer.said) for peer in peers]
    began = time.monotonic()
    move(world, name, add_first)
    for peer, count in zip(peers, counts, strict=True):
        soon(peer, GroupBroken, count)
        soon(peer, StepDone, peer.said.index(soon(peer, GroupFormed, count)))
    print(f"steps are taken again {time.monotonic() - began:.1f} s after the {name}'s address changed")
    last = last_round(peers[0])
    done = soon(peers[0], RoundDone, 0, lambda done: done.round > last)
    one, other = digests_after(done.round, *peers)
    assert one["embedding"] == other["embedding"]


def test_a_datacenter_contributes_again_after_its_address_has_changed(world: World):
    world.begin(BOTH)
    leader, member = join_group(world)
    center = world.join("center", "replica")
    for peer in (leader, member, center):
        peer.wait_for(RoundDone, has_both)
    last, count, began = last_round(center), len(leader.said), time.monotonic()
    move(world, "center", add_first=True)
    done = soon(leader, RoundDone, count, lambda done: done.round > last + 1 and has_both(done))
    took = time.monotonic() - began
    print(f"round {done.round}, begun after the change, has both contributions {took:.1f} s after it")
    one, other = digests_after(done.round, leader, member)
    assert one["embedding"] == other["embedding"]


def test_a_run_goes_on_and_lets_newcomers_in_at_the_second_address_of_its_node(world: World):
    world.begin(GROUP, addresses=2)
    leader = world.join("leader", "join", "--stage", "0")
    leader.wait_for(Joined)
    began = time.monotonic()
    asyncio.run(world.network.remove_address("operator", "10.77.0.1"))
    member = world.join("member", "join", "--stage", "1")
    soon(member, StepDone, 0)
    print(f"a newcomer trains {time.monotonic() - began:.1f} s after the node's first address has gone")
    done = soon(member, RoundDone, 0)
    one, other = digests_after(done.round, leader, member)
    assert one["embedding"] == other["embedding"]
