"""A run of the lab that was cut short goes on as if it had not been, to the last bit."""

from pathlib import Path

import pytest
import torch

from bootstrap.genesis import create_run
from examples.experiments.saved import load_lab, save_lab
from peer.lab.reference_run import Lab
from peer.lab.switches import Switches
from protocol.errors import ResourceError
from protocol.events.activity import Evaluated, RoundDone
from protocol.manifest import Manifest
from protocol.run.run_files import Descriptor
from tests.reference.small_manifest import small_manifest

TEXT = "\n\n".join(f"Line {number} of a text about {number % 7} things." for number in range(400))


def manifest(**tables) -> Manifest:
    outer = {"rounds": 3} | tables.pop("outer", {})
    inner = {"learning_rate": 1e-2, "warmup": 2} | tables.pop("inner", {})
    return small_manifest(outer=outer, inner=inner, **tables)


CPU = torch.device("cpu")


def opened(folder: Path, manifest: Manifest) -> Descriptor:
    text = folder / "text.txt"
    text.write_text(TEXT)
    return create_run(manifest, folder / "run", text)


def rest(lab: Lab, rounds: int) -> list[object]:
    """The digests, bytes and losses of the remaining rounds."""
    outcomes: list[object] = []

    def hear(event: object) -> None:
        match event:
            case RoundDone():
                outcomes.append((event.round, event.digests, event.outer_sent))
            case Evaluated():
                outcomes.append((event.loss, event.loss_plain))
            case _:
                pass

    for round in range(lab.done + 1, rounds + 1):
        lab.round(round, hear)
    return outcomes


@pytest.mark.parametrize(
    ("switches", "change"),
    [
        ({}, {}),
        ({}, {"outer": {"overlap": True}}),
        ({}, {"inner": {"optimizer": "muon"}}),
        ({"values": "exact"}, {}),
        ({"speeds": "1:2:2"}, {"outer": {"overlap": True, "weights": "steps"}}),
        ({"precision": "bf16"}, {"replicas": {"wire": "int4", "anchor": "embedding"}}),
        ({"method": "diloco"}, {}),
        ({"method": "adamw"}, {}),
        ({"grassmann": 5}, {}),
        ({"second_moment": "columns", "weight_projection": True, "embedding": "project"}, {}),
    ],
    ids=str,
)
def test_going_on_from_disk_changes_no_bit(
    tmp_path: Path, switches: dict[str, object], change: dict[str, dict[str, object]]
):
    descriptor = opened(tmp_path, manifest(**change))
    chosen = Switches.model_validate(switches)
    straight = Lab.open(descriptor, tmp_path / "run", CPU, chosen)
    rest(straight, 1)
    save_lab(straight, tmp_path / "state", {"seen": 1})
    again = Lab.open(descriptor, tmp_path / "run", CPU, chosen)
    assert load_lab(again, tmp_path / "state") == {"seen": 1}
    assert rest(again, 3) == rest(straight, 3)


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path):
    descriptor = opened(tmp_path, small_manifest())
    (tmp_path / "state").write_bytes(b"\x08" + bytes(40))
    with pytest.raises(ResourceError, match="remove it to begin this run anew"):
        load_lab(Lab.open(descriptor, tmp_path / "run", CPU), tmp_path / "state")
