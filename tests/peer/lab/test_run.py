"""The lab: the whole swarm in one process."""

from pathlib import Path

import pytest
import torch

from bootstrap.genesis import create_run
from peer.events import Evaluated, Event, Finished, Joined, RoundDone, StepDone
from peer.lab.run import Lab
from protocol.manifest import Manifest
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


@pytest.mark.parametrize(
    "change",
    [
        {"outer": {"aggregate": "senders"}},
        {"outer": {"values": "2bit"}},
        {"outer": {"learning_rate": 0.5}},
        {"outer": {"beta": 0.0}},
        {"replicas": {"compression": 2}},
        {"replicas": {"compression": 1}},
        {"replicas": {"wire": "fp32"}},
        {"replicas": {"groups": 3, "datacenters": 0}},
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
