"""What many runs say together: records on disk, means and spreads, tables and figures."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from examples.experiments.experiment import Case, Experiment, cases, load_experiment
from examples.experiments.report import write_report
from examples.experiments.results import GONE, RESULTS, Point, Record, Spread, append, of, read_records, rows
from protocol.errors import FormatError

ROOT = Path(__file__).parents[3]
EXPERIMENT = Experiment.model_validate(
    {
        "title": "Two ways",
        "claim": "One is better.",
        "seeds": [1, 2],
        "replicas": 4,
        "x": "replicas.compression",
        "base": {"model": {"preset": "nano"}},
        "grid": [{"mode": "baseline"}, {"mode": ["heterogeneous"], "replicas.compression": [8, 16]}],
    }
)
CASES = cases(EXPERIMENT)


def record(case: Case, through: float, plain: float) -> Record:
    replicas = case.manifest.replicas
    return Record(
        id=case.id,
        axes=case.axes,
        seed=case.seed,
        replicas=replicas.total,
        groups=replicas.groups,
        curve=[Point(1000, through + 1, plain + 1), Point(2000, through, plain)],
        boundary_bytes=2.0 * case.manifest.k if replicas.groups else 0.0,
        outer_bytes=5000.0,
        seconds=2.0,
        tokens_per_second=1000.0,
        peak=0.25,
        manifest=case.manifest.model_dump(mode="json"),
        switches=case.switches.model_dump(mode="json"),
    )


def all_records() -> list[Record]:
    """Seed 2 is harder than seed 1 by one nat for everybody; compression costs a tenth, then two."""
    cost = {None: 0.0, 8: 0.1, 16: 0.2}
    made = []
    for case in CASES:
        plain = 3.0 + case.seed
        made.append(record(case, plain + 2 * cost[case.axes.get("replicas.compression")], plain))
    return made


def test_what_is_appended_is_read_again(tmp_path: Path):
    for each in all_records():
        append(tmp_path, each)
    assert read_records(tmp_path) == all_records()


def test_a_run_from_before_an_option_is_the_one_with_its_default(tmp_path: Path):
    (case, *_), (made, *_) = CASES, all_records()
    made.switches.pop("grassmann")
    made.manifest["outer"].pop("overlap")
    append(tmp_path, replace(made, id="of old"))
    assert of([case], read_records(tmp_path)).keys() == {case.id}


def test_a_run_at_which_an_option_that_is_gone_changed_nothing_is_the_one_without_it(tmp_path: Path):
    (case, *_), (made, *_) = CASES, all_records()
    append(tmp_path, replace(made, id="of old", switches=made.switches | GONE))
    assert of([case], read_records(tmp_path)).keys() == {case.id}


@pytest.mark.parametrize("switches", [{"quantum": True}, {"late": 1}, {"values": "sign"}], ids=str)
def test_a_run_with_an_option_that_is_gone_counts_nowhere(tmp_path: Path, switches: dict):
    append(tmp_path, replace(all_records()[0], id="of old", switches=switches))
    assert of(CASES, read_records(tmp_path)) == {}
    assert read_records(tmp_path)[0].id == "of old"


def test_a_line_that_was_cut_short_does_not_count_and_another_broken_one_is_an_error(tmp_path: Path):
    append(tmp_path, all_records()[0])
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"id": "half')
    assert len(read_records(tmp_path)) == 1
    with (tmp_path / RESULTS).open("a") as file:
        file.write(" a line\n")
    with pytest.raises(FormatError, match="line 2"):
        read_records(tmp_path)


def test_the_loss_of_the_replicas_is_the_mean_over_all_each_as_it_runs():
    mixed = record(CASES[1], through=4.0, plain=3.0)
    assert (mixed.groups, mixed.replicas) == (2, 4)
    assert mixed.loss("replicas") == pytest.approx(3.5)
    assert (mixed.loss("through"), mixed.loss("plain")) == (4.0, 3.0)


def test_a_spread_is_the_mean_and_the_deviation_of_a_sample():
    assert Spread.over([1.0, 2.0, 4.0]) == Spread(7 / 3, pytest.approx(math.sqrt(7 / 3)), 3)
    assert str(Spread.over([1.0])) == "1.000"


def test_differences_are_taken_seed_by_seed_so_that_hard_seeds_do_not_blur_them():
    first, *others = rows(EXPERIMENT, CASES, of(CASES, all_records()))
    assert first.more is None
    assert first.loss.deviation == pytest.approx(math.sqrt(0.5))
    assert [each.more for each in others] == [
        Spread(pytest.approx(0.1), pytest.approx(0.0, abs=1e-12), 2),
        Spread(pytest.approx(0.2), pytest.approx(0.0, abs=1e-12), 2),
    ]


def test_a_curve_has_the_points_at_which_every_seed_was_evaluated():
    records = of(CASES, all_records())
    second = next(case.id for case in CASES if case.seed == 2)
    records[second] = replace(records[second], curve=records[second].curve[1:])
    first, *others = rows(EXPERIMENT, CASES, records)
    assert [tokens for tokens, _ in first.curve] == [2000]
    assert [tokens for tokens, _ in others[0].curve] == [1000, 2000]


def test_combinations_that_are_one_run_are_run_once_and_have_a_row_each():
    grid = [{"mode": "baseline"}, {"label": "the same", "mode": "baseline"}]
    twice = EXPERIMENT.model_copy(update={"grid": grid})
    asked = cases(twice)
    assert len(asked) == 4
    assert len({case.id for case in asked}) == 2
    records = [record(case, 3.0, 3.0) for case in asked[::2]]
    assert [row.name() for row in rows(twice, asked, of(asked, records))] == ["baseline", "the same"]


def test_a_label_names_its_row_and_axes_only_tell_those_of_one_label_apart():
    grid = [
        {"label": "the paper's", "mode": "uniform", "replicas.compression": [8, 16], "outer.beta": 0.9},
        {"mode": "uniform", "replicas.compression": 8},
    ]
    labelled = EXPERIMENT.model_copy(update={"grid": grid, "seeds": [1]})
    asked = cases(labelled)
    found = rows(labelled, asked, of(asked, [record(case, 3.0, 3.0) for case in asked]))
    assert [row.name() for row in found] == [
        "the paper's, compression 8",
        "the paper's, compression 16",
        "uniform, compression 8",
    ]
    assert [row.name("replicas.compression") for row in found] == ["the paper's", "the paper's", "uniform"]


def test_records_of_another_experiment_do_not_count():
    strangers = [replace(each, id="other") for each in all_records()]
    assert rows(EXPERIMENT, CASES, of(CASES, strangers)) == []


def test_the_report_has_a_table_along_the_axis_and_its_figures(tmp_path: Path):
    for each in all_records():
        append(tmp_path, each)
    written = write_report(EXPERIMENT, CASES, tmp_path, tmp_path / "two-ways")
    assert [path.name for path in written] == ["results.md", "curves.png", "by-compression.png", "boundary-bytes.png"]
    assert all(path.stat().st_size > 500 for path in written)
    text = written[0].read_text()
    assert "6 of 6 runs, seeds 1, 2" in text
    assert "The claim: One is better." in text
    assert "| compression | 8 | 16 |" in text
    assert "| baseline | 4.500 ± 0.707 | 4.500 ± 0.707 |" in text
    assert "| heterogeneous | 4.600 ± 0.707 (+0.100 ± 0.000) | 4.700 ± 0.707 (+0.200 ± 0.000) |" in text


def test_a_report_of_nothing_says_so(tmp_path: Path):
    (path,) = write_report(EXPERIMENT, CASES, tmp_path, tmp_path / "two-ways")
    assert "0 of 6 runs" in path.read_text()


@pytest.mark.parametrize(
    "experiment",
    [
        "paper/table1",
        "paper/table2",
        "paper/table4",
        "paper/table5",
        "beyond/outer-best",
    ],
)
def test_what_the_documents_tell_is_still_what_these_experiments_ask(experiment: str):
    asked = cases(load_experiment(ROOT / f"examples/{experiment}.toml", "small"))
    assert len(of(asked, read_records(ROOT / "docs/results"))) == len({case.id for case in asked})
