"""What is said of each stage, for links and devices that nobody here has."""

import pytest

from peer.diagnosis.finding import Finding
from peer.diagnosis.verdict import LONG_ROUND_SECONDS, Room, Speed, conclusion, group, stages, traffic, whole_replica
from peer.planning.model import Volunteer, round_of, round_of_group, work_of
from peer.planning.welcome import bytes_of_a_round
from protocol.manifest import Manifest, check_manifest
from protocol.wording import lasting, size

MANIFEST = check_manifest({"model": {"preset": "512m"}, "replicas": {"stages": 4}})
ROOMY = Room(8 * 10**9, 24 * 10**9)
TIGHT = Room(8 * 10**9, 4 * 10**9, lacking="8.0 GB of memory, and 4.0 GB are free")
GIGABIT = Volunteer(1.0, 1e9, 1e9, 0.01)
HOME = Volunteer(1.0, 10e6, 100e6, 0.02)


def speed(passes: float, share: float = 1.0) -> Speed:
    return Speed(passes, 0.1, 1.0, share)


def verdicts(manifest: Manifest, passes: float, on: Volunteer | None, swarm: float = 0.0, room: Room = ROOMY):
    count = manifest.replicas.stages
    return stages(manifest, [speed(passes)] * count, [room] * count, on, swarm)


def test_a_stage_whose_links_are_hidden_is_well():
    for each in verdicts(MANIFEST, 4.0, GIGABIT):
        assert each.outcome == "ok"
        assert "your device is the limit" in each.value
        assert each.numbers["round"] > MANIFEST.inner.steps * MANIFEST.inner.microbatches * 4.0


def test_a_thin_upload_is_named_with_the_k_that_would_fit():
    """The issue's example: the upload is the limit, and k = d/16 would fit."""
    middle = verdicts(MANIFEST, 9.0, HOME)[1]
    assert middle.outcome == "warning"
    assert "your upload is the limit" in middle.value
    compression = int(middle.numbers["best_compression"])
    assert f"k = d/{compression} would fit" in middle.value
    assert compression > MANIFEST.replicas.compression
    assert "cable" in middle.advice


def test_the_ends_of_a_pipeline_carry_half_of_what_its_middle_does():
    manifest = check_manifest({"model": {"preset": "512m"}, "replicas": {"stages": 4}, "inner": {"sequences": 512}})
    first, middle, _, last = (each.numbers["step"] for each in verdicts(manifest, 1.0, HOME))
    assert first == pytest.approx(last, rel=0.02)
    assert middle == pytest.approx(2 * first, rel=0.1)


def test_beside_the_swarm_only_who_is_slower_is_warned():
    here = verdicts(MANIFEST, 4.0, GIGABIT)[1].numbers["round"]
    ahead, behind = (verdicts(MANIFEST, 4.0, GIGABIT, swarm)[1] for swarm in (1.05 * here, 0.5 * here))
    assert ahead.outcome == "ok"
    assert behind.outcome == "warning"
    assert f"the swarm takes {lasting(0.5 * here)}" in behind.value
    assert "quicker device" in behind.advice


def test_where_the_exchange_is_in_the_way_overlap_is_the_advice():
    manifest = check_manifest(
        {
            "model": {"preset": "512m"},
            "replicas": {"stages": 4, "groups": 60, "compression": 128},
            "inner": {"steps": 2},
        }
    )
    found = verdicts(manifest, 2.0, Volunteer(1.0, 20e6, 100e6, 0.01))[1]
    assert "it is the exchange" in found.value
    assert "overlap = true" in found.advice


def test_a_stage_that_does_not_fit_is_a_failure_only_if_none_does():
    assert {each.outcome for each in verdicts(MANIFEST, 4.0, GIGABIT, room=TIGHT)} == {"failure"}
    found = stages(MANIFEST, [speed(4.0)] * 4, [TIGHT, ROOMY, ROOMY, TIGHT], GIGABIT, 0.0)
    assert [each.outcome for each in found] == ["warning", "ok", "ok", "warning"]
    assert "another stage" in found[0].advice
    assert found[0].numbers == {"memory": 8 * 10**9, "free": 4 * 10**9}
    unmeasured = stages(MANIFEST, [None] * 4, [ROOMY] * 4, GIGABIT, 0.0)[0]
    assert unmeasured.outcome == "failure"
    assert unmeasured.value == "does not fit: takes 8.0 GB of memory, and 24.0 GB are free"


def test_without_a_link_only_the_device_is_judged():
    found = verdicts(MANIFEST, 4.0, None)[1]
    assert "links aside" in found.value
    assert found.outcome == "ok"


def test_what_was_measured_in_part_says_so():
    (only,) = stages(
        check_manifest({"model": {"preset": "nano"}, "replicas": {"stages": 1}}),
        [speed(1.0, 0.05)],
        [ROOMY],
        GIGABIT,
        0.0,
    )
    assert "computed from 5.0% of a microbatch" in only.value


