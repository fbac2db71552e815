"""The operator's lists: who gets in, who does not, whose trial is over; and nothing on disk gives a token away."""

import base64
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.admission.database import DATABASE, MOST_USES, Invitation, RevokedPeer, Trials
from bootstrap.admission.operator_lists import (
    INVITATION_TOKEN_BYTES,
    RevokedList,
    add_invitation,
    add_revoked,
    invitation_id,
    is_closed,
    note_stood,
    read_invitations,
    read_revoked,
    read_trials,
    redeem,
    require_trials,
    set_closed,
    withdraw_invitation,
)
from protocol.errors import RefusedError, ResourceError, UserError
from protocol.identity import PeerId

ANN, BOB, CYD = PeerId("QmAnn"), PeerId("QmBob"), PeerId("QmCyd")
NOW = 1_000_000.5
WEEK = 7 * 86400


def test_a_run_is_open_until_its_node_closes_it(tmp_path: Path):
    assert not is_closed(tmp_path)
    set_closed(tmp_path, True)
    assert is_closed(tmp_path)
    add_invitation(tmp_path, 1, WEEK, NOW)
    assert is_closed(tmp_path)
    set_closed(tmp_path, False)
    assert not is_closed(tmp_path)
    assert len(read_invitations(tmp_path)) == 1


def test_a_token_lets_in_as_many_peers_as_it_is_for(tmp_path: Path):
    token = add_invitation(tmp_path, 2, WEEK, NOW)
    assert redeem(tmp_path, token, ANN, NOW) == invitation_id(token)
    assert redeem(tmp_path, token, BOB, NOW) == invitation_id(token)
    with pytest.raises(RefusedError, match="used by all 2 peers that it was for; ask"):
        redeem(tmp_path, token, CYD, NOW)
    assert read_invitations(tmp_path)[0].used_by == (ANN, BOB)


def test_who_comes_again_costs_no_second_use(tmp_path: Path):
    token = add_invitation(tmp_path, 1, WEEK, NOW)
    for _ in range(3):
        redeem(tmp_path, token, ANN, NOW)
    assert read_invitations(tmp_path)[0].used_by == (ANN,)


def test_who_was_let_in_may_come_again_after_the_end_for_newcomers(tmp_path: Path):
    token = add_invitation(tmp_path, 5, WEEK, NOW)
    redeem(tmp_path, token, ANN, NOW)
    end = read_invitations(tmp_path)[0].expires
    redeem(tmp_path, token, BOB, end - 0.1)
    with pytest.raises(RefusedError, match="ended on 1970-01-19 13:46 UTC; ask"):
        redeem(tmp_path, token, CYD, end)
    assert redeem(tmp_path, token, ANN, end + WEEK) == invitation_id(token)


def test_nobody_comes_by_a_withdrawn_invitation_not_even_again(tmp_path: Path):
    token, other = add_invitation(tmp_path, 5, WEEK, NOW), add_invitation(tmp_path, 5, WEEK, NOW)
    redeem(tmp_path, token, ANN, NOW)
    withdraw_invitation(tmp_path, invitation_id(token))
    for peer in (ANN, BOB):
        with pytest.raises(RefusedError, match="withdrawn; ask"):
            redeem(tmp_path, token, peer, NOW)
    redeem(tmp_path, other, BOB, NOW)
    with pytest.raises(UserError, match="no invitation 'deadbeef'; there are: "):
        withdraw_invitation(tmp_path, "deadbeef")


def test_without_a_token_the_volunteer_is_told_that_it_takes_one(tmp_path: Path):
    with pytest.raises(RefusedError, match="this run is closed, and this ticket has no invitation"):
        redeem(tmp_path, b"", ANN, NOW)


