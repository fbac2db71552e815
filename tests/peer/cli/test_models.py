"""`hetpeer export` tells a ticket from a folder; `tests/system/test_models.py` exports. `hetpeer sample` shows what the
model writes, whole characters as they come, and nothing is lost at the end."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from typer.testing import CliRunner

from peer.cli.__main__ import app
from peer.cli.models import ExportOptions, export_model
from peer.process import INTERRUPTED, Terminal
from peer.store.home import peer_folders, remember
from protocol.errors import UserError
from protocol.events.activity import Failed
from protocol.events.event import Event
from protocol.identity import RunId
from protocol.trust.ticket import TICKET_PREFIX, Ticket
from tests.reference.checkpoints import by_transformers, tokenizer


def hetpeer(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--threads", "1"])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.output


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(by_transformers(tmp_path / "m"))


@pytest.mark.parametrize("seed", range(4))
def test_a_person_sees_the_prompt_and_every_character_though_many_are_no_utf8(checkpoint: str, seed: int) -> None:
    asked = (
        "sample",
        checkpoint,
        "A small",
        "--tokens",
        "40",
        "--temperature",
        "1.5",
        "--top-p",
        "1",
        "--seed",
        str(seed),
    )
    said = json.loads(hetpeer(*asked, "--json"))
    assert said["seed"] == seed
    assert said["text"] == tokenizer().decode(said["tokens"])
    assert hetpeer(*asked) == f"A small{said['text']}\n"


def test_it_says_why_it_ended(checkpoint: str) -> None:
    asked = "sample", checkpoint, "A small text", "--temperature", "0", "--json", "--tokens"
    assert json.loads(hetpeer(*asked, "3"))["stopped"] == "tokens"
    said = json.loads(hetpeer(*asked, "1000"))
    assert said["stopped"] == ("end of text" if said["tokens"][-1] == 0 else "context")


def test_a_prompt_may_be_empty_but_not_longer_than_the_context(checkpoint: str) -> None:
    assert len(json.loads(hetpeer("sample", checkpoint, "--tokens", "2", "--json", "--seed", "1"))["tokens"]) == 2
    assert "the model reads 64 at most" in hetpeer("sample", checkpoint, "small " * 64, code=2)


def test_a_space_that_a_tokenizer_drops_at_the_beginning_of_a_text_stands_behind_the_prompt(checkpoint: str) -> None:
    words = {f"▁{word}": number for number, word in enumerate(["end", "A", "small", "text"])} | {"<x>": 4}
    spaced = Tokenizer(models.WordLevel(words | {f"▁{number}": number for number in range(5, 300)}, unk_token="<x>"))
    spaced.pre_tokenizer, spaced.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    spaced.save(str(Path(checkpoint) / "tokenizer.json"))
    shown = hetpeer("sample", checkpoint, "A", "small", "--tokens", "1", "--temperature", "0")
    assert shown.startswith("A small ")


def test_a_tokenizer_whose_regular_expression_explodes_is_an_error_and_no_endless_wait(checkpoint: str) -> None:
    """The library gives a match up after ten million steps."""
    path = Path(checkpoint) / "tokenizer.json"
    hostile = Tokenizer.from_file(str(path))
    hostile.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    hostile.save(str(path))
    assert "cannot take this text: " in hetpeer("sample", checkpoint, "a" * 60 + "b", code=4)


def test_a_tokenizer_that_is_larger_than_its_vocabulary_takes_is_not_parsed(checkpoint: str) -> None:
    path = Path(checkpoint) / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b" " * (2**20 + 256 * 300))
    assert "too many for a vocabulary of 300" in hetpeer("sample", checkpoint, "A", code=4)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    assert "has no config.json: give the folder" in hetpeer("sample", str(tmp_path), "A", code=2)


# Export


def refusal(out: Path, *sources: str) -> str:
    said: list[Failed] = []
    assert export_model(ExportOptions(source=[*sources], out=out, threads=1), Terminal(said.append)) != 0
    return said[-1].message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_export_that_is_stopped_while_it_catches_up_writes_nothing(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its folder has an older state, of the last time."""
    ticket = Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, ("h:1",), ())
    written: list[object] = []

    async def catch_up(*rest: object) -> None:
        stop = rest[4]
        assert isinstance(stop, asyncio.Event)
        os.kill(os.getpid(), number)
        await stop.wait()

    monkeypatch.setattr("peer.export.collected.bring_up_to_date", catch_up)
    monkeypatch.setattr("peer.export.collected.collect", lambda *given: written.append(given))
    options = ExportOptions(source=[str(ticket)], out=tmp_path / "model", threads=1)
    assert export_model(options, Terminal(lambda event: None)) == INTERRUPTED
    assert written == []


def test_an_export_says_where_the_swarms_state_stays_and_is_no_peer_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HETPEER_HOME", str(tmp_path))
    ticket = Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, ("h:1",), ())
    visits: list[Path] = []

    async def catch_up(ticket: Ticket, folder: Path, *rest: object) -> None:
        visits.append(folder)

    def collect(folders: list[Path], *rest: object) -> None:
        assert folders == visits
        raise UserError("that is all")

    monkeypatch.setattr("peer.export.collected.bring_up_to_date", catch_up)
    monkeypatch.setattr("peer.export.collected.collect", collect)
    events: list[Event] = []
    export_model(ExportOptions(source=[str(ticket)], out=tmp_path / "model", threads=1), Terminal(events.append))
    assert [event.words for event in events] == [
        f"The swarm has given its state; what came stays in {visits[0]}, for a quick next export, and may be removed",
        "hetpeer: that is all",
    ]
    assert (visits[0] / "lock").exists()
    assert peer_folders(None) == []


def test_without_a_source_the_model_is_that_of_the_ticket_last_used_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HETPEER_HOME", str(tmp_path))
    monkeypatch.delenv("HETPEER_TICKET", raising=False)
    options, tickets = ExportOptions(out=tmp_path / "model", threads=1), list[Ticket]()

    async def catch_up(ticket: Ticket, *rest: object) -> None:
        tickets.append(ticket)
        raise UserError("that is all")

    monkeypatch.setattr("peer.export.collected.bring_up_to_date", catch_up)
    events: list[Event] = []
    export_model(options, Terminal(events.append))
    assert "no ticket" in str(events[-1].words)
    ticket = Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, ("h:1",), ())
    remember(ticket)
    export_model(options, Terminal(events.append))
    assert tickets == [ticket]
    assert "From the swarm of run abababababab, by the ticket last used here" in [event.words for event in events]


def test_a_ticket_may_be_longer_than_any_name_of_a_file(tmp_path: Path):
    assert "ticket" in refusal(tmp_path / "model", TICKET_PREFIX + 400 * "A")


def test_what_is_neither_a_ticket_nor_a_folder_is_said_to_be_neither(tmp_path: Path):
    assert refusal(tmp_path / "model", "nowhere") == "nowhere is neither a ticket nor a folder of a peer"
    assert refusal(tmp_path / "model", str(tmp_path), "nowhere").startswith("nowhere is no folder: give one ticket")
