"""Memory stays bounded, whatever lengths an input claims: 64 MiB are enough for every reader and every bomb.
(A packed archive of texts may take more: its bound is 128 MiB.)"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.readers import READERS

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_no_reader_takes_much_memory_because_an_input_says_so():
    ended = subprocess.run([sys.executable, "-m", "tests.fuzz.memory"], capture_output=True, text=True, cwd=ROOT)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [line["reader"] for line in lines] == list(READERS), ended.stderr[-2000:]
    assert [line for line in lines if line["broke"]] == []
    assert all(line["bombs"] >= 10 for line in lines)
