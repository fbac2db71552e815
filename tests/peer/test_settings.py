"""What the owner of a machine says on the command line, and what a peer makes of it."""

import pytest

from peer.settings import LOW, Manners, bytes_of
from protocol.errors import UserError


def test_nothing_said_is_no_limit():
    manners = Manners.of()
    assert manners == Manners()
    assert manners.bandwidth().up.rate is None
    assert manners.niceness == 0


def test_limits_are_megabits_a_second():
    manners = Manners.of(max_up=5, max_down=40, priority="low")
    assert manners.bandwidth().up.rate == 625_000
    assert manners.bandwidth().down.rate == 5_000_000
    assert manners.niceness == LOW


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
    ("said", "words"),
    [
        ({"max_up": 0.1}, "--max-up 0.1"),
        ({"quiet_hours": "now"}, "--quiet-hours"),
        ({"max_memory": "x"}, "--max-memory"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_is_begun(said: dict, words: str):
    with pytest.raises(UserError, match=words):
        Manners.of(**said)
