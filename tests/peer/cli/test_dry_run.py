"""What a run would ask of who joins it."""

import json
from pathlib import Path

import pytest

from peer.cli.dry_run import dry_run, seats
from peer.compute.capacity import BASE_BYTES, stage_bytes, whole_bytes
from peer.process import Terminal
from protocol import manifest as manifests
from protocol.layout import parameter_count
from protocol.manifest import Manifest

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
    *stages, datacenter = seats(manifest)
    assert sum(each.parameters for each in stages) == datacenter.parameters == parameter_count(manifest)
    assert sum(each.layers for each in stages) == datacenter.layers == manifest.model.layers
    assert datacenter.contribution_bytes == pytest.approx(sum(each.contribution_bytes for each in stages), rel=0.01)
    assert datacenter.memory_bytes == whole_bytes(manifest) + BASE_BYTES
    assert [each.memory_bytes for each in stages] == [
        stage_bytes(manifest, stage) + BASE_BYTES for stage in range(manifest.replicas.stages)
    ]
    assert {each.frame_bytes for each in stages} == {
        2 * manifest.inner.microbatch * manifest.model.context * manifest.k
    }


def test_a_person_sees_a_table_and_a_program_a_line_for_each(manifest: Manifest, capsys: pytest.CaptureFixture[str]):
    assert dry_run(manifest, terminal(json=True)) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["who"] for each in lines] == [each.who for each in seats(manifest)]
    assert dry_run(manifest, terminal(json=False)) == 0
    shown = capsys.readouterr().out
    assert f"{parameter_count(manifest) / 1e6:,.1f} M parameters" in shown
    assert all(each.who in shown for each in seats(manifest))
