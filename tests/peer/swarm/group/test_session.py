"""The table of a stage's session: every state, every event, and the page that is drawn from it."""

from itertools import product
from pathlib import Path

import pytest

from peer.swarm.group.session import (
    RULES,
    TRANSITIONS,
    GroupAction,
    GroupEvent,
    GroupSession,
    GroupState,
    IllegalEventError,
)
from tests.peer.swarm.group.session_page import drawn, replaced

PAGE = Path(__file__).parents[4] / "docs/design/groups.md"


@pytest.mark.parametrize(("state", "event"), product(GroupState, GroupEvent))
def test_an_event_leads_where_the_table_says_or_is_refused_in_words_and_leaves_the_state(
    state: GroupState, event: GroupEvent
):
    session = GroupSession(state)
    if (state, event) in TRANSITIONS:
        after, action = TRANSITIONS[state, event]
        assert session.take(event) is action
        assert session.state is after
        return
    with pytest.raises(IllegalEventError, match=f"a stage that is {state} cannot take '{event}', only: "):
        session.take(event)
    assert session.state is state


@pytest.mark.parametrize("state", GroupState)
def test_every_state_has_a_rule_that_says_who_ends_it_its_bound_and_what_is_shown(state: GroupState):
    rule = RULES[state]
    assert all((rule.ended_by, rule.bound, rule.shown))


def test_every_state_can_be_reached_and_ends_in_having_left():
    reached, ends = {GroupState.FREE}, {GroupState.LEFT}
    for _ in GroupState:
        reached |= {after for (before, _), (after, _) in TRANSITIONS.items() if before in reached}
        ends |= {before for (before, _), (after, _) in TRANSITIONS.items() if after in ends}
    assert reached == ends == {*GroupState}


@pytest.mark.parametrize("state", [state for state in GroupState if state is not GroupState.LEFT])
def test_every_state_ends_when_a_neighbour_is_lost_and_when_this_peer_leaves(state: GroupState):
    assert TRANSITIONS[state, GroupEvent.LOST][0] is GroupState.FREE
    assert TRANSITIONS[state, GroupEvent.LEAVING] == (GroupState.LEFT, GroupAction.LEAVE)


def test_every_event_and_every_action_is_of_use():
    assert {event for _, event in TRANSITIONS} == {*GroupEvent}
    assert {action for _, action in TRANSITIONS.values()} == {*GroupAction}


def test_the_page_is_drawn_from_the_table():
    page = PAGE.read_text(encoding="utf-8")
    assert replaced(page, drawn()) == page, "python -m tests.peer.swarm.group.session_page draws it again"
