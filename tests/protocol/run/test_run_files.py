"""The descriptor of a run, and the files it pins."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import FormatError, ResourceError
from protocol.identity import EMBEDDING, PeerId, RunId, stage_part
from protocol.limits import DESCRIPTOR_BYTES
from protocol.manifest import Manifest
from protocol.run.run_files import (
    TEXT_BYTES,
    Descriptor,
    RunFile,
    check_file,
    descriptor_of,
    file_names,
    files_needed,
    genesis_file,
    measure_file,
    most_bytes,
    parse_descriptor,
    token_dtype,
)
from tests.reference.small_manifest import small_manifest

OPERATOR = PeerId("Qmoperator")


def described(manifest: Manifest, prepared: bool = False) -> Descriptor:
    names = reversed(file_names(manifest, prepared))
    return descriptor_of(
        manifest, OPERATOR, (RunFile(name, hashlib.sha256(name.encode()).hexdigest(), 10) for name in names)
    )


def named(data: bytes) -> RunId:
    return RunId(hashlib.sha256(data).hexdigest())


def forged(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A descriptor changed in one place and named anew, as only the maker of the run id could."""
    document = json.loads(described(small_manifest()).canonical())
    change(document)
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def test_a_run_has_a_genesis_file_for_each_part() -> None:
    assert file_names(small_manifest()) == [
        "basis.safetensors",
        "genesis-embedding.safetensors",
        "genesis-stage-0.safetensors",
        "genesis-stage-1.safetensors",
        "heldout.bin",
        "tokenizer.json",
        "train.bin",
    ]
    assert genesis_file(EMBEDDING) == "genesis-embedding.safetensors"
    assert genesis_file(stage_part(12)) == "genesis-stage-12.safetensors"


def test_a_descriptor_comes_back_as_it_was() -> None:
    descriptor = described(small_manifest())
    assert parse_descriptor(descriptor.canonical(), descriptor.run_id) == descriptor


def test_the_order_in_which_files_were_measured_does_not_matter() -> None:
    manifest = small_manifest()
    descriptor = described(manifest)
    assert descriptor_of(manifest, OPERATOR, reversed(descriptor.files)) == descriptor


def test_the_run_id_pins_every_file_the_manifest_and_the_operator() -> None:
    descriptor = described(small_manifest())
    first, *others = descriptor.files
    longer = descriptor_of(descriptor.manifest, OPERATOR, [RunFile(first.name, first.sha256, 11), *others])
    elsewhere = Descriptor(small_manifest(run={"seed": 8}), OPERATOR, descriptor.files)
    another = Descriptor(descriptor.manifest, PeerId("Qmother"), descriptor.files)
    assert len({each.run_id for each in (descriptor, longer, elsewhere, another)}) == 4


def test_a_file_is_found_by_name() -> None:
    descriptor = described(small_manifest())
    assert descriptor.file("train.bin").name == "train.bin"
    with pytest.raises(KeyError):
        descriptor.file("../train.bin")


def test_a_descriptor_of_another_run_is_refused() -> None:
    descriptor = described(small_manifest())
    with pytest.raises(FormatError, match="run id"):
        parse_descriptor(descriptor.canonical() + b" ", descriptor.run_id)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"3",
        b"{}",
        b'{"manifest":{},"files":{}}',
        b"[" * 100_000,
        b'"' + b"x" * DESCRIPTOR_BYTES + b'"',
    ],
    ids=lambda data: repr(data[:12]),
)
def test_bytes_that_are_no_descriptor_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_descriptor(data, named(data))


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it["files"].pop("train.bin"),
        lambda it: it["files"].update({"../evil": it["files"].pop("train.bin")}),
        lambda it: it["files"].update({"genesis-stage-2.safetensors": it["files"]["train.bin"]}),
        lambda it: it["files"].update({"train.bin": None}),
        lambda it: it["files"]["train.bin"].pop("size"),
        lambda it: it["files"]["train.bin"].update(size=-1),
        lambda it: it["files"]["train.bin"].update(size=TEXT_BYTES + 1),
        lambda it: it["files"]["train.bin"].update(size=1.0),
        lambda it: it["files"]["train.bin"].update(size=True),
        lambda it: it["files"]["train.bin"].update(sha256="0" * 63),
        lambda it: it["files"]["train.bin"].update(sha256="A" * 64),
        lambda it: it["files"]["train.bin"].update(sha256="0" * 64 + "\n"),
        lambda it: it["files"]["train.bin"].update(sha256=0),
        lambda it: it["files"]["train.bin"].update(url="http://example.org"),
        lambda it: it.update(files=[]),
        lambda it: it.update(more=1),
        lambda it: it.pop("manifest"),
        lambda it: it.update(manifest=[]),
        lambda it: it["manifest"]["model"].update(d=0),
        lambda it: it["manifest"].pop("outer"),
    ],
)
def test_a_descriptor_wrong_in_one_place_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    data = forged(change)
    with pytest.raises(FormatError):
        parse_descriptor(data, named(data))


