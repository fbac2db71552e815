"""What a testnet plans its memory by, and what it saw of it."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from peer.planning.memory import ACCELERATOR_PROCESS_BYTES, Duty, memory_of
from peer.telemetry.run_report import Peak, Report
from peer.testnet import testnet_options
from peer.testnet.child import arguments
from peer.testnet.peaks import ROOM, duties, memory_for, peak_bytes, watch_peaks
from peer.testnet.swarm import Swarm, datacenter, volunteer
from peer.testnet.testnet_options import TestnetOptions
from protocol.errors import ResourceError
from protocol.manifest import check_manifest

RUN = check_manifest({"model": {"preset": "tiny"}, "replicas": {"groups": 2, "stages": 2, "datacenters": 1}})
SWARM = Swarm.of(groups=2, stages=2, datacenters=1)


def together(recompute: bool, observed: bool) -> int:
    """The bytes of all processes, added up one by one."""
    stages = [memory_of(RUN, Duty("volunteer", stage, recompute=recompute)).total for stage in (0, 1)]
    whole = memory_of(RUN, Duty("datacenter", recompute=recompute)).total
    return 2 * sum(stages) + whole + (memory_of(RUN, Duty("observer")).total if observed else 0)


@pytest.mark.parametrize("observed", [False, True])
def test_activations_are_kept_where_those_of_all_processes_fit_together(observed: bool):
    kept, again = (int(together(each, observed) / ROOM) + 1 for each in (False, True))
    assert again < kept
    for free, way in ((kept, "keep"), (kept - 2, "recompute"), (again, "recompute")):
        assert memory_for(RUN, SWARM, "auto", observed, free) == way
    assert memory_for(RUN, SWARM, "recompute", observed, kept) == "recompute"
    with pytest.raises(ResourceError, match=rf"its {5 + observed} processes take about .* together"):
        memory_for(RUN, SWARM, "auto", observed, again - 2)
    with pytest.raises(ResourceError):
        memory_for(RUN, SWARM, "keep", observed, kept - 2)


def test_processes_that_share_an_accelerator_fit_on_it_and_beside_it():
    needs = {
        way: [memory_of(RUN, duty) for duty in duties(SWARM, way).values()]  # type: ignore[arg-type]
        for way in ("keep", "recompute")
    }
    host = int(sum(need.host for need in needs["keep"]) / ROOM) + 1
    card = {
        way: int(sum(need.device + ACCELERATOR_PROCESS_BYTES for need in each) / ROOM) + 1
        for way, each in needs.items()
    }
    assert memory_for(RUN, SWARM, "auto", False, host, card["keep"]) == "keep"
    assert memory_for(RUN, SWARM, "auto", False, host, card["keep"] - 2) == "recompute"
    with pytest.raises(ResourceError, match="together on the accelerator, of"):
        memory_for(RUN, SWARM, "auto", False, host, card["recompute"] - 2)
    with pytest.raises(ResourceError, match="together, of"):
        memory_for(RUN, SWARM, "auto", False, host - 2, card["keep"])


@pytest.mark.parametrize(("device", "precision"), [("cpu", ["--precision", "fp32"]), ("cuda", [])])
def test_all_processes_of_a_testnet_compute_on_its_device(tmp_path: Path, device: str, precision: list[str]):
    options = TestnetOptions("nano", 2, 2, 1, 2, rounds=2, inner_steps=2, device=device)
    for name in (volunteer(0, 1), datacenter(0)):
        words = arguments(name, SWARM, options, tmp_path, "127.0.0.1:1", "a-ticket", evaluate=False)
        assert words[words.index("--device") + 1] == device
        assert words[words.index("--threads") + 2 :] == precision


def test_each_process_has_the_duty_of_its_place():
    planned = duties(SWARM, "recompute")
    assert planned[volunteer(1, 0)] == Duty("volunteer", 0, recompute=True)
    assert planned[volunteer(0, 1)] == Duty("volunteer", 1, recompute=True)
    assert planned[datacenter(0)] == Duty("datacenter", recompute=True)
    assert not any(each.recompute for each in duties(SWARM, "keep").values())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's count is Linux's")
def test_the_most_that_a_process_has_had_is_known_after_it_has_given_it_back():
    program = "kept = bytearray(200 * 2**20); del kept; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        peak = peak_bytes(process.pid)
        process.communicate(b"\n")
    assert 200 * 2**20 < peak < 300 * 2**20
    with pytest.raises(FileNotFoundError):
        peak_bytes(process.pid)


def test_who_runs_is_looked_at_and_the_most_of_each_is_kept(monkeypatch: pytest.MonkeyPatch):
    sizes = {1: 300, 2: 40}
    monkeypatch.setattr("peer.testnet.peaks.peak_bytes", lambda process: sizes[process])
    monkeypatch.setattr("peer.testnet.peaks.PEAKS_POLL_SECONDS", 0)
    report, looks = Report(RUN), 0

    def running() -> list[tuple[str, int]]:
        nonlocal looks
        looks += 1
        if looks == 2:
            sizes[1] = 200  # it was started again
        if looks == 3:
            raise asyncio.CancelledError
        return [(volunteer(0, 0), 1), (datacenter(0), 2), ("bootstrap", 3)]

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch_peaks(RUN, duties(SWARM, "keep"), running, report.note_peak, host_alone=False))
    stage, whole = (memory_of(RUN, duty).total for duty in (Duty("volunteer", 0), Duty("datacenter")))
    assert report.peaks == {volunteer(0, 0): Peak(300, stage), datacenter(0): Peak(40, whole)}
    assert report.result()["memory"][datacenter(0)] == {"measured": 40, "estimate": whole}


def test_a_preset_with_a_long_context_evaluates_as_many_tokens_and_not_as_many_sequences():
    options = TestnetOptions("micro", 1, 2, 1, 8, rounds=2, inner_steps=2)
    manifests = [
        testnet_options.check_testnet_manifest(replace(options, preset=preset)) for preset in ("micro", "178m")
    ]
    assert [each.evaluation.sequences for each in manifests] == [64, 8]