def test_a_group_takes_as_long_as_its_slowest_stage_lets_it():
    speeds = [speed(1.0), speed(3.0), speed(1.0), speed(2.0)]
    found = group(MANIFEST, speeds, GIGABIT)
    assert found is not None
    alone = stages(MANIFEST, speeds, [ROOMY] * 4, GIGABIT, 0.0)
    slowest = alone[1].numbers["step"]
    assert found.numbers["step"] == pytest.approx(slowest - (2.0 + 2.0 + 1.0))  # the others fill and drain sooner
    assert found.numbers["tokens_per_second"] == MANIFEST.tokens_per_step / found.numbers["step"]
    assert group(MANIFEST, [*speeds[:3], None], GIGABIT) is None
    quick = group(MANIFEST, speeds, Volunteer(1.0, 2.4731e9, 3.74e9, 0.01))
    assert quick is not None
    assert "hetpeer plan RUN.toml --up 2470 --down 3740 --latency 10 --teraflops " in quick.value


def test_stages_that_are_alike_are_a_group_as_the_plan_has_it():
    work = work_of(MANIFEST, stage=1)
    on = Volunteer(1e12, 20e6, 100e6, 0.02)
    assert round_of_group([work] * 4, on) == round_of(work, on)
    assert work_of(MANIFEST).operations == max(work_of(MANIFEST, stage=stage).operations for stage in range(4))


def test_a_round_that_lasts_for_hours_is_a_warning_where_nobody_knows_the_swarms():
    slow, quick = verdicts(MANIFEST, 10.0, None)[1], verdicts(MANIFEST, 4.0, None)[1]
    assert quick.numbers["round"] < LONG_ROUND_SECONDS < slow.numbers["round"]
    assert (slow.outcome, quick.outcome) == ("warning", "ok")
    assert "a round of more than an hour is slow" in slow.value
    assert "quicker device" in slow.advice
    assert verdicts(MANIFEST, 10.0, None, swarm=slow.numbers["round"])[1].outcome == "ok"


def test_a_whole_replica_computes_all_stages_and_exchanges_all_parts():
    speeds = [speed(0.1)] * 4
    alone = whole_replica(MANIFEST, speeds, ROOMY, None, 0.0)
    assert alone is not None
    inner = MANIFEST.inner
    assert alone.numbers["step"] == pytest.approx(4 * (0.1 * inner.microbatches + 0.1))
    assert alone.numbers["round"] == pytest.approx(inner.steps * alone.numbers["step"] + 4.0)
    linked = whole_replica(MANIFEST, speeds, ROOMY, HOME, 0.0)
    assert linked is not None
    exchange = 8 * bytes_of_a_round(MANIFEST, "datacenter", 0) / 10e6
    assert linked.numbers["round"] == pytest.approx(alone.numbers["round"] + exchange)
    slow = whole_replica(MANIFEST, speeds, ROOMY, None, 0.5 * alone.numbers["round"])
    assert slow is not None
    assert slow.outcome == "warning"
    assert whole_replica(MANIFEST, speeds, TIGHT, None, 0.0) is None
    assert whole_replica(MANIFEST, [*speeds[:3], None], ROOMY, None, 0.0) is None


def test_the_traffic_is_told_by_round_and_by_day():
    end, middle = (bytes_of_a_round(MANIFEST, "volunteer", stage) for stage in (0, 1))
    whole = bytes_of_a_round(MANIFEST, "datacenter", 0)
    a_round = f"each way in a round: a stage {size(end)} to {size(middle)}, a whole replica {size(whole)}"
    assert traffic(MANIFEST, 0.0).value == a_round
    assert traffic(MANIFEST, 43200.0).value == (
        f"{a_round}; in a day of rounds of 12.0 h, a stage {size(2 * end)} to {size(2 * middle)}, "
        f"a whole replica {size(2 * whole)}"
    )


def judged(name: str, outcome: str = "ok") -> Finding:
    advice = "" if outcome == "ok" else "Do something"
    return Finding(name, "would take", outcome, advice, {"round": 1.0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "whole", "expected", "outcome"),
    [
        (("ok", "ok"), ROOMY, "this machine can serve stages 0 and 1; a whole replica fits", "ok"),
        (
            ("ok", "warning"),
            TIGHT,
            "this machine can serve stage 0 well, and stage 1 slowly; a whole replica does not fit: it takes 8.0 GB of "
            "memory, and 4.0 GB are free",
            "ok",
        ),
        (("warning", "warning"), None, "this machine can serve stages 0 and 1, but slowly", "warning"),
        (("failure", "failure"), TIGHT, "this machine cannot join: stage 0, stage 1", "failure"),
    ],
)
def test_the_end_says_whether_this_machine_can_join_and_as_what(
    outcomes: tuple[str, ...], whole: Room | None, expected: str, outcome: str
):
    findings = [judged(f"stage {stage}", each) for stage, each in enumerate(outcomes)]
    end = conclusion(findings, whole, False)
    assert (end.value, end.outcome) == (expected, outcome)


def test_the_end_tells_a_slow_replica_and_a_run_that_is_over():
    findings = [judged("stage 0"), judged("replica", "warning")]
    assert conclusion(findings, ROOMY, False).value.endswith("; a whole replica fits, but would be slow")
    assert "the run is over" in conclusion(findings, ROOMY, True).value
    too_large = Finding("stage 1", "does not fit", "warning", "Join with another stage", {"memory": 1.0})
    assert conclusion([judged("stage 0"), too_large], None, False).value == "this machine can serve stage 0"
