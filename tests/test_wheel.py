"""The wheel: every module and data file of the packages, the command, one version."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest
from typer.testing import CliRunner

import peer
from peer.cli.__main__ import app

ROOT = Path(__file__).parents[1]
PACKAGES = ("peer", "protocol", "bootstrap")
HARNESS = "tests/chaos"
"""Attackers and faults for developers, which lie beside the packages."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of a copy: builds leave things behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, source)
    for name in (*PACKAGES, HARNESS):
        copytree(ROOT / name, source / name, ignore=ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(out), str(source)], check=True)
    (built,) = out.iterdir()
    return built


def test_it_holds_every_module_and_every_data_file_and_nothing_else(wheel: Path):
    own = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == own


def test_it_holds_nothing_of_the_harness_of_attackers_and_no_module_imports_it(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        held = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert {Path(name).parts[0] for name in held} == set(PACKAGES)
        sources = {name: archive.read(name).decode() for name in held if name.endswith(".py")}
    assert [name for name, source in sources.items() if re.search(r"\btests\.chaos\b|attackers", source)] == []


def test_it_has_the_command_the_licence_and_the_version_of_pyproject(wheel: Path):
    assert wheel.name == f"hetpeer-{PROJECT['version']}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        folder = Path(entry_points).parent.as_posix()
        assert "hetpeer = peer.cli:main" in archive.read(entry_points).decode()
        assert f"{folder}/licenses/LICENSE" in archive.namelist()
        described = message_from_bytes(archive.read(f"{folder}/METADATA"))
    assert described["License-Expression"] == "Apache-2.0"
    assert described["Requires-Python"] == PROJECT["requires-python"]


def test_the_version_is_the_installed_one():
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"hetpeer {peer.version()}\n")
    assert re.match(r"\d+\.\d+\.\d+", peer.version())


def test_the_changelog_keeps_to_its_form():
    text = (ROOT / "CHANGELOG.md").read_text()
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert titles[0].startswith(f"[{PROJECT['version']}] - ")
    assert re.fullmatch(r".* - (unreleased|\d{4}-\d\d-\d\d)", titles[0])
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", title) for title in titles[1:]), titles
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
