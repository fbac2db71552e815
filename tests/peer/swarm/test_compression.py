"""k by link: a group finds the largest that its links carry, and says why."""

from hypothesis import given
from hypothesis import strategies as st

from peer.swarm.compression import FULL, PATIENCE, ROOM, START, Choice
from tests.reference.small_manifest import small_manifest

AUTO = small_manifest(model={"d": 64}, replicas={"compression": "auto"})


def link_of(capacity: float, compression: int) -> float:
    """The share of a step for which a link is busy that has room for d / `capacity` numbers a token."""
    return min(1.0, capacity / compression)


def play(capacity: float, rounds: int) -> tuple[Choice, list[int]]:
    """What a group on such a link has in each round."""
    choice, had = Choice.of(AUTO), list[int]()
    for _ in range(rounds):
        had.append(choice.current)
        choice.note(link_of(capacity, choice.current))
        choice.decide()
    return choice, had


def test_a_group_begins_at_the_papers_ratio_or_the_nearest_that_its_model_has():
    assert Choice.of(AUTO).current == START
    assert Choice.of(small_manifest(replicas={"compression": 4})).current == 4


@given(st.floats(0.1, 500))
def test_it_comes_to_the_largest_k_that_leaves_the_link_some_room_and_stays_there(capacity: float):
    choice, had = play(capacity, 40)
    assert set(had) <= set(AUTO.compressions)
    carried = [each for each in AUTO.compressions if link_of(capacity, each) < FULL]
    largest = carried[0] if carried else AUTO.compressions[-1]
    place = AUTO.compressions.index(largest)
    for each in had[10:]:
        assert abs(AUTO.compressions.index(each) - place) <= 1
    too_much = sum(link_of(capacity, each) >= FULL for each in had[10:])
    assert too_much <= 1 + 30 // PATIENCE or largest == AUTO.compressions[-1]
    assert link_of(capacity, choice.current) > ROOM / 2 or choice.current == AUTO.compressions[0]


def test_what_was_too_much_is_tried_again_only_after_some_rounds():
    choice = Choice((2, 4, 8), 4)
    choice.note(1.0)
    assert "busy 100%" in choice.decide()
    waited = 0
    while choice.current == 8:
        choice.note(0.1)
        choice.decide()
        waited += 1
    assert (choice.current, waited) == (4, PATIENCE)


def test_a_round_without_an_inner_step_says_nothing_of_the_links():
    choice = Choice.of(AUTO)
    assert choice.decide() == ""
    assert choice.current == START


def test_one_bad_step_decides_nothing():
    choice = Choice.of(AUTO)
    for sending in (0.5, 1.0, 0.5):
        choice.note(sending)
    assert choice.decide() == ""


def test_where_the_manifest_says_k_there_is_nothing_to_choose():
    choice = Choice.of(small_manifest(replicas={"compression": 4}))
    for sending in (0.0, 1.0):
        choice.note(sending)
        assert choice.decide() == ""
        assert choice.current == 4
