"""`hetpeer plan`, as a user types it; and what a dry run says that a run would ask of who joins it."""

import json
import re
from pathlib import Path

import pytest

from peer.cli.plan import PlanOptions, dry_run, seats, show_plan
from peer.planning.memory import Duty, memory_of
from peer.planning.welcome import bytes_of_a_round
from peer.process import Terminal
from protocol import manifest as manifests
from protocol.events.activity import Failed, Progress
from protocol.events.event import Event
from protocol.layout import operations_per_token, parameter_count
from protocol.manifest import Manifest
from protocol.wording import abbreviated
from tests.reference.small_manifest import small_manifest

HOME = PlanOptions(teraflops=1.0)


def said(options: PlanOptions, capsys: pytest.CaptureFixture[str], json: bool = False) -> tuple[int, str, list[Event]]:
    events: list[Event] = []
    code = show_plan(options, Terminal(events.append, json=json))
    return code, capsys.readouterr().out, events


def test_a_table_shows_each_k_and_a_sentence_what_to_do(capsys: pytest.CaptureFixture[str]):
    code, out, _ = said(HOME, capsys)
    assert code == 0
    assert "512.4 million parameters in 4 stages" in out
    assert "→ 2" in out
    assert "frames in int4" in out.replace("\n", " ")
    words = " ".join(out.split())
    assert "A round moves" in words
    assert "an upper estimate for any machine, with 490.0 MB for the process itself" in words
    assert re.search(r"The run's 100 rounds take [\d.]+ (h|days), and move .* down; a day of it, .* up and", words)


def test_a_program_reads_a_row_for_each_k(capsys: pytest.CaptureFixture[str]):
    code, out, _ = said(HOME, capsys, json=True)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["compression"] for row in rows] == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]
    shares = [row["step_utilization"] for row in rows]
    assert shares == sorted(shares)
    assert all(0 < row["utilization"] <= row["step_utilization"] <= 1 for row in rows)


def test_an_operator_is_told_what_overlapping_steps_would_gain_until_the_run_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run, inner = tmp_path / "run.toml", "[inner]\nsequences = 8\nmicrobatch = 1\n"
    options = PlanOptions(run_toml=run, up=1000.0, down=1000.0, latency=1.0, teraflops=1.0)
    told = []
    for overlap in ("", "overlap = 1\n", "overlap = 2\n"):
        run.write_text('[model]\npreset = "178m"\n[replicas]\nstages = 4\ncompression = 8\n' + inner + overlap)
        told.append(" ".join(said(options, capsys)[1].split()))
    assert re.search(r"`overlap = 1` in \[inner\] would take 2\d% off a round", told[0])
    assert not any("`overlap = " in each for each in told[1:])
    shares = [float(re.search(r"uses ([\d.]+)% of the device", each)[1]) for each in told]  # type: ignore[index]
    assert shares[0] < 100 * 8 / 11 < 95 < shares[1]


SECONDS_IN = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}


