"""A volunteer that pauses and goes on in the midst of a run, as its owner says: nothing is lost or runs on."""

import signal
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

from protocol.events.activity import Contributed, Finished, GroupFormed, Joined, Paused, PauseEnded, RoundDone, StepDone
from protocol.events.event import Event
from protocol.identity import RunId
from protocol.trust.ticket import Ticket
from tests.reference.processes import Peer, hetpeer, serving

RUN = """
[model]
preset = "nano"
layers = 2
[replicas]
groups = 1
datacenters = 1
[inner]
steps = 12
sequences = 4
microbatch = 2
[outer]
rounds = 12
"""
NOWHERE = Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, ("127.0.0.1:9",), ())


def tell(command: str, folder: Path) -> None:
    hetpeer(command, "--dir", str(folder)).check_returncode()


def between(said: list[Event], first: Event, last: Event) -> list[Event]:
    return said[said.index(first) + 1 : said.index(last)]


def test_a_member_that_pauses_and_goes_on_has_the_state_of_the_others_at_the_end(tmp_path: Path):
    with ExitStack() as stack:
        ticket = stack.enter_context(serving(RUN, tmp_path / "run"))

        def start(*command: str, name: str) -> Peer:
            where = ["--dir", str(tmp_path / name), "--device", "cpu", "--threads", "1"]
            return stack.enter_context(Peer(command[0], str(ticket), *command[1:], *where))

        leader, member = start("join", "--stage", "0", name="leader"), start("join", "--stage", "1", name="member")
        replica = start("replica", name="replica")
        leader.wait_for(StepDone, lambda event: event.round == 2)
        tell("pause", tmp_path / "member")
        paused = member.wait_for(Paused)
        assert "hetpeer resume" in paused.reason
        at = max(event.round for event in replica.said if isinstance(event, StepDone))
        replica.wait_for(RoundDone, lambda event: event.round == at + 2)  # the others go on without it
        tell("resume", tmp_path / "member")
        ended = member.wait_for(PauseEnded)
        finals = [each.wait_for(Finished).digests for each in (leader, member, replica)]
        for part in finals[0].keys() | finals[1].keys():
            assert len({final[part] for final in finals if part in final}) == 1
        assert between(member.said, paused, ended) == []  # it computed nothing, and served nobody
        assert len([event for event in member.said if isinstance(event, Joined)]) == 2
        assert isinstance(member.said[-1], Finished)
        after = member.said[member.said.index(ended) :]
        assert any(isinstance(event, GroupFormed) for event in after)
        assert any(isinstance(event, StepDone) for event in after)
        rounds = [event.round for event in member.said if isinstance(event, Contributed)]
        assert len(rounds) == len(set(rounds))
        steps = {event.round for event in member.said if isinstance(event, StepDone)}
        assert steps <= set(rounds)  # what was done is contributed, also in the round of the pause


def test_a_peer_that_is_started_at_quiet_hours_waits_for_their_end_and_can_be_stopped(tmp_path: Path):
    now = datetime.now()
    hours = f"{now - timedelta(minutes=5):%H:%M}-{now + timedelta(minutes=30):%H:%M}"
    with Peer("join", str(NOWHERE), "--dir", str(tmp_path / "peer"), "--quiet-hours", hours) as peer:
        assert "quiet hours" in peer.wait_for(Paused).reason
        assert peer.end(signal.SIGINT) == 130
        assert not any(isinstance(event, Joined) for event in peer.said)
