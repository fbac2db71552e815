"""The shares of their inner steps that a group and a datacenter keep beside a volunteer of the group that becomes slow.

A group of three stages and a datacenter train; the group's steps take 3.5 s. After seven good rounds the volunteer of
one stage sleeps before each pass, in the ways of `WAYS`, for as long as it keeps its seat. Told are the steps a second
of the group and of the datacenter since then, as shares of those before, how many slow steps there were, and who was
replaced. `no spare`: nobody else of its stage is there.

What runs is the daemon, in virtual time (`tests/world`): seconds are those of the simulated machines.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.options.small import sized_arguments
from protocol.events.group_decisions import Dismissed, MemberReplaced
from tests.world.runs import get_ready
from tests.world.slowness import MEASURED_SECONDS, STAGES, Nap, always, beside_a_slow_member, slowed
from tests.world.test_cases import told, worlds

PASSES = 4
"""The passes of one step at a stage: two microbatches, there and back."""

WAYS: Mapping[str, Nap] = {
    "14 s a step": always,
    "19 s a step": lambda step: 19.0 / PASSES,
    "half a step more": lambda step: 1.75 / PASSES,
    "a tenth more": lambda step: 0.35 / PASSES,
    "19 s in one of 10 steps": lambda step: 19.0 / PASSES if step % 10 == 9 else 0.0,
    "19 s in one of 40 steps": lambda step: 19.0 / PASSES if step % 40 == 39 else 0.0,
    "0.02 s more each step": lambda step: 0.02 * step / PASSES,
}
"""The ways of being slow: the seconds before each pass of the n-th step."""


@dataclass(frozen=True, slots=True)
class SlowRow:
    """One run. `kept` are shares of the steps a second before; `rightly` and `wrongly` count replaced volunteers."""

    way: str
    stage: int
    honest: bool
    """Whether its passes are told to take what they take."""
    spare: bool
    group_kept: float
    center_kept: float
    slow_steps: int
    rightly: int
    wrongly: int
    dismissed: int


def play(way: str, stage: int, honest: bool, spare: bool, seconds: float = MEASURED_SECONDS) -> SlowRow:
    """One run."""
    with slowed(stage, WAYS[way], honest) as slow, worlds() as world:
        beside = beside_a_slow_member(world, stage, (stage,) if spare else (), seconds)
        owners = (*beside.group, *beside.spares, beside.center)
        replaced = [event.peer for owner in owners for event in told(owner, MemberReplaced)]
        rightly = replaced.count(beside.slow_ids[stage])
        dismissed = sum(len(told(owner, Dismissed)) for owner in owners)
        kept = beside.group_kept, beside.center_kept
        return SlowRow(way, stage, honest, spare, *kept, len(slow.steps), rightly, len(replaced) - rightly, dismissed)


def line(row: SlowRow) -> str:
    """A run as a line of text."""
    who = f"stage {row.stage}, {'told' if row.honest else 'hidden'}, {'a spare' if row.spare else 'no spare'}"
    kept = f"group keeps {row.group_kept:4.0%}, datacenter {row.center_kept:4.0%}"
    others = f"{row.rightly} replaced, {row.wrongly} others, {row.dismissed} dismissed"
    return f"{row.way:24} {who:28} {kept}; {row.slow_steps:3} slow steps; {others}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS], help="how it is slow")
    parser.add_argument("--stages", nargs="+", type=int, default=[*range(STAGES)], help="the slow one's stage")
    parser.add_argument("--hidden", action="store_true", help="what it tells of its passes says nothing of its naps")
    parser.add_argument("--no-spare", action="store_true", help="nobody else of its stage is there")
    parser.add_argument("--seconds", type=float, default=MEASURED_SECONDS, help="of virtual time that are measured")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = sized_arguments(parser, ways=["14 s a step"], stages=[1], seconds=40.0)
    get_ready()
    rows = []
    for way in options.ways:
        for stage in options.stages:
            rows.append(play(way, stage, not options.hidden, not options.no_spare, options.seconds))
            if not options.json:
                print(line(rows[-1]), flush=True)
    if options.json:
        print(json.dumps({"slow_member": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
