"""Each benchmark that a page quotes runs at its defaults, in its smallest sizes, and its numbers fit together. How fast
something was is never what a test asks for."""

import json
import re
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shaped import hosts
from tests.chaos import namespaces
from tests.reference.browser import CHROMIUM
from tests.reference.browser import LACKING as LACKING_BROWSER
from tests.reference.forked import SECONDS, hetpeer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMPUTED = {"time_to_loss"}
"""Of a sweep's results alone: its test has simpler ones, and its page those of the sweep."""

LACKING = {"citizen": hosts.missing(), "utilization": hosts.missing(), "storm": namespaces.missing()}
LACKING |= {"dashboard": None if CHROMIUM else LACKING_BROWSER}
"""What this machine lacks for a benchmark; None: nothing."""


def quoted() -> list[str]:
    """The benchmarks that pages quote, by name."""
    texts = (page.read_text(encoding="utf-8") for page in PAGES)
    return sorted({name for text in texts for name in re.findall(r"(?<![\w/])benchmarks/(\w+)\.py", text)} - COMPUTED)


BESIDE_HIVEMIND, FIRST_TRY_SECONDS = ("pipeline", "outer_round"), 240.0
"""The benchmarks that start hivemind's servers, and the time that each has before it is started once more: hivemind
forks processes that have threads, and one of its own, left with a lock that nobody frees, hung once in some hundred."""


@cache
def run(name: str) -> Any:
    """The numbers of a benchmark, of one run for all tests."""
    if LACKING.get(name):
        pytest.skip(f"needs {LACKING[name]}")
    ours = partial(hetpeer, "--small", "--json", folder=ROOT, program=[sys.executable, f"benchmarks/{name}.py"])
    try:
        done = ours(timeout=FIRST_TRY_SECONDS if name in BESIDE_HIVEMIND else SECONDS)
    except subprocess.TimeoutExpired:
        if name not in BESIDE_HIVEMIND:
            raise
        done = ours()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", quoted())
def test_a_quoted_benchmark_runs(name: str):
    assert run(name)


def test_there_are_some():
    assert len(quoted()) >= 14


# What is known of their numbers, however fast a machine is


def test_a_contribution_takes_what_it_is_said_to():
    """Two bits for each value, and its place in no less than the bound; of a small matrix headers are more."""
    found = run("codec")
    assert found["index_bound"] + 2 < found["bits_per_value"] < 11


def test_a_limit_holds_at_the_interface_and_frames_have_their_share():
    """From below it can only be held where the machine has time for it."""
    found = run("citizen")
    assert [row["flag"] for row in found["limits"]] == ["--max-up", "--max-down"]
    assert all(row["measured_mbps"] > 0 and row["frames"] > 0 for row in found["limits"])
    assert [row["mode"] for row in found["delays"]] == ["giving way"]


def test_each_of_two_processes_holds_half_of_what_one_does():
    one, two = run("devices")["rows"]
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["share"] == pytest.approx(1, abs=0.01)
    assert two["share"] == pytest.approx(0.5, abs=0.01)
    if sys.platform == "linux":
        assert two["peak"] > two["base"] > 0


def test_no_process_takes_more_than_it_is_said_to():
    rows = {(row["role"], row["stage"], row["memory"]): row for row in run("memory")["rows"]}
    assert {role for role, *_ in rows} == {"volunteer", "holder"}
    for row in rows.values():
        assert row["measured_bytes"] < row["estimate_bytes"]
    stage = rows["volunteer", 1, "recompute"]
    assert 16 <= stage["device_bytes_a_parameter"] < 24  # of so small a model, T⊥ is much
    assert 8 <= stage["host_bytes_a_parameter"] < 16


def test_an_outer_round_sends_fewer_bytes_than_averaging():
    found = run("outer_round")
    assert found["ratio_bytes"] > 10
    assert {"ours", "averager"} == found["results"]["loopback"].keys()


