"""What `hetpeer export` takes for a ticket and what for a folder; `tests/system/test_models.py` exports."""

from pathlib import Path

from peer.cli.commands.export import ExportOptions, export
from peer.process import Terminal
from peer.telemetry.events import Failed
from protocol.trust.ticket import PREFIX


def refusal(out: Path, *sources: str) -> str:
    said: list[Failed] = []
    assert export(ExportOptions([*sources], out, None, False, False, 1), Terminal(said.append)) != 0
    return said[-1].message


def test_a_ticket_may_be_longer_than_any_name_of_a_file(tmp_path: Path):
    assert "ticket" in refusal(tmp_path / "model", PREFIX + 400 * "A")


def test_what_is_neither_a_ticket_nor_a_folder_is_said_to_be_neither(tmp_path: Path):
    assert refusal(tmp_path / "model", "nowhere") == "nowhere is neither a ticket nor a folder of a peer"
    assert refusal(tmp_path / "model", str(tmp_path), "nowhere").startswith("nowhere is no folder: give one ticket")
