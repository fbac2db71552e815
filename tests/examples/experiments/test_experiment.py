"""Experiments as files: what grid they say, at which scale, and what is wrong with them."""

from pathlib import Path

import pytest

from examples.experiments.experiment import PAPER, Case, cases, load_experiment
from protocol.errors import ManifestError
from protocol.layout import operations_per_token
from protocol.manifest import check_manifest

ROOT = Path(__file__).parents[3]
RUNS = ("docker", "first-run", "runs")
"""Folders of the examples that are no experiments, but manifests of runs."""

EXAMPLES = sorted((ROOT / "examples").glob("*/*.toml"))
EXPERIMENTS = [path for path in EXAMPLES if path.parent.name not in RUNS]

TEXT = """
title = "Does it matter?"
seeds = [1, 2]
replicas = 4
x = "replicas.compression"

[base.model]
preset = "nano"

[base.outer]
rounds = 7

[[grid]]
mode = "baseline"

[[grid]]
mode = ["uniform", "heterogeneous"]
"replicas.compression" = [8, 16]
"lab.values" = "exact"

[scale.small]
seeds = [5]
replicas = 2
evaluate_every = 3

[scale.small.base.model]
layers = 2

[scale.small.axes]
"replicas.compression" = [4]
"""


def written(folder: Path, text: str = TEXT) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text)
    return path


def found(folder: Path, scale: str = PAPER, text: str = TEXT) -> list[Case]:
    return cases(load_experiment(written(folder, text), scale))


def test_a_grid_is_every_combination_for_every_seed_all_of_one_seed_first(tmp_path: Path):
    all_cases = found(tmp_path)
    assert [case.seed for case in all_cases] == [1] * 5 + [2] * 5
    assert [case.axes for case in all_cases[:5]] == [
        {"mode": "baseline"},
        {"mode": "uniform", "replicas.compression": 8, "lab.values": "exact"},
        {"mode": "uniform", "replicas.compression": 16, "lab.values": "exact"},
        {"mode": "heterogeneous", "replicas.compression": 8, "lab.values": "exact"},
        {"mode": "heterogeneous", "replicas.compression": 16, "lab.values": "exact"},
    ]


def test_a_mode_says_which_replicas_are_groups_of_volunteers(tmp_path: Path):
    by_mode = {case.axes["mode"]: case.manifest.replicas for case in found(tmp_path)}
    assert {mode: (each.groups, each.datacenters) for mode, each in by_mode.items()} == {
        "baseline": (0, 4),
        "uniform": (4, 0),
        "heterogeneous": (2, 2),
    }


def test_axes_reach_the_manifest_and_the_switches(tmp_path: Path):
    case = found(tmp_path)[2]
    assert (case.manifest.replicas.compression, case.manifest.run.seed) == (16, 1)
    assert (case.switches.values, case.manifest.outer.rounds) == ("exact", 7)
    assert case.name == "uniform, compression 16, values exact, seed 1"


def test_a_scale_replaces_seeds_replicas_tables_and_the_lists_of_axes(tmp_path: Path):
    small = found(tmp_path, "small")
    assert [(case.seed, case.axes.get("replicas.compression")) for case in small] == [(5, None), (5, 4), (5, 4)]
    assert {case.manifest.replicas.total for case in small} == {2}
    assert {case.evaluate_every for case in small} == {3}
    assert {(case.manifest.model.layers, case.manifest.model.d) for case in small} == {(2, 128)}


def test_the_number_of_inner_steps_may_be_given_for_all_instead_of_rounds(tmp_path: Path):
    text = TEXT.replace("replicas = 4", "replicas = 4\nsteps = 120").replace(
        '"lab.values" = "exact"', '"inner.steps" = [10, 40]'
    )
    assert {(case.manifest.inner.steps, case.manifest.outer.rounds) for case in found(tmp_path, text=text)} == {
        (50, 2),
        (10, 12),
        (40, 3),
    }


def test_what_is_computed_names_a_run_and_not_how_it_is_called(tmp_path: Path):
    plain = found(tmp_path)
    labelled = found(tmp_path, text=TEXT.replace('mode = "baseline"', 'label = "nobody compressed"\nmode = "baseline"'))
    assert [case.id for case in plain] == [case.id for case in labelled]
    assert len({case.id for case in plain}) == len(plain)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('mode = "baseline"', 'mode = "homogeneous"', "mode is one of baseline, uniform, heterogeneous"),
        ('"lab.values" = "exact"', '"lab.value" = "exact"', "lab.value"),
        ('"lab.values" = "exact"', '"values" = "exact"', "values is neither mode, nor label, nor table.field"),
        ("[8, 16]", "[8, 7]", "compression = 7 must divide"),
        ("rounds = 7", "round = 7", "outer.round"),
        ("title = ", "titel = ", "title"),
        ("seeds = [1, 2]", "seeds = []", "seeds"),
        ("seeds = [1, 2]", "seeds = [1, 2", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, says: str):
    with pytest.raises(ManifestError, match=says):
        found(tmp_path, text=TEXT.replace(old, new))


def test_a_scale_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path: Path):
    with pytest.raises(ManifestError, match="no scale 'large'; it has paper, small"):
        load_experiment(written(tmp_path), "large")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_example_can_be_run_at_both_scales(path: Path):
    for scale in (PAPER, "small"):
        experiment = load_experiment(path, scale)
        asked = cases(experiment)
        assert len(experiment.seeds) >= 3 or (path.stem, scale) in SCREENINGS
        assert len({(case.id, case.seed) for case in asked}) == len(asked) >= 6
    assert sum(_hours(case) for case in asked) < 2.5


SCREENINGS = {(name, "small") for name in ("muon-rates",)}
"""What only looks for what to run with three seeds, as `outer-best.toml` was."""

SMALL_TOKENS_PER_HOUR = 60e6
"""Of the `mini` model on two cores; only to keep the examples honest about "about an hour"."""


def _hours(case: Case) -> float:
    """On two cores; a smaller model takes fewer operations a token."""
    manifest, mini = case.manifest, check_manifest({"model": {"preset": "mini"}})
    tokens = manifest.tokens_per_step * manifest.inner.steps * manifest.outer.rounds * manifest.replicas.total
    return tokens * operations_per_token(manifest) / operations_per_token(mini) / SMALL_TOKENS_PER_HOUR
