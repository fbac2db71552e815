"""The lab: the whole swarm in one process."""

from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bootstrap.genesis import create_run
from peer.compute.design import Kind
from peer.compute.replica import WholeReplica
from peer.data.batches import batch, in_turn
from peer.data.text import open_tokens
from peer.lab.reference_run import Lab
from peer.optim.grid import grid_digest
from peer.optim.outer import Grid, OuterState, outer_term
from protocol.codec.contribution import Contribution
from protocol.events.activity import Evaluated, Finished, Joined, RoundDone, StepDone
from protocol.events.event import Event
from protocol.identity import Part, PeerId, RunId
from protocol.layout import model_layout
from protocol.manifest import Manifest
from protocol.run.run_files import BASIS, TRAIN, genesis_file
from tests.reference.small_manifest import small_manifest

TEXT = "\n\n".join(f"Line {number} of a text about {number % 7} things." for number in range(400))
ROUNDS = 3


def manifest(**tables) -> Manifest:
    outer = {"rounds": ROUNDS} | tables.pop("outer", {})
    inner = {"learning_rate": 1e-2, "warmup": 2} | tables.pop("inner", {})
    return small_manifest(outer=outer, inner=inner, **tables)


def run(folder: Path, run_manifest: Manifest) -> list[Event]:
    text = folder / "text.txt"
    text.write_text(TEXT)
    descriptor = create_run(run_manifest, folder / "run", text, lambda _: None)
    events: list[Event] = []
    Lab.open(descriptor, folder / "run", torch.device("cpu")).run(events.append)
    return events


def digests(events: list[Event]) -> list[dict[str, str]]:
    return [event.digests for event in events if isinstance(event, RoundDone)]


def test_it_tells_the_same_story_as_a_swarm(tmp_path: Path):
    events = run(tmp_path, manifest())
    kinds = [type(event) for event in events]
    inner_loops = [StepDone] * 3 * 3  # replicas × inner steps
    assert kinds == [Joined, *([*inner_loops, RoundDone, Evaluated] * ROUNDS), Finished]
    done = [event for event in events if isinstance(event, RoundDone)]
    assert all(event.contributions == {"embedding": 3, "stage-0": 3, "stage-1": 3} for event in done)
    losses = [event.loss for event in events if isinstance(event, Evaluated)]
    assert losses[-1] < losses[0]


def test_the_same_manifest_gives_the_same_bits(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert digests(run(tmp_path / "a", manifest())) == digests(run(tmp_path / "b", manifest()))


def states(run_manifest: Manifest, folder: Path) -> list[dict[Part, Grid]]:
    """θ_0 … θ_R as the manifest's docstring has them: every time summed up again from the genesis, over all rounds that
    are to be in it, and each replica started from there."""
    basis = load_file(folder / BASIS)["basis"]
    genesis = {part: load_file(folder / genesis_file(part)) for part in model_layout(run_manifest)}
    tokens = open_tokens(folder / TRAIN, run_manifest.model.vocabulary)
    outer, steps, total = run_manifest.outer, run_manifest.inner.steps, run_manifest.replicas.total
    kinds: list[Kind] = ["group", "group", "datacenter"]
    replicas = [WholeReplica(run_manifest, kind, basis, torch.device("cpu")) for kind in kinds]
    residuals = [
        {part: OuterState.begin(run_manifest, part, genesis[part], author=True) for part in genesis} for _ in kinds
    ]
    sent: list[list[dict[Part, Contribution]]] = []

    def theta(rounds: int) -> dict[Part, Grid]:
        grids = {
            part: {name: tensor.to(torch.int64) for name, tensor in each.items()} for part, each in genesis.items()
        }
        for contributions, (part, layout) in product(sent[: max(0, rounds)], model_layout(run_manifest).items()):
            term = outer_term([each[part] for each in contributions], layout, run_manifest)
            grids[part] = {name: grids[part][name] - term[name] for name in layout}
        return {part: {name: each[name].to(torch.int32) for name in each} for part, each in grids.items()}

    loaded = []
    for round in range(1, outer.rounds + 1):
        loaded.append(theta(round - 1 - outer.overlap))
        made = []
        for slot in range(total):
            ahead = {}
            if outer.overlap and sent:
                for part, layout in model_layout(run_manifest).items():
                    term = outer_term([sent[-1][slot][part]], layout, run_manifest)
                    ahead[part] = {name: (loaded[-1][part][name] - term[name]).to(torch.int32) for name in layout}
            replicas[slot].load(loaded[-1], ahead)
            for step in range(steps):
                rows = torch.from_numpy(batch(tokens, run_manifest, in_turn(run_manifest, round, step, slot)))
                replicas[slot].inner_step(rows, (round - 1) * steps + step)
            moved, author = replicas[slot].moved(), PeerId(f"R{slot + 1}")
            kept = {
                part: residuals[slot][part].contribute(RunId("ab" * 32), round, author, steps, moved[part])[1]
                for part in moved
            }
            made.append(kept)
        sent.append(made)
    return [*loaded, theta(outer.rounds)]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_state_after_each_round_is_the_sum_of_all_rounds_or_with_overlap_of_all_but_the_last(
    tmp_path: Path, overlap: bool
):
    run_manifest = manifest(outer={"overlap": overlap, "rounds": 4})
    done = [event for event in run(tmp_path, run_manifest) if isinstance(event, RoundDone)]
    genesis, *after = states(run_manifest, tmp_path / "run")
    assert [event.digests for event in done] == [
        {part: grid_digest(grid) for part, grid in each.items()} for each in after
    ]
    if overlap:
        assert done[0].digests == {part: grid_digest(genesis[part]) for part in genesis}
    assert [event.contributions["embedding"] for event in done] == ([0, 3, 3, 6] if overlap else [3, 3, 3, 3])


@pytest.mark.parametrize(
    "change",
    [
        {"outer": {"aggregate": "senders"}},
        {"outer": {"clip": "median"}},
        {"outer": {"values": "bf16"}},
        {"outer": {"learning_rate": 0.5}},
        {"outer": {"final_learning_rate": 0.5}},
        {"outer": {"beta": 0.0}},
        {"outer": {"overlap": True}},
        {"replicas": {"compression": 2}},
        {"replicas": {"compression": 1}},
        {"replicas": {"wire": "fp32"}},
        {"replicas": {"wire": "int4"}},
        {"replicas": {"gradient_wire": "int8"}},
        {"replicas": {"groups": 3, "datacenters": 0}},
        {"replicas": {"layers": [1, 2]}},
        {"inner": {"optimizer": "muon"}},
    ],
    ids=str,
)
def test_every_choice_of_the_manifest_changes_the_outcome_and_still_learns(tmp_path: Path, change):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    events = run(tmp_path / "a", manifest(**change))
    assert digests(events)[-1] != digests(run(tmp_path / "b", manifest()))[-1]
    losses = [event.loss for event in events if isinstance(event, Evaluated)]
    assert losses[-1] < losses[0]
