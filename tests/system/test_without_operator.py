"""The operator's node is killed: nobody notices, newcomers come by the second, and who was here comes back alone."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from peer.testnet.child import two_free_ports
from protocol.events.activity import (
    Contributed,
    Failed,
    GroupFormed,
    Joined,
    Progress,
    Resumed,
    RoundDone,
    Serving,
)
from protocol.events.waiting import Waiting
from protocol.trust.keys import load_or_create
from tests.reference.processes import RUN, TEXT, Peer, hetpeer

LONG_RUN = RUN + "steps = 6\n[outer]\nrounds = 500\n"


@dataclass
class Swarm:
    """An operator's node, and peers by name."""

    folder: Path
    stack: ExitStack
    operator: Peer
    created: list[str]
    """What the operator's node was started with."""
    peers: dict[str, Peer] = field(default_factory=dict)

    @property
    def ticket(self) -> str:
        return self.operator.wait_for(Serving).ticket

    def join(self, name: str, *arguments: str, ticket: str = "") -> Peer:
        """Start a peer; its folder is `name`."""
        command, *more = arguments
        where = ["--dir", str(self.folder / name), "--device", "cpu", "--threads", "1"]
        self.peers[name] = self.stack.enter_context(Peer(command, ticket or self.ticket, *more, *where))
        return self.peers[name]


Start = Callable[..., Swarm]


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Start]:
    """Starts a group of two, and what the test adds; all of them leave at its end."""
    made = []
    with ExitStack() as stack:

        def start(datacenters: int = 0) -> Swarm:
            (tmp_path / "run.toml").write_text(LONG_RUN.format(datacenters=datacenters, sequences=2))
            text = tmp_path / "text.txt"
            text.write_text(TEXT)
            where = ["--listen", f"127.0.0.1:{two_free_ports()}", "--dir", str(tmp_path / "operator")]
            created = [str(tmp_path / "run.toml"), *where, "--data", str(text)]
            operator = stack.enter_context(Peer("bootstrap", *created))
            made.append(Swarm(tmp_path, stack, operator, created))
            made[0].join("leader", "join", "--stage", "0")
            made[0].join("member", "join", "--stage", "1")
            return made[0]

        yield start
        for each in made:
            for peer in each.peers.values():
                peer.leave()


def test_newcomers_join_by_the_second_node_when_the_first_is_killed(tmp_path: Path, swarm: Start):
    made = swarm()
    grant = ["admin", "invite", "--gateway", "--json", "--dir", str(tmp_path / "operator")]
    granted = hetpeer(*grant)
    invited = json.loads(granted.stdout)["ticket"]
    second = made.stack.enter_context(
        Peer("bootstrap", "--join", invited, "--listen", "127.0.0.1:0", "--dir", str(tmp_path / "second"))
    )
    ticket = second.wait_for(Serving).ticket
    leader = made.peers["leader"]
    leader.wait_for(RoundDone)
    assert made.operator.end(signal.SIGKILL) == -signal.SIGKILL
    newcomer = made.join("newcomer", "replica", ticket=ticket)
    first = newcomer.wait_for(Contributed).round
    done = leader.wait_for(RoundDone, lambda event: event.round >= first and event.contributions["stage-0"] == 2)
    theirs = newcomer.wait_for(RoundDone, lambda event: event.round == done.round)
    assert {part: theirs.digests[part] for part in done.digests} == done.digests
    gateway = load_or_create(tmp_path / "second").peer_id  # and with it falls whom it let in, though it is there yet
    revoke = ["admin", "revoke", gateway, str(tmp_path / "second" / "ticket"), "--dir", str(tmp_path / "operator")]
    hetpeer(*revoke).check_returncode()
    said = newcomer.wait_for(Failed).message
    assert "the operator has taken out the gateway that let this peer in" in said
    leader.wait_for(RoundDone, lambda event: event.round > done.round and event.contributions["stage-0"] == 1)


