"""The analytic model of a round: the field's numbers, the schedule in virtual time, and what it says is in the way."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.compute.schedule import Backward, Forward, depth_for, least_depth
from peer.optim.outer import OuterState
from peer.planning.model import (
    HEADERS_SHARE,
    StageWork,
    Step,
    Volunteer,
    best_compression,
    best_overlap,
    round_of,
    shares_of,
    step_of,
    work_of,
)
from peer.planning.paper_figures import A100, half_a_billion, seventy_billion, volunteer_on
from peer.planning.welcome import bytes_of_a_round
from protocol.codec.contribution import expected_bytes
from protocol.identity import PeerId, RunId, stage_part
from protocol.manifest import check_manifest
from tests.reference.loopback_peers import genesis, moved
from tests.reference.shared_links import connections, play_shared
from tests.reference.small_manifest import small_manifest
from tests.reference.virtual_pipeline import play, play_round


@pytest.mark.parametrize(
    ("ratio", "megabits", "expected"),
    [(8, 80, 97.9), (8, 100, 98.3), (8, 200, 99.1), (8, 500, 99.7), (8, 1000, 99.8), (24, 100, 99.4), (24, 80, 99.3)],
)
def test_where_links_are_hidden_it_is_the_papers_figure_2(ratio: int, megabits: int, expected: float):
    step = step_of(seventy_billion(ratio), volunteer_on(megabits, latency=0.0))
    assert 100 * step.utilization == pytest.approx(expected, abs=0.15)


def test_a_stage_in_the_middle_has_one_uplink_for_both_directions():
    """The paper's 60 % for whole activations at 100 Mb/s needs 200 of a home."""
    step = step_of(seventy_billion(1), volunteer_on(200, latency=0.0))
    assert 100 * step.utilization == pytest.approx(60.0, abs=3.0)
    assert step_of(seventy_billion(1), volunteer_on(100, latency=0.0)).utilization < 0.35


def test_counting_the_outer_round_costs_ten_points_at_100_megabits():
    """The note's table counts M − 1 downloads and one upload; we count as many up as down, at once."""
    half = seventy_billion(8)
    work = StageWork(**{**{name: getattr(half, name) for name in half.__slots__}, "microbatches": 32})
    counted = round_of(work, volunteer_on(100, latency=0.0))
    assert 100 * counted.utilization == pytest.approx(88.1, abs=1.5)
    assert counted.limit in ("upload", "download")


def test_with_overlap_the_outer_round_is_hidden_as_far_as_the_link_has_room():
    on = volunteer_on(100, latency=0.02)
    alone = step_of(seventy_billion(8), on).utilization
    assert round_of(seventy_billion(8), on, overlap=True).utilization == pytest.approx(alone, abs=1e-9)
    busy = volunteer_on(25, latency=0.02)
    work = seventy_billion(8)
    hidden, counted = round_of(work, busy, overlap=True), round_of(work, busy)
    assert 0 < hidden.exchange < counted.exchange


@pytest.mark.parametrize("latency", [0.0, 0.3, 0.9])
@pytest.mark.parametrize(("stages", "microbatches"), [(4, 8), (4, 64), (8, 24)])
@pytest.mark.parametrize("overlap", [1, 2, 3])
def test_steps_that_overlap_take_as_long_as_in_virtual_time(
    latency: float, stages: int, microbatches: int, overlap: int
):
    """In a round of ten. Where too few microbatches are late to hide the links, each stage could do a little better."""
    if overlap * (stages - 1) > microbatches:
        return
    manifest = small_manifest(
        model={"layers": stages},
        replicas={"stages": stages},
        inner={"steps": 10, "sequences": microbatches, "microbatch": 1, "overlap": overlap},
    )
    work = replace(work_of(manifest), operations=1.0, forward_bytes=0.0, backward_bytes=0.0)
    step, drained = (step_of(each, Volunteer(1.0, 1e9, 1e9, latency)) for each in (work, replace(work, overlap=0)))
    passes = {Forward: 1 / 3, Backward: 2 / 3}
    played, _ = play_round(
        stages, microbatches, 10, overlap, lambda _, action: passes[type(action)], lambda: latency, 4 * stages
    )
    assert 10 * step.seconds == pytest.approx(played, rel=0.05)
    assert step.ideal == microbatches
    assert drained.ideal == microbatches + stages - 1
    assert step.seconds < drained.seconds