@pytest.mark.parametrize("tables", ["", "[outer]\noverlap = true\n", "[inner]\noverlap = 2\n"])
def test_the_columns_add_up_to_the_round_and_fit_eighty_columns(
    tables: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    run = tmp_path / "run.toml"
    run.write_text(f'[model]\npreset = "512m"\n[replicas]\nstages = 4\n{tables}')
    _, out, _ = said(PlanOptions(run_toml=run, latency=300.0), capsys)
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    amount = r"([\d.]+) (ms|s|min|h|days)"
    passes = re.search(f"passes of a microbatch: {amount}", words)
    sums = re.search(r"step = (\d+) × the longer of passes and link \+ trip, round = (\d+) × step \+ exchange", words)
    assert passes is not None
    assert sums is not None
    passes_seconds, follow, steps = float(passes[1]) * SECONDS_IN[passes[2]], int(sums[1]), int(sums[2])
    rows = [re.findall(amount, line) for line in out.splitlines() if re.match(r"[ →]*\d+ +[\d.]+ [kM]?B ", line)]
    assert len(rows) == 11
    for row in rows:
        link, trip, step, exchange, round = (float(number) * SECONDS_IN[unit] for number, unit in row)
        assert step == pytest.approx(follow * max(passes_seconds, link) + trip, rel=0.01)
        assert round == pytest.approx(steps * step + exchange, rel=0.02)  # 3.0 min


def test_what_is_advised_would_help_against_what_a_round_waits_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run.toml"

    def advised(sequences: int, **link: float) -> str:
        run.write_text(
            f'[model]\npreset = "512m"\n[replicas]\nstages = 4\ncompression = 128\n[inner]\nsequences = {sequences}\n'
        )
        return " ".join(said(PlanOptions(run_toml=run, **link), capsys)[1].split())

    far = advised(32, latency=300.0)
    assert "what it waits for is the latency." in far
    assert "No k hides the links in steps of so few microbatches (8): more of them in fewer steps would" in far
    assert "quicker link" not in far
    assert "No k" not in advised(4096, latency=300.0)  # as it said
    slow = advised(32, up=0.5)
    assert "what it waits for is the upload." in slow
    assert "a frame takes longer than a microbatch's passes. A quicker link would." in slow


def test_a_runs_own_manifest_is_planned_with_its_own_k(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "run.toml").write_text('[model]\npreset = "nano"\n[replicas]\nstages = 2\ncompression = 64\n')
    _, out, _ = said(PlanOptions(run_toml=tmp_path / "run.toml", down=20.0, latency=5.0, teraflops=0.01), capsys)
    assert "→ 64" in out
    assert "in 2 stages" in out


def test_the_cut_is_shown_and_the_share_of_each_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "run.toml").write_text('[model]\npreset = "178m"\n[replicas]\nstages = 4\nbalance = "compute"\n')
    options = PlanOptions(run_toml=tmp_path / "run.toml")
    _, out, _ = said(options, capsys)
    assert re.findall(r"^ +(\d) +(\d) +[\d.]+% +\S+ .B +\S+ .B$", out, re.MULTILINE) == [
        ("0", "3"),
        ("1", "3"),
        ("2", "2"),
        ("3", "1"),
    ]
    _, out, _ = said(options, capsys, json=True)
    stages = json.loads(out.splitlines()[0])["stages"]
    assert [each["layers"] for each in stages] == [3, 3, 2, 1]
    assert sum(each["compute"] for each in stages) == pytest.approx(1)
    manifest = manifests.load_manifest(tmp_path / "run.toml")
    head = 6 * manifest.model.d * manifest.model.vocabulary
    a_layer = (operations_per_token(manifest) - head) / 9
    assert stages[3]["compute"] == pytest.approx((a_layer + head) / operations_per_token(manifest), rel=1e-3)
    kept, again = (
        [memory_of(manifest, Duty("volunteer", stage, recompute=each)).total for stage in range(4)]
        for each in (False, True)
    )
    assert [each["memory_bytes"] for each in stages] == kept
    assert [each["least_memory_bytes"] for each in stages] == again


@pytest.mark.parametrize("change", [{"up": 0.0}, {"down": -1.0}, {"teraflops": 0.0}, {"latency": -1.0}])
def test_what_is_no_link_or_device_is_refused_in_words(change: dict[str, float], capsys: pytest.CaptureFixture[str]):
    options = PlanOptions(**{name: getattr(HOME, name) for name in HOME.__slots__} | change)  # type: ignore[arg-type]
    code, _, events = said(options, capsys)
    assert code != 0
    assert isinstance(events[-1], Failed)
    assert "--up, --down and --teraflops" in events[-1].message


