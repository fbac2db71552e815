"""examples/docker, really built and run: three rounds in containers, of which one is killed and replaced.

Minutes, most of them to build the image: only with HETPEER_DOCKER=1.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.events.activity import Finished, Joined, Resumed, RoundDone
from protocol.events.event import Event
from protocol.events.lines import from_line
from tests.reference.engine import ROOT, Engine, NoEngineError, engine

ROUNDS = 3
PARTS = ("embedding", "stage-0", "stage-1")
BUILD_OF = ("pyproject.toml", "README.md", "LICENSE", ".dockerignore", "protocol", "bootstrap", "peer", "examples")

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True, slots=True)
class Project:
    """A copy of the repository's `examples/docker`, whose run is short and whose peers print their events."""

    engine: Engine
    folder: Path
    began: float

    def compose(self, *arguments: str) -> str:
        asked = re.search(r"(?m)^PEER_OPTIONS=(.*)$", (self.folder / ".env").read_text())
        assert asked is not None
        peers = {"PEER_OPTIONS": f"{asked[1]} --json", "PIP_NO_INDEX": "1"}
        done = subprocess.run(
            [*self.engine.compose, *arguments],
            cwd=self.folder,
            env=self.engine.environment() | peers,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"compose {arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "-a", "-q", service).split()

    def said(self, container: str) -> list[Event]:
        """All events of a container until now."""
        return [from_line(line) for line in self.engine.docker("logs", container).splitlines() if line[:1] == "{"]

    def fetched(self, container: str, url: str) -> str:
        """What is found there, as seen from inside a container."""
        program = f"from urllib.request import urlopen; print(urlopen({url!r}, timeout=30).read().decode())"
        return self.engine.docker("exec", container, "python", "-c", program)

    def wait_for_round(self, container: str, number: int) -> None:
        """Until a container has ended a round, as it says."""
        command = ["docker", "logs", "--follow", container]
        with subprocess.Popen(command, env=self.engine.environment(), stdout=subprocess.PIPE, text=True) as logs:
            assert logs.stdout is not None
            events = (from_line(line) for line in logs.stdout if line[:1] == "{")
            seen = any(isinstance(event, RoundDone) and event.round >= number for event in events)
            logs.kill()
        assert seen, self.engine.docker("logs", "--tail", "30", container)

    def note(self, what: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s  {what}", flush=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    if os.environ.get("HETPEER_DOCKER") != "1":
        pytest.skip("builds an image and runs six containers, for minutes: set HETPEER_DOCKER=1")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the image has Python 3.11, and its wheels are collected with the Python of this test: use 3.11")
    copy, began = tmp_path_factory.mktemp("docker"), time.monotonic()
    for name in BUILD_OF:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    folder = copy / "examples/docker"
    manifest = (folder / "run.toml").read_text()
    (folder / "run.toml").write_text(re.sub(r"(?m)^rounds = \d+$", f"rounds = {ROUNDS}", manifest))
    try:
        with engine() as found:
            project = Project(found, folder, began)
            project.note(f"the engine is up, with {' '.join(found.compose)}")
            collect_wheels(folder)
            project.note("the wheels are here")
            try:
                yield project
            finally:
                project.compose("down", "--volumes", "--timeout", "5")
                project.note("all is gone")
    except NoEngineError as error:
        pytest.skip(str(error))


def collect_wheels(folder: Path) -> None:
    """All that goes into the image, as examples/docker/README.md says, so that it is built without a network."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder / "wheels")]
    for wanted in sorted(folder.glob("requirements*.txt")):
        subprocess.run([*pip, "-r", str(wanted)], check=True)


def test_a_run_in_containers_goes_on_when_one_is_killed_and_ends_with_equal_digests(project: Project):
    engine = project.engine
    project.compose("build", "bootstrap")  # the image is that of all
    size = int(engine.docker("image", "inspect", "-f", "{{.Size}}", "hetpeer:local")) / 1e9
    project.note(f"the image is built: {size:.2f} GB")
    version = engine.docker("run", "--rm", "--network", "none", "hetpeer:local", "--version")
    assert re.fullmatch(r"hetpeer \d\S*\n", version)

    project.compose("up", "-d", "--no-build")
    project.note("all containers are started")
    bootstrap, first = project.containers("bootstrap")[0], project.containers("stage-1")
    assert engine.docker("inspect", "-f", "{{.State.Health.Status}}", bootstrap).strip() == "healthy"
    assert engine.docker("exec", bootstrap, "id", "-u").strip() == "10001"

    victim = first[0]
    project.wait_for_round(victim, 1)
    project.note("a first round has ended")
    (datacenter,) = project.containers("datacenter")
    assert "hetpeer_round " in project.fetched(datacenter, "http://127.0.0.1:9477/metrics")
    assert "hetpeer_run_round " in project.fetched(datacenter, "http://bootstrap:8080/metrics")
    assert "<html" in project.fetched(bootstrap, "http://127.0.0.1:8080/")
    lost = project.said(victim)
    engine.docker("rm", "--force", victim)
    project.compose("up", "-d", "--no-build")
    (successor,) = set(project.containers("stage-1")) - set(first)
    project.note(f"{victim[:12]} of stage 1 is killed and removed, {successor[:12]} started in its place")

    peers = [each for service in ("stage-0", "stage-1", "datacenter") for each in project.containers(service)]
    assert len(peers) == 5
    codes = engine.docker("wait", *peers).split()
    said = {each: project.said(each) for each in peers}
    assert set(codes) == {"0"}, {each: engine.docker("logs", "--tail", "20", each) for each in peers}
    project.note("all peers have finished")

    (killed,) = [event.peer_id for event in lost if isinstance(event, Joined)]
    assert [event.peer_id for event in said[successor] if isinstance(event, Joined)] == [killed]
    assert any(isinstance(event, Resumed) for event in said[successor])
    finished = [event for events in said.values() for event in events if isinstance(event, Finished)]
    assert [event.rounds for event in finished] == [ROUNDS] * 5
    digests = {part: {event.digests[part] for event in finished if part in event.digests} for part in PARTS}
    assert all(len(values) == 1 for values in digests.values()), digests
    project.note(f"one digest of each part after round {ROUNDS}, wherever it is known: {digests}")

    began = time.monotonic()
    project.compose("stop", "bootstrap")
    assert engine.docker("inspect", "-f", "{{.State.ExitCode}}", bootstrap).strip() == "0"
    assert time.monotonic() - began < 30
    project.note("the bootstrap node has stopped when told to")
