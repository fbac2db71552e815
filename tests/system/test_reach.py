"""Volunteers behind routers that let nobody in, and public nodes outside: real processes, in network namespaces, with
real address translation. Skipped, with the reason, without root or tools. And a swarm on IPv6, which needs neither."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from protocol.events.activity import GroupBroken, GroupFormed, Joined, Progress, Reached, RoundDone, Serving, StepDone
from protocol.trust.ticket import parse_ticket
from tests.chaos import namespaces
from tests.chaos.namespaces import Namespaces
from tests.reference.processes import RUN, TEXT, Peer

needs_namespaces = pytest.mark.skipif(namespaces.missing() is not None, reason=f"needs {namespaces.missing()}")

LONG_RUN = RUN.format(datacenters=0, sequences=2) + "steps = 6\n[outer]\nrounds = 500\n"

RELAYS = ("operator", "one relay", "another relay")

REPLACED_SECONDS = 20.0
"""Half of it is what the issue asks for, on a machine that has a core for each process."""


@dataclass
class World:
    """A run whose operator, and every peer, has a host of its own. Peers by name."""

    folder: Path
    network: Namespaces
    stack: ExitStack
    peers: dict[str, Peer] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    @property
    def ticket(self) -> str:
        return self.peers["operator"].wait_for(Serving).ticket

    def begin(self, run: str = LONG_RUN, addresses: int = 1) -> None:
        """Start the operator's node, which has so many addresses and names them all in its ticket."""
        (self.folder / "run.toml").write_text(run)
        (self.folder / "text.txt").write_text(TEXT)
        named = [asyncio.run(self.network.add("operator"))]
        named += [asyncio.run(self.network.add_address("operator")) for _ in range(addresses - 1)]
        where = ["--listen", f"{named[0]}:7700"]
        if addresses > 1:
            where = ["--listen", "0.0.0.0:7700", *(word for each in named for word in ("--announce", each))]
        data = ["--data", str(self.folder / "text.txt")]
        self._start("operator", "bootstrap", str(self.folder / "run.toml"), *where, *data)

    def join(self, name: str, *arguments: str, behind_router: bool = False) -> Peer:
        """Start a peer, on a public host or behind a router of its own."""
        asyncio.run((self.network.add_behind_router if behind_router else self.network.add)(name))
        command, *more = arguments
        return self._start(name, command, self.ticket, *more, "--device", "cpu", "--threads", "1")

    def _start(self, name: str, *arguments: str) -> Peer:
        enter = asyncio.run(self.network.enter(name))
        peer = Peer(*arguments, "--dir", str(self.folder / name), inside=enter)
        self.peers[name] = self.stack.enter_context(peer)
        return peer

    def held(self, peer: Peer) -> list[str]:
        """The relays that a peer names now."""
        return [said.relays for said in peer.said if isinstance(said, Reached)][-1]

    def replaced(self, peer: Peer, dying: str, end: signal.Signals) -> float:
        """End a relay, or let it fall silent; the seconds until a peer names as many as there can be without it."""
        heard, began = len(peer.said), time.monotonic()
        self.gone.add(self.named(dying))
        self.peers[self.named(dying)].process.send_signal(end)
        left = len(set(RELAYS) - self.gone)
        peer.wait_for(
            Reached,
            lambda said: said in peer.said[heard:] and dying not in said.relays and len(said.relays) == min(2, left),
        )
        return time.monotonic() - began

    def named(self, peer_id: str) -> str:
        """Whose id this is."""
        for name, peer in self.peers.items():
            if any(isinstance(said, Joined) and said.peer_id == peer_id for said in peer.said):
                return name
        return "operator"


@contextmanager
def hosts(folder: Path) -> Iterator[World]:
    """A world in which nothing runs yet; all that is started in the block ends with it."""
    network = Namespaces(os.getpid())
    with ExitStack() as stack:
        asyncio.run(network.open())
        stack.callback(lambda: asyncio.run(network.close()))
        made = World(folder, network, stack)
        yield made
        for name in made.gone:
            made.peers[name].process.kill()  # who has been stopped cannot leave
        for peer in made.peers.values():  # all at once: nobody waits for another to say goodbye
            peer.leave()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with hosts(tmp_path) as made:
        made.begin()
        yield made


