"""Play schedules: `python -m tests.world --schedules 1000 --seed 0 --processes 2`, or one again: `--replay SEED`."""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

if os.environ.get("PYTHONHASHSEED") != "0":  # sets of texts have the same order in every run of a schedule
    again = [sys.executable, "-m", "tests.world", *sys.argv[1:]]
    os.execve(sys.executable, again, os.environ | {"PYTHONHASHSEED": "0"})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100, help="how many seeds to play")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--seeds", type=int, nargs="+", help="these seeds, instead")
    parser.add_argument("--processes", type=int, default=1, help="how many at once")
    parser.add_argument("--first", action="store_true", help="stop at the first that fails")
    parser.add_argument("--replay", type=int, help="play one seed, tell its story, and shrink it if it fails")
    options = parser.parse_args()
    from tests.world.runs import get_ready, play_seed, replay

    if options.replay is not None:
        return replay(options.replay)
    get_ready()  # once, before there are processes
    began, failed = time.perf_counter(), 0
    seeds = options.seeds or range(options.seed, options.seed + options.schedules)
    with ProcessPoolExecutor(options.processes) as pool:
        for done in as_completed([pool.submit(play_seed, seed) for seed in seeds]):
            outcome = done.result()
            if outcome.objections:
                failed += 1
                print(f"seed {outcome.schedule.seed} ({outcome.digest}, {outcome.seconds:.0f} s):", flush=True)
                for objection in outcome.objections:
                    print(f"    {objection}", flush=True)
                if options.first:
                    pool.shutdown(cancel_futures=True)
                    break
    first, last = min(seeds), max(seeds)
    took = time.perf_counter() - began
    print(f"{len(seeds)} schedules (seeds {first} to {last}) in {took:.0f} s, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
