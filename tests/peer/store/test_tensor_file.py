"""Tensors that go to disk one by one, against the library that writes them all at once."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from peer.store.tensor_file import TensorFile, write_tensors
from protocol.errors import ResourceError

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")


@given(st.dictionaries(NAMES, SHAPES, max_size=6), st.sampled_from([torch.float32, torch.int32]))
@settings(max_examples=60, deadline=None)
def test_the_bytes_are_the_librarys(tmp_path_factory: pytest.TempPathFactory, shapes, dtype: torch.dtype):
    path = tmp_path_factory.mktemp("files") / "tensors"
    tensors = {name: (torch.randn(shape) * 99).to(dtype) for name, shape in shapes.items()}
    sha256 = write_tensors(path, tensors)
    assert path.read_bytes() == save(tensors)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    found = TensorFile.open(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) and found[name].dtype == dtype for name, tensor in tensors.items())
    with pytest.raises(KeyError):
        found["".join(tensors) + "?"]
    again = path.with_name("again")
    assert write_tensors(again, found) == sha256
    assert again.read_bytes() == path.read_bytes()


def test_tensors_are_written_as_they_lie_in_other_memory_and_with_gradients(tmp_path: Path):
    tensors = {"turned": torch.arange(6.0).view(2, 3).T, "weight": torch.nn.Parameter(torch.ones(2))}
    write_tensors(tmp_path / "tensors", tensors)
    assert torch.equal(load((tmp_path / "tensors").read_bytes())["turned"], tensors["turned"])


def test_what_is_read_is_the_readers_own(tmp_path: Path):
    write_tensors(tmp_path / "tensors", {"w": torch.zeros(3)})
    file = TensorFile.open(tmp_path / "tensors")
    read = file["w"]
    read += 1
    assert not file["w"].any()
    os.truncate(tmp_path / "tensors", 0)
    assert read.tolist() == [1.0] * 3


def test_a_file_that_is_gone_is_named(tmp_path: Path):
    write_tensors(tmp_path / "tensors", {"w": torch.zeros(3)})
    file = TensorFile.open(tmp_path / "tensors")
    (tmp_path / "tensors").unlink()
    with pytest.raises(ResourceError, match=r"cannot read w in .*tensors"):
        file["w"]


def test_neither_writing_nor_reading_holds_more_than_a_tensor(tmp_path: Path):
    """Counted by torch's own allocations on the CPU: the library's `save` is the reference that holds them all."""
    import tracemalloc

    tensors = {f"{i}": torch.zeros(2**18) for i in range(16)}  # a MiB each
    tracemalloc.start()
    try:
        write_tensors(tmp_path / "tensors", tensors)
        ours = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        save(tensors)
        theirs = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ours < 2**21 < 2**24 <= theirs
