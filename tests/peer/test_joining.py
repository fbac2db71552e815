"""Whether a run fits what this peer's owner lets it use, asked before it joins."""

import pytest

from peer.joining import require_bandwidth, tell_clock
from peer.telemetry.events import Event, Warned
from protocol.errors import UserError
from protocol.limits import CLOCK_SLACK_SECONDS
from protocol.manifest import check_manifest

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
        (-7200.0, ["120.0 min behind"]),
    ],
)
def test_a_clock_that_others_do_not_put_up_with_is_told(ahead: float, said: list[str]):
    told: list[Event] = []
    tell_clock(ahead, told.append)
    advice = "other peers do not find this one; set it, and look at `hetpeer doctor`"
    assert told == [Warned(f"WARNING: this machine's clock is {off} the node's: {advice}") for off in said]


def test_without_limits_everything_fits():
    require_bandwidth(RUN, 1, None, None)
