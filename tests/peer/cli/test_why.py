"""`hetpeer why`: planted evictions, late rounds and zero credits, planted for real where that takes seconds."""

import json
from pathlib import Path

import pytest

from bootstrap.admission.audit_log import AuditEntry, append_entry
from peer.cli.why import explain
from peer.process import Terminal
from peer.store.home import locked, peer_folder
from peer.swarm.rounds import round_policy
from peer.swarm.rounds.own_credit import TOO_LATE
from peer.swarm.rounds.round_end import finish_round
from peer.telemetry.journal import Journal
from peer.telemetry.status import EventStream, Status
from protocol.events.activity import (
    Contributed,
    Failed,
    GroupBroken,
    GroupFormed,
    Joined,
    RoundDone,
    StepDone,
)
from protocol.events.decisions import Counted, EndedEarly, NotCounted, WentOn
from protocol.events.event import Event
from protocol.events.group_decisions import Dismissed
from protocol.events.waiting import Waiting
from protocol.identity import RunId
from protocol.trust.ticket import Ticket
from tests.peer.swarm.rounds.test_outer_round import BAD, honest, play, publish
from tests.peer.swarm.rounds.test_own_credit import lateness
from tests.reference.loopback_peers import LoopbackPeer, Village

TICKET = Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, ("h:1",), ())
EVIL, ME = "Qm" + "E" * 36 + "viLviLvi", "Qm" + "M" * 36 + "eMeMeMee"
DONE = RoundDone(3, 2.0, 1024, {"embedding": 2}, {}, 0, 0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETPEER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def logged(folder: Path, events: list[Event]) -> Path:
    """A peer's folder in which these were said, a second apart."""
    folder.mkdir(parents=True, exist_ok=True)
    times = iter(range(1_700_000_000, 1_700_000_000 + len(events)))
    status = Status()
    journal = Journal(folder, lambda event: None, status, clock=lambda: float(next(times)))
    for event in events:
        EventStream([journal], status)(event)
    return folder


def asked(capsys: pytest.CaptureFixture[str], what: str, where: Path | str | None = None, program: bool = False) -> str:
    said: list[Event] = []
    code = explain(what, None if where is None else str(where), Terminal(said.append, program))
    assert code == 0, said
    return capsys.readouterr().out


def refused(what: str, where: Path | str | None = None) -> str:
    said: list[Event] = []
    assert explain(what, None if where is None else str(where), Terminal(said.append)) != 0
    assert isinstance(said[0], Failed)
    return said[0].message


def test_a_planted_eviction_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A liar signs garbage; who meets it refuses and avoids it."""
    found: list[LoopbackPeer] = []

    async def scene(made: Village) -> None:
        honest_one, liar = made.peers
        await publish(liar, BAD["cut short"](await honest(liar)))
        await made.compare_all()
        found.extend((honest_one, liar))

    play(tmp_path / "village", "al", scene)
    peer, liar = found
    folder = logged(tmp_path / "peer", peer.said)
    for named in (liar.id, liar.id[-8:]):
        told = asked(capsys, named, folder)
        assert f"Refused what peer {liar.id[-8:]} sent: " in told
        assert f"Peer {liar.id[-8:]} is avoided for 10 s: offence 1: " in told


def test_a_late_round_and_its_zero_credit_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """One peer is slow: the others go on without it, and what it brings then does not count."""
    found: list[LoopbackPeer] = []

    async def scene(made: Village) -> None:
        quick, other, slow = made.peers
        await quick.contribute(1, 1)
        await other.contribute(1, 2)
        made.introduce()
        await made.compare_all()
        await finish_round(quick.outer, 1)
        slow.said.append(EndedEarly(1, 1, await lateness(slow)))  # as its inner loop says it
        await slow.at(1)
        await slow.contribute(1, 3)
        found.extend((quick, slow))

    monkeypatch.setattr(round_policy, "SHORTEST_WAIT_SECONDS", 0.05)
    play(tmp_path / "village", "abl", scene)
    quick, slow = found
    told = asked(capsys, "1", logged(tmp_path / "quick", quick.said))
    assert f"Waiting no longer in round 1 for {slow.id[-8:]}: most contributions are here" in told
    assert told.rstrip().endswith("→ Counted: what this peer contributed to round 1, as far as its log goes.")
    told = asked(capsys, "1", logged(tmp_path / "slow", slow.said))
    assert "Ended round 1 early, after 1 inner step: the others are done" in told
    assert "→ Not counted: embedding, " in told
    assert TOO_LATE in told


GROUP: list[Event] = [
    Joined(ME, "volunteer", 0, 0, "h:1"),
    GroupFormed(ME, 0, [ME, EVIL], "each other stage has a volunteer now"),
    StepDone(3, 0, 5.0, 10),
    GroupBroken(ME, 3, 1, "a member did not answer"),
    Dismissed(EVIL, 3, 1, f"peer {EVIL[-8:]} held its group up"),
    Waiting("a free volunteer of stage 1 (0 there, 0 free)", "a group needs one of each stage", 1, 2),
    EndedEarly(3, 1, "the others are done"),
    Contributed(3, 1),
    NotCounted(3, ["stage 0"], "it came late"),
    DONE,
    Counted(3, ["stage 0"]),
    WentOn(4, [EVIL], "most contributions are here"),
]


def test_a_round_is_told_from_its_beginning_to_its_end_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = logged(tmp_path / "peer", GROUP)
    lines = asked(capsys, "3", folder).splitlines()
    assert [line.split("  ", 1)[-1].split(" ")[0] for line in lines] == [
        "A",  # a member did not answer
        "Dismissed",
        "Waits",
        "Ended",
        "This",
        "Nothing",
        "Round",
        "This",
        "→",
    ]
    assert lines[-1].startswith("→ Counted")
    assert "Waiting no longer in round 4" in asked(capsys, "4", folder)


def test_a_member_that_was_dismissed_is_told_of_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    evil = EVIL[-8:]
    told = asked(capsys, evil, logged(tmp_path / "peer", GROUP))
    assert f"Dismissed peer {evil} from this group, at step 2 of round 3: peer {evil} held its group up" in told
    assert "Waits for a free volunteer of stage 1" not in told
    own = asked(capsys, ME, tmp_path / "peer")
    assert "Waits for a free volunteer of stage 1" in own  # its own story is all of it


def test_programs_have_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    told = asked(capsys, EVIL[-8:], logged(tmp_path / "peer", GROUP), program=True)
    rows = [json.loads(line) for line in told.splitlines()]
    assert [row["event"] for row in rows] == ["GroupFormed", "Dismissed", "WentOn"]
    assert rows[1]["reason"] == f"peer {EVIL[-8:]} held its group up"
    assert rows[1]["words"].startswith("Dismissed peer")
    assert rows[1]["time"] > 1_700_000_000


def test_what_is_not_known_is_said_with_what_is(tmp_path: Path):
    folder = logged(tmp_path / "peer", GROUP)
    message = refused("17", folder)
    assert "nothing is known of 17" in message
    assert "rounds 3 to 4" in message
    assert EVIL[-8:] in message
    assert "nothing is known of QmNobody9" in refused("QmNobody9", folder)
    assert "neither a round's number nor a peer's id" in refused("x", folder)


def test_without_a_folder_the_log_written_last_is_meant_and_a_ticket_means_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert "no daemon has left a log" in refused("3")
    with locked(peer_folder(TICKET, "stage-0")) as folder:
        logged(folder, GROUP)
    for where in (None, str(TICKET)):
        told = asked(capsys, "3", where)
        assert told.startswith(f"The log in {folder}:\n")
        assert "Ended round 3" in told
    assert "no daemon has left a log" in refused("3", str(Ticket(RunId("cd" * 32), b"\2" + b"k" * 32, ("h:1",), ())))


def test_the_operators_node_knows_who_came_and_who_was_taken_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "bootstrap-mine"
    folder.mkdir()
    append_entry(folder, AuditEntry(what="admitted", at=1_600_000_000.0, peer=EVIL, role="volunteer", stage=1, slot=2))
    append_entry(folder, AuditEntry(what="revoked", at=1_800_000_000.0, peer=EVIL, reason="from round 3 on"))
    logged(folder / "observer", [DONE, WentOn(3, [EVIL], "most contributions are here")])
    lines = asked(capsys, EVIL, folder).splitlines()
    assert "admitted  peer" in lines[0]
    assert "Waiting no longer in round 3" in lines[1]
    assert lines[2].endswith("from round 3 on")
