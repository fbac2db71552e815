"""The end of a testnet: what is written, and what is said of it."""

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from peer.telemetry.terminal import TestnetScreen
from peer.testnet.child import TestnetError
from peer.testnet.run import conclude
from tests.peer.telemetry.test_run_report import report


def concluded(folder: Path, failure: str | None) -> str:
    out = io.StringIO()
    screen = TestnetScreen(report(), Console(file=out, width=300, highlight=False))
    screen.report.failure = failure
    options = SimpleNamespace(report=folder / "report.json", directory=folder, compare=False)
    testnet: Any = SimpleNamespace(options=options, screen=screen, directory=folder)
    try:
        asyncio.run(conclude(testnet, None, asyncio.Event()))
    finally:
        assert (folder / "report.json").exists()
    return out.getvalue()


def test_where_the_report_is_stands_below_the_outcome(tmp_path: Path):
    lines = concluded(tmp_path, None).splitlines()
    where = f"The report is in {tmp_path}/report.json, its curve in {tmp_path}/loss.png"
    assert lines.index("outcome: completed") + 1 == lines.index(where)


def test_a_failure_has_its_report_too(tmp_path: Path):
    with pytest.raises(TestnetError, match="it broke"):
        concluded(tmp_path, "it broke")
