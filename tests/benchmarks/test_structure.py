"""The figures of a small product that has one of everything."""

from pathlib import Path

import pytest

from benchmarks.structure import measure

PROGRAM = '''
import asyncio
from protocol.wire import Frame, helper

class Frame: ...

def run():
    loop = asyncio.get_running_loop()
    return _once(), _twice(), _twice(), asyncio.create_task(_long()), loop.create_task(_long()), list(map(_given, []))

async def grouped():
    async with asyncio.TaskGroup() as group:
        group.create_task(_long())

def _once():
    """Has a docstring
    of two lines."""
    return 1

def _twice(): ...

def _given(): ...

def _long():
    ...
'''


@pytest.fixture
def figures(tmp_path: Path) -> dict[str, object]:
    for package in ("protocol", "peer", "bootstrap"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "protocol/wire.py").write_text("from protocol import low\nclass Frame: ...\n")
    (tmp_path / "protocol/low.py").touch()
    (tmp_path / "protocol/wire_pb2.py").write_text("class Frame: ...\n")
    (tmp_path / "peer/program.py").write_text(PROGRAM)
    return measure(tmp_path)


def test_each_figure_counts_what_it_says(figures: dict[str, object]):
    assert figures == {
        "files": 6,
        "lines": len(PROGRAM.splitlines()) + 2,
        "type names with several meanings": {"Frame": ["protocol.wire", "peer.program"]},
        "modules with one importer, under 80 lines": {"protocol.wire": "peer.program", "protocol.low": "protocol.wire"},
        "single-use private functions under six lines": ["peer.program:15 _once"],
        "import depth": ["peer.program", "protocol.wire", "protocol.low"],
        "bare tasks": ["peer.program:9", "peer.program:9"],
    }
