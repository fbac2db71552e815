"""What the page gets of a view, and what of it is sent again."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bootstrap.dashboard.demo import demo_view
from bootstrap.dashboard.page_view import ROUNDS_WITH_PEERS, merge_patch, page_view

TREES = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda below: st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), TREES, max_size=3)


def patched(tree: Any, patch: Any) -> Any:
    """As RFC 7396 has it, section 2."""
    if not isinstance(patch, dict):
        return patch
    tree = dict(tree) if isinstance(tree, dict) else {}
    for name, value in patch.items():
        if value is None:
            tree.pop(name, None)
        else:
            tree[name] = patched(tree.get(name), value)
    return tree


@given(OBJECTS, OBJECTS)
def test_a_patch_makes_the_one_of_the_other_and_what_is_alike_is_not_in_it(before, after):
    assert patched(before, merge_patch(before, after)) == after
    assert merge_patch(after, after) == {}


def test_of_a_large_run_a_second_later_a_sixth_is_sent():
    before, after = (page_view(demo_view(500, 1000.0 + second, 990.0)) for second in (0, 1))
    patch = merge_patch(before, after)
    assert patched(before, patch) == after
    assert len(repr(patch)) < len(repr(after)) / 5
    assert "run_id" not in patch


def test_of_older_rounds_the_page_is_told_how_many_and_not_who():
    rounds = [*page_view(demo_view(50, 1000.0, 990.0))["history"].values()]
    named = [entry for entry in rounds if "contributions" in entry]
    assert [entry["round"] for entry in named] == [entry["round"] for entry in rounds[-ROUNDS_WITH_PEERS:]]
    assert all(entry["contributions_count"] > 40 for entry in rounds[:-1])
