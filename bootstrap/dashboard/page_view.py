"""The run as the page gets it: a tree of JSON with peers, groups and rounds by their names, of which only what has
changed is sent again (a merge patch, RFC 7396). Pure."""

from typing import Any

from protocol.monitor import RoundView, View

Tree = dict[str, Any]
"""An object of JSON that has no null: what is not known is not there."""

ROUNDS_WITH_PEERS = 8
"""The rounds, the newest, of which the page gets who contributed, was late or left; of older ones only how many."""

BY_PEER = ("contributions", "late", "left")
"""The fields of a round that are by peer."""


def page_view(view: View) -> Tree:
    """The tree of a view."""
    tree: Tree = view.model_dump(mode="json", exclude_none=True, exclude={"history"})
    tree["peers"] = {peer["id"]: _rounded(peer) for peer in tree["peers"]}
    tree["groups"] = {group["replica"]: group for group in tree["groups"]}
    oldest = len(view.history) - ROUNDS_WITH_PEERS
    tree["history"] = {str(entry.round): _round(entry, index < oldest) for index, entry in enumerate(view.history)}
    return tree


def _rounded(peer: Tree) -> Tree:
    """A peer whose rates and times have no more digits than people see."""
    return {
        name: round(value, 1) if isinstance(value, float) and name != "loss" else value for name, value in peer.items()
    }


def _round(entry: RoundView, is_old: bool) -> Tree:
    row = entry.model_dump(mode="json", exclude_none=True, exclude=set(BY_PEER) if is_old else None)
    return row | {f"{name}_count": len(getattr(entry, name)) for name in BY_PEER}


def merge_patch(before: Tree, after: Tree) -> Tree:
    """The patch that makes `after` of `before`: new and changed values by name, null for names that are gone."""
    patch: Tree = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if value != old:
                patch[name] = merge_patch(old, value)
        elif value != old:
            patch[name] = value
    return patch
