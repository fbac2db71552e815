"""From anybody's text to shards: nothing is lost, nothing is left half done."""

import gzip
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from bootstrap.data.encoding import PIECES
from bootstrap.data.prepare import PrepareRequest, prepare_text
from protocol.errors import FormatError, ResourceError, UserError
from protocol.run.dataset import DataManifest
from protocol.run.prepared import open_folder, read_block
from tests.reference.prepared import small_prepared, write_texts

ROOT = Path(__file__).parents[3]


def quietly(doing: str, done: int, total: int) -> None:
    """Nobody listens."""


def documents_in(folder: Path) -> list[list[str]]:
    """The texts of the two streams, as the tokens say them, in the order of the shards."""
    manifest = open_folder(folder).manifest
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [texts(folder, manifest, tokenizer, names) for names in (manifest.shards, (manifest.held_out,))]


def texts(folder: Path, manifest: DataManifest, tokenizer: Tokenizer, shards: tuple) -> list[str]:
    parts = [np.fromfile(folder / shard.name, manifest.token_dtype) for shard in shards]
    tokens = np.concatenate([parts[0], *(part[1:] for part in parts[1:])])
    ends = np.flatnonzero(tokens == manifest.end_of_text)
    assert ends[-1] == len(tokens) - 1, "the last document ends, too"
    pieces = np.split(tokens, ends + 1)[:-1]
    return [tokenizer.decode(piece[:-1].tolist(), skip_special_tokens=False) for piece in pieces]


def test_every_document_is_there_once_whole_and_in_another_order(tmp_path: Path) -> None:
    out = small_prepared(tmp_path)
    train, held_out = documents_in(out)
    originals = [path.read_text() for path in sorted((tmp_path / "texts").iterdir())]
    assert sorted(train + held_out) == sorted(originals)
    assert len(held_out) == 1
    assert train != [text for text in originals if text in train]


