"""Run many schedules, or one: `python -m tests.simulation --schedules 100000`, `python -m tests.simulation --replay 7`,
`python -m tests.simulation --mutants 3000` looks for the first seed that kills each planted error."""

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta

from tests.simulation.mutants import MUTANTS, first_kill
from tests.simulation.properties import run
from tests.simulation.schedule import Schedule, draw
from tests.simulation.shrink import shrink

BATCH = 500


def problems(schedule: Schedule) -> list[str]:
    """What is wrong after a schedule; an exception is."""
    try:
        return run(schedule)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def run_batch(seeds: range) -> list[int]:
    """The seeds that fail."""
    gc.set_threshold(100_000)  # a world is one web of references, and short-lived
    return [seed for seed in seeds if problems(draw(seed))]


def batches(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, BATCH):
        yield range(start, min(start + BATCH, first + count))


def run_many(first: int, count: int, processes: int, minutes: float) -> list[int]:
    """Progress on one line, a summary on the next."""
    began, done, failing = time.monotonic(), 0, list[int]()
    with ProcessPoolExecutor(processes) as pool:
        todo = list(batches(first, count))
        for wave in range(0, len(todo), 8 * processes):
            if time.monotonic() - began > 60 * minutes:
                break
            here = todo[wave : wave + 8 * processes]
            failing += [seed for seeds in pool.map(run_batch, here) for seed in seeds]
            done += sum(map(len, here))
            rate = done / (time.monotonic() - began)
            left = timedelta(seconds=round((count - done) / rate))
            print(
                f"seeds {first} to {first + done - 1} done, {rate:.0f} a second, {left} left, "
                f"{len(failing)} failing {failing[:5]}",
                flush=True,
            )  # to go on: --seed
    print(f"seeds {first} to {first + done - 1}: {done} schedules, {len(failing)} failing: {failing[:20]}")
    return failing


def replay(seed: int) -> list[str]:
    """One schedule, and if it fails the least of it that does."""
    schedule = draw(seed)
    wrong = problems(schedule)
    print(schedule, *wrong, sep="\n")
    if wrong:
        least = shrink(schedule, lambda smaller: bool(problems(smaller)))
        print("\nthe least of it that fails:", least, *problems(least), sep="\n")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many to run")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop when so many have passed")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one schedule; if it fails, make it small")
    parser.add_argument("--mutants", type=int, metavar="SEEDS", help="search for the seeds that kill the mutants")
    options = parser.parse_args()
    if options.replay is not None:
        return bool(replay(options.replay))
    if options.mutants:
        with ProcessPoolExecutor(options.processes) as pool:
            seeds = [range(options.seed, options.seed + options.mutants)] * len(MUTANTS)
            for mutant, seed in zip(MUTANTS, pool.map(first_kill, MUTANTS, seeds), strict=True):
                print(f"| {mutant} | {seed} |", flush=True)
        return 0
    return bool(run_many(options.seed, options.schedules, options.processes, options.minutes))


if __name__ == "__main__":
    sys.exit(main())
