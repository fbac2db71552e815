"""The run that is made up to look at the dashboard."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bootstrap.dashboard.demo import DEMO_ROUNDS, DEMO_SECONDS, demo_view
from protocol.events.event import PeerState
from protocol.monitor import View


@settings(max_examples=30, deadline=None)
@example(1, 0.0, "none")
@example(2048, 20.0, "stalled")
@given(st.integers(1, 400), st.floats(0, 2 * DEMO_ROUNDS * DEMO_SECONDS), st.sampled_from(("none", "short", "stalled")))
def test_any_number_of_peers_makes_a_view_at_any_time(peers, seconds, trouble):
    view = demo_view(peers, 1e9 + seconds, 1e9, trouble)
    assert View.model_validate_json(view.model_dump_json()) == view
    assert len({peer.id for peer in view.peers}) == peers
    assert {member for group in view.groups for member in group.members} <= {peer.id for peer in view.peers}
    assert view.made_up


def test_it_moves_and_is_the_same_at_the_same_time():
    assert demo_view(50, 1010.0, 1000.0) == demo_view(50, 1010.0, 1000.0)
    one, other = demo_view(50, 1010.0, 1000.0), demo_view(50, 1060.0, 1000.0)
    assert other.round == one.round + 1
    assert other.tokens > one.tokens
    assert demo_view(50, 1e6, 1000.0).state == "finished"


@pytest.mark.parametrize(
    ("trouble", "state", "short"),
    [("none", "training", ""), ("short", "training", "stage 2 is short"), ("stalled", "stalled", "stage 2 is short")],
)
def test_what_goes_wrong_is_what_was_asked_for(trouble, state, short):
    view = demo_view(50, 1030.0, 1000.0, trouble)
    assert view.state == state
    assert view.short.startswith(short)
    lost = {peer.stage for peer in view.peers if peer.state is PeerState.LOST and peer.role == "volunteer"}
    assert lost == (set() if trouble == "none" else {2})