def test_a_row_tells_what_a_group_and_a_datacenter_keep():
    """For less time than it takes to find a slow member."""
    (row,) = run("slow_member")["slow_member"]
    assert (row["way"], row["stage"], row["honest"], row["spare"]) == ("14 s a step", 1, True, True)
    assert row["group_kept"] < 0.8
    assert 0 < row["slow_steps"] < 5
    assert (row["rightly"], row["wrongly"], row["dismissed"]) == (0, 0, 0)


def test_a_storm_and_a_crowd_leave_all_with_the_same_weights():
    storm = run("storm")
    assert storm["digests_equal"]
    assert storm["faults"] >= 2
    assert storm["seconds_lost"] >= 0
    assert all(row["digests_equal"] for row in run("attacks"))


def test_silent_connections_are_held():
    assert run("connections")["connections"] > 0


def test_a_pipeline_over_links_is_told_with_and_without_the_outer_rounds():
    assert [(row["mbps"], row["outer"]) for row in run("utilization")["points"]] == [(100, False), (100, True)]


def test_frames_are_those_of_a_run_with_compression_and_of_one_without():
    found = run("tls")
    b, context, d = 4, 128, 128
    assert [each["frame_bytes"] for each in found["frames"]] == [2 * b * context * d // 8, 2 * b * context * d]
    for each in found["frames"]:
        assert each["tls_mb_per_s"] == pytest.approx((1 - each["share"]) * each["plain_mb_per_s"])
    assert all(found[each] > 0 for each in ("connect_tls_ms", "connect_plain_ms", "join_ms"))


# What the sides of a comparison train is the same model: the way is compared, not the work


def test_all_sides_of_a_pipeline_come_to_one_loss_but_that_without_its_optimizer():
    """`hivemind.moe` has no boundary, and trains nothing."""
    found = run("pipeline")
    losses, speeds = found["losses"], found["tokens_per_s"]
    assert losses.keys() == {"one process", "no boundary", "pipeline", "without TLS", "unary", "moe"}
    bounded = ("pipeline", "without TLS", "unary")
    assert all(losses[side] == pytest.approx(losses["one process"], abs=1e-5) for side in bounded)
    assert found["ratio_to_one_process"] == pytest.approx(speeds["pipeline"] / speeds["one process"])
    assert found["ratio_to_unary"] == pytest.approx(speeds["pipeline"] / speeds["unary"])
    assert found["tls_share"] == pytest.approx(1 - speeds["pipeline"] / speeds["without TLS"])


SIDES = ["plain", "replica", *["stage"] * 4, "pipeline"]


def test_each_side_of_a_device_has_a_row_and_trains_as_plain_pytorch_does():
    """Losses are those after the same steps: of the same weights, tokens, gradients, moments, rate and decay."""
    rows = run("device")["rows"]
    assert [row["side"] for row in rows] == SIDES
    plain, keep, *_, pipeline = rows
    assert keep["loss"] == pytest.approx(plain["loss"], abs=1e-5)
    assert pipeline["loss"] == pytest.approx(plain["loss"], abs=0.2)  # less is trained of its token embedding


def test_ratios_of_a_device_are_of_plain_pytorch_and_of_the_whole_replica():
    plain, keep, *others = run("device")["rows"]
    assert plain["of_plain"] == plain["cpu_of_plain"] == keep["of_replica"] == 1.0
    for row in others:
        assert row["of_replica"] == pytest.approx(row["of_plain"] / keep["of_plain"])
        assert row["tokens_per_s"] > 0
    stages = [row["share"] for row in others if row["side"] == "stage"]
    assert sum(stages) == pytest.approx(1)
    assert stages[3] > 2 * stages[1]  # a head of 1024 x 64 is more than a layer


def test_what_is_not_known_of_a_cpu_is_not_said():
    found = run("device")
    assert (found["precision"], found["compiled"]) == ("fp32", False)
    assert all(row["peak_share"] is None for row in found["rows"])
    for row in found["rows"]:
        assert (row["estimate_bytes"] is None) == (row["side"] == "plain")
        assert row["peak_bytes"] > 0 or sys.platform != "linux"
