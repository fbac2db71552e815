"""Contributions as bytes: one string for each, and nothing else is let in."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec import contribution as contributions
from protocol.codec import rice
from protocol.codec.chunks import chunk_grid
from protocol.codec.contribution import Contribution, SparseTensor, compose, decode, grids, max_bytes
from protocol.codec.quantize import quantize
from protocol.errors import FormatError
from protocol.identity import EMBEDDING, ContributionName, Part, PeerId, RunId, stage_part
from protocol.manifest import Manifest
from protocol.tensor_formats import FORMATS
from tests.reference.small_manifest import small_manifest

RUN = RunId("ab" * 32)
parts = st.sampled_from([EMBEDDING, stage_part(0), stage_part(1)])


def made(manifest: Manifest, part: Part, seed: int = 0, largest: int = 2**31 - 1) -> tuple[bytes, Contribution]:
    random = np.random.default_rng(seed)
    picked = {}
    for name, grid in grids(manifest, part).items():
        pairs = zip(grid.sizes, grid.counts, strict=True)
        offsets = np.concatenate([np.sort(random.permutation(size)[:count]) for size, count in pairs])
        picked[name] = SparseTensor(offsets, random.integers(-largest, largest + 1, grid.kept))
    return compose(ContributionName(part, 2, PeerId("QmPeer")), RUN, 3, picked, manifest, slot=2**32 - 1)


def same(one: Contribution, other: Contribution) -> bool:
    return (one.run, one.slot, one.name, one.steps, list(one.tensors)) == (
        other.run,
        other.slot,
        other.name,
        other.steps,
        list(other.tensors),
    ) and all(
        (one.tensors[name].offsets == tensor.offsets).all() and (one.tensors[name].values == tensor.values).all()
        for name, tensor in other.tensors.items()
    )


@settings(max_examples=40, deadline=None)
@given(parts, st.integers(0, 999), st.sampled_from(["bf16", "2bit"]), st.integers(1, 4), st.data())
def test_it_reads_back_exactly_and_stays_within_its_bound(part, seed: int, values: str, side: int, data):
    manifest = small_manifest(outer={"values": values, "chunk_side": side, "top_k": data.draw(st.integers(1, side**2))})
    blob, sent = made(manifest, part, seed)
    assert same(decode(blob, manifest), sent)
    assert len(blob) <= max_bytes(manifest, part)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_changed_bytes_are_refused_or_say_something_else_that_is_valid(data: st.DataObject):
    manifest = small_manifest(outer={"values": data.draw(st.sampled_from(["bf16", "2bit"]))})
    blob, sent = made(manifest, stage_part(1))
    place = data.draw(st.integers(0, len(blob) - 1))
    changed = blob[:place] + bytes([blob[place] ^ data.draw(st.integers(1, 255))]) + blob[place + 1 :]
    try:
        other = decode(changed, manifest)
    except FormatError:
        return
    assert not same(other, sent)
    for name, grid in grids(manifest, other.name.part).items():
        positions = grid.positions(other.tensors[name].offsets)
        assert len(set(positions.tolist())) == grid.kept
        assert 0 <= positions.min() <= positions.max() < grid.elements


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_is_refused(garbage: bytes):
    with pytest.raises(FormatError):
        decode(garbage, small_manifest())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_contribution_cut_short_or_continued_is_refused(data: st.DataObject):
    manifest = small_manifest()
    blob, _ = made(manifest, EMBEDDING)
    with pytest.raises(FormatError):
        decode(blob[: data.draw(st.integers(0, len(blob) - 1))], manifest)
    with pytest.raises(FormatError, match="1 bytes follow"):
        decode(blob + b"\0", manifest)


def header(**changes: object) -> bytes:
    fields = {"magic": b"HPC2", "run": bytes(32), "round": 1, "steps": 1, "slot": 0, "part": 0, "codec": 0, "length": 2}
    fields |= changes
    return contributions.HEADER.pack(*fields.values())


def test_no_more_inner_steps_are_behind_it_than_a_replica_may_take():
    manifest = small_manifest(inner={"most_steps": 5}, outer={"weights": "steps"})
    for steps in (3, 5):
        with pytest.raises(FormatError, match="ends inside author"):  # the header is well, and nothing follows it
            decode(header(steps=steps, codec=FORMATS[manifest.outer.values].contribution), manifest)
    with pytest.raises(FormatError, match="with 6 inner steps"):
        decode(header(steps=6, codec=FORMATS[manifest.outer.values].contribution), manifest)


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (header(magic=b"HPC1"), "does not begin with HPC2"),
        (header(part=3), "part 3 of a model of 2 stages"),
        (header(codec=1), "codec 1, the run's is bf16"),
        (header(codec=9), "codec 9"),
        (header(round=0), "round 0"),
        (header(round=10**6), "round 1000000"),
        (header(steps=4), "with 4 inner steps"),
        (header(length=0), "name of 0 bytes"),
        (header(length=65), "name of 65 bytes"),
        (header() + b"0O", "not base58"),
        (header() + b"Qm" + struct.pack("<I", 2**32 - 1), "more than possible"),
    ],
)
def test_what_is_wrong_is_said(blob: bytes, words: str):
    with pytest.raises(FormatError, match=words):
        decode(blob, small_manifest(outer={"values": "bf16"}))


@pytest.mark.parametrize(("values", "bits"), [("bf16", 24.6), ("2bit", 10.6)])
def test_the_size_of_a_kept_value(values: str, bits: float):
    manifest = small_manifest(
        model={"d": 512, "vocabulary": 4096}, replicas={"compression": 8}, outer={"values": values}
    )
    blob, sent = made(manifest, EMBEDDING)
    kept = sum(len(tensor.values) for tensor in sent.tensors.values())
    assert 8 * len(blob) / kept <= bits


@pytest.mark.parametrize("codec", ["bf16", "2bit"])
def test_the_specification_shows_these_bytes(codec):
    text = (Path(__file__).parents[3] / "docs/wire.md").read_text(encoding="utf-8")
    shown = bytes.fromhex(text.split(f"```{codec}\n")[1].split("```")[0].replace("|", ""))
    grid, offsets = chunk_grid((4, 8), 4, 2), np.array([1, 9, 0, 15])
    assert grid.positions(offsets).tolist() == [1, 17, 4, 31]
    unary, rests = rice.encode_offsets(offsets, grid)
    payload, _ = quantize(np.array([1000, -1001, 3, -70000]), codec)
    assert struct.pack("<I", len(unary)) + unary + rests + payload == shown
