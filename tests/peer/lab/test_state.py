"""A run that was cut short goes on as if it had not been, to the last bit."""

from pathlib import Path

import pytest
import torch

from bootstrap.genesis import create_run
from peer.lab.reference_run import Lab
from peer.lab.state import load_lab, save_lab
from peer.lab.switches import Switches
from peer.telemetry.events import Evaluated, RoundDone
from protocol.errors import ResourceError
from protocol.manifest import Manifest
from protocol.run.run_files import Descriptor
from tests.reference.small_manifest import small_manifest

TEXT = "\n\n".join(f"Line {number} of a text about {number % 7} things." for number in range(400))
CPU = torch.device("cpu")

FITTED = {"anchor": "embedding", "basis": "fitted"}


def opened(folder: Path, manifest: Manifest) -> Descriptor:
    text = folder / "text.txt"
    text.write_text(TEXT)
    return create_run(manifest, folder / "run", text)


def rest(lab: Lab, rounds: int) -> list[object]:
    """What a lab tells of its remaining rounds, but for the time they took."""
    told: list[object] = []

    def hear(event: object) -> None:
        match event:
            case RoundDone():
                told.append((event.round, event.digests, event.outer_sent))
            case Evaluated():
                told.append((event.loss, event.loss_plain))
            case _:
                pass

    for round in range(lab.done + 1, rounds + 1):
        lab.round(round, hear)
    return told


@pytest.mark.parametrize(
    ("switches", "overlap"),
    [
        ({}, False),
        ({}, True),
        ({"values": "sign"}, False),
        ({"method": "diloco"}, False),
        ({"method": "adamw"}, False),
        ({"grassmann": 5}, False),
        ({**FITTED, "payload": "allocated", "gradient_basis": "own"}, False),
        ({"second_moment": "columns", "weight_projection": True, "embedding": "project"}, False),
        ({"precision": "bf16", "payload": "4bit", "residuals": 1}, False),
        ({"payload": "4bit", "gradient_payload": "8bit"}, False),
    ],
    ids=str,
)
def test_going_on_from_disk_changes_no_bit(tmp_path: Path, switches: dict[str, object], overlap: bool):
    manifest = small_manifest(outer={"rounds": 4, "overlap": overlap}, inner={"learning_rate": 1e-2, "warmup": 2})
    descriptor = opened(tmp_path, manifest)
    chosen = Switches.model_validate(switches)
    straight = rest(Lab.open(descriptor, tmp_path / "run", CPU, chosen), 4)

    first = Lab.open(descriptor, tmp_path / "run", CPU, chosen)
    until = rest(first, 2)
    save_lab(first, tmp_path / "state", {"seen": 2})
    second = Lab.open(descriptor, tmp_path / "run", CPU, chosen)
    assert load_lab(second, tmp_path / "state") == {"seen": 2}
    assert until + rest(second, 4) == straight


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path):
    descriptor = opened(tmp_path, small_manifest())
    (tmp_path / "state").write_bytes(b"\x08" + bytes(40))
    with pytest.raises(ResourceError, match="remove it to begin this run anew"):
        load_lab(Lab.open(descriptor, tmp_path / "run", CPU), tmp_path / "state")
