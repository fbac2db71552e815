"""A peer of the benchmark of an outer round that ends before its time is told with its own words."""

import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("told", [False, True])
def test_a_peer_that_ends_before_its_time_is_told_with_its_exit_code_and_what_it_said_last(
    monkeypatch: pytest.MonkeyPatch, told: bool
):
    """Whether it is heard or spoken to next."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from outer_round import Peer

    words = "import sys; print('{}', flush=True); sys.stderr.write('line\\n' * 20 + 'why'); sys.exit(3)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with tempfile.TemporaryFile("w+") as said, suppress(BrokenPipeError):
        process = subprocess.Popen([sys.executable, "-c", words], **pipes, stderr=said, text=True)  # type: ignore[call-overload]
        peer = Peer("averager", process, said)
        assert peer.answer() == {}
        process.wait()
        with process, pytest.raises(SystemExit) as ended:  # what it did not hear cannot be sent at the end, either
            peer.tell("go on") if told else peer.answer()
    first, *others = str(ended.value).splitlines()
    assert first == "a peer of averager ended before its time, exit code 3; it said:"
    assert others == ["line"] * 19 + ["why"]
