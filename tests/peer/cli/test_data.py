"""`hetpeer data` in a terminal."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from peer.cli.__main__ import app
from protocol.errors import FormatError, HetpeerError, RefusedError, ResourceError, UserError
from protocol.run.prepared import open_folder
from tests.reference.mirror import Fault, mirror
from tests.reference.prepared import small_prepared, write_texts

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_prepared(tmp_path_factory.mktemp("text"))


def typed(*words: object, error: type[HetpeerError] | None = None) -> str:
    """What the command prints."""
    done = CliRunner().invoke(app, ["data", *map(str, words)], env={"COLUMNS": "160"})
    assert done.exit_code == (error.exit_code if error else 0), done.output
    return done.output


def rows(output: str) -> list[dict]:
    return [json.loads(line) for line in output.splitlines()]


def test_text_is_prepared_shown_and_checked(tmp_path: Path) -> None:
    texts, out = write_texts(tmp_path / "texts"), tmp_path / "out"
    said = typed("prepare", texts, "--out", out, "--train-tokenizer", 300, "--mirror", "https://a.example/text/")
    assert "give it with --data" in said
    for shown in (said, typed("show", out)):
        assert "39 documents to train on" in shown
        assert "a vocabulary of 300" in shown
        assert "mirror https://a.example/text" in shown
        assert "train-00000.bin" in shown
    assert "all 2 blocks are as they were prepared" in typed("verify", out)


def test_programs_get_rows(folder: Path) -> None:
    whole, *shards = rows(typed("show", folder, "--json"))
    manifest = open_folder(folder).manifest
    assert whole["vocabulary"] == 300
    assert whole["train_tokens"] == open_folder(folder).train.tokens
    assert [each["shard"] for each in shards] == [each.name for each in (*manifest.shards, manifest.held_out)]
    checked = rows(typed("verify", folder, "--json"))[-1]
    assert checked["checked"] == checked["blocks"] == open_folder(folder).blocks


@pytest.mark.parametrize("harm", ["a bit", "cut short", "longer", "gone", "tokenizer"])
def test_damage_is_found_and_named(tmp_path: Path, harm: str) -> None:
    out = small_prepared(tmp_path)
    path = out / ("tokenizer.json" if harm == "tokenizer" else open_folder(out).manifest.shards[1].name)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    whole = path.read_bytes()
    damaged = {"a bit": data, "cut short": whole[:-64], "longer": whole + b"\0\0", "tokenizer": data}
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(damaged[harm])
    assert path.name in typed("verify", out, error=ResourceError)


def test_a_mirror_is_checked_as_peers_will_ask_it(folder: Path) -> None:
    blocks = open_folder(folder).blocks
    with mirror(folder) as served:
        assert f"all {blocks} blocks are as they were" in typed("verify", served.url)
        assert len(served.asked) == blocks
        assert f"5 of {blocks} blocks" in typed("verify", served.url + "/", "--blocks", 5)


FAULTS: dict[Fault, tuple[type[HetpeerError], str]] = {
    "wrong bytes": (FormatError, "other bytes"),
    "whole file": (RefusedError, "knows no ranges"),
    "gone": (RefusedError, "data.json: answers 404"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_mirror_is_told_what_is_wrong(folder: Path, fault: Fault) -> None:
    error, words = FAULTS[fault]
    with mirror(folder, fault) as served:
        assert words in typed("verify", served.url, error=error)


def test_what_is_no_prepared_folder_is_said(tmp_path: Path) -> None:
    for command in ("show", "verify"):
        assert "no prepared text in" in typed(command, tmp_path, error=ResourceError)
    assert "is no mirror" in typed("verify", "http://a.example/?x=1", error=UserError)


def test_peers_never_load_what_only_preparing_needs() -> None:
    """Hugging Face's datasets, with pandas and pyarrow, take seconds and hundreds of megabytes."""
    heavy = ("datasets", "pyarrow", "pandas", "tokenizers")
    program = (
        "import sys, peer.cli.join, peer.daemon\n"
        "import peer.network.mirrors, peer.swarm.text_reader\n"
        f"print(*(name for name in {heavy} if name in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_a_peer_of_a_run_on_files_does_not_load_the_http_client() -> None:
    program = "import sys, peer.daemon; print('httpcore2' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"]
