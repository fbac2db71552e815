"""Whatever a certified caller sends, or a newcomer at the door, handlers answer or refuse; none raises anything else.

`HETPEER_FUZZ_SECONDS=600` goes on for so long (`make fuzz` does).
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from tests.fuzz.hostile import METHODS, Call, Town, town

SECONDS = float(os.environ.get("HETPEER_FUZZ_SECONDS", "0"))
MIB = 2**20

every_method = pytest.mark.parametrize("path", METHODS)


class Here:
    """A town on a loop that runs whenever a test does something."""

    def __init__(self, runner: asyncio.Runner, town: Town) -> None:
        self.runner, self.town, self.ended = runner, town, Counter[tuple[str, str]]()

    def attempt(self, call: Call) -> None:
        code = self.runner.run(self.town.attempt(call))
        self.ended[call.path, code.name] += 1


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    with asyncio.Runner() as runner:
        made = town(tmp_path_factory.mktemp("town"))
        yield Here(runner, runner.run(made.__aenter__()))
        runner.run(made.__aexit__(None, None, None))


@every_method
def test_a_hostile_call_is_answered_or_refused(here: Here, path: str):
    @settings(max_examples=40)
    @given(call=here.town.calls(path))
    def attempt(call: Call) -> None:
        here.attempt(call)

    attempt()
    here.runner.run(here.town.assert_up())
    print(sorted(here.ended.items()))
