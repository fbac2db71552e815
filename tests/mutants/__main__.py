"""Plant mistakes in a copy of the tree, one at a time, and see that each is found: `python -m tests.mutants`."""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.mutants.planting import LIMIT_SECONDS, WORLD, Copy, Found, Mistake, all_mistakes

SECONDS_OF_A_SEED = 12
"""What a schedule may take of a processor, at most: some of those in which a mistake is planted run long."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a mistake's name or file; none: all")
    parser.add_argument("--list", action="store_true", help="name the mistakes, and try none out")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="look for each with N seeds of the simulated world, instead"
    )
    parser.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="the first of these seeds")
    parser.add_argument("--json", action="store_true", help="print what came of it as JSON")
    options = parser.parse_args()
    mistakes = [
        mistake
        for mistake in all_mistakes()
        if not options.names or any(name in mistake.name or name in mistake.file for name in options.names)
    ]
    if not mistakes:
        parser.error("no mistake has such a name: --list names them")
    if options.list:
        print("\n".join(f"{mistake.name}  ({mistake.file}; {mistake.killed_by})" for mistake in mistakes))
        return 0
    if options.seeds:
        played = f"{WORLD}--seed {options.first_seed} --schedules {options.seeds} --first"
        mistakes = [replace(each, killed_by=played) for each in mistakes]
    found = try_out(mistakes, SECONDS_OF_A_SEED * (options.seeds or 0), quiet=options.json)
    if options.json:
        print(json.dumps([as_json(each) for each in found], indent=1))
    return int(any(each.outcome != "killed" for each in found))


def try_out(mistakes: list[Mistake], seconds: int, quiet: bool) -> list[Found]:
    """Try mistakes out one after the other, with a line for each unless `quiet`. Each may take `LIMIT_SECONDS`, or
    `seconds` where these are more."""
    found = []
    with tempfile.TemporaryDirectory(prefix="hetpeer-mutants-") as folder:
        (tree := Path(folder) / "tree").mkdir()
        copy = Copy.of_tree(tree)
        for mistake in mistakes:
            found.append(copy.try_out(mistake, max(seconds, LIMIT_SECONDS)))
            if not quiet:
                print(line(found[-1]), flush=True)
    if not quiet:
        killed = sum(each.outcome == "killed" for each in found)
        print(f"{killed} of {len(found)} mistakes were found, in {sum(each.seconds for each in found):.0f} s")
    return found


def line(found: Found) -> str:
    """One row of the table: the mistake, what found it, and the seconds that took."""
    by = found.by if found.outcome == "killed" else f"{found.outcome.upper()}: {found.by}"
    return f"{found.mistake.name:60}  {by}  {found.seconds:.1f} s"


def as_json(found: Found) -> dict[str, object]:
    """The same as a JSON object."""
    return {
        "name": found.mistake.name,
        "file": found.mistake.file,
        "outcome": found.outcome,
        "by": found.by,
        "seconds": round(found.seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
