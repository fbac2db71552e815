"""A Docker engine to run containers with: the one that is running, or one of our own, with the base image in it."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "examples/docker/Dockerfile"

START_SECONDS = 60
STOP_SECONDS = 30


class NoEngineError(Exception):
    """There is none here, and none can be started; why, and what would help."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Where the engine listens ("" is the usual place), and which program Compose is."""

    host: str
    compose: tuple[str, ...]

    def environment(self) -> dict[str, str]:
        return dict(os.environ) | ({"DOCKER_HOST": self.host} if self.host else {})

    def docker(self, *arguments: str) -> str:
        """What `docker` prints; that it fails is an error."""
        return _output(["docker", *arguments], self.environment())

    def try_docker(self, *arguments: str) -> bool:
        return subprocess.run(["docker", *arguments], env=self.environment(), capture_output=True).returncode == 0


@contextmanager
def engine() -> Iterator[Engine]:
    """An engine that has the image that the Dockerfile begins from.

    Raises:
        NoEngineError: there is none.
    """
    if shutil.which("docker") is None:
        raise NoEngineError("docker is not installed (Debian: apt-get install docker.io docker-compose)")
    with ExitStack() as stack:
        host = "" if Engine("", ()).try_docker("info") else stack.enter_context(_own())
        found = Engine(host, _compose())
        _have_base(found)
        yield found


@contextmanager
def _own() -> Iterator[str]:
    """An engine in a network namespace and a folder of its own, which are gone afterwards: where it listens."""
    missing = [name for name in ("dockerd", "ip", "iptables", "unshare") if shutil.which(name) is None]
    if missing or os.geteuid():
        lack = f"{', '.join(missing)} not installed" if missing else "one of our own takes root"
        raise NoEngineError(f"no Docker engine is running here, and none can be started: {lack}")
    folder = Path(tempfile.mkdtemp(prefix="docker-"))  # paths of sockets must be short
    host, log = f"unix://{folder}/sock", folder / "log"
    options = f"--data-root {folder}/data --exec-root {folder}/run --pidfile {folder}/pid -H {host} --bip 10.90.0.1/24"
    command = f"ip link set lo up && exec dockerd {options} --storage-driver overlay2 --oom-score-adjust 0"
    with log.open("wb") as out:
        daemon = subprocess.Popen(["unshare", "--net", "sh", "-c", command], stdout=out, stderr=out)
    try:
        ends = time.monotonic() + START_SECONDS
        while not Engine(host, ()).try_docker("info"):
            if daemon.poll() is not None or time.monotonic() > ends:
                last = log.read_text(errors="replace").splitlines()[-1:]
                raise NoEngineError(f"dockerd does not start here: {' '.join(last)}")
            time.sleep(0.1)
        yield host
    finally:
        daemon.terminate()
        try:
            daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mounted in sorted((each for each in mounts if each.startswith(f"{folder}/")), reverse=True):
            subprocess.run(["umount", mounted], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def base_image() -> str:
    """What the Dockerfile begins from."""
    found = re.search(r"^ARG PYTHON=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert found is not None
    return f"python:{found.group(1)}"


def _have_base(engine: Engine) -> None:
    """Where the image cannot be pulled, one is made of Debian's packages: the same system, and its Python 3.11."""
    name = base_image()
    if engine.try_docker("image", "inspect", name) or engine.try_docker("pull", name):
        return
    if shutil.which("mmdebstrap") is None:
        raise NoEngineError(
            f"the image {name} cannot be pulled, and mmdebstrap, which could make one, is not installed"
        )
    with tempfile.TemporaryDirectory() as folder:
        archive = f"{folder}/base.tar"
        packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
        link = '--customize-hook=ln -s python3 "$1/usr/bin/python"'
        made = subprocess.run(
            ["mmdebstrap", "--variant=minbase", packages, link, "bookworm", archive], capture_output=True, text=True
        )
        if made.returncode:
            raise NoEngineError(f"{name} cannot be pulled, and mmdebstrap made none: {made.stderr[-500:]}")
        engine.docker("import", "--change", 'CMD ["python3"]', archive, name)


def _compose() -> tuple[str, ...]:
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ("docker", "compose")
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    raise NoEngineError("Compose is not installed (Debian: apt-get install docker-compose)")


def _output(command: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout
