"""What a volunteer meets when something is wrong: one line that says what, where, and what to do."""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.genesis import create_run
from protocol.run.run_files import descriptor_of
from protocol.trust.ticket import Ticket
from tests.reference.admitted import identity
from tests.reference.processes import HETPEER, RUN, SECONDS, hetpeer, serving
from tests.reference.small_manifest import small_manifest


@pytest.fixture(scope="module")
def ticket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ticket]:
    """A run that is being served."""
    with serving(RUN.format(datacenters=1, sequences=2), tmp_path_factory.mktemp("run") / "small") as ticket:
        yield ticket


@pytest.fixture
def fails(tmp_path: Path) -> Callable[..., str]:
    """Run a command that fails; what it says, which is one line. `as_typed`: begun as a person begins it, so that what
    it imports may speak too."""

    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}

    def run(*arguments: str, code: int, as_typed: bool = False) -> str:
        given = [*arguments, *(["--dir", str(tmp_path / "peer")] if arguments[0] != "testnet" else [])]
        if as_typed:
            command = [*HETPEER, *given]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
        else:
            done = hetpeer(*given)
        assert done.returncode == code, done.stdout + done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        return done.stderr

    return run


def test_a_wrong_ticket(fails: Callable[..., str], ticket: Ticket):
    assert "this is no hetpeer ticket" in fails("join", "hello", code=2)
    assert "damaged or cut short: copy it whole" in fails("join", str(ticket)[:-6], code=2)
    assert "no ticket: give it as an argument, a file, or in HETPEER_TICKET" in fails("join", code=2)


def test_a_bootstrap_node_that_is_not_there(fails: Callable[..., str], ticket: Ticket):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    said = fails("join", str(replace(ticket, node_addresses=(address,))), code=5, as_typed=True)
    assert f"the run's bootstrap node at {address} does not answer: is it up" in said
    assert "refused" in said


def test_a_libp2p_address_that_is_not_there(fails: Callable[..., str], ticket: Ticket):
    address = "/ip4/127.0.0.1/tcp/9/p2p/" + ticket.addresses[0].rsplit("/", 1)[1]
    said = fails("join", str(replace(ticket, addresses=(address,))), code=5)
    assert f"no bootstrap node answered; tried {address}" in said


def test_a_stage_out_of_range(fails: Callable[..., str], ticket: Ticket):
    said = fails("join", str(ticket), "--stage", "7", code=2)
    assert "there is no stage 7: this run's stages are 0 to 1" in said


def test_another_manifest_than_the_runs(fails: Callable[..., str], ticket: Ticket, tmp_path: Path):
    (tmp_path / "other.toml").write_text(RUN.format(datacenters=1, sequences=2) + "steps = 7\n")
    said = fails("join", str(ticket), "--stage", "1", "--manifest", str(tmp_path / "other.toml"), code=3)
    assert "inner.steps: ours is 7, theirs is 50" in said


def test_a_folder_that_belongs_to_another_run(fails: Callable[..., str], ticket: Ticket, tmp_path: Path):
    (tmp_path / "peer").mkdir()
    (tmp_path / "text.txt").write_text("Some words of a small text, again and again.\n" * 200)
    other = create_run(small_manifest(), tmp_path / "other", tmp_path / "text.txt")
    descriptor = descriptor_of(other.manifest, identity("operator").peer_id, other.files)
    (tmp_path / "peer" / "run.json").write_bytes(descriptor.canonical())
    assert "holds another run's files; give this run a folder of its own with --dir" in fails(
        "join", str(ticket), "--stage", "1", code=4
    )


def test_a_port_that_is_taken(fails: Callable[..., str], ticket: Ticket):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = fails("join", str(ticket), "--stage", "1", "--listen", address, code=4, as_typed=True)
    assert f"cannot listen on {address}: the port is taken" in said


def test_a_device_that_is_missing(fails: Callable[..., str], ticket: Ticket):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    said = fails("join", str(ticket), "--stage", "1", "--device", "cuda", code=4)
    assert "this machine has no cuda device that PyTorch can use; it has: cpu" in said


def test_too_little_memory_for_the_stage(fails: Callable[..., str], tmp_path: Path):
    with serving(RUN.format(datacenters=1, sequences=2**13), tmp_path / "large") as ticket:
        said = fails("join", str(ticket), "--stage", "1", "--device", "cpu", code=4)
    assert "not enough memory for stage 1: it needs" in said
    assert "are free; end other programs" in said


def test_options_that_do_not_fit_together(fails: Callable[..., str]):
    assert "stages = 9 is more than model.layers = 4" in fails("testnet", "--stages", "9", code=3)
    assert "unknown preset 'huge'; there are pico, nano" in fails("testnet", "--preset", "huge", code=3)