def test_who_was_here_comes_back_while_the_operators_node_is_down(tmp_path: Path, swarm: Start):
    made = swarm()
    leader, member, ticket = made.peers["leader"], made.peers["member"], made.ticket
    leader.wait_for(RoundDone, lambda event: event.round == 3)
    place = member.wait_for(Joined)
    made.operator.end(signal.SIGKILL)
    member.end(signal.SIGKILL)
    again = made.join("member", "join", "--stage", "1", ticket=ticket)
    again.wait_for(Progress, lambda event: f"going on with what {tmp_path / 'member'} has of the run" in event.doing)
    joined = again.wait_for(Joined)
    assert (joined.peer_id, joined.slot) == (place.peer_id, place.slot)
    resumed = again.wait_for(Resumed).round
    assert resumed >= 2
    assert again.wait_for(GroupFormed).members[1] == place.peer_id
    again.wait_for(Contributed, lambda event: event.round > resumed + 1)


def test_who_was_here_waits_for_its_network_to_come_back_at_the_port_it_was_given(swarm: Start):
    made = swarm()
    leader, member, ticket = made.peers["leader"], made.peers["member"], made.ticket
    leader.wait_for(RoundDone, lambda event: event.round == 2)
    for peer in (made.operator, leader, member):
        peer.end(signal.SIGKILL)
    again = made.join("member", "join", "--stage", "1", "--listen", f"127.0.0.1:{two_free_ports()}", ticket=ticket)
    waiting = again.wait_for(Waiting)
    assert waiting.what.startswith("an answer from the operator's node at ")
    again.wait_for(Waiting, lambda event: event is not waiting)  # it has bound its port again
    made.stack.enter_context(Peer("bootstrap", *made.created)).wait_for(Serving)
    made.join("leader", "join", "--stage", "0", ticket=ticket)
    resumed = again.wait_for(Resumed).round
    again.wait_for(Contributed, lambda event: event.round > resumed + 1)


def test_an_operators_node_that_was_away_is_found_again(swarm: Start):
    made = swarm()
    leader = made.peers["leader"]
    leader.wait_for(RoundDone)
    made.operator.end(signal.SIGKILL)
    away = max(event.round for event in leader.said if isinstance(event, RoundDone))
    leader.wait_for(RoundDone, lambda event: event.round == away + 5)  # each tells the DHT, and calls it in vain
    made.stack.enter_context(Peer("bootstrap", *made.created)).wait_for(Serving)
    newcomer = made.join("newcomer", "replica")
    first = newcomer.wait_for(Contributed).round
    leader.wait_for(RoundDone, lambda event: event.round >= first and event.contributions["stage-0"] == 2)


def test_a_revocation_takes_a_replica_out_of_a_running_swarm(tmp_path: Path, swarm: Start):
    made = swarm(datacenters=1)
    datacenter = made.join("datacenter", "replica")
    leader = made.peers["leader"]
    revoked = datacenter.wait_for(Joined).peer_id
    both = leader.wait_for(RoundDone, lambda event: event.round == 4)
    assert both.contributions == {"embedding": 2, "stage-0": 2}
    command = ["admin", "revoke", revoked[-8:], "--from-round", "3", "--dir", str(tmp_path / "operator")]
    done = hetpeer(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Peer {revoked[-8:]} is taken out from round ")
    assert done.stdout.endswith("3 of 3 peers know; they tell the others\n")
    assert "the operator has taken this peer out of the run" in datacenter.wait_for(Failed).message
    others = [peer for peer in made.peers.values() if peer is not datacenter]
    told = max(event.round for peer in others for event in peer.said if isinstance(event, RoundDone))
    ends = [peer.wait_for(RoundDone, lambda event: event.round == told + 2) for peer in others]
    for part in ("embedding", "stage-0", "stage-1"):
        assert len({end.digests[part] for end in ends if part in end.digests}) == 1
        assert {end.contributions[part] for end in ends if part in end.contributions} == {1}
