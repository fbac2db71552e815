"""The monitor of a node that runs: what it keeps, whom it makes wait, and whom it wakes."""

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from bootstrap.monitor import watch
from bootstrap.monitor.run_state import RunStatus
from bootstrap.monitor.watch import BATCH_BURST, MONITOR_FILE, Monitor
from protocol.errors import FormatError, RefusedError
from protocol.events.activity import Refused
from protocol.events.peer_report import PeerReport, ReportedStatus, pack_report
from protocol.identity import PeerId, RunId
from protocol.patience import HEARTBEAT_SECONDS
from protocol.trust.records import PeerRecord
from tests.reference.small_manifest import small_manifest

MANIFEST, RUN, ANN = small_manifest(), RunId("ab" * 32), PeerId("Ann")


def monitor(folder: Path | None = None, run: RunId = RUN) -> Monitor:
    return Monitor.of(MANIFEST, run, folder)


def telling(words: str) -> bytes:
    return pack_report(PeerReport(ReportedStatus(round=1), [(0.0, Refused("", words))]))


def test_a_peer_that_tells_too_often_waits_and_others_do_not():
    made = monitor()
    for _ in range(BATCH_BURST):
        made.receive_report(ANN, telling("x"))
    with pytest.raises(RefusedError, match="too much is told at once"):
        made.receive_report(ANN, telling("x"))
    made.receive_report(PeerId("Bob"), telling("y"))


def test_what_is_no_batch_changes_nothing():
    made = monitor()
    with pytest.raises(FormatError):
        made.receive_report(ANN, b"{}x")
    assert not made.fold.peers


def test_who_waits_for_change_is_woken_and_so_is_who_waits_for_strangers():
    async def run() -> None:
        made = monitor()
        changed = asyncio.create_task(made.until_changed(60))
        stranger = asyncio.create_task(made.until_outdated(60))
        await asyncio.sleep(0)  # both wait now
        made.receive_report(ANN, telling("x"))
        await asyncio.gather(changed, stranger)
        made.see_records([PeerRecord(peer_id=ANN, address="h:1", role="datacenter", stage=0, slot=0)])
        known = asyncio.create_task(made.until_outdated(0.01))
        made.receive_report(ANN, telling("x"))
        await known
        assert not made._outdated.is_set()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_who_has_been_revoked_stays_so_though_its_record_is_gone():
    made = monitor()
    known = PeerRecord(peer_id=ANN, address="h:1", role="datacenter", stage=0, slot=0)
    made.see_records([known])
    made.see_records([known], lambda peer: peer == ANN)
    made.see_records([])
    assert made.view().peers[0].why == "the operator has revoked it"


def test_a_node_that_comes_back_knows_what_it_knew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch, "MONITOR_SAVE_SECONDS", 3600.0)

    async def run() -> Monitor:
        made = monitor(tmp_path)
        keeping = asyncio.create_task(made.keep())
        await asyncio.sleep(0)  # it keeps now
        made.receive_report(ANN, telling("something happened"))
        keeping.cancel()
        await asyncio.wait((keeping,))
        return made

    before, after = asyncio.run(run()).view(), monitor(tmp_path).view()
    assert [line.words for line in before.log] == ["Refused what peer  sent: something happened"]
    assert (after.started, after.log) == (before.started, before.log)
    assert not monitor(tmp_path, RunId("cd" * 32)).view().log


def test_the_state_of_the_run_is_kept(tmp_path: Path):
    made = monitor(tmp_path)
    made.fold.state = RunStatus("stalled", "no replica is complete", 77.0)
    made.write(True, made._to_keep()[1])
    view = monitor(tmp_path).view()
    assert (view.state, view.state_why, view.state_since) == ("stalled", "no replica is complete", 77.0)


def test_who_is_in_the_run_is_written_down_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch, "RUN_POLL_SECONDS", 0.01)

    async def run() -> None:
        made = monitor(tmp_path)
        keeping = asyncio.create_task(made.keep())
        made.see_records([PeerRecord(peer_id=ANN, address="h:1", role="datacenter", stage=0, slot=0, round=7)])
        while not monitor(tmp_path).fold.firsts:
            await made.until_changed(0.01)
        keeping.cancel()

    asyncio.run(asyncio.wait_for(run(), 20))  # sooner than it is written anyway
    assert monitor(tmp_path).fold.firsts == {ANN: 7}


@pytest.mark.parametrize("lying", [b"", b"{", b'{"run_id": 5}', b"\xff"])
def test_a_damaged_file_is_passed_over(tmp_path: Path, lying: bytes):
    (tmp_path / MONITOR_FILE).write_bytes(lying)
    assert not monitor(tmp_path).view().history


def test_that_the_run_is_over_is_written_down_at_once(tmp_path: Path):
    async def run() -> None:
        made, now = monitor(tmp_path), time.time()
        made.clock = lambda: now
        keeping = asyncio.create_task(made.keep())
        for round in (*[0] * 11, MANIFEST.outer.rounds):  # a second each
            assert made.finished() == 0
            known = {"address": "h:1", "role": "datacenter", "stage": 0, "slot": 0, "sequence": int(1000 * now)}
            made.see_records([PeerRecord(peer_id=ANN, round=round, **known)])  # type: ignore[arg-type]
            now += 1
        assert made.finished() == MANIFEST.outer.rounds
        while monitor(tmp_path).finished() == 0:
            await made.until_changed(0.01)
        keeping.cancel()

    asyncio.run(asyncio.wait_for(run(), 20))  # sooner than it is written anyway


def test_the_run_is_over_when_all_have_gone_although_records_are_seldom_read(monkeypatch: pytest.MonkeyPatch):
    made, began, now = monitor(), 1_900_000_000.0, 1_900_000_000.0
    made.clock, passed, read = lambda: now, asyncio.Event(), began
    last: PeerRecord | None = None

    async def passes(seconds: float, work: Coroutine[Any, Any, object]) -> None:
        nonlocal now, read, last
        work.close()
        now += seconds
        if now - read >= HEARTBEAT_SECONDS:
            read, last = now, last or record(MANIFEST.outer.rounds, gone=True)
            made.see_records([last])
        if now >= began + 60:
            passed.set()
        await asyncio.sleep(0)

    def record(round: int, gone: bool) -> PeerRecord:
        known = {"address": "h:1", "role": "datacenter", "stage": 0, "slot": 0, "sequence": int(1000 * now)}
        return PeerRecord(peer_id=ANN, round=round, gone=gone, **known)  # type: ignore[arg-type]

    async def run() -> None:
        keeping = asyncio.create_task(made.keep())
        made.see_records([record(MANIFEST.outer.rounds - 1, gone=False)])
        await passed.wait()
        keeping.cancel()

    monkeypatch.setattr(watch, "wait_at_most", passes)
    asyncio.run(asyncio.wait_for(run(), 20))
    assert made.finished() == MANIFEST.outer.rounds
