"""What a run begins with is what its manifest says, or nothing is computed with it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from peer.model.first_weights import BASIS_TENSOR, read_basis, read_part
from protocol.errors import ResourceError
from protocol.identity import stage_part
from protocol.layout import part_layout
from protocol.run.run_files import BASIS, genesis_file
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
PART = stage_part(1)
LAYOUT = part_layout(MANIFEST, PART)


def write(folder: Path, **changed: torch.Tensor) -> None:
    tensors = {name: torch.ones(shape, dtype=torch.int32) for name, shape in LAYOUT.items()}
    save_file(tensors | changed, folder / genesis_file(PART))


def test_first_weights_come_in_the_order_of_the_layout(tmp_path: Path) -> None:
    write(tmp_path)
    found = read_part(tmp_path, MANIFEST, PART)
    assert list(found) == list(LAYOUT)
    save_file({BASIS_TENSOR: torch.eye(MANIFEST.model.d)}, tmp_path / BASIS)
    assert torch.equal(read_basis(tmp_path, MANIFEST), torch.eye(MANIFEST.model.d))


@pytest.mark.parametrize(
    "changed",
    [
        {"model.norm.weight": torch.ones(17, dtype=torch.int32)},
        {"model.norm.weight": torch.ones(16, 1, dtype=torch.int32)},
        {"model.norm.weight": torch.ones(0, dtype=torch.int32)},
        {"model.norm.weight": torch.ones(16)},
        {"one more": torch.ones(1, dtype=torch.int32)},
    ],
)
def test_other_tensors_than_the_manifests_are_refused(tmp_path: Path, changed: dict[str, torch.Tensor]) -> None:
    write(tmp_path, **changed)
    with pytest.raises(ResourceError, match=r"genesis-stage-1\.safetensors has other tensors"):
        read_part(tmp_path, MANIFEST, PART)


def test_a_header_that_is_a_bomb_is_not_parsed(tmp_path: Path) -> None:
    """A million tensors of no values: some hundred megabytes of objects."""
    empty = {"dtype": "I32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"t{number}": empty for number in range(100_000)}).encode()
    (tmp_path / genesis_file(PART)).write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ResourceError, match="has a header of"):
        read_part(tmp_path, MANIFEST, PART)
    for damaged in (b"", b"\xff" * 8, (2**63).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"{}"):
        (tmp_path / genesis_file(PART)).write_bytes(damaged)
        with pytest.raises(ResourceError):
            read_part(tmp_path, MANIFEST, PART)
