"""The part of docs/design/groups.md that is drawn from the table of a stage's session. `python -m
tests.peer.swarm.group.session_page` draws it again."""

from pathlib import Path

from peer.swarm.group.session import RULES, TRANSITIONS, GroupAction, GroupState

PAGE = Path(__file__).parents[4] / "docs/design/groups.md"
BEGIN, END = "<!-- drawn from peer/swarm/group/session.py -->\n", "<!-- end of the drawing -->\n"


def drawn() -> str:
    """Return the diagram of the transitions, and the table of the states' rules. Every state but the last ends, too,
    when a neighbour is lost and when the peer leaves: the diagram leaves these out."""
    free, left = GroupState.FREE, GroupState.LEFT
    common = {pair: after for pair, after in TRANSITIONS.items() if after[0] is left or pair[1] == "lost"}
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {free}"]
    for (state, event), (after, action) in TRANSITIONS.items():
        if (state, event) not in common:
            act = "" if action is GroupAction.NOTHING else f" / {action}"
            lines.append(f"    {state} --> {after}: {event}{act}")
    lines += ["```", ""]
    for event in dict.fromkeys(event for _, event in common):
        for after, action in dict.fromkeys(common[pair] for pair in common if pair[1] is event):
            states = [state for (state, its), result in common.items() if its is event and result == (after, action)]
            every = len(states) == len(GroupState) - 1
            lines.append(f"- *{event}*, in {'every state' if every else ', '.join(states)}: {action}; then {after}.")
    lines += ["", "| state | ended by | at most | shown meanwhile |", "|---|---|---|---|"]
    lines += [f"| {state} | {rule.ended_by} | {rule.bound} | {rule.shown} |" for state, rule in RULES.items()]
    return "\n".join(lines) + "\n"


def replaced(page: str, drawing: str) -> str:
    """Return the page with this drawing."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}{drawing}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), drawn()), encoding="utf-8")
