"""`hetpeer doctor`, as a user types it: without a run, with one whose node nobody runs, and beside a real one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bootstrap.admission.audit_log import last
from peer.cli import doctor
from peer.cli.doctor import NOT_TO_JOIN, Around, DoctorOptions, examine
from peer.diagnosis import machine
from peer.network.reach.probing import MeasuredWay, NoWay
from peer.planning.memory import Duty, memory_of, process_bytes
from peer.process import Terminal
from protocol.events.activity import Failed, Progress, Serving
from protocol.events.event import Event
from protocol.events.lines import from_line
from protocol.identity import PeerId
from protocol.run.run_files import descriptor_of
from protocol.trust.ticket import Ticket, parse_ticket
from tests.peer.network.reach.test_probing import closed_port
from tests.reference.small_manifest import SMALL, small_manifest

ALONE = DoctorOptions(preset="nano", stages=2, device="cpu", threads=1, seconds=0.05)


def asking(ticket: str, listen: str | None = None) -> DoctorOptions:
    return DoctorOptions(ticket=ticket, device="cpu", threads=1, listen=listen, seconds=0.05)


def said(options: DoctorOptions, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], list[Event]]:
    """The exit code, the findings by name, and what was told on the way."""
    events: list[Event] = []
    code = examine(options, Terminal(events.append, json=True))
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, {row["name"]: row for row in rows}, events


@dataclass(frozen=True)
class Node:
    """A bootstrap node of a small run, as a process."""

    folder: Path
    ticket: str


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("operator")
    run_toml = folder / "run.toml"
    run_toml.write_text(
        "\n".join(
            f"[{table}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in fields.items())
            for table, fields in SMALL.items()
        )
    )
    (folder / "text").mkdir()
    for number in range(20):
        (folder / "text" / f"{number}.txt").write_text(f"On day {number} all was well with it. " * 60)
    command = [sys.executable, "-m", "peer.cli", "bootstrap", str(run_toml), "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(
        [*command, "--dir", str(folder / "node"), "--data", str(folder / "text"), "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        events = (from_line(line) for line in process.stdout)
        yield Node(folder / "node", next(event.ticket for event in events if isinstance(event, Serving)))
    finally:
        process.communicate(timeout=30)


def test_without_a_ticket_this_machine_alone_is_looked_at(capsys: pytest.CaptureFixture[str]):
    code, found, events = said(ALONE, capsys)
    assert code == 0
    assert list(found) == [
        *("versions", "device", "cores", "memory", "disk", "open files", "clock"),
        *("stage 0", "stage 1", "traffic", "group", "replica", "verdict"),
    ]
    assert all(bool(each["advice"]) == (each["outcome"] != "ok") for each in found.values())
    assert found["stage 0"]["numbers"]["passes"] > 0
    assert [event for event in events if isinstance(event, Progress)]


def test_a_stage_takes_what_a_process_takes_here_beside_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    needed = []
    for resident in (3 * 10**8, 7 * 10**8):
        monkeypatch.setattr("peer.compute.capacity.resident_bytes", lambda resident=resident: resident)
        needed.append(said(ALONE, capsys)[1]["stage 1"]["numbers"]["memory"])
    assert needed[1] - needed[0] == 4 * 10**8


def test_a_process_is_counted_as_a_peer_counts_its_own_before_it_asks_the_network(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    order: list[str] = []
    monkeypatch.setattr("peer.compute.capacity.resident_bytes", lambda: order.append("counted") or 3 * 10**8)
    real = doctor.look_around
    monkeypatch.setattr(doctor, "look_around", lambda *asked: order.append("asked") or real(*asked))
    needed = said(asking(node.ticket), capsys)[1]["stage 1"]["numbers"]["memory"]
    assert order == ["counted", "asked"]
    assert needed == memory_of(small_manifest(), Duty("volunteer", 1), process_bytes(3 * 10**8)).total


def test_a_person_sees_a_table_with_what_to_do(capsys: pytest.CaptureFixture[str]):
    assert examine(ALONE, Terminal(lambda event: None)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("A run like nano: 1.4 million parameters in 2 stages")
    assert out.endswith("verdict ok this machine can serve stages 0 and 1; a whole replica fits")
    assert "stage 1 ok would take" in out


def test_a_run_is_looked_at_without_joining_it(node: Node, capsys: pytest.CaptureFixture[str]):
    code, found, _ = said(asking(node.ticket), capsys)
    assert code == 0, [each for each in found.values() if each["outcome"] == "failure"]
    way = next(each for name, each in found.items() if name.startswith("node "))
    assert way["outcome"] == "ok"
    assert min(way["numbers"]["up"], way["numbers"]["down"]) > 1e6
    assert "the node's" in found["clock"]["value"]
    assert found["reachable"]["outcome"] == "ok"
    assert found["peers"]["value"] == "nobody is in the run now"
    assert found["disk"]["numbers"]["needed"] > 0
    assert {"stage 0", "stage 1", "group", "traffic", "replica"} <= found.keys()
    assert found["verdict"]["value"].startswith("this machine can serve stage")  # how well, a busy machine decides
    assert "; a whole replica fits" in found["verdict"]["value"]
    assert not last(node.folder, 9)


def test_what_is_wrong_with_each_node_is_told_and_the_machine_is_looked_at(
    node: Node, capsys: pytest.CaptureFixture[str]
):
    with closed_port() as nobody:
        ticket = parse_ticket(node.ticket)
        silent = Ticket(ticket.run_id, ticket.authority, (nobody,), ticket.addresses)
        both = Ticket(ticket.run_id, ticket.authority, (nobody, *ticket.node_addresses), ticket.addresses)
        code, found, _ = said(asking(str(silent)), capsys)
        assert code == NOT_TO_JOIN
        assert found[f"node {nobody}"]["outcome"] == "failure"
        assert "versions" in found
        assert "stage 0" not in found
        assert found["verdict"]["value"] == f"this machine cannot join: node {nobody}"
        code, found, _ = said(asking(str(both)), capsys)
    assert code == 0, [each for each in found.values() if each["outcome"] == "failure"]
    assert found[f"node {nobody}"]["outcome"] == "warning"
    assert "stage 0" in found


def test_what_is_no_ticket_is_one_clear_line(capsys: pytest.CaptureFixture[str]):
    code, found, events = said(asking("hetpeer1-nonsense"), capsys)
    assert code not in (0, NOT_TO_JOIN)
    assert not found
    assert isinstance(events[-1], Failed)
    assert "ticket" in events[-1].message


@pytest.mark.parametrize(("finished", "is_over"), [(0, False), (2, False), (3, True)])
def test_a_run_that_is_over_takes_no_time_for_a_round(finished: int, is_over: bool):
    descriptor = descriptor_of(small_manifest(outer={"rounds": 3}), PeerId("Qmoperator"), [])
    ways = [
        NoWay("gone:1", "nobody answers"),
        MeasuredWay("here:1", 0.01, 1e6, 1e6, 0.0, 0.01, finished, 450.0),
    ]
    around = Around(ways, descriptor)
    assert around.is_over == is_over
    assert around.round_seconds == (0.0 if is_over else 450.0)
    assert machine.over(3).words.startswith("run: it is over: its 3 rounds are finished → ")