def test_a_pipeline_that_drains_after_eight_microbatches_uses_eight_elevenths_and_one_that_does_not_nearly_all():
    manifest = small_manifest(
        model={"layers": 4}, replicas={"stages": 4}, inner={"steps": 20, "sequences": 8, "microbatch": 1}
    )
    work, quick = replace(work_of(manifest), contribution=0.0), Volunteer(1e9, 1e15, 1e15)
    drains, overlaps = (round_of(replace(work, overlap=each), quick) for each in (0, 1))
    assert drains.utilization == pytest.approx(overlaps.utilization, abs=0.03)
    assert drains.used == pytest.approx(8 / 11, abs=0.01)
    assert overlaps.used == pytest.approx(160 / 163, abs=0.01)
    assert best_overlap(work, quick) == (1, pytest.approx(1 - 163 / 220, abs=0.01))
    assert best_overlap(replace(work, microbatches=2), quick) == (
        0,
        0.0,
    )  # fewer than there are stages behind the first
    far = replace(quick, latency=0.9 * overlaps.step.passes)
    assert best_overlap(work, far)[0] == 2


def test_figure_3s_bars():
    assert [
        100 * step_of(half_a_billion(ratio), volunteer_on(1000, A100, 0.0)).utilization for ratio in (8, 24, 96)
    ] == pytest.approx([78.6, 91.7, 97.8], abs=8.0)


def shared(step: Step, stages: int, outer_weight: float) -> float:
    """The utilization of the same step played over links that connections share; those of the first and the last stage
    have so many times the weight of the others."""
    weights = {way: outer_weight if {0, stages - 1} & {*way} else 1.0 for way in connections(stages)}
    seconds = play_shared(64, [16, 16, 12, 1], step.carry / 2 / step.passes, 0.0, weights)
    return step.ideal / step.passes / seconds


@pytest.mark.parametrize("megabits", [80, 100, 200, 500, 1000])
def test_connections_that_share_their_links_evenly_take_what_the_model_says(megabits: int):
    step = step_of(seventy_billion(1), volunteer_on(megabits, latency=0.0))
    assert shared(step, 4, 1.0) == pytest.approx(step.utilization, abs=0.01)


def test_where_the_link_decides_a_pipeline_waits_for_connections_that_have_less_of_it():
    """As reno shares links that are as thin down as up (docs/benchmarks.md)."""
    slow, hidden = (step_of(seventy_billion(1), volunteer_on(megabits, latency=0.0)) for megabits in (200, 500))
    assert shared(slow, 4, 3.0) == pytest.approx(0.82 * slow.utilization, abs=0.02)
    assert shared(hidden, 4, 3.0) == pytest.approx(hidden.utilization, abs=0.01)


ROOM = 10_000


@pytest.mark.parametrize("stages", [2, 3, 4, 6])
@given(carry=st.floats(0.0, 1.5), latency=st.floats(0.0, 0.5))
def test_the_schedule_in_virtual_time_takes_what_the_model_says(stages: int, carry: float, latency: float):
    """Passes take 1 s."""
    seconds = {True: 1 / 3, False: 2 / 3}

    def step(depths: list[int]) -> tuple[float, list[float]]:
        played = play(
            stages,
            48,
            depths,
            lambda _, action: seconds[isinstance(action, Forward)],
            lambda *_: carry,
            latency,
            one_uplink=True,
        )
        return played.seconds, played.trips

    _, trips = step([least_depth(stage, stages) for stage in range(stages)])
    took, _ = step([*(depth_for(trip, 1.0, stage, stages, ROOM) for stage, trip in enumerate(trips)), 1])
    work = StageWork(1.0, carry / 16, carry / 16, 48, stages, 1, 1, 0.0)
    model = step_of(work, Volunteer(1.0, 0.5, 0.5, latency))
    assert took == pytest.approx(model.seconds, rel=0.06)