def follow_each_other(steps: list[StepDone]) -> bool:
    """Whether no step is left out and none is done twice."""
    return all(
        (one.round, one.step + 1) == (next.round, next.step) or (one.round + 1, 0) == (next.round, next.step)
        for one, next in pairwise(steps)
    )


def steps_of(peer: Peer) -> list[StepDone]:
    return [said for said in peer.said if isinstance(said, StepDone)]


def digests_after(round: int, *peers: Peer) -> list[dict[str, str]]:
    return [peer.wait_for(RoundDone, lambda done: done.round == round).digests for peer in peers]


@needs_namespaces
def test_two_volunteers_behind_routers_train_through_a_relay_and_its_end_costs_the_step_in_flight(world: World):
    for name in RELAYS[1:]:
        world.join(name, "observe", "--relay").wait_for(Joined)
    leader = world.join("leader", "join", "--stage", "0", behind_router=True)
    member = world.join("member", "join", "--stage", "1", behind_router=True)
    for peer in (leader, member):
        said = peer.wait_for(Progress, lambda said: "forward TCP port" in said.doing).doing
        assert "--announce 10.77." in said
        assert len(peer.wait_for(Reached, lambda reached: len(reached.relays) == 2).relays) == 2
    first = leader.wait_for(RoundDone).round
    one, other = digests_after(first, leader, member)
    assert one["embedding"] == other["embedding"]

    ends = (signal.SIGKILL, signal.SIGSTOP)  # of a stopped one the connections stay, and nothing comes over them
    for dying, end in zip(world.held(member), ends, strict=True):  # one of the two carries their streams
        took = world.replaced(member, dying, end)
        print(f"{world.named(dying)} got {end.name}; after {took:.1f} s: {[*map(world.named, world.held(member))]}")
        assert took < REPLACED_SECONDS
        last = max(said.round for said in leader.said if isinstance(said, RoundDone))
        one, other = digests_after(last + 2, leader, member)
        assert one["embedding"] == other["embedding"]
    broken = [said for said in leader.said if isinstance(said, GroupBroken)]
    print(f"the group broke {len(broken)} time(s): {[(said.round, said.step, said.reason) for said in broken]}")
    assert follow_each_other(steps_of(leader))  # where it broke between two steps, not even one is lost


@needs_namespaces
def test_a_public_volunteer_and_one_behind_a_router_train_over_its_own_connection(world: World):
    leader = world.join("leader", "join", "--stage", "0")
    leader.wait_for(Joined)
    member = world.join("member", "join", "--stage", "1", behind_router=True)
    member.wait_for(Reached, lambda said: len(said.relays) == 1)
    leader.wait_for(GroupFormed)
    leader.wait_for(StepDone)
    world.peers["operator"].end(signal.SIGKILL)  # with it the only relay is gone
    member.wait_for(Reached, lambda said: not said.relays)
    round = max((said.round for said in leader.said if isinstance(said, RoundDone)), default=0) + 1
    one, other = digests_after(round + 1, leader, member)
    assert one["embedding"] == other["embedding"]
    assert follow_each_other(steps_of(leader))
    print([said.reason for said in leader.said if isinstance(said, GroupBroken)])


def test_a_swarm_trains_over_ipv6(tmp_path: Path):
    (tmp_path / "run.toml").write_text(RUN.format(datacenters=0, sequences=2) + "steps = 2\n[outer]\nrounds = 1\n")
    (tmp_path / "text.txt").write_text(TEXT)
    more = ["--data", str(tmp_path / "text.txt"), "--dir", str(tmp_path / "operator")]
    with Peer("bootstrap", str(tmp_path / "run.toml"), "--listen", "[::1]:0", *more) as operator:
        ticket = operator.wait_for(Serving).ticket
        assert parse_ticket(ticket).operator.startswith("[::1]:")
        where = ["--device", "cpu", "--threads", "1", "--dir"]
        with (
            Peer("join", ticket, "--stage", "0", *where, str(tmp_path / "0")) as leader,
            Peer("join", ticket, "--stage", "1", "--announce", "::1", *where, str(tmp_path / "1")) as member,
        ):
            for peer in (leader, member):
                assert peer.wait_for(Joined).address.startswith("[::1]:")
            one, other = digests_after(1, leader, member)
            assert one["embedding"] == other["embedding"]
