"""How far a run is known to be: it rises with what is proved, and falls only by the operator's rewind."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.identity import EMBEDDING, stage_part
from protocol.outer.progress import Rewind, RunProgress

STAGE = stage_part(1)


def test_progress_rises_and_never_falls_by_what_is_seen():
    progress = RunProgress()
    assert progress.raise_to(19, {STAGE: 19, EMBEDDING: 18})
    assert not progress.raise_to(9, {STAGE: 9})
    assert (progress.finished, progress.newest(STAGE), progress.newest(EMBEDDING)) == (19, 19, 18)


def test_every_part_was_held_a_round_before_the_last_that_the_run_has_finished():
    progress = RunProgress(run=19)
    assert progress.newest(STAGE) == 18
    assert progress.newest(STAGE, run=25) == 24  # as the run is seen now
    assert RunProgress().newest(STAGE) == 0


def test_a_rewind_takes_back_what_was_finished_up_to_it_and_nothing_later():
    progress = RunProgress(run=19, parts={STAGE: 19})
    assert progress.heed(Rewind(to_round=9, lost=19, issued=5))
    assert (progress.finished, progress.newest(STAGE), progress.newest(EMBEDDING)) == (9, 9, 9)
    words = (
        "the operator has rewound the run: where nobody holds the state after round 19, the newest one after round 9 "
        "or later stands for it"
    )
    assert progress.rewind_words(own=9) == words, "it may wait for the state that is lost"
    assert not progress.rewind_words(own=0, seen=20), "a newcomer, once the run is past it"
    progress.raise_to(22, {STAGE: 20})  # the run goes on
    assert (progress.finished, progress.newest(STAGE)) == (22, 21)
    assert progress.rewind_words(own=19) == words, "it comes back with a round that was lost"
    assert [progress.rewind_words(own) for own in (0, 9, 20)] == ["", "", ""]


def test_of_two_rewinds_the_later_counts():
    progress = RunProgress(run=19)
    assert progress.heed(Rewind(12, 19, issued=7))
    assert not progress.heed(Rewind(3, 19, issued=6))
    assert progress.finished == 12
    assert progress.heed(Rewind(3, 19, issued=8))
    assert progress.finished == 3


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8), st.integers(0, 49), st.integers(1, 50))
def test_no_order_of_news_leaves_another_progress(news: list[tuple[int, int]], to_round: int, more: int):
    rewind = Rewind(to_round, to_round + more, 1)
    forward, backward = RunProgress(), RunProgress()
    for run, held in news:
        forward.raise_to(run, {STAGE: held})
    forward.heed(rewind)
    backward.heed(rewind)
    for run, held in reversed(news):
        backward.raise_to(run, {STAGE: held})
    assert (forward.finished, forward.newest(STAGE)) == (backward.finished, backward.newest(STAGE))
    assert forward.finished <= max([run for run, _ in news], default=0)


def test_one_holder_is_believed_as_far_as_the_rewind_reaches_and_nobody_without_one():
    known = RunProgress(run=9)
    assert known.believed([14]) == 0
    known.heed(Rewind(9, 12, 1))
    assert [known.believed(shown) for shown in ([], [8, 11], [14])] == [0, 11, 12]
    assert known.furthest == 9
    known.raise_to(9, {EMBEDDING: 10})
    assert known.furthest == 10