def test_a_manifests_work_is_what_its_stages_really_send():
    manifest = small_manifest(outer={"chunk_side": 8, "top_k": 4})
    work = work_of(manifest)
    tokens = manifest.inner.microbatch * manifest.model.context
    assert work.backward_bytes == tokens * manifest.k * 2
    assert work.forward_bytes == work.backward_bytes + 4 * manifest.inner.microbatch * (manifest.model.context + 1)
    assert work.microbatches * tokens == manifest.tokens_per_step
    assert work_of(manifest, 1).backward_bytes == tokens * manifest.model.d * 2


@pytest.mark.parametrize("outer", [{"values": "2bit", "top_k": 86}, {"values": "bf16", "top_k": 32}, {"top_k": 400}])
def test_a_contribution_is_as_long_as_expected(outer: dict[str, object]):
    manifest = check_manifest({"model": {"preset": "nano"}, "replicas": {"stages": 2}, "outer": outer})
    part = stage_part(1)
    state = OuterState.begin(manifest, part, genesis(manifest, part), True)
    blob, _ = state.contribute(RunId("ab" * 32), 1, PeerId("Qm" + "x" * 44), 1, moved(manifest, 1)[part])
    assert expected_bytes(manifest, part) == pytest.approx(len(blob), rel=0.02)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_round_moves_as_much_in_a_plan_as_it_takes_of_who_joins(stages: int):
    ours = small_manifest(replicas={"stages": stages})
    most = max(bytes_of_a_round(ours, "volunteer", stage) for stage in range(stages))
    planned = round_of(work_of(ours), Volunteer(1e12, 2e7, 1e8, 0.02, HEADERS_SHARE))
    assert planned.up_bytes == planned.down_bytes == pytest.approx(most)


def test_the_least_compression_that_hides_the_links_is_found_and_what_else_would_help_is_said():
    manifest = check_manifest({"model": {"preset": "512m"}, "replicas": {"stages": 4}})
    home = Volunteer(1e12, 20e6, 100e6, 0.02)
    choices = [1, 2, 4, 8, 16, 32, 64, 128]
    best = best_compression(manifest, home, choices)
    assert best is not None
    assert step_of(work_of(manifest, best), home).utilization >= 0.97
    assert all(step_of(work_of(manifest, each), home).utilization < 0.97 for each in choices if each < best)
    assert round_of(work_of(manifest, 1), home).limit == "upload"
    assert round_of(work_of(manifest, 1), Volunteer(1e12, 20e6, 10e6, 0.02)).limit == "download"
    assert round_of(work_of(manifest, 8), Volunteer(1e11, 20e6, 100e6, 0.02)).limit == "compute"
    assert best_compression(manifest, Volunteer(30e12, 1e3, 1e3, 0.02), choices) is None


def test_headers_make_a_link_as_much_slower_as_they_take_of_it():
    work = work_of(check_manifest({"model": {"preset": "512m"}, "replicas": {"stages": 4}}), 1)
    link, slower = Volunteer(1e12, 20e6, 20e6, 0.02, headers=0.1), Volunteer(1e12, 18e6, 18e6, 0.02)
    assert step_of(work, link) == step_of(work, slower)
    assert round_of(work, link).up_bytes == pytest.approx(round_of(work, slower).up_bytes / 0.9)
    assert 0.06 < HEADERS_SHARE < 0.07


def test_n_gram_tables_cost_bytes_of_contributions_and_no_operations():
    plain, tables = (
        check_manifest({"model": {"preset": "nano"}, "replicas": {"stages": 4, "ngrams": ngrams}}) for ngrams in (0, 3)
    )
    assert shares_of(tables) == shares_of(plain)
    for stage in range(4):
        without, found = work_of(plain, stage=stage), work_of(tables, stage=stage)
        assert found.operations == without.operations
        assert found.carried == without.carried
        assert (found.contribution > without.contribution) == (stage > 0)
