"""The ticket: one line, whole or refused."""

import base64
import os
import string
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import TicketError
from protocol.identity import RunId
from protocol.limits import ADDRESSES_NAMED
from protocol.trust.ticket import (
    ADDRESSES_KEPT,
    PEERS,
    TICKET_PREFIX,
    TICKET_VARIABLE,
    Ticket,
    find_ticket,
    parse_ticket,
    recall_addresses,
    remember_addresses,
)

TICKET = Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, ("127.0.0.1:7700",), ("/ip4/127.0.0.1/tcp/7701/p2p/QmSomebody",))
ALPHABET = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
TOKEN = (852).to_bytes(19)
"""With it the ticket has both characters of its own, and ends in a character of which two bits are unused."""


def test_a_ticket_reads_back_as_it_was_written():
    assert parse_ticket(str(TICKET)) == TICKET


def test_line_breaks_and_spaces_of_a_mail_do_not_matter():
    text = str(TICKET)
    assert parse_ticket(f"  {text[:40]}\n  {text[40:]} ") == TICKET


@given(st.integers(min_value=9, max_value=len(str(TICKET)) - 1), st.sampled_from("AZ09-_"))
def test_a_changed_character_is_noticed(place: int, character: str):
    text = str(TICKET)
    changed = text[:place] + character + text[place + 1 :]
    if changed != text:
        with pytest.raises(TicketError):
            parse_ticket(changed)


@given(st.integers(min_value=0, max_value=len(str(TICKET)) - 1))
def test_a_ticket_cut_short_is_refused(length: int):
    with pytest.raises(TicketError):
        parse_ticket(str(TICKET)[:length])


def made_of(authority: bytes, door: str) -> str:
    """A ticket whose check holds."""
    return str(replace(TICKET, authority=authority, node_addresses=(door,)))


def test_one_ticket_has_one_text():
    ticket = replace(TICKET, token=TOKEN)
    code = str(ticket).removeprefix(TICKET_PREFIX)
    assert parse_ticket(TICKET_PREFIX + code) == ticket
    last = ALPHABET[ALPHABET.index(code[-1]) + 1]  # the same bytes, with an unused bit set
    assert base64.urlsafe_b64decode(f"{code}==") == base64.urlsafe_b64decode(f"{code[:-1]}{last}==")
    for other in (code.replace("-", "+"), code.replace("_", "/"), f"{code}=", code[:-1] + last):
        assert other != code
        with pytest.raises(TicketError):
            parse_ticket(TICKET_PREFIX + other)


@pytest.mark.parametrize("door", ["h:0", "h:65536", "h:99999", "h:", ":7700", "h", "a:b:7700", "[::1:7700", "h:٧٧"])
def test_a_door_is_where_something_can_listen(door: str):
    with pytest.raises(TicketError, match="no address"):
        parse_ticket(made_of(TICKET.authority, door))


@pytest.mark.parametrize("door", ["h:1", "h:65535", "[::1]:7700"])
def test_a_door_is_a_host_and_a_port(door: str):
    assert parse_ticket(made_of(TICKET.authority, door)).operator == door


@pytest.mark.parametrize("authority", [b"\5" + b"k" * 32, b"\2" + b"\xff" * 32, b"\2" + bytes(31), b"\4" + b"k" * 64])
def test_an_authority_is_a_key(authority: bytes):
    with pytest.raises(TicketError):
        parse_ticket(made_of(authority, "h:1"))


@given(st.text())
def test_whatever_is_pasted_gets_a_clear_error(text: str):
    with pytest.raises(TicketError):
        parse_ticket(text)


def test_it_is_found_in_the_argument_a_file_the_environment_and_the_last_run(tmp_path, monkeypatch):
    monkeypatch.delenv(TICKET_VARIABLE, raising=False)
    with pytest.raises(TicketError, match="no ticket"):
        find_ticket(None, tmp_path)
    assert find_ticket(str(TICKET), tmp_path) == TICKET
    assert find_ticket(f"\n {TICKET}", tmp_path) == TICKET
    (tmp_path / "mail.txt").write_text(f"{TICKET}\n")
    assert find_ticket(str(tmp_path / "mail.txt"), tmp_path) == TICKET
    with pytest.raises(TicketError, match="no file of that name"):
        find_ticket(str(tmp_path / "male.txt"), tmp_path)
    monkeypatch.setenv(TICKET_VARIABLE, str(TICKET))
    assert find_ticket(None, tmp_path) == TICKET
    monkeypatch.delenv(TICKET_VARIABLE)
    (tmp_path / "ticket").write_text(f"{TICKET}\n")
    assert find_ticket(None, tmp_path) == TICKET
    own = tmp_path / "own"  # a peer's folder by `--dir`
    assert find_ticket(None, own, tmp_path) == TICKET
    own.mkdir()
    (own / "ticket").write_text(str(other := parse_ticket(made_of(TICKET.authority, "h:1"))))
    assert find_ticket(None, own, tmp_path) == other != TICKET


def test_the_first_addresses_of_others_are_kept_in_order(tmp_path: Path):
    addresses = [f"/ip4/127.0.0.1/tcp/{port}/p2p/QmPeer" for port in range(4000, 4000 + ADDRESSES_KEPT + 3)]
    remember_addresses(tmp_path, addresses)
    assert recall_addresses(tmp_path) == tuple(addresses[:ADDRESSES_KEPT])
    remember_addresses(tmp_path, addresses[5:7])
    assert recall_addresses(tmp_path) == tuple(addresses[5:7])


def test_a_file_of_addresses_that_is_not_there_or_no_text_names_nobody(tmp_path: Path):
    assert recall_addresses(tmp_path) == ()
    (tmp_path / PEERS).write_bytes(b"\xff\xfe")
    assert recall_addresses(tmp_path) == ()
    (tmp_path / PEERS).write_text("/ip4/127.0.0.1/tcp/1/p2p/QmPeer\n" * 10_000)
    assert len(recall_addresses(tmp_path)) == ADDRESSES_KEPT


def test_a_pipe_or_a_device_is_no_file_with_a_ticket(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name in (tmp_path / "fifo", "/dev/zero", tmp_path):
        with pytest.raises(TicketError, match="is no file that has a ticket"):
            find_ticket(str(name), tmp_path)


def test_a_node_may_be_at_its_own_port_on_the_hosts_of_the_other_doors():
    ticket = replace(TICKET, node_addresses=("10.0.0.1:7700", "[2001:db8::1]:7700", "node.example.org:7710"))
    assert ticket.other_node_addresses("10.0.0.1:7702") == ["[2001:db8::1]:7702", "node.example.org:7702"]
    assert ticket.other_node_addresses("10.0.0.9:7702") == []
    many = replace(TICKET, node_addresses=tuple(f"10.0.0.{number}:7700" for number in range(1, 200)))
    assert len(many.other_node_addresses("10.0.0.1:7702")) == ADDRESSES_NAMED
