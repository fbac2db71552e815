"""What a newcomer is told of the run that it joins."""

from pathlib import Path

from peer.planning.model import HEADERS_SHARE, work_of
from peer.planning.welcome import (
    RestOfRun,
    ahead_of,
    allowance,
    bytes_of_a_round,
    how_far,
    introduction,
    what_it_keeps,
    what_it_takes,
)
from peer.traffic import TrafficLimit
from protocol.identity import PeerId
from protocol.manifest import Manifest, check_manifest
from protocol.monitor import View
from protocol.run.run_files import descriptor_of
from protocol.wording import size


def manifest(**replicas: int) -> Manifest:
    tables = {"groups": 2, "stages": 4, "datacenters": 1} | replicas
    return check_manifest({"run": {"name": "ours"}, "model": {"preset": "178m"}, "replicas": tables})


def test_a_run_says_what_it_makes_of_how_much_text_and_whose_it_is():
    said = introduction(descriptor_of(manifest(), PeerId("Qm" + "x" * 36 + "theirkey"), []))
    tokens = 3 * 100 * 50 * manifest().tokens_per_step / 1e9
    assert said.startswith("the run ours trains a model of 177.6 million parameters")
    assert f"on {1000 * tokens:,.1f} million tokens of text, in 100 rounds; its operator is theirkey" in said


def test_a_stage_in_the_middle_sends_frames_both_ways_and_its_contribution_to_each_other_replica():
    ours, work = manifest(), work_of(manifest(), stage=1)
    frames = work.microbatches * work.steps * (work.forward_bytes + work.backward_bytes)
    expected = (frames + 2 * work.contribution) / (1 - HEADERS_SHARE)
    assert bytes_of_a_round(ours, "volunteer", 1) == expected
    assert bytes_of_a_round(ours, "volunteer", 0) < bytes_of_a_round(ours, "volunteer", 1)
    said = what_it_takes(ours, "volunteer", 1, RestOfRun(100))
    assert f"stage 1 of 4, and sends {size(expected)} a round" in said
    assert f"{size(100 * expected)} each way in all 100 rounds" in said


def test_a_datacenter_sends_contributions_alone_and_an_observer_nothing_of_its_own():
    ours = manifest()
    parts = sum(work_of(ours, stage=stage).contribution for stage in range(4))
    assert bytes_of_a_round(ours, "datacenter", -1) == 2 * parts / (1 - HEADERS_SHARE)
    assert "all stages" in what_it_takes(ours, "datacenter", -1, RestOfRun(100))
    assert what_it_takes(ours, "observer", -1, RestOfRun(100)) == ""
    assert bytes_of_a_round(manifest(groups=0, datacenters=1), "datacenter", -1) == 0


def test_a_replica_that_was_not_planned_sends_to_all_that_were():
    ours, planned = manifest(groups=1, datacenters=0), manifest(groups=1, datacenters=1)
    assert bytes_of_a_round(ours, "datacenter", -1) == bytes_of_a_round(planned, "datacenter", -1) > 0


def view(**fields: object) -> View:
    nobody = {"peers": [], "groups": [], "history": [], "log": [], "tokens": 0, "tokens_per_second": 0.0}
    run = {"run_id": "ab" * 32, "now": 0.0, "started": 0.0, "stages": 4, "replicas": 3, "rounds": 100, "round": 12}
    return View.model_validate(nobody | run | {"inner_steps": 50, "compression": 8, "state": "training"} | fields)


def test_a_newcomer_reads_how_far_the_run_is_how_long_it_goes_on_and_where_it_lacks_volunteers():
    assert how_far(view(seconds_left=89 * 3600.0)) == "it is at round 12 of 100, about 3.7 days are left"
    assert how_far(view(short="stage 2 is short")) == "it is at round 12 of 100; stage 2 is short"
    gathering = view(state="gathering", state_why="waits for 1 datacenter (0 of 1)")
    assert how_far(gathering) == "it has not begun yet: it waits for 1 datacenter (0 of 1)"
    stalled = view(state="stalled", state_why="no replica is complete")
    assert how_far(stalled) == "it stands still at round 12 of 100: no replica is complete"
    assert how_far(view(round=100, state="finished")) == "the run is over: its 100 rounds are finished"
    assert "\x1b" not in how_far(view(short="\x1b[2J"))


