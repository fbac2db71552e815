"""What the operator types about invitations and the log, and what it is shown; and `hetpeer admin peers` and `revoke`,
with real processes and a real DHT, and whoever cannot be told."""

import asyncio
import base64
import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from bootstrap.admission import audit_log, operator_lists
from bootstrap.admission.audit_log import AuditEntry, append_entry
from bootstrap.admission.operator_lists import INVITATION_TOKEN_BYTES, read_invitations, redeem, set_closed
from bootstrap.genesis import create_run
from bootstrap.monitor.watch import Monitor
from peer.cli.__main__ import app
from peer.cli.options import duration
from peer.cli.revoking import Operator, finished_round, one_peer, round_by_records, stall_warning, states_of
from peer.cli.tables import records_table
from protocol.errors import RefusedError, UserError
from protocol.files import write_atomically
from protocol.identity import PeerId, RunId
from protocol.monitor import NodeWord, RoundView
from protocol.net import dht as dhts
from protocol.outer.ledger import Revocation
from protocol.run.run_files import DESCRIPTOR, Descriptor
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.proofs import read_revocation
from protocol.trust.records import PeerRecord, Register, expiration, sign_record
from protocol.trust.ticket import Ticket, parse_ticket
from tests.reference.admitted import identity
from tests.reference.processes import TEXT, hetpeer
from tests.reference.small_manifest import small_manifest

TICKET = Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, ("127.0.0.1:7700",), ())
GUEST = PeerId("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bootstrap node's, as far as these commands look."""
    (tmp_path / DESCRIPTOR).write_text("{}")
    (tmp_path / "ticket").write_text(f"{TICKET}\n")
    return tmp_path


def admin(folder: Path, *arguments: str, **environment: str) -> Result:
    command = ["admin", *arguments, "--dir", str(folder)]
    return CliRunner().invoke(app, command, env={"COLUMNS": "200", **environment})


def invited(folder: Path, *arguments: str) -> tuple[str, bytes]:
    """The id and the token of a new invitation."""
    shown = admin(folder, "invite", "--json", *arguments)
    assert shown.exit_code == 0, shown.output
    row = json.loads(shown.output)
    ticket = parse_ticket(row["ticket"])
    assert replace(ticket, token=b"") == TICKET
    return row["invitation"], ticket.token


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("12h", 43200), ("7d", 604800), (" 1s", 1), ("3650d", 3650 * 86400)]
)
def test_a_time_is_a_number_and_a_letter(text: str, seconds: int):
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "7", "d", "7 days", "-1d", "0h", "1.5h", "7D", "1w", "3651d", "9" * 30 + "s", "٣d"]
)
def test_another_time_is_refused_with_what_it_takes(text: str):
    with pytest.raises(UserError, match="as in 30m, 12h or 7d"):
        duration(text)


def test_the_ticket_of_an_invitation_lets_in_as_many_as_were_asked_for(folder: Path):
    id, token = invited(folder, "--uses", "5", "--expires", "12h")
    assert len(token) == INVITATION_TOKEN_BYTES
    (made,) = read_invitations(folder)
    assert (made.id, made.uses, made.expires - made.issued) == (id, 5, 43200)
    assert redeem(folder, token, GUEST, made.issued) == id


def test_a_person_is_shown_the_ticket_on_a_line_of_its_own(folder: Path):
    set_closed(folder, True)
    shown = admin(folder, "invite", "--uses", "2", COLUMNS="20").output.splitlines()
    assert shown[0].startswith(f"Invitation {read_invitations(folder)[0].id}, for 2 peers until ")
    assert replace(parse_ticket(shown[2]), token=b"") == TICKET
    assert len(shown) == 3


def test_the_operator_of_an_open_run_is_told_that_anybody_can_join(folder: Path):
    assert "This run is open" in admin(folder, "invite").output
    assert "This run is open" in admin(folder, "invitations").output
    set_closed(folder, True)
    assert "This run is open" not in admin(folder, "invite").output
    assert "This run is closed" in admin(folder, "invitations").output


