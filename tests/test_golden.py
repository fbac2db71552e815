"""The golden vectors: our code writes and reads exactly them, and so does a program made from docs/wire.md alone."""

import ast
import hashlib
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.golden.vectors as vectors
from protocol.errors import FormatError
from tests.golden.__main__ import main
from tests.golden.vectors import FOLDER, Vector, encode, read
from tests.reference import wire

NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
CONTRIBUTIONS = [name for name in NAMES if name.startswith("contribution")]
SIGNED = ("card", "entry", "revocation", "work")

BY_THE_DOCUMENT: dict[str, Callable[[Vector], Any]] = {
    "contribution": lambda vector: wire.contribution(vector.data, vector.manifest_tables),
    "frame": lambda vector: wire.frame(vector.data, vector.manifest_tables),
    "snapshot header": lambda vector: wire.snapshot_header(vector.data, vector.manifest_tables),
    "snapshot bytes": lambda vector: wire.snapshot_state(vector.data, vector.manifest_tables, vector.values["part"]),
    "card": lambda vector: wire.card(vector.data),
    "entry": lambda vector: wire.entry(vector.data),
    "revocation": lambda vector: wire.revocation(vector.data),
    "bequest": lambda vector: wire.bequest(vector.data),
    "inheritance": lambda vector: wire.inheritance(vector.data),
    "work": lambda vector: wire.work(vector.data),
    "record": lambda vector: wire.peer_record(vector.data),
    "statement": lambda vector: wire.statement(vector.data),
    "ticket": lambda vector: wire.ticket(vector.data),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_described_values_are_exactly_these_bytes(name: str):
    assert encode(Vector.read(name)) == Vector.read(name).data


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_read_as_the_described_values(name: str):
    vector = Vector.read(name)
    assert read(vector, vector.data) == vector.values


@pytest.mark.parametrize("name", NAMES)
def test_a_program_made_from_the_document_reads_the_same(name: str):
    vector = Vector.read(name)
    assert BY_THE_DOCUMENT[vector.kind](vector) == vector.values


def test_that_program_has_nothing_of_ours():
    tree = ast.parse(Path(wire.__file__).read_text(encoding="utf-8"))
    imported = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {each.split(".")[0] for each in imported} <= sys.stdlib_module_names


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CONTRIBUTIONS), st.data())
def test_changed_bytes_say_the_same_to_both_or_are_refused_by_both(name: str, data: st.DataObject):
    vector = Vector.read(name)
    place = data.draw(st.integers(0, len(vector.data) - 1))
    byte = vector.data[place] ^ data.draw(st.integers(1, 255))
    changed = vector.data[:place] + bytes([byte]) + vector.data[place + 1 :]
    try:
        ours: Any = read(vector, changed)
    except FormatError:
        ours = "refused"
    try:
        theirs: Any = wire.contribution(changed, vector.manifest_tables)
    except ValueError:
        theirs = "refused"
    assert ours == theirs


@pytest.mark.parametrize("name", [name for name in NAMES if Vector.read(name).kind in SIGNED])
def test_a_signature_holds_for_no_other_bytes(name: str):
    data = Vector.read(name).data
    start = 3 if name == "entry" else 0  # there the message has a tag and a length of two bytes
    for place in (start, start + 40, start + 70, start + 115):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(ValueError, match=r"signature|curve|kind"):
            getattr(wire, Vector.read(name).kind)(changed)


def test_a_snapshots_header_names_the_pieces_of_its_bytes():
    one, header = Vector.read("snapshot-bytes"), Vector.read("snapshot-header")
    assert header.values["pieces"] == [hashlib.sha256(one.data).hexdigest()]
    elements = 40000 * 8
    state = struct.pack(f"<{elements}i", *(i * 2654435761 % 2**32 - 2**31 for i in range(elements)))
    pieces = [hashlib.sha256(state[at : at + 2**20]).hexdigest() for at in range(0, len(state), 2**20)]
    assert Vector.read("snapshot-header-two-pieces").values["pieces"] == pieces


def test_bytes_that_were_promised_are_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    for name in ("card", "revocation", "snapshot-header"):
        shutil.copy(FOLDER / f"{name}.json", tmp_path)
    shutil.copy(FOLDER / "card.bin", tmp_path)
    (tmp_path / "revocation.bin").write_bytes(b"another promise")
    monkeypatch.setattr(vectors, "FOLDER", tmp_path)
    monkeypatch.setattr(sys.modules[main.__module__], "FOLDER", tmp_path)
    assert main() == 1
    assert (tmp_path / "revocation.bin").read_bytes() == b"another promise"
    assert (tmp_path / "snapshot-header.bin").read_bytes() == Vector.read("snapshot-header").data
    said = capsys.readouterr()
    assert "revocation.bin" in said.err
    assert said.out.startswith("snapshot-header.bin: made")
