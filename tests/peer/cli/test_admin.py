"""What the operator types about invitations and the log, and what it is shown."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from bootstrap.admission.audit_log import AuditEntry, append_entry
from bootstrap.admission.operator_lists import TOKEN_BYTES, read_invitations, redeem, set_closed
from peer.cli.__main__ import app
from peer.cli.options import duration
from protocol.errors import RefusedError, UserError
from protocol.identity import PeerId, RunId
from protocol.run.run_files import DESCRIPTOR
from protocol.trust.keys import load_or_create
from protocol.trust.ticket import Ticket, parse_ticket

TICKET = Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, ("127.0.0.1:7700",), ())
ANN = PeerId("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG")


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
    assert len(token) == TOKEN_BYTES
    (made,) = read_invitations(folder)
    assert (made.id, made.uses, made.expires - made.issued) == (id, 5, 43200)
    assert redeem(folder, token, ANN, made.issued) == id


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
    redeem(folder, token, ANN, read_invitations(folder)[0].issued)
    table = admin(folder, "invitations").output
    assert all(part in table for part in (id, "open", "4 of 5", "UTC", ANN[-8:]))
    row = json.loads(admin(folder, "invitations", "--json").output)
    assert (row["id"], row["left"], row["used_by"], row["state"]) == (id, 4, [ANN], "open")
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
            peer=ANN,
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
    assert lines[2].endswith(f"peer {ANN[-8:]} as volunteer of stage 0, slot 2 from 192.0.2.1 by invitation {id}")
    rows = [json.loads(line) for line in admin(folder, "log", "--last", "1", "--json").output.splitlines()]
    assert [(row["what"], row["peer"]) for row in rows] == [("admitted", ANN)]
    kept = "".join(file.read_text("latin-1") for file in folder.iterdir())
    assert token[4:].hex() not in kept
    assert base64.urlsafe_b64encode(token).decode().rstrip("=") not in kept


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
        redeem(folder, token, ANN, 0.0)
    assert redeem(folder, token, ANN, 0.0, gateway=True) == row["invitation"]
    assert "for one gateway until" in admin(folder, "invite", "--gateway").output
    assert "gateways" in admin(folder, "invitations").output
