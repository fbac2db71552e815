"""A daemon's live panel, as lines of a width: where it is, what it does, and what it waits for. Pure."""

from peer.telemetry.status import Doing
from peer.telemetry.units import since, size, so_many

LEAST_WIDTH_OF_BAR = 8
MOST_WIDTH_OF_BAR = 30


def bar(done: int, total: int, width: int) -> str:
    """How much of a round is done, without colour."""
    full = round(width * min(done, total) / total) if total else 0
    return "█" * full + "░" * (width - full)


def lines(doing: Doing, now: float, width: int) -> list[str]:
    """The panel, one line each, none longer than `width`."""
    return [_cut(each, width) for each in (_place(doing), _round(doing, width), _rates(doing), _life(doing, now))]


def _place(doing: Doing) -> str:
    where = f"stage {doing.stage}" if doing.role == "volunteer" else doing.role
    if doing.role == "volunteer" and doing.members:
        names = (f"[{each[-8:]}]" if each == doing.peer_id else each[-8:] for each in doing.members)
        return f"{where} · {doing.state} · group: {' '.join(names)}"
    return f"{where} · {doing.state}" + (" · no group" if doing.role == "volunteer" else "")


def _round(doing: Doing, width: int) -> str:
    round = f"round {doing.round or '–'} of {doing.rounds or '–'}"
    step = f"step {doing.step}" + (f" of {doing.inner_steps}" if doing.inner_steps else "")
    if doing.loss is not None:
        step += f" · loss {doing.loss:.3f}"
    if doing.held_out is not None:
        step += f" · held-out {doing.held_out[0]:.3f}"
    room = min(MOST_WIDTH_OF_BAR, width - len(round) - len(step) - 2)
    if room < LEAST_WIDTH_OF_BAR or not doing.inner_steps:
        return f"{round} {step}"
    return f"{round} {bar(doing.step, doing.inner_steps, room)} {step}"


def _rates(doing: Doing) -> str:
    speed = f"{doing.tokens_per_second:,.0f} tokens/s"
    return f"{speed} · up {size(doing.up)}/s · down {size(doing.down)}/s · credit {doing.credit:,} tokens"


def _life(doing: Doing, now: float) -> str:
    joined = f"joined {since(now - doing.joined)} ago" if doing.joined is not None else "not joined yet"
    silent = f", {doing.lost} silent" if doing.lost else ""
    peers = f"{so_many(doing.peers, 'peer')}{silent}"
    waits = f" · {doing.state}: {doing.waits_for.removeprefix(f'{doing.state} ')}" if doing.waits_for else ""
    return f"{joined} · {peers}{waits}"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"