def test_the_papers_figures_are_drawn_with_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    points = [{"k_over_d": 0.125, "mbps": 100, "outer": False, "utilization": 0.97, "model": 0.98}]
    (tmp_path / "measured.json").write_text(json.dumps({"points": points}))
    figure = tmp_path / "figures.png"
    options = PlanOptions(figure2=figure, measured=tmp_path / "measured.json")
    code, _, events = said(options, capsys)
    assert (code, events) == (0, [Progress(f"wrote {figure}")])
    assert figure.stat().st_size > 10_000
    (tmp_path / "measured.json").write_text("[]")
    code, _, events = said(options, capsys)
    assert code != 0
    assert "is not what benchmarks/utilization.py --json prints" in events[-1].message  # type: ignore[union-attr]


# A dry run


RUNS = sorted(Path("examples/runs").glob("*.toml"))
PAPERS = {"178m": 178e6, "512m": 512e6, "1b": 1.2e9}
"""Parameters, as the paper names its models."""


def terminal(json: bool) -> Terminal:
    return Terminal(lambda event: None, json=json, until_stdin_closes=False)


@pytest.fixture(params=RUNS, ids=lambda path: path.stem)
def manifest(request: pytest.FixtureRequest) -> Manifest:
    return manifests.load_manifest(request.param)


def test_the_papers_models_have_the_papers_numbers_of_parameters_and_of_tokens():
    for name, parameters in PAPERS.items():
        manifest = manifests.load_manifest(Path(f"examples/runs/{name}.toml"))
        assert parameter_count(manifest) == pytest.approx(parameters, rel=0.01)
        inner, replicas = manifest.inner, manifest.replicas
        tokens = manifest.tokens_per_step * replicas.total * inner.steps * manifest.outer.rounds
        assert tokens == pytest.approx(10e9, rel=0.01)


def test_stages_share_the_model_and_a_datacenter_has_all_of_it(manifest: Manifest):
    *stages, datacenter, observer = seats(manifest)
    assert (observer.who, observer.parameters, observer.sent_bytes) == ("observer", datacenter.parameters, 0)
    assert [each.sent_bytes for each in stages] == [
        int(bytes_of_a_round(manifest, "volunteer", stage)) for stage in range(len(stages))
    ]
    assert datacenter.sent_bytes > datacenter.contribution_bytes
    assert sum(each.parameters for each in stages) == datacenter.parameters == parameter_count(manifest)
    assert sum(each.layers for each in stages) == datacenter.layers == manifest.model.layers
    assert datacenter.contribution_bytes == pytest.approx(sum(each.contribution_bytes for each in stages), rel=0.01)
    duties = [*(Duty("volunteer", stage) for stage in range(manifest.replicas.stages)), Duty("datacenter")]
    assert [each.memory_bytes for each in (*stages, datacenter)] == [memory_of(manifest, each).total for each in duties]
    assert all(each.least_memory_bytes < each.memory_bytes for each in (*stages, datacenter))
    a_token = {"bf16": 2 * manifest.k, "int4": manifest.k // 2 + 2}[manifest.replicas.wire]  # with its scale
    assert {each.frame_bytes for each in stages} == {a_token * manifest.inner.microbatch * manifest.model.context}


def test_a_small_model_keeps_its_numbers(capsys: pytest.CaptureFixture[str]):
    manifest = small_manifest()
    dry_run(manifest, terminal(json=False))
    shown = capsys.readouterr().out
    assert f" {parameter_count(manifest):,} parameters" in shown
    assert not re.search(r"(?<![\d.])0(\.0)? M", shown)
    assert "1.4 million parameters" in said(PlanOptions(model="nano"), capsys)[1]


def test_a_person_sees_a_table_and_a_program_a_line_for_each(manifest: Manifest, capsys: pytest.CaptureFixture[str]):
    assert dry_run(manifest, terminal(json=True)) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["who"] for each in lines] == [each.who for each in seats(manifest)]
    assert dry_run(manifest, terminal(json=False)) == 0
    shown = capsys.readouterr().out
    assert f": {abbreviated(parameter_count(manifest))} parameters" in shown
    assert all(each.who in shown for each in seats(manifest))
