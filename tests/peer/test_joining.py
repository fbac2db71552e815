"""Whether a run fits what this peer's owner lets it use, asked before it joins."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from peer import joining
from peer.devices.fit import WORKER_BASE_BYTES, daemon_bytes, worker_bytes
from peer.joining import (
    StageChoice,
    choose_stages,
    emit_place,
    require_bandwidth,
    require_fit,
    require_given,
    require_place,
    stages_elsewhere,
    stages_that_fit,
)
from peer.network import admission
from peer.network.admission import require_clock
from peer.planning.memory import PROCESS_BYTES, Duty, memory_of
from peer.settings import PeerSettings
from peer.store import membership
from peer.store.disk import space_in
from protocol.errors import ResourceError, UserError
from protocol.events.activity import Warned
from protocol.events.decisions import Placed
from protocol.events.event import Event
from protocol.identity import PeerId
from protocol.limits import CLOCK_SLACK_SECONDS
from protocol.manifest import check_manifest
from protocol.run.run_files import RunFile, descriptor_of, file_names, files_needed
from protocol.trust.membership_card import Card, Role, issue
from protocol.trust.records import PeerRecord
from protocol.trust.ticket import Ticket
from protocol.wording import megabytes_above, size
from tests.reference.admitted import certified, identity, there
from tests.reference.small_manifest import small_manifest

RUN = check_manifest(
    {
        "model": {"preset": "512m"},
        "replicas": {"stages": 4, "compression": 1},
        "inner": {"sequences": 64, "microbatch": 1},
    }
)


def test_frames_that_do_not_get_through_a_limit_in_time_are_told_with_the_limit_that_would_do():
    for stage in (0, 1, 3):
        with pytest.raises(
            UserError, match=r"--max-up 1: the frames of one inner step .* give at least (\d+)"
        ) as error:
            require_bandwidth(RUN, stage, 1, None)
        enough = int(str(error.value).split("at least ")[1].split(",")[0])
        require_bandwidth(RUN, stage, enough, None)
        with pytest.raises(UserError):
            require_bandwidth(RUN, stage, enough - 2, None)


def test_a_stage_in_the_middle_sends_and_receives_twice_as_much_as_one_at_an_end():
    def least(stage: int, *limits: float | None) -> int:
        with pytest.raises(UserError) as error:
            require_bandwidth(RUN, stage, *limits)
        return int(str(error.value).split("at least ")[1].split(",")[0])

    for limits in ((1, None), (None, 1)):
        ends, middle = [least(stage, *limits) for stage in (0, 3)], least(1, *limits)
        assert ends[0] == ends[1]
        assert middle in (2 * ends[0], 2 * ends[0] - 1)


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (0.0, []),
        (CLOCK_SLACK_SECONDS, []),
        (CLOCK_SLACK_SECONDS + 1, ["61 s ahead of"]),
        (-CLOCK_SLACK_SECONDS - 1, ["61 s behind"]),
    ],
)
def test_a_clock_that_others_do_not_put_up_with_is_told(ahead: float, said: list[str]):
    told: list[Event] = []
    require_clock(ahead, told.append)
    advice = "other peers may not find this one; set it, and look at `hetpeer doctor`"
    assert told == [Warned(f"WARNING: this machine's clock is {off} the node's: {advice}") for off in said]


@pytest.mark.parametrize(
    ("ahead", "off"), [(7200.0, "2.0 h ahead of"), (-2 * CLOCK_SLACK_SECONDS - 1, "2.0 min behind")]
)
def test_a_clock_with_which_nobody_would_find_the_peer_is_refused_with_the_cure(ahead: float, off: str):
    told: list[Event] = []
    with pytest.raises(ResourceError, match=rf"clock is {off} the node's: no other peer would find this one\. Set it "):
        require_clock(ahead, told.append)
    assert not told


# A volunteer that leaves its stage to the operator's node

OPERATOR, ANN, CPU = identity("operator"), identity("ann"), torch.device("cpu")
THREE = small_manifest(
    model={"vocabulary": 9000, "d": 1024, "layers": 7, "ffn": 2048, "context": 64},
    replicas={"stages": 3, "compression": 1},
    inner={"sequences": 512, "microbatch": 1},
)  # the first has the embedding, the last the head
DESCRIPTOR = descriptor_of(THREE, OPERATOR.peer_id, [RunFile(name, "ab" * 32, 9) for name in file_names(THREE)])
TAKES = [memory_of(THREE, Duty("volunteer", stage, recompute=True)).total for stage in range(3)]


def volunteer(folder: Path, **settings: Any) -> PeerSettings:
    ticket = Ticket(DESCRIPTOR.run_id, OPERATOR.public, ("127.0.0.1:1",), ())
    return PeerSettings(ticket=ticket, role="volunteer", directory=folder, device="cpu", **settings)


def test_the_middle_takes_least_and_the_beginning_most():
    assert TAKES[1] < TAKES[2] < TAKES[0]


def test_of_a_runs_stages_those_are_offered_that_fit_and_of_the_others_it_is_told_what_they_lack(tmp_path: Path):
    def fit(**limits: Any) -> StageChoice:
        return stages_that_fit(volunteer(tmp_path, **limits), DESCRIPTOR, CPU)

    assert fit() == StageChoice((0, 1, 2))
    assert fit(max_memory=TAKES[0]) == StageChoice((0, 1, 2))
    gives = f"of memory, and --max-memory gives {size(TAKES[2])}"
    assert fit(max_memory=TAKES[2]) == StageChoice((1, 2), f"stage 0 needs {size(TAKES[0])} {gives}")
    assert fit(max_memory=TAKES[0] - 1).stages == (1, 2)
    assert fit(max_memory=TAKES[1]).stages == (1,)


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("role", ["volunteer", "datacenter", "observer"])
def test_a_process_that_takes_more_on_this_machine_leaves_less_for_the_model(tmp_path: Path, role: Role, nproc: int):
    """By a reading that is 100 MB above what is planned elsewhere; the limit is what the place takes by it, and a byte
    less."""
    if nproc > 1 and role != "datacenter":
        pytest.skip("one process")
    process = PROCESS_BYTES + 10**8
    takes = memory_of(THREE, Duty(role, 1, recompute=True), process).total
    assert takes == memory_of(THREE, Duty(role, 1, recompute=True)).total + 10**8
    if nproc > 1:
        takes = daemon_bytes(THREE, process) + nproc * (worker_bytes(THREE, nproc) + WORKER_BASE_BYTES)
    settings = replace(volunteer(tmp_path), role=role, nproc=nproc, process_bytes=process)
    settings = replace(settings, stage=1) if role == "volunteer" else settings
    require_fit(replace(settings, max_memory=takes), DESCRIPTOR)
    with pytest.raises(UserError, match="memory"):
        require_fit(replace(settings, max_memory=takes - 1), DESCRIPTOR)
    require_fit(replace(settings, max_memory=takes - 10**8, process_bytes=PROCESS_BYTES), DESCRIPTOR)


def test_a_volunteer_may_move_to_the_other_stages_that_fit_if_its_owner_has_agreed(tmp_path: Path):
    def elsewhere(stage: int, **limits: Any) -> list[int]:
        return stages_elsewhere(volunteer(tmp_path, **limits), DESCRIPTOR, stage, CPU)

    assert elsewhere(1) == []
    assert elsewhere(1, any_stage=True) == [0, 2]
    assert elsewhere(2, any_stage=True, max_memory=TAKES[2]) == [1]
    assert elsewhere(1, any_stage=True, max_memory="100MB") == []


def test_memory_disk_and_line_are_looked_at_by_the_rule_by_which_a_place_is_checked(tmp_path: Path):
    kept = [space_in(tmp_path, DESCRIPTOR, files_needed(DESCRIPTOR, each), each, True, 1).needed for each in range(3)]
    slow = min(each for each in range(1, 99) if _line_takes(0, each))
    for limits in ({"max_memory": TAKES[2]}, {"max_disk": max(kept) - 1}, {"max_up": slow}, {"max_down": slow}):
        settings = volunteer(tmp_path, **limits)
        choice = stages_that_fit(settings, DESCRIPTOR, CPU)
        assert choice.stages
        assert next(iter(limits)).replace("_", "-") in choice.others
        for stage in range(3):
            if stage in choice.stages:
                require_place(settings, DESCRIPTOR, stage, CPU)
                continue
            with pytest.raises(UserError):
                require_place(settings, DESCRIPTOR, stage, CPU)


def _line_takes(stage: int, limit: int) -> bool:
    try:
        require_bandwidth(THREE, stage, limit, limit)
    except UserError:
        return False
    return True


def test_where_no_stage_fits_each_is_told_least_first_with_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def none_fits(**limits: Any) -> str:
        with pytest.raises(ResourceError) as error:
            stages_that_fit(volunteer(tmp_path, **limits), DESCRIPTOR, CPU)
        assert error.value.exit_code == 4
        return str(error.value)

    gives = "of memory, and --max-memory gives 100.0 MB"
    needs = "; ".join(f"stage {stage} needs {size(TAKES[stage])} {gives}" for stage in (1, 2, 0))
    enough = megabytes_above(TAKES[1])
    assert none_fits(max_memory="100MB") == (
        f"no stage of this run fits this machine: {needs}; for stage 1, give --max-memory {enough}"
    )
    assert stages_that_fit(volunteer(tmp_path, max_memory=enough), DESCRIPTOR, CPU).stages == (1,)
    said = none_fits(max_up=1, max_memory=10**12)
    assert re.search(r"stages 0 and 2 need \d+ Mb/s up, and --max-up gives 1", said)
    assert said.endswith("; or follow the run with `hetpeer observe`, which fits")
    enough = re.findall(r"for stage 1, give --max-up (\d+);", said)[0]
    assert 1 in stages_that_fit(volunteer(tmp_path, max_up=float(enough)), DESCRIPTOR, CPU).stages

    class Free:
        available = 10**8

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Free)
    assert "of memory, and 100.0 MB are free; for stage 1, end other programs" in none_fits()


def test_the_likes_are_told_together(tmp_path: Path):
    many = small_manifest(model={"layers": 8}, replicas={"stages": 8}, inner={"sequences": 1, "microbatch": 1})
    run = descriptor_of(many, OPERATOR.peer_id, [RunFile(name, "ab" * 32, 9) for name in file_names(many)])
    with pytest.raises(
        ResourceError, match=r"machine: stages 1 to 6 need 580\.1 MB of .* 1\.0 MB; stage 0 needs .*; for"
    ):
        stages_that_fit(volunteer(tmp_path, max_memory=10**6), run, CPU)


def given_before(folder: Path, stage: int, peer: PeerId = ANN.peer_id) -> Path:
    """The folder of a volunteer that has this place."""
    folder.mkdir()
    card = issue(OPERATOR, DESCRIPTOR.run_id, Card(peer, "volunteer", stage, 0))
    membership.write_membership(folder, card, certified(ANN, OPERATOR), (), there("operator", "127.0.0.1:1"))
    return folder


def test_who_comes_back_asks_for_its_own_place_and_who_has_nothing_to_choose_for_any(tmp_path: Path):
    def choice(folder: Path, **settings: Any) -> StageChoice:
        wish = replace(volunteer(folder), **settings)
        return choose_stages(wish, DESCRIPTOR, ANN, None, CPU)

    limit = {"max_memory": TAKES[2]}
    assert choice(tmp_path, **limit).stages == (1, 2)
    assert choice(given_before(tmp_path / "here", 0), **limit) == StageChoice((0,), held=True)
    assert choice(given_before(tmp_path / "another", 0, identity("bob").peer_id), **limit).stages == (1, 2)
    assert choice(given_before(tmp_path / "no such", 3), **limit).stages == (1, 2)
    for others in ({"stage": 0}, {"role": "datacenter"}, {"role": "observer"}):
        assert choice(tmp_path / "here", **limit, **others) == StageChoice()


def test_whose_place_fits_no_longer_is_told_which_would(tmp_path: Path):
    settings = volunteer(tmp_path, max_memory=TAKES[2])
    require_given(settings, DESCRIPTOR, 2, CPU)
    with pytest.raises(ResourceError, match=r"memory for stage 0.*machine fits 1 and 2: take it with --stage 1$"):
        require_given(settings, DESCRIPTOR, 0, CPU)
    with pytest.raises(ResourceError, match=r"memory for stage 0.*machine fits 1 and 2: take it with --stage 1$"):
        require_fit(replace(settings, stage=0), DESCRIPTOR)
    with pytest.raises(ResourceError, match="no stage of this run fits"):
        require_given(replace(settings, max_memory="1MB"), DESCRIPTOR, 0, CPU)


def test_only_the_node_that_may_choose_is_told_what_could_be_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[Any, ...]] = []

    async def register(*wish: Any) -> None:
        asked.append(wish[3:5] + wish[7:])
        raise UserError("enough")

    monkeypatch.setattr(admission, "register", register)
    for settings in ({}, {"stage": 0}, {"role": "datacenter"}):
        with pytest.raises(UserError, match="enough"):
            asyncio.run(joining.register_here(replace(volunteer(tmp_path), **settings), DESCRIPTOR, ANN, (1, 2)))  # type: ignore[arg-type]
    assert asked == [("volunteer", None, (1, 2)), ("volunteer", 0, ()), ("datacenter", None, ())]


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (StageChoice((0, 1, 2)), "the operator's node gave it the stage that had the fewest volunteers"),
        (
            StageChoice((1, 2), "stage 0 needs 9"),
            "scarcest of the stages that fit this machine (1 and 2; stage 0 needs 9)",
        ),
        (StageChoice((1,), "stages 0 and 2 need 9"), "this machine fits no other stage (stages 0 and 2 need 9)"),
        (StageChoice((1,), held=True), "its folder has this place from an earlier time"),
        (StageChoice((0,), held=True), "the operator's node gave it the stage that had the fewest volunteers"),
    ],
)
def test_a_volunteer_is_told_why_it_has_its_stage(tmp_path: Path, choice: StageChoice, reason: str):
    told: list[Event] = []
    record = PeerRecord(peer_id=ANN.peer_id, address="h:1", role="volunteer", stage=1, slot=0)
    emit_place(volunteer(tmp_path), THREE, record, choice, told.append)
    (placed,) = (event for event in told if isinstance(event, Placed))
    assert placed.reason.endswith(reason)


def test_without_limits_everything_fits():
    require_bandwidth(RUN, 1, None, None)