def test_the_traffic_is_that_of_what_is_left_with_a_day_where_it_takes_longer():
    ours = manifest()
    moved = bytes_of_a_round(ours, "volunteer", 1)
    ahead = ahead_of(ours, view(seconds_left=89 * 3600.0))
    assert ahead == RestOfRun(89, 3600.0)
    said = what_it_takes(ours, "volunteer", 1, ahead)
    assert said.endswith(
        f"; {size(89 * moved)} each way in the 89 rounds left, about 3.7 days: {size(24 * moved)} each way a day"
    )
    soon = what_it_takes(ours, "volunteer", 1, ahead_of(ours, view(seconds_left=89 * 30.0)))
    assert soon.endswith(f"; {size(89 * moved)} each way in the 89 rounds left, about 44.5 min")
    assert ahead_of(ours, view()) == RestOfRun(89)
    assert what_it_takes(ours, "volunteer", 1, ahead_of(ours, view(round=100, state="finished"))) == ""
    assert ahead_of(ours, view(round=0, seconds_left=5000.0)) == RestOfRun(100, 50.0)
    assert ahead_of(ours, None) == RestOfRun(100)
    assert what_it_takes(ours, "volunteer", 1, RestOfRun(100)).endswith("each way in all 100 rounds")


def test_a_limit_of_traffic_is_told_beside_what_the_run_takes():
    monthly, daily = TrafficLimit(200 * 10**9, "month", "200GB/month"), TrafficLimit(5 * 10**9, "day", "5GB/day")
    assert allowance(monthly, 1e9, RestOfRun(1000, 480.0)) == (
        "the run takes about 181.0 GB a day here, both ways: --max-traffic 200GB/month is used up in 26.5 h, and this "
        "peer then pauses until the next month"
    )
    assert allowance(daily, 1e9, RestOfRun(1000, 86400.0)) == (
        "the run takes about 2.0 GB a day here, both ways, within --max-traffic 5GB/day"
    )
    assert allowance(monthly, 1e9, RestOfRun(1000)) == (
        "--max-traffic 200GB/month is used up after 200 of 1,000 rounds; this peer then pauses until the next month"
    )
    assert allowance(monthly, 1e9, RestOfRun(100, 1.0)) == (
        "what is left of the run moves about 100.0 GB here, both ways, within --max-traffic 200GB/month"
    )


def test_the_first_download_counts_against_the_limit_of_traffic():
    daily = TrafficLimit(5 * 10**9, "day", "5GB/day")
    assert allowance(daily, 1e9, RestOfRun(3), 2e9) == (
        "what is left of the run moves about 5.0 GB here, both ways, within --max-traffic 5GB/day"
    )
    assert "is used up after 2 of 4 rounds" in allowance(daily, 1e9, RestOfRun(4), 3e9)
    assert allowance(daily, 4.9e9, RestOfRun(9, 86400.0), 4e9).startswith("the run takes about 5.9 GB a day here")
    assert "is used up in 4.0 h" in allowance(daily, 4.9e9, RestOfRun(9, 86400.0), 4e9)
    assert allowance(daily, 1.0, RestOfRun(4), 5e9) == (
        "--max-traffic 5GB/day is used up within the first download; this peer then pauses until the next day, and "
        "goes on with it"
    )


def test_the_memory_the_cores_and_the_disk_are_told():
    assert what_it_keeps(6 * 10**8, 1, "cpu", True, 10**8, 10**9, Path("x")) == (
        "it takes up to 600.0 MB of memory, 1 core, which give way to other programs, and up to 100.0 MB of disk in x, "
        "never more than 1.0 GB"
    )
    assert what_it_keeps(0, 8, "cuda", False, 1, 2, Path("x")).startswith("it takes 8 cores and cuda, and up to 1 B")
