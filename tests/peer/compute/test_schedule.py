"""1F1B."""

from hypothesis import given
from hypothesis import strategies as st

from peer.compute.schedule import Backward, Forward, one_forward_one_backward

pipelines = st.tuples(st.integers(1, 6), st.integers(1, 12))


@given(pipelines)
def test_every_microbatch_goes_forward_then_backward_in_order(pipeline: tuple[int, int]):
    stages, microbatches = pipeline
    for stage in range(stages):
        actions = list(one_forward_one_backward(stage, stages, microbatches))
        assert [each.microbatch for each in actions if isinstance(each, Forward)] == list(range(microbatches))
        assert [each.microbatch for each in actions if isinstance(each, Backward)] == list(range(microbatches))
        for number in range(microbatches):
            assert actions.index(Forward(number)) < actions.index(Backward(number))


@given(pipelines)
def test_no_stage_holds_more_microbatches_than_there_are_stages_from_it_on(pipeline: tuple[int, int]):
    stages, microbatches = pipeline
    for stage in range(stages):
        held = most = 0
        for action in one_forward_one_backward(stage, stages, microbatches):
            held += 1 if isinstance(action, Forward) else -1
            most = max(most, held)
        assert most == min(stages - stage, microbatches)


@given(pipelines)
def test_stages_never_wait_for_each_other_in_a_circle(pipeline: tuple[int, int]):
    """Run all stages against each other: an action waits for the neighbour's of the same microbatch."""
    stages, microbatches = pipeline
    todo = [list(one_forward_one_backward(stage, stages, microbatches)) for stage in range(stages)]
    done: set[tuple[int, Forward | Backward]] = set()

    def possible(stage: int, action: Forward | Backward) -> bool:
        neighbour = stage - 1 if isinstance(action, Forward) else stage + 1
        return not 0 <= neighbour < stages or (neighbour, action) in done

    while any(todo):
        moved = False
        for stage, actions in enumerate(todo):
            while actions and possible(stage, actions[0]):
                done.add((stage, actions.pop(0)))
                moved = True
        assert moved
