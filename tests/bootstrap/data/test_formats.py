"""Files that are not what they seem: each is read right, or refused in a line that says the cure."""

import gzip
import os
import random
from pathlib import Path

import pytest

from bootstrap.data.corpus import read_corpus
from bootstrap.data.formats import escaped
from bootstrap.data.prepare import PrepareRequest, prepare_text
from protocol.errors import ResourceError

TEXT = "A text of some words, and of a second line.\n" * 60
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
PACKED = gzip.compress(random.Random(0).randbytes(3000).hex().encode(), mtime=0)
DAMAGED = PACKED[:1500] + b"\xff" * 20 + PACKED[1520:]


def prepared(source: Path, tmp_path: Path, **wanted: object) -> list[str]:
    """Prepare a source; the sentences about it."""
    sentences: list[str] = []
    request = PrepareRequest([str(source)], **{"train_tokenizer": 300, **wanted})
    prepare_text(request, tmp_path / "out", lambda sentence, done, total: sentences.append(sentence))
    return sentences


@pytest.mark.parametrize(
    ("name", "contents", "words"),
    [
        ("a.txt", TEXT.encode("utf-16"), "is text in UTF-16, .*iconv -f UTF-16"),
        ("a.txt", TEXT.encode("utf-32"), "is text in UTF-32, .*iconv -f UTF-32"),
        ("a.jsonl", TEXT.encode("utf-16"), "is text in UTF-16, "),
        ("a.txt", TEXT.encode("utf-16-le"), "has NUL characters, .*convert it to UTF-8"),
        ("a.txt", TEXT.encode() + bytes(5000), "has NUL characters, .*fetch it again"),
        ("a.txt", LFS, "git lfs pull"),
        ("a.jsonl", LFS, "git lfs pull"),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfd\xff", "zstd -d"),
        ("a.tar.gz", gzip.compress(b"a".ljust(257, b"x") + b"ustar  x", mtime=0), "is a tar archive: unpack it"),
        ("a", PACKED, r"let its name end with \.gz"),
        ("a.csv", b"text\none\n", "is a table: write it as JSON lines"),
        ("a.txt.gz", DAMAGED, "or damaged .*: fetch it again"),
        ("a.jsonl.gz", DAMAGED, "or damaged .*: fetch it again"),
        ("a.txt.gz", PACKED + b"more", "or damaged .*: fetch it again"),
        ("a.txt.gz", PACKED[:-20], "ends too early: .*fetch it again"),
        ("a.parquet.gz", PACKED, "gunzip"),
        ("a.json", b'{\n "text": "a"\n}\n', "jq -c"),
        ("a.jsonl", b'{"messages": [{"content": "a"}]}\n', "messages, none of them text: write each record as"),
        ("a.jsonl", b'{"text": [{"content": "a"}]}\n', "no text but list: write each record as"),
    ],
)
def test_a_file_that_is_no_text_is_refused_with_the_cure(
    tmp_path: Path, name: str, contents: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(ResourceError, match=words) as refused:
        prepared(tmp_path / name, tmp_path)
    assert "or leave such records out" not in str(refused.value), "nothing would be left of it"


def test_a_file_of_a_folder_that_is_not_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "elsewhere").mkdir()
    for name in ("a.txt", "B.TXT", "c.zst", "d.json", "e.zst", "._a.txt", ".hidden"):
        (tmp_path / "texts" / name).write_text(f"{name} {TEXT}")
    (tmp_path / "texts" / "linked").symlink_to(tmp_path / "elsewhere")
    sentences = prepared(tmp_path / "texts", tmp_path)
    (sentence,) = [sentence for sentence in sentences if sentence.startswith("not read")]
    assert sentence.endswith(": 2 × .zst, 1 × .json (name them as sources), 1 × linked folders (give them as sources)")
    (tmp_path / "elsewhere" / "a.zst").write_text(TEXT)
    with pytest.raises(ResourceError, match=r"there is no text in .*1 × \.zst"):
        prepared(tmp_path / "elsewhere", tmp_path / "second")


def test_a_name_that_no_terminal_shows_is_escaped_and_its_file_is_left_out_like_others(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text(TEXT)
    Path(os.fsdecode(os.fsencode(texts) + b"/caf\xe9\n.txt")).write_bytes(b"\xff\xd8\xff")
    prepared(texts, tmp_path, most_bad=0.5)
    (line,) = (tmp_path / "out" / "skipped.txt").read_text().splitlines()
    assert line.endswith(r"caf\udce9\n.txt is not text in UTF-8 (invalid start byte)")
    assert escaped("größe") == "größe"


def test_a_row_of_parquet_that_is_not_in_utf8_is_left_out_like_others(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    offsets = pyarrow.array([0, 3], pyarrow.int32()).buffers()[1]
    damaged = pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, offsets, pyarrow.py_buffer(b"\xff\xfea")])
    texts = pyarrow.concat_arrays([pyarrow.array([TEXT, TEXT]), damaged])
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    assert any(
        "row 3: field 'text' is no text but bytes" in each
        for each in prepared(tmp_path / "a.parquet", tmp_path, most_bad=0.5)
    )


@pytest.mark.parametrize(
    ("name", "contents", "words"),
    [
        ("a.jsonl", b'{"text": "a"}\n', "hetpeer data prepare"),
        ("a.txt.gz", PACKED, "hetpeer data prepare"),
        ("a.csv", b"text\none\n", "hetpeer data prepare"),
        ("a.txt", TEXT.encode("utf-16-le"), "has NUL characters"),
        ("a.txt", TEXT.encode("utf-16"), "iconv"),
        ("a.txt", LFS, "git lfs pull"),
    ],
)
def test_the_text_of_a_run_is_plain_text(tmp_path: Path, name: str, contents: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(ResourceError, match=words):
        read_corpus(tmp_path / name)
