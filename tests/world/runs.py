"""Seeds, played: the files of each manifest are made once in a process."""

import gc
import hashlib
import random
import tempfile
from functools import cache
from pathlib import Path

import torch

from bootstrap.genesis import create_run
from peer.compute.calibration import warm_up
from protocol.manifest import Manifest
from tests.reference.processes import TEXT
from tests.world.families import draw
from tests.world.play import MEMORY, Outcome, manifest_of, play
from tests.world.schedule import Schedule, without
from tests.world.standing import drawn_keys


@cache
def _made() -> Path:
    torch.set_num_threads(1)
    return Path(tempfile.mkdtemp(prefix="hetpeer-files-", dir=MEMORY if MEMORY.is_dir() else None))


def files_of(manifest: Manifest) -> Path:
    """The folder with the files of a run of this manifest."""
    folder = _made() / hashlib.sha256(manifest.canonical()).hexdigest()[:16]
    if not folder.exists():
        text = _made() / "text.txt"
        text.write_text(TEXT[:20000], encoding="utf-8")
        with drawn_keys(random.Random(0)):
            create_run(manifest, folder, text)
    return folder


def get_ready() -> None:
    """Compile what is compiled at its first use: processes that begin later have it already. What is here now is never
    garbage, and a world makes little: looking for it all the time takes a tenth of a schedule."""
    warm_up()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def play_schedule(schedule: Schedule) -> Outcome:
    return play(schedule, files_of(manifest_of(schedule)))


def play_seed(seed: int) -> Outcome:
    """Play the schedule of a seed."""
    return play_schedule(draw(seed))


def replay(seed: int) -> int:
    """Play a seed, tell its story, and where it fails, the shortest part of it that fails too."""
    outcome = play_seed(seed)
    print("\n".join((*outcome.schedule.lines(), *outcome.story)))
    print("\n".join(("", f"digest {outcome.digest}", *outcome.objections)))
    if not outcome.objections:
        return 0
    shortest = shrink(outcome.schedule)
    print(
        "\n".join(("", "The shortest part of it that fails:", *shortest.lines(), *play_schedule(shortest).objections))
    )
    return 1


def shrink(schedule: Schedule) -> Schedule:
    """Leave out faults one by one, as long as what is left still fails."""
    at = 0
    while at < len(schedule.faults):
        less = without(schedule, [*schedule.faults[:at], *schedule.faults[at + 1 :]])
        if play_schedule(less).objections:
            schedule = less
        else:
            at += 1
    return schedule
