"""What prepared text says of itself."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import FormatError
from protocol.run.dataset import (
    MOST_MIRRORS,
    BlockStream,
    DataManifest,
    Dataset,
    TokenShard,
    base_urls,
    check_block,
    checked_mirror,
    parse_data_manifest,
)

SHA256 = "ab" * 32


def shard(name: str, tokens: int) -> TokenShard:
    return TokenShard(name=name, tokens=tokens, sha256=SHA256)


def described(**fields: Any) -> dict[str, Any]:
    """A manifest in blocks of 10 tokens: two shards, five blocks, and two that are held out."""
    made = DataManifest(
        dtype="uint16",
        vocabulary=300,
        tokenizer=SHA256,
        end_of_text=0,
        block_tokens=10,
        documents=3,
        shards=(shard("a.bin", 31), shard("b.bin", 15)),
        held_out_documents=1,
        held_out=shard("c.bin", 12),
        blocks=hashlib.sha256(DIGESTS).hexdigest(),
    )
    return made.model_dump(mode="json") | fields


DIGESTS = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(7))


def test_a_manifest_reads_back() -> None:
    manifest = DataManifest(**described(mirrors=["https://a.example/x/", "http://b.example:8000"]))
    assert parse_data_manifest(manifest.canonical()) == manifest
    assert manifest.mirrors == ("https://a.example/x", "http://b.example:8000")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a name that leads elsewhere": ({"held_out": {"name": "../x", "tokens": 9, "sha256": SHA256}}, "held_out.name"),
    "two files of one name": ({"held_out": {"name": "a.bin", "tokens": 9, "sha256": SHA256}}, "one name"),
    "a shard called like the manifest": (
        {"held_out": {"name": "data.json", "tokens": 9, "sha256": SHA256}},
        "one name",
    ),
    "a shard that is no whole blocks": (
        {"shards": [{"name": n, "tokens": 30, "sha256": SHA256} for n in ("a.bin", "b.bin")]},
        "whole blocks",
    ),
    "no shards": ({"shards": []}, "shards"),
    "another number format": ({"dtype": "uint32"}, "uint32 is not what a vocabulary of 300"),
    "an end outside the vocabulary": ({"end_of_text": 300}, "end_of_text"),
    "huge blocks": ({"block_tokens": 2**40}, "block_tokens"),
    "a hash that is none": ({"blocks": "x"}, "blocks"),
    "an unknown field": ({"colour": "red"}, "colour"),
    "another version": ({"version": 2}, "version"),
    "a mirror that is a file": ({"mirrors": ["file:///etc/passwd"]}, "is no mirror"),
    "many mirrors": ({"mirrors": [f"http://m{n}.example" for n in range(MOST_MIRRORS + 1)]}, "mirrors"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_manifest_is_refused_and_named(case: str) -> None:
    fields, words = WRONG[case]
    with pytest.raises(FormatError, match=words):
        parse_data_manifest(json.dumps(described(**fields)).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="not prepared text"):
        parse_data_manifest(data)


def test_digests_are_those_of_the_manifest_one_for_each_block() -> None:
    dataset = Dataset.of(DataManifest(**described()), DIGESTS)
    assert (dataset.train.blocks, dataset.held_out.blocks, dataset.blocks) == (5, 2, 7)
    assert (dataset.train.tokens, dataset.held_out.tokens) == (45, 12)
    with pytest.raises(FormatError, match=r"blocks\.sha256 is not the one"):
        Dataset.of(DataManifest(**described()), DIGESTS[::-1])
    fewer = described(blocks=hashlib.sha256(DIGESTS[:-32]).hexdigest())
    with pytest.raises(FormatError, match="32 for each block"):
        Dataset.of(DataManifest(**fewer), DIGESTS[:-32])


def test_blocks_are_where_their_shards_have_them() -> None:
    dataset = Dataset.of(DataManifest(**described(header_bytes=1024)), DIGESTS)
    found = [(block.shard, block.offset - 1024, block.size) for block in map(dataset.block, range(7))]
    assert found == [
        ("a.bin", 0, 22),
        ("a.bin", 20, 22),
        ("a.bin", 40, 22),
        ("b.bin", 0, 22),
        ("b.bin", 20, 10),
        ("c.bin", 0, 22),
        ("c.bin", 20, 4),
    ]
    with pytest.raises(IndexError):
        dataset.block(7)


@given(st.lists(st.integers(1, 5), max_size=4), st.integers(2, 40), st.integers(2, 12))
@settings(max_examples=60, deadline=None)
def test_blocks_cover_a_stream_and_share_a_token_with_the_next(whole: list[int], last: int, block_tokens: int) -> None:
    sizes = [blocks * block_tokens + 1 for blocks in whole] + [last]
    stream = BlockStream(tuple(shard(f"{n}.bin", size) for n, size in enumerate(sizes)), block_tokens, 0)
    before = 0
    for number in range(stream.blocks):
        where, start, count = stream.block_of(number)
        flat = sum(size - 1 for size in sizes[: int(where.name.split(".")[0])]) + start
        assert flat == before == number * block_tokens
        assert 2 <= count <= block_tokens + 1
        before = flat + count - 1
    assert before == stream.tokens - 1


def test_a_block_is_checked_by_its_size_and_its_digest() -> None:
    dataset = Dataset.of(DataManifest(**described()), DIGESTS)
    block = dataset.block(0)
    with pytest.raises(FormatError, match=r"block 0 .* of a\.bin\) came with 5 bytes"):
        check_block(block, b"12345")
    with pytest.raises(FormatError, match=r"a\.bin\) has other bytes"):
        check_block(block, b"x" * 22)


@pytest.mark.parametrize(
    "url",
    [
        *("", "example.org/x", "ftp://example.org", "http://", "https:///x", "http://e.org/?q", "http://e.org/#f"),
        *("http://e.org/a b", "http://e.org/\n", "http://[", "http://é.org", "http://" + "x" * 600),
    ],
)
def test_what_is_no_mirror_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"no mirror|Invalid"):
        checked_mirror(url)


def test_mirrors_are_each_once_and_not_too_many() -> None:
    assert base_urls(["http://a.org/x/", "http://a.org/x"]) == ("http://a.org/x",)
    with pytest.raises(FormatError, match="17 mirrors"):
        base_urls([f"http://m{number}.org" for number in range(17)])
    with pytest.raises(FormatError, match="is no mirror"):
        base_urls(["gopher://a.org"])