@pytest.mark.parametrize("prepared", [False, True])
def test_a_file_that_is_larger_than_the_manifest_lets_it_be_is_refused_before_anybody_fetches_it(
    prepared: bool,
) -> None:
    """A hostile operator's way to fill a disk: the run id pins what the descriptor says, however large."""
    run, most = described(small_manifest(), prepared), most_bytes(small_manifest())
    for file in run.files:
        others = [each for each in run.files if each is not file]
        allowed = descriptor_of(run.manifest, OPERATOR, [*others, RunFile(file.name, file.sha256, most[file.name])])
        assert parse_descriptor(allowed.canonical(), allowed.run_id) == allowed
        for size in (most[file.name] + 1, 2**40):
            huge = descriptor_of(run.manifest, OPERATOR, [*others, RunFile(file.name, file.sha256, size)])
            with pytest.raises(FormatError, match=rf"{file.name} has {size} bytes, and .* {most[file.name]} at most"):
                parse_descriptor(huge.canonical(), huge.run_id)


def test_what_tensors_may_weigh_is_what_their_layout_takes() -> None:
    """d = 16, a vocabulary of 300, 2 and 1 layers of ffn = 24, in values of four bytes; and a header each."""
    most, layer = most_bytes(small_manifest()), 2 * 16 + 4 * 16 * 16 + 3 * 16 * 24
    values = {
        "basis.safetensors": 16 * 16,
        "genesis-embedding.safetensors": 300 * 16,
        "genesis-stage-0.safetensors": 2 * layer,
        "genesis-stage-1.safetensors": layer + 16 + 300 * 16,
    }
    tensors = {"basis.safetensors": 1, "genesis-embedding.safetensors": 1}
    tensors |= {"genesis-stage-0.safetensors": 18, "genesis-stage-1.safetensors": 11}
    for name, count in values.items():
        assert 0 <= most[name] - 4 * count <= 8 + 256 * (tensors[name] + 1)
    assert most["tokenizer.json"] == 2**20 + 256 * 300


def test_a_descriptor_in_other_spacing_is_refused_since_it_would_have_two_names() -> None:
    data = json.dumps(json.loads(described(small_manifest()).canonical())).encode()
    with pytest.raises(FormatError, match="canonical"):
        parse_descriptor(data, named(data))


def test_a_run_of_a_later_version_is_refused_in_words_that_say_so() -> None:
    data = forged(lambda document: document["manifest"]["outer"].update(momentum=0.9))
    with pytest.raises(FormatError, match=r"needs a newer hetpeer: manifest: outer\.momentum"):
        parse_descriptor(data, named(data))


def test_a_whole_model_needs_everything() -> None:
    assert files_needed(described(small_manifest()), None) == file_names(small_manifest())


def test_stage_0_of_a_compressed_group_needs_the_basis_and_training_data() -> None:
    assert files_needed(described(small_manifest()), 0) == [
        "basis.safetensors",
        "genesis-embedding.safetensors",
        "genesis-stage-0.safetensors",
        "train.bin",
    ]


def test_a_run_on_prepared_text_has_its_digests_in_place_of_its_tokens() -> None:
    run = described(small_manifest(), prepared=True)
    assert run.prepared
    assert parse_descriptor(run.canonical(), run.run_id) == run
    assert [name for name in files_needed(run, 0) if "genesis" not in name] == [
        "basis.safetensors",
        "blocks.sha256",
        "data.json",
    ]
    assert {"train.bin", "heldout.bin"}.isdisjoint(files_needed(run, None))
    assert "data.json" not in files_needed(run, 1)


def test_a_run_has_its_tokens_in_one_way() -> None:
    run = described(small_manifest(), prepared=True)
    both = descriptor_of(small_manifest(), OPERATOR, (*run.files, described(small_manifest()).file("train.bin")))
    with pytest.raises(FormatError, match="files are not those"):
        parse_descriptor(both.canonical(), both.run_id)


def test_later_stages_of_a_compressed_group_need_the_basis_and_the_embedding() -> None:
    assert files_needed(described(small_manifest()), 1) == [
        "basis.safetensors",
        "genesis-embedding.safetensors",
        "genesis-stage-1.safetensors",
    ]


def test_uncompressed_groups_need_no_basis_and_only_stage_0_the_embedding() -> None:
    manifest = small_manifest(replicas={"compression": 1})
    assert files_needed(described(manifest), 0) == [
        "genesis-embedding.safetensors",
        "genesis-stage-0.safetensors",
        "train.bin",
    ]
    assert files_needed(described(manifest), 1) == ["genesis-stage-1.safetensors"]


def test_a_file_as_measured_passes(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(b"abc")
    measured = measure_file(path)
    assert measured == RunFile("train.bin", hashlib.sha256(b"abc").hexdigest(), 3)
    check_file(path, measured)


@pytest.mark.parametrize("contents", [b"", b"abd", b"abcd"])
def test_a_file_with_other_contents_is_refused(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(contents)
    with pytest.raises(FormatError, match=r"train\.bin"):
        check_file(path, RunFile("train.bin", hashlib.sha256(b"abc").hexdigest(), 3))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"train\.bin"):
        check_file(tmp_path / "train.bin", RunFile("train.bin", "0" * 64, 0))
    with pytest.raises(ResourceError, match=r"train\.bin"):
        measure_file(tmp_path / "train.bin")


def test_tokens_take_two_bytes_where_every_id_fits() -> None:
    assert token_dtype(2**16).str == "<u2"
    assert token_dtype(2**16 + 1).str == "<u4"