def test_the_manifest_counts_what_is_there(tmp_path: Path) -> None:
    out = small_prepared(tmp_path, held_out=0.25)
    manifest = open_folder(out).manifest
    assert (manifest.documents, manifest.held_out_documents) == (30, 10)
    for shard in (*manifest.shards, manifest.held_out):
        data = (out / shard.name).read_bytes()
        assert (len(data) // 2, hashlib.sha256(data).hexdigest()) == (shard.tokens, shard.sha256)
    assert manifest.tokenizer == hashlib.sha256((out / "tokenizer.json").read_bytes()).hexdigest()


def test_the_same_text_and_seed_give_the_same_folder_and_another_seed_another_order(tmp_path: Path) -> None:
    first, again, other = (
        open_folder(small_prepared(tmp_path / name, seed=seed)).manifest
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    )
    assert first == again
    assert first.shards != other.shards


@given(st.lists(st.text(alphabet="ab \n.é🙂", max_size=300), min_size=2, max_size=12), st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_whatever_the_texts_are_they_can_be_read_back(
    tmp_path_factory: pytest.TempPathFactory, given_texts: list[str], shard_blocks: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    lines = [json.dumps({"text": text}) for text in given_texts] + [
        json.dumps({"text": "a text of some length " * 9})
    ] * 2
    (folder / "texts.jsonl").write_text("\n".join(lines))
    wanted = PrepareRequest(
        [str(folder / "texts.jsonl")], train_tokenizer=300, block_tokens=32, shard_blocks=shard_blocks
    )
    prepare_text(wanted, folder / "out", quietly)
    train, held_out = documents_in(folder / "out")
    expected = [json.loads(line)["text"] for line in lines]
    assert sorted(train + held_out) == sorted(text for text in expected if text.strip())


def test_a_single_text_is_cut_and_its_end_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "book").write_text("Call me Ishmael. " * 200)
    manifest = prepare_text(
        PrepareRequest([str(tmp_path / "book")], train_tokenizer=300, held_out=0.1), tmp_path / "out", quietly
    )
    assert manifest.held_out.tokens == pytest.approx(
        0.1 * (manifest.held_out.tokens + manifest.shards[0].tokens), abs=1
    )


def test_a_text_longer_than_what_is_read_at_once_has_the_tokens_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_texts(tmp_path / "texts", 6)
    manifests = []
    for name, characters in (("whole", 2**20), ("pieces", 50)):
        monkeypatch.setattr("bootstrap.data.documents.READ_CHARACTERS", characters)
        manifests.append(prepare_text(PrepareRequest([str(texts)], train_tokenizer=300), tmp_path / name, quietly))
    assert manifests[0].shards == manifests[1].shards


def test_shards_and_what_is_buffered_are_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = documents_in(small_prepared(tmp_path / "large"))
    monkeypatch.setattr("bootstrap.data.shards.BUFFERED_TOKENS", 100)
    monkeypatch.setattr("bootstrap.data.encoding.BATCH_TEXTS", 3)
    assert documents_in(small_prepared(tmp_path / "small", shard_blocks=3)) == expected


def test_all_kinds_of_files_say_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    written = [f"Document {number} has a few words of its own.\nAnd a line more." for number in range(20)]
    lines = "".join(json.dumps({"content": text, "url": "x"}) + "\n" for text in written)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    parquet.write_table(pyarrow.table({"content": written, "url": ["x"] * 20}), tmp_path / "c.parquet")
    found = [
        prepare_text(
            PrepareRequest([str(tmp_path / name)], train_tokenizer=300, field="content"),
            tmp_path / f"{name}.out",
            quietly,
        )
        for name in ("a.jsonl", "b.jsonl.gz", "c.parquet")
    ]
    assert found[0].shards == found[1].shards == found[2].shards


def test_a_dataset_is_streamed_by_its_own_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "rows").mkdir()
    lines = [json.dumps({"text": f"Row {number} of a dataset, with words in it."}) for number in range(20)]
    (tmp_path / "rows" / "train.jsonl").write_text("\n".join(lines))
    manifest = prepare_text(PrepareRequest([f"hf:{tmp_path / 'rows'}"], train_tokenizer=300), tmp_path / "out", quietly)
    same = prepare_text(PrepareRequest([str(tmp_path / "rows")], train_tokenizer=300), tmp_path / "same", quietly)
    assert manifest.shards == same.shards


@pytest.mark.parametrize(
    ("name", "contents", "words"),
    [
        ("a.jsonl", b'{"text": "fine"}\n{"body": "no"}\n', r"a\.jsonl, line 2: has no field 'text', but body.*--field"),
        ("a.jsonl", b'{"text": 5}\n', "line 1: field 'text' is no text but int"),
        ("a.jsonl", b"{not json\n", "line 1"),
        ("a.jsonl", b"[1]\n", "item 1: is no object"),
        ("a.jsonl", b'[{"text": "fine"}]\n[2]\n', "begins as a JSON list, and is none"),
        ("a.jsonl", b'{"text": "a \\ud83d b"}\n', "line 1: field 'text' has half of a surrogate pair"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": null}\n"\xff"\n', "2 of 3 records .*2: .*null; .*3: .*66.7%"),
        ("a.txt", b"\xff\xd8\xff", r"a\.txt is not text in UTF-8"),
        ("a.jsonl.gz", b"no gzip at all", r"cannot read .*a\.jsonl\.gz"),
        ("a.txt.gz", gzip.compress(b"Some text. " * 1000, mtime=0)[:40], "ends too early"),
        ("a.txt", b" \n ", "there is no text in"),
        ("a.parquet", b"PAR1 no parquet", r"a\.parquet is no Parquet file"),
    ],
)
def test_what_cannot_be_read_is_named_and_leaves_nothing(
    tmp_path: Path, name: str, contents: bytes, words: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(ResourceError, match=words):
        prepare_text(PrepareRequest([str(tmp_path / name)], train_tokenizer=300), tmp_path / "out", quietly)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_records_that_cannot_be_used_are_left_out_counted_and_listed_within_the_users_share(tmp_path: Path) -> None:
    bad = ['{"text": null}', "[", '{"text": "a \\ud83d b"}', '{"body": "no"}']
    texts = tmp_path / "texts"
    texts.mkdir()
    lines = [json.dumps({"text": f"record {number} says something"}) for number in range(196)]
    (texts / "a.jsonl").write_text("\n".join([*lines[:100], *bad, *lines[100:]]), encoding="utf-8-sig")
    (texts / "b.txt").write_bytes(b"half of this is text, \xff and half is not")
    said: list[str] = []
    wanted = PrepareRequest([str(texts)], train_tokenizer=300, most_bad=0.025)
    manifest = prepare_text(wanted, tmp_path / "out", lambda doing, done, total: said.append(doing))
    assert manifest.documents + manifest.held_out_documents == 196
    listed = (tmp_path / "out" / "skipped.txt").read_text().splitlines()
    assert [line.split(": ")[0].removeprefix(f"{texts}/") for line in listed] == [
        *(f"a.jsonl, line {number}" for number in range(101, 105)),
        "b.txt is not text in UTF-8 (invalid start byte)",
    ]
    assert any(words.startswith("left out 5 of 201 records, which skipped.txt lists: ") for words in said)
    with pytest.raises(ResourceError, match=r"5 of 201 records.*--skip-bad 2\.5%"):
        prepare_text(replace(wanted, most_bad=0.02), tmp_path / "strict", quietly)


def test_a_source_of_which_nothing_can_be_used_is_given_up_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "no"}\n' * 20_000)
    with pytest.raises(ResourceError, match=r"6 of 6 records.*no field 'text', but body"):
        prepare_text(PrepareRequest([str(tmp_path)], train_tokenizer=300, most_bad=0), tmp_path / "out", quietly)


def test_two_preparations_do_not_write_one_folder(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", 10)
    refused: list[str] = []

    def again(doing: str, done: int, total: int) -> None:
        if not refused:
            with pytest.raises(ResourceError, match="another preparation writes") as caught:
                prepare_text(PrepareRequest([str(texts)], train_tokenizer=300), tmp_path / "out", quietly)
            refused.append(str(caught.value))

    prepare_text(PrepareRequest([str(texts)], train_tokenizer=300), tmp_path / "out", again)
    assert refused
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "texts"]


def test_a_list_of_records_is_read_as_lines_are(tmp_path: Path) -> None:
    rows = [{"text": f"record {number} says something"} for number in range(50)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rows.json").write_text(json.dumps(rows, indent=1))
    lines, items = (
        prepare_text(PrepareRequest([str(tmp_path / name)], train_tokenizer=300), tmp_path / kind, quietly)
        for name, kind in (("rows.jsonl", "lines"), ("rows.json", "items"))
    )
    assert lines.shards == items.shards


def test_few_tokens_held_out_are_told(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number, words in enumerate([5000, *[1] * 60]):
        (texts / f"{number:02}.txt").write_text("some words of text " * words)
    said: list[str] = []
    prepare_text(
        PrepareRequest([str(texts)], train_tokenizer=300, held_out=0.1),
        tmp_path / "out",
        lambda doing, done, total: said.append(doing),
    )
    assert any("where --held-out 0.1 of the documents was asked for" in words for words in said)


def test_a_library_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ResourceError, match=r"pip install 'hetpeer\[hf\]'"):
        prepare_text(PrepareRequest(["hf:some/dataset"], train_tokenizer=300), tmp_path / "out", quietly)


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    out = small_prepared(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    with pytest.raises(ResourceError, match="not empty"):
        prepare_text(PrepareRequest([str(tmp_path / "texts")], train_tokenizer=300), out, quietly)
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


@pytest.mark.parametrize("wanted", [{}, {"tokenizer": Path("x"), "train_tokenizer": 300}, {"train_tokenizer": 100}])
def test_a_tokenizer_is_given_or_trained(tmp_path: Path, wanted: dict) -> None:
    with pytest.raises(UserError, match="token"):
        prepare_text(PrepareRequest([str(write_texts(tmp_path / "texts"))], **wanted), tmp_path / "out", quietly)


def test_a_mirror_is_a_url(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is no mirror"):
        prepare_text(
            PrepareRequest(["x"], train_tokenizer=300, mirrors=["ftp://example.org"]), tmp_path / "out", quietly
        )


def given_tokenizer(path: Path, end: str) -> Path:
    """One that is not cut before lines: it lowers all letters and knows words alone. It also truncates."""
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["?", end], show_progress=False)
    tokenizer.train_from_iterator((text.read_text() for text in sorted(path.glob("texts/*.txt"))), trainer)
    tokenizer.enable_truncation(5)
    tokenizer.save(str(path / "tokenizer.json"))
    return path / "tokenizer.json"


def test_a_given_tokenizer_is_kept_byte_for_byte_and_cuts_nothing_off(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts")
    path = given_tokenizer(tmp_path, "</s>")
    manifest = prepare_text(PrepareRequest([str(texts)], tokenizer=path), tmp_path / "out", quietly)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == path.read_bytes()
    assert manifest.end_of_text == 1
    assert sum(shard.tokens for shard in manifest.shards) > 40 * 100


def test_a_token_that_ends_texts_is_asked_for_where_there_is_no_usual_one(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts")
    path = given_tokenizer(tmp_path, "<stop>")
    with pytest.raises(UserError, match="--end-of-text"):
        prepare_text(PrepareRequest([str(texts)], tokenizer=path), tmp_path / "out", quietly)
    manifest = prepare_text(
        PrepareRequest([str(texts)], tokenizer=path, end_of_text="<stop>"), tmp_path / "out", quietly
    )
    assert manifest.end_of_text == 1


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "a.txt").write_text("A text.")
    with pytest.raises(ResourceError, match=r"tokenizer\.json is no tokenizer"):
        prepare_text(PrepareRequest([str(tmp_path)], tokenizer=tmp_path / "tokenizer.json"), tmp_path / "out", quietly)


def test_blocks_share_one_token_and_cover_both_streams(tmp_path: Path) -> None:
    folder = small_prepared(tmp_path, shard_blocks=3)
    dataset = open_folder(folder)
    for stream in (dataset.train, dataset.held_out):
        blocks = [dataset.block(stream.first + number) for number in range(stream.blocks)]
        tokens = [dataset.tokens_of(block, read_block(folder, block)) for block in blocks]
        assert all(first[-1] == second[0] for first, second in itertools.pairwise(tokens))
        assert all(len(each) == stream.block_tokens + 1 for each in tokens[:-1])
        assert sum(len(each) - 1 for each in tokens) + 1 == stream.tokens


PROGRAM = """
import os, signal, sys
from bootstrap.data import prepare
def interrupt(doing, done, total):
    if doing.startswith(sys.argv[3]):
        os.kill(os.getpid(), getattr(signal, sys.argv[4]))
from pathlib import Path
prepare.prepare_text(prepare.PrepareRequest([sys.argv[1]], train_tokenizer=300), Path(sys.argv[2]), interrupt)
"""


@pytest.mark.parametrize(("when", "how"), [("training", "SIGINT"), ("tokenizing", "SIGINT"), ("hashing", "SIGKILL")])
def test_whoever_is_stopped_leaves_nothing_that_looks_whole(tmp_path: Path, when: str, how: str) -> None:
    texts, out = write_texts(tmp_path / "texts", 10), tmp_path / "out"
    words = [sys.executable, "-c", PROGRAM, str(texts), str(out), when, how]
    stopped = subprocess.run(words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    assert stopped.returncode == -getattr(signal, how)
    assert not out.exists()
    if how == "SIGINT":
        assert [path.name for path in tmp_path.iterdir()] == ["texts"]
    prepare_text(PrepareRequest([str(texts)], train_tokenizer=300), out, quietly)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "texts"]


class Stopped:
    """Who listens, and presses Ctrl-C when so many documents are tokenized."""

    def __init__(self, documents: int) -> None:
        self.documents = documents
        self.heard: list[str] = []

    def __call__(self, doing: str, done: int, total: int) -> None:
        self.heard.append(doing)
        if doing.startswith("tokenizing:") and int(doing.split()[1]) >= self.documents:
            raise KeyboardInterrupt


@pytest.fixture
def kept_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done is kept, and told, document by document."""
    monkeypatch.setattr("bootstrap.data.prepare.KEEP_SECONDS", 0.0)
    monkeypatch.setattr("bootstrap.data.prepare.SAY_SECONDS", 0.0)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.usefixtures("kept_at_once")
def test_one_that_was_stopped_goes_on_where_it_was_and_comes_to_the_same(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", 40)
    (texts / "000-blank.txt").write_text(" \n")
    wanted = PrepareRequest([str(texts)], train_tokenizer=300)
    whole = prepare_text(wanted, tmp_path / "whole", quietly)
    first, second, third = Stopped(10), Stopped(25), Stopped(1000)
    for listener in (first, second):
        with pytest.raises(KeyboardInterrupt):
            prepare_text(wanted, tmp_path / "out", listener)
        assert not (tmp_path / "out").exists()
        assert f"the same command goes on from what is in {tmp_path / '.out.partial'}" in listener.heard[-1]
    assert prepare_text(wanted, tmp_path / "out", third) == whole
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "texts", "whole"]
    assert "training a tokenizer of 300 tokens" in first.heard
    assert "training a tokenizer of 300 tokens" not in third.heard
    assert "going on after 25 documents, where it was stopped" in third.heard


@pytest.mark.usefixtures("kept_at_once")
@pytest.mark.parametrize("change", ["seed", "text", "damage"])
def test_it_begins_anew_where_something_else_is_asked_for_or_what_was_kept_is_damaged(
    tmp_path: Path, change: str
) -> None:
    texts = write_texts(tmp_path / "texts", 20)
    wanted = PrepareRequest([str(texts)], train_tokenizer=300)
    with pytest.raises(KeyboardInterrupt):
        prepare_text(wanted, tmp_path / "out", Stopped(10))
    match change:
        case "seed":
            wanted = PrepareRequest([str(texts)], train_tokenizer=300, seed=2)
        case "text":
            (next(texts.iterdir())).write_text("Something else is written here now.")
        case "damage":
            next((tmp_path / ".out.partial/shuffle").glob("*.tokens")).write_bytes(b"")
    listener = Stopped(1000)
    prepare_text(wanted, tmp_path / "out", listener)
    assert not [said for said in listener.heard if said.startswith("going on")]
    prepare_text(wanted, tmp_path / "whole", quietly)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_ctrl_c_does_not_wait_for_the_training_of_a_tokenizer_which_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, said = threading.Event(), list[str]()
    monkeypatch.setattr("bootstrap.data.prepare.TRAINING_PROGRESS_SECONDS", 0.05)

    def train(sources: object, vocabulary: int, most_bad: float, note: Callable[[int], object]) -> None:
        note(3_000_000)
        goes_on.wait()

    def progress(doing: str, done: int, total: int) -> None:
        said.append(doing)
        if len(said) > 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("bootstrap.data.prepare.train_encoder", train)
    texts = write_texts(tmp_path / "texts", 6)
    with pytest.raises(KeyboardInterrupt):
        prepare_text(PrepareRequest([str(texts)], train_tokenizer=300), tmp_path / "out", progress)
    goes_on.set()
    assert said[0] == "training a tokenizer of 300 tokens"
    assert said[1].startswith("training a tokenizer of 300 tokens: 3 million characters read, ")
    assert not (tmp_path / "out").exists()


def test_one_long_line_is_cut_between_words() -> None:
    line = "many words and never a line break " * 2000
    pieces = PIECES.findall(line)
    assert "".join(pieces) == line
    assert max(map(len, pieces)) < 4200
