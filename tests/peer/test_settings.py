"""What the owner of a machine says on the command line, and what a peer makes of it."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.compute.arithmetic import Arithmetic
from peer.devices.fit import WORKER_BASE_BYTES, daemon_bytes, worker_bytes
from peer.devices.workers import Split
from peer.network.reach.reach import Wish
from peer.planning.memory import PROCESS_BYTES, Duty, memory_of
from peer.planning.welcome import RestOfRun
from peer.settings import LOW_NICENESS, Meeting, PeerSettings, bytes_of
from peer.store.disk import Space
from peer.traffic import USED_FILE, TrafficLimit, Used, write_used
from protocol.errors import UserError
from protocol.identity import PeerId, RunId
from protocol.layout import elements, model_layout, parts_followed
from protocol.manifest import check_manifest
from protocol.run.run_files import RunFile, descriptor_of, file_names, files_needed
from protocol.trust.ticket import Ticket
from protocol.wording import size
from tests.reference.small_manifest import small_manifest

TICKET = Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, ("h:1",), ())


def said(**options: Any) -> PeerSettings:
    return PeerSettings(ticket=TICKET, role="volunteer", directory=Path("peer"), **options)


def test_nothing_said_is_no_limit():
    settings = said()
    assert settings.bandwidth().up.rate is None
    assert settings.memory_limit is None
    assert settings.disk_limit is None
    assert settings.niceness == 0


def test_limits_are_megabits_a_second_and_bytes():
    settings = said(max_up=5, max_down=40, max_memory="8GB", max_disk=10**6, priority="low")
    assert settings.bandwidth().up.rate == 625_000
    assert settings.bandwidth().down.rate == 5_000_000
    assert settings.memory_limit == 8 * 10**9
    assert settings.disk_limit == 10**6
    assert settings.niceness == LOW_NICENESS


def test_all_lines_of_a_peer_count_into_one_total():
    settings = said()
    assert settings.bandwidth().up.carried is settings.bandwidth().down.carried is settings.carried
    assert said().carried is not settings.carried


def test_traffic_is_a_size_in_a_month_or_a_day():
    assert said().traffic_limit is None
    assert said(max_traffic="200GB/month").traffic_limit == TrafficLimit(200 * 10**9, "month", "200GB/month")
    assert said(max_traffic=" 1.5 GiB / Day ").traffic_limit == TrafficLimit(3 * 2**29, "day", "1.5 GiB / Day")


@pytest.mark.parametrize("text", ["200GB", "200GB/week", "200/month", "0GB/day", "/month", "GB/month"])
def test_what_is_no_traffic_of_a_month_is_refused(text: str):
    with pytest.raises(UserError, match="--max-traffic"):
        said(max_traffic=text)


def test_the_place_in_a_run_is_told_with_what_it_takes_of_line_memory_cores_and_disk():
    cpu, run = torch.device("cpu"), check_manifest({"model": {"preset": "micro"}, "replicas": {"stages": 2}})
    space = Space(fixed=10**8, contributions=10**7, limit=10**9)

    def starts(**options: Any) -> list[str]:
        return [sentence[:9] for sentence in said(**options).what_is_taken(run, 1, space, cpu, RestOfRun(100, 60.0))]

    assert starts() == ["this mach", "it takes "]
    assert starts(max_traffic="1GB/day")[::2] == starts()
    taken = said(max_traffic="1MB/day").what_is_taken(run, 1, space, cpu, RestOfRun(100, 60.0), 1.2e7)
    assert taken[1] == "the first download: up to 12.0 MB"
    assert "1MB/day is used up within the first download" in taken[2]
    needed = memory_of(run, Duty("volunteer", 1)).total
    assert (
        f"up to {size(needed)} of memory, 3 cores"
        in said(threads=3).what_is_taken(run, 1, space, cpu, RestOfRun(100))[-1]
    )
    assert "of memory" not in said(nproc=2, threads=3).what_is_taken(run, 1, space, cpu, RestOfRun(100))[-1]


def test_the_first_download_is_what_the_folder_lacks_and_a_state_once_rounds_have_ended(tmp_path: Path):
    run = small_manifest()
    descriptor = descriptor_of(run, PeerId("Qmoperator"), [RunFile(name, "ab" * 32, 10**6) for name in file_names(run)])
    settings, names = replace(said(), directory=tmp_path), files_needed(descriptor, 1)
    fresh = settings.first_download(descriptor, 1, RestOfRun(run.outer.rounds))
    assert 10**6 * len(names) < fresh < 1.2e6 * len(names)
    values = sum(elements(model_layout(run)[part]) for part in parts_followed(run, 1))
    late = settings.first_download(descriptor, 1, RestOfRun(1))
    assert late - fresh == pytest.approx(4 * values * fresh / (10**6 * len(names)))
    for name in names:
        (tmp_path / name).touch()
    assert settings.first_download(descriptor, 1, RestOfRun(run.outer.rounds)) == 0


def test_why_a_peer_pauses_is_read_from_its_folder(tmp_path: Path):
    limited = replace(said(max_traffic="1kB/month"), directory=tmp_path)
    assert limited.pausing == ""
    write_used(tmp_path, Used(f"{datetime.now():%Y-%m}", 1000))
    assert limited.pausing.endswith("for --max-traffic 1kB/month is used up")
    (tmp_path / USED_FILE).write_bytes(b"?")
    assert limited.pausing == ""


def test_how_others_reach_it_and_how_it_computes_are_what_was_said():
    run = check_manifest({"model": {"preset": "micro"}})
    settings = said(listen="h:1", reach="relay", nproc=2, threads=4, precision="bf16", compiled=True, memory="keep")
    assert settings.wish == Wish("h:1", (), "relay")
    assert settings.split(run, torch.device("cpu")) == Split(2, 4, 0, Arithmetic("bf16", True))


def test_a_datacenter_of_several_machines_names_where_they_meet_and_their_secret():
    secret = Path("machines.key")
    settings = said(nproc=2, nnodes=3, rendezvous="[fd00::1]:7800", secret_file=secret)
    assert settings.meeting == Meeting("fd00::1", 7800, secret)
    assert settings.split(check_manifest({"model": {"preset": "micro"}}), torch.device("cpu")).ranks == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nnodes": 2}, "several machines need --rendezvous HOST:PORT of the first, and --secret-file"),
        ({"nnodes": 2, "rendezvous": "h:1"}, "several machines need"),
        ({"nnodes": 2, "rendezvous": "h", "secret_file": Path("s")}, "--rendezvous: 'h' is no HOST:PORT"),
        ({"nnodes": 2, "node_rank": 2, "rendezvous": "h:1", "secret_file": Path("s")}, "the ranks are 0 to 1"),
        ({"rendezvous": "h:1"}, "are for several machines: give --nnodes, too"),
    ],
)
def test_options_of_several_machines_that_do_not_go_together_say_what_would(options: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        said(**options)


@pytest.mark.parametrize("nproc", [1, 2])
def test_activations_are_computed_again_where_it_was_said_or_where_they_would_not_fit(nproc: int):
    """The limits are those between which the choice lies: as much as it takes to keep them, and a byte less."""
    cpu, run = torch.device("cpu"), check_manifest({"model": {"preset": "micro"}, "replicas": {"stages": 1}})
    process = PROCESS_BYTES - 10**8  # as a reading may have it
    takes = memory_of(run, Duty("volunteer"), process).total
    if nproc > 1:
        takes = daemon_bytes(run, process) + nproc * (worker_bytes(run, nproc, recompute=False) + WORKER_BASE_BYTES)

    def recomputes(memory: str, most: int | None) -> bool:
        settings = said(nproc=nproc, memory=memory, max_memory=most, process_bytes=process)
        return settings.arithmetic(run, None, cpu).recompute

    assert [recomputes("auto", most) for most in (takes, takes - 1, None)] == [False, True, False]
    assert recomputes("recompute", None)
    assert not recomputes("keep", 1)


def test_fp16_is_for_one_process(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="--precision fp16 goes with one process"):
        said(precision="fp16", nproc=2)
    monkeypatch.setattr("peer.settings.precision_on", lambda name, device: "fp16")
    run = check_manifest({"model": {"preset": "micro"}})
    of = [said(nproc=nproc).arithmetic(run, 0, torch.device("cpu")).precision for nproc in (1, 2)]
    assert of == ["fp16", "fp32"]


@pytest.mark.parametrize(
    ("text", "count"),
    [("8GB", 8 * 10**9), ("7.5 GiB", 7.5 * 2**30), ("900mb", 9 * 10**8), ("1TiB", 2**40)],
)
def test_memory_is_said_with_its_unit(text: str, count: float):
    assert bytes_of("--max-disk", text) == count


@pytest.mark.parametrize("text", ["8", "GB", "0GB", "-1GB", "8 gigs", "1e3GB", ""])
def test_memory_without_a_unit_is_refused_with_an_example(text: str):
    with pytest.raises(UserError, match="such as 8GB"):
        bytes_of("--max-memory", text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_up": 0.1}, "--max-up 0.1"),
        ({"quiet_hours": "now"}, "--quiet-hours"),
        ({"max_memory": "x"}, "--max-memory"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_is_begun(options: dict, words: str):
    with pytest.raises(UserError, match=words):
        said(**options)


def test_a_datacenter_computes_in_the_microbatches_that_its_owner_says_and_a_volunteer_in_the_runs():
    run, cpu = (
        check_manifest({"model": {"preset": "nano"}, "inner": {"sequences": 12, "microbatch": 2}}),
        torch.device("cpu"),
    )

    def settings(**options: Any) -> PeerSettings:
        return PeerSettings(ticket=TICKET, role="datacenter", directory=Path("peer"), **options)

    assert settings().computed_manifest(run, cpu) is run
    assert settings(microbatch=6).computed_manifest(run, cpu) == run.with_microbatch(6)
    assert settings(microbatch=2, nproc=2).computed_manifest(run, cpu) == run
    assert said(microbatch=6).computed_manifest(run, cpu) is run
    with pytest.raises(UserError, match=r"an inner step has 12 sequences .* take one of 1, 2, 3, 4, 6, 12, or auto"):
        settings(microbatch=5).computed_manifest(run, cpu)
    with pytest.raises(UserError, match="has 6 sequences for each process"):
        settings(microbatch=4, nproc=2).computed_manifest(run, cpu)