@given(data=st.data())
def test_only_the_very_token_lets_anybody_in(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("book")
    token = add_invitation(folder, 3, WEEK, NOW)
    wrong = data.draw(
        st.one_of(
            st.binary(min_size=1, max_size=64),
            st.builds(
                lambda at, bit: flipped(token, at, bit), st.integers(0, INVITATION_TOKEN_BYTES - 1), st.integers(0, 7)
            ),
            st.integers(1, INVITATION_TOKEN_BYTES - 1).map(lambda length: token[:length]),
            st.binary(min_size=1, max_size=8).map(lambda more: token + more),
            st.just(hashlib.sha256(token).digest()),
        )
    )
    with pytest.raises(RefusedError, match="no invitation like this"):
        redeem(folder, wrong, ANN, NOW)
    assert read_invitations(folder)[0].used_by == ()


def flipped(token: bytes, at: int, bit: int) -> bytes:
    return token[:at] + bytes([token[at] ^ 1 << bit]) + token[at + 1 :]


def test_neither_the_folder_nor_a_message_tells_a_token(tmp_path: Path):
    token = add_invitation(tmp_path, 1, WEEK, NOW)
    redeem(tmp_path, token, ANN, NOW)
    told = [
        repr(read_invitations(tmp_path)),
        *(file.read_text("latin-1") for file in tmp_path.rglob("*") if file.is_file()),
    ]
    for peer, now in ((BOB, NOW), (BOB, NOW + 2 * WEEK)):
        with pytest.raises(RefusedError) as refused:
            redeem(tmp_path, token, peer, now)
        told.append(str(refused.value))
    withdraw_invitation(tmp_path, invitation_id(token))
    for shown in (token, flipped(token, INVITATION_TOKEN_BYTES - 1, 0)):
        with pytest.raises(RefusedError) as refused:
            redeem(tmp_path, shown, ANN, NOW)
        told.append(str(refused.value))
    secret = token[4:]
    for way in (token.hex(), secret.hex(), base64.b64encode(secret).decode(), base64.urlsafe_b64encode(token).decode()):
        assert not any(way.rstrip("=") in text for text in told)


def test_the_book_is_closed_to_other_users_of_the_machine(tmp_path: Path):
    add_invitation(tmp_path, 1, WEEK, NOW)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_a_damaged_book_lets_nobody_in_and_is_not_overwritten(tmp_path: Path):
    token, damage = add_invitation(tmp_path, 1, WEEK, NOW), b"no database " * 1000
    (tmp_path / DATABASE).write_bytes(damage)
    for attempt in (
        lambda: is_closed(tmp_path),
        lambda: redeem(tmp_path, token, ANN, NOW),
        lambda: add_invitation(tmp_path, 1, WEEK, NOW),
        lambda: set_closed(tmp_path, False),
    ):
        with pytest.raises(ResourceError, match=r"operator\.sqlite3 is damaged: put it back"):
            attempt()
    assert (tmp_path / DATABASE).read_bytes() == damage


@pytest.mark.parametrize(("uses", "seconds"), [(0, WEEK), (MOST_USES + 1, WEEK), (1, 0), (-1, WEEK)])
def test_an_invitation_for_nobody_or_no_time_is_none(tmp_path: Path, uses: int, seconds: int):
    with pytest.raises(UserError):
        add_invitation(tmp_path, uses, seconds, NOW)
    assert read_invitations(tmp_path) == ()


def test_the_states_of_an_invitation():
    made = Invitation(id="00" * 4, sha256="00" * 32, uses=1, issued=0, expires=10)
    assert made.state(9.9) == "open"
    assert made.state(10) == "expired"
    assert made.model_copy(update={"used_by": (ANN,)}).state(1) == "used up"
    assert made.model_copy(update={"used_by": (ANN,), "revoked": True}).state(11) == "withdrawn"


@given(
    uses=st.integers(1, 4),
    acts=st.lists(
        st.one_of(
            st.tuples(st.just("redeem"), st.sampled_from([ANN, BOB, CYD, PeerId("QmDan")])),
            st.tuples(st.just("pass"), st.integers(1, 20)),
            st.tuples(st.just("withdraw"), st.none()),
        ),
        max_size=20,
    ),
)
def test_an_invitation_has_a_set_of_peers_that_grows_while_it_may(
    tmp_path_factory: pytest.TempPathFactory, uses: int, acts: list[tuple[str, object]]
):
    folder = tmp_path_factory.mktemp("book")
    token = add_invitation(folder, uses, 30, 0.0)
    now, inside, withdrawn = 0, set(), False
    for act, what in acts:
        if act == "pass":
            now += what
        elif act == "withdraw":
            withdraw_invitation(folder, invitation_id(token))
            withdrawn = True
        else:
            may = not withdrawn and (what in inside or (now < 30 and len(inside) < uses))
            try:
                redeem(folder, token, what, now)
            except RefusedError:
                assert not may
            else:
                assert may
                inside.add(what)
        assert set(read_invitations(folder)[0].used_by) == inside


REDEEM = """
import sys
from pathlib import Path
from bootstrap.admission.operator_lists import add_invitation, redeem
from protocol.errors import RefusedError
folder, name, token = Path(sys.argv[1]), sys.argv[2], bytes.fromhex(sys.stdin.readline())
print("ready", flush=True)
sys.stdin.readline()
for number in range(12):
    try:
        redeem(folder, token, f"Qm{name}-{number}", 0.0)
        print(f"Qm{name}-{number}", flush=True)
    except RefusedError:
        pass
    add_invitation(folder, 1, 60, 0.0)
"""


def test_processes_at_once_never_let_in_more_than_it_is_for_and_lose_no_change(tmp_path: Path):
    token = add_invitation(tmp_path, 20, WEEK, 0.0)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", REDEEM, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b", "c")
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(token.hex() + "\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    said = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        said += process.communicate(timeout=120)[0].split()
        assert process.returncode == 0
    book = read_invitations(tmp_path)
    assert len(said) == 20
    assert set(said) == set(book[0].used_by)
    assert len(book[0].used_by) == 20
    assert len(book) == 1 + 3 * 12


# Revoked peers


ANN, BOB = PeerId("QmAnn"), PeerId("QmBob")


def test_a_node_that_runs_hears_of_each_new_entry(tmp_path: Path):
    node = RevokedList(tmp_path)
    node.check(ANN)
    add_revoked(tmp_path, RevokedPeer(peer=ANN, start=3, at=1.5, signed=b"\x00\xff word"))
    with pytest.raises(RefusedError, match="revoked this peer"):
        node.check(ANN)
    node.check(BOB)
    add_revoked(tmp_path, RevokedPeer(peer=BOB, start=0, at=2.5))
    with pytest.raises(RefusedError):
        node.check(BOB)
    assert [each.signed for each in read_revoked(tmp_path)] == [b"\x00\xff word", b""]


def test_what_is_written_is_read(tmp_path: Path):
    entries = [RevokedPeer(peer=ANN, start=n, at=float(n), signed=bytes([n] * n)) for n in range(4)]
    for entry in entries:
        add_revoked(tmp_path, entry)
    assert read_revoked(tmp_path) == tuple(entries)


def test_what_is_written_is_there_after_a_restart(tmp_path: Path):
    RevokedList(tmp_path).check(ANN)
    add_revoked(tmp_path, RevokedPeer(peer=ANN, start=3, at=1.5))
    with pytest.raises(RefusedError, match="revoked this peer"):
        RevokedList(tmp_path).check(ANN)


def test_a_damaged_list_lets_nobody_have_a_certificate(tmp_path: Path):
    (tmp_path / DATABASE).write_bytes(b"no database " * 1000)
    node = RevokedList(tmp_path)
    for _ in range(2):
        with pytest.raises(ResourceError, match=r"operator\.sqlite3 is damaged"):
            node.check(BOB)


def test_a_list_that_is_taken_away_lets_nobody_have_a_certificate_and_a_copy_in_its_place_is_read(tmp_path: Path):
    (copy := tmp_path / "copy").mkdir()
    add_revoked(copy, RevokedPeer(peer=ANN, start=3, at=1.5))
    node = RevokedList(tmp_path)
    node.check(ANN)
    for file in tmp_path.glob(f"{DATABASE}*"):
        file.unlink()
    with pytest.raises(ResourceError, match="No such file"):
        node.check(BOB)
    (copy / DATABASE).rename(tmp_path / DATABASE)
    with pytest.raises(RefusedError):
        node.check(ANN)
    node.check(BOB)


# Trials


ANN, BOB = PeerId("QmAnn"), PeerId("QmBob")


def test_a_new_run_tries_nobody(tmp_path: Path):
    assert read_trials(tmp_path) == Trials(required=False, stood=frozenset())


def test_what_is_noted_stays_though_trials_are_no_longer_asked_for(tmp_path: Path):
    require_trials(tmp_path, True)
    note_stood(tmp_path, ANN)
    note_stood(tmp_path, BOB)
    note_stood(tmp_path, ANN)
    assert read_trials(tmp_path) == Trials(required=True, stood=frozenset({ANN, BOB}))
    require_trials(tmp_path, False)
    assert read_trials(tmp_path) == Trials(required=False, stood=frozenset({ANN, BOB}))
