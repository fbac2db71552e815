"""What a machine is found to be: from itself, and from values that no machine here has."""

import os
import resource
from pathlib import Path

import pytest
import torch

from peer.diagnosis import machine
from peer.diagnosis.finding import Finding
from peer.diagnosis.machine import (
    EARLIEST,
    before_joining,
    busy,
    clock_finding,
    computes_on,
    disk,
    examine_machine,
    open_files,
    sharing,
    sharing_card,
    versions,
)
from peer.telemetry.cards import CardReadings

CPU = torch.device("cpu")


def test_this_machine_has_every_check_once(tmp_path: Path):
    found = examine_machine(CPU, 1, tmp_path / "not" / "there yet")
    assert [each.name for each in found] == ["versions", "device", "cores", "memory", "disk", "open files", "clock"]
    assert not any(each.outcome == "failure" for each in found)
    assert not (tmp_path / "not").exists()


def test_versions_are_those_that_decide_whether_peers_understand_each_other():
    assert "protocol 1" in versions().value
    assert torch.__version__ in versions().value


@pytest.mark.skipif(torch.cuda.is_available(), reason="here PyTorch can use it")
def test_a_gpu_that_torch_cannot_use_is_worth_a_warning(tmp_path: Path):
    driver = tmp_path / "version"
    assert computes_on(CPU, driver).outcome == "ok"
    driver.touch()
    assert computes_on(CPU, driver).outcome == "warning"
    assert "pytorch.org" in computes_on(CPU, driver).advice


def test_who_computes_beside_it_spoils_the_measurement():
    assert busy(0.3, 4, 4).outcome == "ok"
    assert "others want 3.0" in busy(3.0, 4, 4).value


def test_a_full_disk_is_a_failure_and_names_what_is_missing(tmp_path: Path):
    assert disk(tmp_path, [1, 10**18]).outcome == "ok"
    full = disk(tmp_path, [10**18])
    assert full.outcome == "failure"
    assert "--dir" in full.advice


def test_the_disk_of_a_run_is_told_for_the_cheapest_stage_and_the_dearest(tmp_path: Path):
    assert disk(tmp_path, [3000, 1000, 2000]).value.endswith("; the run takes 1.0 kB to 3.0 kB at most, by stage")
    assert disk(tmp_path, [1000, 1000]).value.endswith("; the run takes 1.0 kB at most")
    assert disk(tmp_path, ()).value.endswith(f"free in {tmp_path}")


def test_few_files_are_a_warning_with_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    assert open_files().outcome == "ok"  # hetpeer raises the soft one itself
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 512))
    assert "limits.conf" in open_files().advice
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert open_files().outcome == "ok"


def test_a_clock_that_was_never_set_is_a_failure():
    assert clock_finding(EARLIEST + 1).outcome == "ok"
    assert clock_finding(12.0).outcome == "failure"
    assert "timedatectl" in clock_finding(12.0).advice


@pytest.mark.skipif(torch.cuda.is_available(), reason="here PyTorch can use the GPU")
def test_before_it_joins_a_peer_is_warned_of_what_doctor_would_warn_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    driver, now = tmp_path / "version", EARLIEST + 1
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4096, 4096))
    assert before_joining("auto", now, driver) == []
    driver.touch()
    if not torch.backends.mps.is_available():
        assert before_joining("auto", now, driver) == [computes_on(CPU, driver)]
    assert before_joining("cpu", now, driver) == []  # its owner wants it so
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    assert before_joining("cpu", 12.0, driver) == [open_files(), clock_finding(12.0)]


def test_processes_that_take_turns_on_a_card_are_a_warning_and_side_by_side_they_are_not():
    assert sharing(0, served=False) == Finding("card", "no other process computes on it")
    turns = sharing(2, served=False)
    assert (turns.outcome, turns.value) == ("warning", "2 other processes compute on it, in turns")
    assert "MPS" in turns.advice
    assert sharing(1, served=True) == Finding("card", "1 other process computes on it, side by side (MPS)")


def test_this_process_is_no_other_on_its_card(monkeypatch: pytest.MonkeyPatch):
    for processes, value in (
        ((), "no other"),
        ((os.getpid(),), "no other"),
        ((1, os.getpid(), 2), "2 other processes"),
    ):
        monkeypatch.setattr(machine, "card_readings", lambda: CardReadings(50.0, None, processes))  # noqa: B023
        (finding,) = sharing_card()
        assert finding.value.startswith(value)
    monkeypatch.setattr(machine, "card_readings", lambda: None)
    assert sharing_card() == []