def test_the_ticket_is_the_folders_own_whatever_the_environment_says(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HETPEER_TICKET", str(replace(TICKET, run_id=RunId("cd" * 32))))
    invited(folder)


def test_invitations_are_listed_with_what_is_left_and_who_came(folder: Path):
    id, token = invited(folder, "--uses", "5")
    redeem(folder, token, GUEST, read_invitations(folder)[0].issued)
    table = admin(folder, "invitations").output
    assert all(part in table for part in (id, "open", "4 of 5", "UTC", GUEST[-8:]))
    row = json.loads(admin(folder, "invitations", "--json").output)
    assert (row["id"], row["left"], row["used_by"], row["state"]) == (id, 4, [GUEST], "open")
    assert "sha256" not in row


def test_a_withdrawn_invitation_is_shown_as_such(folder: Path):
    id, _ = invited(folder)
    done = admin(folder, "withdraw", id)
    assert (done.exit_code, done.output) == (
        0,
        f"Invitation {id} is withdrawn: nobody gets in with its ticket any more\n",
    )
    assert json.loads(admin(folder, "invitations", "--json").output)["state"] == "withdrawn"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("invite", "--expires", "soon"), 2, "'soon' is no time"),
        (("invite", "--uses", "20000"), 2, "1 to 10000 peers"),
        (("withdraw", "deadbeef"), 2, "no invitation 'deadbeef'; there are: none"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(folder: Path, arguments: tuple[str, ...], code: int, said: str):
    done = admin(folder, *arguments)
    assert done.exit_code == code
    assert said in done.output
    assert len(done.output.splitlines()) == 1
    assert read_invitations(folder) == ()


def test_a_folder_without_a_ticket_or_a_run_says_what_it_lacks(folder: Path):
    (folder / "ticket").unlink()
    done = admin(folder, "invite")
    assert (done.exit_code, "start `hetpeer bootstrap` once" in done.output) == (4, True)
    (folder / DESCRIPTOR).unlink()
    done = admin(folder, "log")
    assert (done.exit_code, "--dir" in done.output) == (4, True)


def test_the_log_tells_what_was_done_and_no_token(folder: Path):
    id, token = invited(folder, "--uses", "5", "--expires", "7d")
    admin(folder, "withdraw", id)
    append_entry(
        folder,
        AuditEntry(
            what="admitted",
            at=1e9,
            peer=GUEST,
            role="volunteer",
            stage=0,
            slot=2,
            address="192.0.2.1",
            invitation=id,
        ),
    )
    lines = admin(folder, "log").output.splitlines()
    assert [line.split()[2] for line in lines] == ["invited", "withdrawn", "admitted"]
    assert lines[0].endswith(f"by invitation {id}: 5 uses for 7d")
    assert lines[2].endswith(f"peer {GUEST[-8:]} as volunteer of stage 0, slot 2 from 192.0.2.1 by invitation {id}")
    rows = [json.loads(line) for line in admin(folder, "log", "--last", "1", "--json").output.splitlines()]
    assert [(row["what"], row["peer"]) for row in rows] == [("admitted", GUEST)]
    kept = "".join(file.read_text("latin-1") for file in folder.iterdir())
    assert token[4:].hex() not in kept
    assert base64.urlsafe_b64encode(token).decode().rstrip("=") not in kept


def test_what_is_done_to_nobody_has_no_colon(folder: Path):
    append_entry(folder, AuditEntry(what="rewound", at=1e9, reason="to round 0; the run had finished round 123"))
    assert admin(folder, "log").output.endswith(" rewound   to round 0; the run had finished round 123\n")


def test_an_empty_log_is_shown_as_nothing(folder: Path):
    for arguments in (("log",), ("log", "--json")):
        assert admin(folder, *arguments).output == ""


def test_a_stranger_cannot_write_to_the_operators_terminal(folder: Path):
    append_entry(folder, AuditEntry(what="refused", at=1e9, peer="\x1b[2J\x9b1mQm\r\n", reason="[red]no[/red]\n\x07"))
    shown = admin(folder, "log").output
    assert shown.count("\n") == 1
    assert shown.rstrip("\n").isprintable()
    assert "[red]no[/red]" in shown


def test_the_operator_alone_makes_an_invitation_for_a_gateway(folder: Path):
    done = admin(folder, "invite", "--gateway")
    assert done.exit_code != 0
    assert "is a gateway's: only the run's operator can make another" in done.output
    assert not read_invitations(folder)
    operator = load_or_create(folder)
    (folder / "ticket").write_text(f"{replace(TICKET, authority=operator.public)}\n")
    row = json.loads(admin(folder, "invite", "--gateway", "--json").output)
    assert row["gateway"]
    token = parse_ticket(row["ticket"]).token
    with pytest.raises(RefusedError, match="is for a gateway, and for nothing else"):
        redeem(folder, token, GUEST, 0.0)
    assert redeem(folder, token, GUEST, 0.0, gateway=True) == row["invitation"]
    assert "for one gateway until" in admin(folder, "invite", "--gateway").output
    assert "gateways" in admin(folder, "invitations").output


# Peers, and revoking one


NOBODY = "127.0.0.1:9"
"""Nobody listens on the port of the discard service."""

TICKET_OF_NOBODY = replace(TICKET, node_addresses=(NOBODY,))

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


def admin_process(
    folder: Path, run: Descriptor, addresses: tuple[str, ...], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """`hetpeer admin …` as a process of its own."""
    ticket = Ticket(run.run_id, load_or_create(folder).public, (NOBODY,), addresses)
    write_atomically(folder / "ticket", str(ticket).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        return hetpeer("admin", *arguments, "--dir", str(folder))


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
                signed = sign_record(Signer(keys[peer.peer_id], authority, card), peer)
                await node.store(register.key(peer.peer_id), peer.peer_id, signed, expiration(peer))
            return [
                await asyncio.to_thread(admin_process, tmp_path / "operator", run, node.addresses, *command)
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
    assert ann == [ANN[-8:], "–", "volunteer", "0", "2", ANN[-8:], "6", "5", NOBODY]
    assert bob == [BOB[-8:], "–", "volunteer", "1", "2", "–", "8", "–", NOBODY]
    read = {row["peer_id"]: row for row in map(json.loads, rows.stdout.splitlines())}
    assert {peer: row["round"] for peer, row in read.items()} == {ANN: 6, BOB: 8}

    assert (done.returncode, done.stderr) == (0, "")
    warning, said = (json.loads(line)["doing"] for line in done.stdout.splitlines())
    assert "nobody else who is here holds the state of stage 0" in warning
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
    done = admin_process(folder, run, nowhere, "revoke", BOB[-8:], "--from-round", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert "No bootstrap node answered" in done.stdout
    assert "gets no new certificate. No other peer was found, so what it has contributed stays" in done.stdout
    (entry,) = operator_lists.read_revoked(folder)
    assert (entry.peer, entry.start, entry.signed) == (BOB, 4, b"")


def test_the_round_that_is_going_on_is_that_of_the_peers_that_are_here():
    """A peer that was killed at round 62 has a record for a minute; the others are at round 122."""
    now, quick = 1e9, 122
    killed = record(GONE, 62, sequence=int((now - 43) * 1000))
    left_early = record(GONE, 62, sequence=int(now * 1000), gone=True)
    alive = record(BOB, quick, sequence=int((now - 14) * 1000))
    assert round_by_records([killed, alive], now) == round_by_records([left_early, alive], now) == quick
    just_killed = record(GONE, 62, sequence=int((now - 5) * 1000))
    assert round_by_records([just_killed, alive], now) == quick, "of two the later: closed rounds stay"
    assert round_by_records([killed], now) == 62, "where nobody else is known"


def test_the_node_knows_the_round_better_than_records(tmp_path: Path, run: Descriptor, monkeypatch: pytest.MonkeyPatch):
    async def ask_node(ticket: Ticket) -> NodeWord:
        return NodeWord(run=9)

    monkeypatch.setattr("peer.network.admission.ask_node", ask_node)
    operator = Operator.of(tmp_path / "operator", run.run_id)
    assert asyncio.run(finished_round([record(BOB, 6)], operator, TICKET)) == 9
    assert asyncio.run(finished_round([record(BOB, 12)], operator, TICKET)) == 12, "the node has just come back"


def test_a_revocation_leaves_the_rounds_alone_that_the_node_has_seen_end(tmp_path: Path, run: Descriptor):
    """The node does not answer, but it has written down what it had seen; the record of a killed peer is older."""
    folder = tmp_path / "operator"
    monitor = Monitor.of(run.manifest, run.run_id, folder)
    ended = [RoundView(round=round, began=1.0, ended=2.0) for round in (7, 8)]
    monitor.write(True, monitor.fold.to_keep(1.0).model_copy(update={"history": ended}))
    with_peers(tmp_path, run, [record(ANN, 8), record(GONE, 3)], ("revoke", ANN[-8:]))
    (entry,) = operator_lists.read_revoked(folder)
    signed = read_revocation(entry.signed, Authority(run.run_id, run.operator))
    assert signed == Revocation(ANN, 9, 9)


def test_the_states_of_peers_are_marked_by_the_age_of_their_records_and_by_the_list_of_revoked_ones():
    old = record(BOB, 8, sequence=time.time_ns() // 1_000_000 - 43_000)
    states = asyncio.run(states_of((record(ANN, 8), old, record(GONE, 8)), {GONE}, TICKET_OF_NOBODY))
    assert states == {BOB: "silent for 43 s", GONE: "revoked"}


def test_the_operator_is_warned_that_a_state_goes_with_its_only_holder():
    now = time.time()
    stale = record(GONE, 8, stage=0, sequence=int((now - 43) * 1000))
    alone = record(ANN, 8, stage=0), record(BOB, 8, stage=1), stale
    warning = stall_warning(ANN, alone, 2, now)
    assert "nobody else who is here holds the state of stage 0 after round 8" in warning
    assert "`hetpeer admin rewind`" in warning
    assert not stall_warning(ANN, (*alone, record(GONE, 8, stage=0)), 2, now)
    assert not stall_warning(ANN, (*alone, record(GONE, 8, stage=0, role="datacenter")), 2, now)
    assert not stall_warning(GONE, alone, 2, now), "another holds it"
    assert "stage 0 and stage 1" in stall_warning(ANN, (record(ANN, 8, stage=0, role="datacenter"),), 2, now)


def test_a_revoked_peer_holds_no_state_that_the_run_could_go_on_from(tmp_path: Path, run: Descriptor):
    peers = [record(peer, 8, stage=stage) for peer, stage in ((ANN, 0), (BOB, 0), (GONE, 1))]
    first, second = with_peers(tmp_path, run, peers, ("revoke", BOB), ("revoke", ANN))
    assert "nobody else" not in first.stdout
    assert "nobody else who is here holds the state of stage 0 after round 8" in second.stdout + second.stderr


def test_only_the_operators_key_revokes(tmp_path: Path, run: Descriptor):
    folder = tmp_path / "operator"
    (folder / "identity.key").unlink()
    done = admin_process(folder, run, (), "revoke", BOB)
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
    console.print(records_table([record(ANN, 1, address="[red]\x1b[2J\x9b:1[/red]")], {}))
    assert "[red]�[2J�:1[/red]" in console.export_text()
