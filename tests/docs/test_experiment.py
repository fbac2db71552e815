"""The experiment that the researcher's guide shows is one."""

from pathlib import Path

from examples.experiments.experiment import cases, load_experiment
from tests.docs.pages import BLOCK, ROOT


def test_its_grid_makes_runs(tmp_path: Path):
    blocks = BLOCK.finditer((ROOT / "docs/researcher.md").read_text(encoding="utf-8"))
    shown = next(block["text"] for block in blocks if block["kind"] == "toml")
    (tmp_path / "shown.toml").write_text(shown)
    found = cases(load_experiment(tmp_path / "shown.toml", "paper"))
    assert len(found) == 3 * 4 * 3
    assert {case.manifest.outer.rounds for case in found} == {80, 40, 20, 10}
