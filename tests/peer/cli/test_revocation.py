"""`hetpeer admin peers` and `revoke`: real processes and a real DHT, and whoever cannot be told."""

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bootstrap.admission import audit_log, operator_lists
from bootstrap.genesis import create_run
from peer.cli.revocation import one_peer
from peer.cli.tables import peers_table
from protocol.errors import UserError
from protocol.files import write_atomically
from protocol.identity import PeerId
from protocol.net import dht as dhts
from protocol.outer.ledger import Revocation
from protocol.run.run_files import Descriptor
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority, Card, issue
from protocol.trust.proofs import Signer, read_revocation
from protocol.trust.records import PeerRecord, Register, expiration, sign
from protocol.trust.ticket import Ticket
from tests.reference.admitted import identity
from tests.reference.processes import HETPEER, SECONDS, TEXT
from tests.reference.small_manifest import small_manifest

NOBODY = "127.0.0.1:9"
"""Nobody listens on the port of the discard service."""

ANN, BOB, GONE = (identity(name).peer_id for name in ("Ann", "Bob", "gone"))


@pytest.fixture
def run(tmp_path: Path) -> Descriptor:
    """A run made in `tmp_path / "operator"`."""
    (tmp_path / "text.txt").write_text(TEXT)
    return create_run(small_manifest(), tmp_path / "operator", tmp_path / "text.txt")


def record(peer: PeerId, round: int, **fields: object) -> PeerRecord:
    now = time.time_ns() // 1_000_000
    given = {"stage": 1, "slot": 2, "role": "volunteer", "address": NOBODY, "sequence": now} | fields
    return PeerRecord.model_validate({"peer_id": peer, "round": round} | given)


def admin(
    folder: Path, run: Descriptor, addresses: tuple[str, ...], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """`hetpeer admin …` as a process of its own."""
    ticket = Ticket(run.run_id, load_or_create(folder).public, (NOBODY,), addresses)
    write_atomically(folder / "ticket", str(ticket).encode())
    command = [*HETPEER, "admin", *arguments, "--dir", str(folder)]
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)


def with_peers(
    tmp_path: Path, run: Descriptor, peers: list[PeerRecord], *commands: tuple[str, ...]
) -> list[subprocess.CompletedProcess[str]]:
    """Commands, while these records are in the DHT."""

    authority, operator = Authority(run.run_id, run.operator), load_or_create(tmp_path / "operator")
    register = Register(authority, run.manifest)
    keys = {identity(name).peer_id: identity(name) for name in ("Ann", "Bob", "gone")}

    async def scene() -> list[subprocess.CompletedProcess[str]]:
        node = await dhts.start(load_or_create(tmp_path / "node"), "127.0.0.1", 0, register)
        try:
            for peer in peers:
                card = issue(operator, run.run_id, Card(peer.peer_id, peer.role, peer.stage, peer.slot))
                signed = sign(Signer(keys[peer.peer_id], authority, card), peer)
                await node.store(register.key(peer.peer_id), peer.peer_id, signed, expiration(peer))
            return [
                await asyncio.to_thread(admin, tmp_path / "operator", run, node.addresses, *command)
                for command in commands
            ]
        finally:
            await node.stop()

    return asyncio.run(scene())


def test_the_operator_sees_its_peers_and_shuts_one_out_though_none_can_be_told(tmp_path: Path, run: Descriptor):
    peers = [
        record(ANN, 6, replica=ANN, contributed=5, stage=0),
        record(BOB, 8),
        record(GONE, 9, gone=True),
    ]
    table, rows, done = with_peers(
        tmp_path, run, peers, ("peers",), ("peers", "--json"), ("revoke", ANN[-8:], "--json")
    )
    assert (table.returncode, table.stderr) == (0, "")
    ann, bob = (line.split() for line in sorted(table.stdout.splitlines()[1:], key=lambda line: BOB[-8:] in line))
    assert ann == [ANN[-8:], "volunteer", "0", "2", ANN[-8:], "6", "5", NOBODY]
    assert bob == [BOB[-8:], "volunteer", "1", "2", "–", "8", "–", NOBODY]
    read = {row["peer_id"]: row for row in map(json.loads, rows.stdout.splitlines())}
    assert {peer: row["round"] for peer, row in read.items()} == {ANN: 6, BOB: 8}

    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)["doing"]
    assert said.startswith(f"peer {ANN[-8:]} is taken out from round 9 on. It gets no new certificate. None of 3 peers")
    (entry,) = operator_lists.read_revoked(tmp_path / "operator")
    assert (entry.peer, entry.start) == (ANN, 9)
    signed = read_revocation(entry.signed, Authority(run.run_id, run.operator))
    assert signed == Revocation(ANN, 9, 9), "the round after the last that the others have finished"
    assert [(each.what, each.peer) for each in audit_log.last(tmp_path / "operator", 9)] == [("revoked", ANN)]


def test_a_peer_is_shut_out_while_the_run_is_down(tmp_path: Path, run: Descriptor):
    folder = tmp_path / "operator"
    audit_log.append_entry(folder, audit_log.AuditEntry(what="admitted", at=1.0, peer=BOB))
    nowhere = (f"/ip4/127.0.0.1/tcp/9/p2p/{ANN}",)
    done = admin(folder, run, nowhere, "revoke", BOB[-8:], "--from-round", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert "No bootstrap node answered" in done.stdout
    assert "gets no new certificate. No other peer was found, so what it has contributed stays" in done.stdout
    (entry,) = operator_lists.read_revoked(folder)
    assert (entry.peer, entry.start, entry.signed) == (BOB, 4, b"")


def test_only_the_operators_key_revokes(tmp_path: Path, run: Descriptor):
    folder = tmp_path / "operator"
    (folder / "identity.key").unlink()
    done = admin(folder, run, (), "revoke", BOB)
    assert done.returncode == 2
    assert "does not hold the key of this run's operator" in done.stderr
    assert operator_lists.read_revoked(folder) == ()


def test_a_peer_is_meant_by_its_id_or_by_the_end_of_one_that_is_known():
    assert one_peer(ANN, [BOB]) == ANN
    assert one_peer(ANN[-4:], [ANN, BOB]) == ANN
    assert one_peer(ANN[-4:], [BOB], iter([BOB, ANN, ANN])) == ANN


@given(st.text(max_size=50))
def test_who_is_not_known_is_not_guessed(given: str):
    here = [ANN, BOB]
    expected = {peer for peer in here if given and peer.endswith(given)}
    try:
        assert {one_peer(given, here)} == expected
    except UserError:
        assert len(expected) != 1


def test_strangers_that_the_log_names_cannot_pass_for_a_peer():
    with pytest.raises(UserError, match="no peer"):
        one_peer("nPbdG", [BOB], [PeerId("evil" + "nPbdG"), PeerId("\x1b" + ANN)])


def test_what_peers_say_is_shown_as_text():
    console = Console(width=200, record=True, color_system="truecolor", force_terminal=True)
    console.print(peers_table([record(ANN, 1, address="[red]\x1b[2J\x9b:1[/red]")]))
    assert "[red]�[2J�:1[/red]" in console.export_text()
