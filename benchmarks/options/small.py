"""The option `--small`, which every benchmark has that a page quotes: the test suite runs each with it."""

import argparse
import sys
from typing import Any


def sized_arguments(parser: argparse.ArgumentParser, **smallest: Any) -> argparse.Namespace:
    """Parse the command line. With `--small`, options that it does not name have the `smallest` sizes that make sense
    instead of their defaults; the others keep these. Such a run shows that the script works, no more."""
    parser.add_argument("--small", action="store_true", help="the smallest sizes: does it run?")
    if "--small" in sys.argv[1:]:
        parser.set_defaults(**smallest)
    return parser.parse_args()
