"""Real processes: certificates are renewed while a run goes on, who comes late stands its trial, and a closed run keeps
its secret."""

import base64
import os
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bootstrap.admission.operator_lists import ID_BYTES
from protocol.events.activity import CertificateRenewed, GroupBroken, Joined, Progress, RoundDone, Serving
from protocol.events.decisions import Tried
from protocol.events.event import Event
from protocol.events.lines import to_line
from protocol.trust import ticket as tickets
from tests.reference.processes import RUN, TEXT, Peer, hetpeer

LONG_RUN = RUN.format(datacenters=1, sequences=2) + "steps = 6\n[outer]\nrounds = 5000\n"


@pytest.fixture
def created(tmp_path: Path) -> list[str]:
    """What a bootstrap node is started with; its folder is `operator`."""
    (tmp_path / "run.toml").write_text(LONG_RUN)
    (tmp_path / "text.txt").write_text(TEXT)
    where = ["--listen", "127.0.0.1:0", "--dir", str(tmp_path / "operator")]
    return [str(tmp_path / "run.toml"), *where, "--data", str(tmp_path / "text.txt")]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def joined(stack: ExitStack, tmp_path: Path, ticket: str, forked: bool = True) -> dict[str, Peer]:
    """A group of two and a datacenter. `ticket` is the text, or a file with it."""
    started: dict[str, Peer] = {}
    for name, *command in (("leader", "join", "--stage", "0"), ("member", "join", "--stage", "1"), ("dc", "replica")):
        where = ["--dir", str(tmp_path / name), "--device", "cpu", "--threads", "1"]
        started[name] = stack.enter_context(Peer(command[0], ticket, *command[1:], *where, forked=forked))
    return started


def renewals(peer: Peer) -> list[int]:
    """After how many rounds this peer renewed its certificate, each time."""
    rounds, found = 0, []
    for event in list(peer.said):
        rounds = event.round if isinstance(event, RoundDone) else rounds
        if isinstance(event, CertificateRenewed):
            found.append(rounds)
    return found


def test_certificates_are_renewed_twice_in_a_run_that_does_not_notice(
    tmp_path: Path, created: list[str], stack: ExitStack
):
    operator = stack.enter_context(Peer("bootstrap", *created, "--certificate-life", "20s"))
    peers = joined(stack, tmp_path, operator.wait_for(Serving).ticket)
    for peer in peers.values():
        first = peer.wait_for(CertificateRenewed)
        peer.wait_for(CertificateRenewed, lambda event, first=first: event.ends > first.ends)
    told = max(event.round for peer in peers.values() for event in peer.said if isinstance(event, RoundDone))
    ends = [peer.wait_for(RoundDone, lambda event: event.round == told + 2) for peer in peers.values()]
    for part in ("embedding", "stage-0", "stage-1"):
        assert len({end.digests[part] for end in ends if part in end.digests}) == 1
        assert {end.contributions[part] for end in ends if part in end.contributions} == {2}
    for peer in peers.values():
        assert len(set(renewals(peer))) >= 2  # rounds ended between them
        assert not any(isinstance(event, GroupBroken) for event in peer.said)
        assert not any("cannot be renewed" in event.doing for event in peer.said if isinstance(event, Progress))
    log = hetpeer("admin", "log", "--dir", str(tmp_path / "operator"), "--last", "500", "--json").stdout
    assert log.count('"renewed"') >= 6
    for peer in peers.values():
        peer.leave()


def test_who_comes_to_a_run_that_has_begun_counts_after_its_trial(tmp_path: Path, created: list[str], stack: ExitStack):
    operator = stack.enter_context(Peer("bootstrap", *created, "--trials"))
    ticket = operator.wait_for(Serving).ticket
    peers = joined(stack, tmp_path, ticket)
    peers["leader"].wait_for(RoundDone, lambda event: event.round == 2)
    where = ["--dir", str(tmp_path / "newcomer"), "--device", "cpu", "--threads", "1"]
    newcomer = stack.enter_context(Peer("replica", ticket, *where))
    name = newcomer.wait_for(Joined).peer_id
    newcomer.wait_for(Progress, lambda event: event.doing.startswith("on trial"))
    stood = operator.wait_for(Tried, lambda event: event.peer == name and not event.objection)
    assert stood.gain > 0
    newcomer.wait_for(Progress, lambda event: event.doing.startswith("the trial is over"))
    counted = newcomer.wait_for(RoundDone, lambda event: event.contributions["embedding"] == 3)
    assert counted.round > stood.round
    for event in [event for event in newcomer.said if isinstance(event, RoundDone) and event.round <= stood.round]:
        assert event.contributions["embedding"] <= 2
    everyone = (newcomer, *peers.values())
    told = (at_the_end_of(round, everyone) for round in range(counted.round, counted.round + 20))
    assert any(len(set(ends)) == 1 and ends[0][0] == 3 for ends in told)  # its first may have come late somewhere
    tried = {event.peer for event in operator.said if isinstance(event, Tried)}
    assert tried == {name}  # nobody who was there at the beginning
    for peer in everyone:
        peer.leave()


def at_the_end_of(round: int, peers: Iterable[Peer]) -> list[tuple[int, str]]:
    """How many contributions to the embedding each counted, and its state then."""
    ends = [peer.wait_for(RoundDone, lambda event: event.round == round) for peer in peers]
    return [(end.contributions["embedding"], end.digests["embedding"]) for end in ends]


def spellings(secret: bytes) -> list[bytes]:
    """A secret as it may lie somewhere: as it is, in hexadecimal, or inside of something in base64."""
    found = [secret, secret.hex().encode(), secret.hex().upper().encode()]
    for shift in range(3):
        inner = base64.b64encode(bytes(shift) + secret)[2 if shift else 0 : -4][2 if shift > 1 else 0 :]
        found += [inner, inner.translate(bytes.maketrans(b"+/", b"-_"))]
    return found


def test_the_search_finds_a_token_in_a_ticket():
    secret = bytes(range(200, 216))
    for shift in range(6):
        text = base64.urlsafe_b64encode(bytes(shift) + secret + b"behind")
        assert any(each in text for each in spellings(secret))


def has(data: bytes, secret: bytes) -> bool:
    return any(each in data for each in spellings(secret))


def command_lines() -> dict[int, bytes]:
    """Of all descendants of this process."""
    parents: dict[int, int] = {}
    lines: dict[int, bytes] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                status = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(status[1])
                lines[int(folder.name)] = (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended

    def ours(process: int) -> bool:
        while process in parents:
            process = parents[process]
            if process == os.getpid():
                return True
        return False

    return {process: line for process, line in lines.items() if ours(process)}


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_a_closed_run_is_joined_by_invitation_alone_whose_secret_stays_in_the_ticket(
    tmp_path: Path, created: list[str], stack: ExitStack
):
    operator = stack.enter_context(Peer("bootstrap", *created, "--closed", "--evaluate", forked=False))
    ticket = operator.wait_for(Serving).ticket
    secret = tickets.parse_ticket(ticket).token[ID_BYTES:]
    own = tmp_path / "operator" / "observer" / "ticket"  # the observer beside the node has an invitation of its own
    operator.wait_for(Joined)
    another = tickets.parse_ticket(own.read_text()).token[ID_BYTES:]
    assert len({secret, another, b""}) == 3

    plain = (tmp_path / "operator" / "ticket").read_text().strip()
    refused = hetpeer("join", plain, "--stage", "0", "--dir", str(tmp_path / "stranger"))
    assert refused.returncode == 6, refused.stderr
    (line,) = refused.stderr.strip().splitlines()
    assert "this run is closed, and this ticket has no invitation to it; ask its operator for one" in line

    invitation = tmp_path / "invitation.txt"
    invitation.write_text(ticket + "\n")
    peers = joined(stack, tmp_path, str(invitation), forked=False)  # with command lines of their own
    for peer in peers.values():
        peer.wait_for(Joined)
    peers["leader"].wait_for(RoundDone, lambda event: event.round == 2)

    lines = command_lines()
    assert len(lines) > 2 * len(peers)  # each has a child for libp2p
    assert not any(has(line, each) for line in lines.values() for each in (secret, another))
    log = hetpeer("admin", "log", "--dir", str(tmp_path / "operator"), "--json").stdout.encode()
    assert log.count(b"admitted") >= len(peers)
    assert not has(log, secret)
    assert not has(log, another)
    for peer in peers.values():
        assert peer.end(signal.SIGINT) == 130
    said: list[Event] = [event for peer in (operator, *peers.values()) for event in peer.said]
    told = "\n".join(to_line(event) for event in said if not isinstance(event, Serving)).encode()
    assert not has(told, secret)
    assert not has(told, another)
    assert not has(refused.stdout.encode() + refused.stderr.encode(), secret)

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    bearing = {path for path in files if has(path.read_bytes(), secret)}
    assert bearing == {invitation, *(tmp_path / name / "ticket" for name in peers)}
    assert {path for path in files if has(path.read_bytes(), another)} == {own}
    for name in peers:
        assert stat.S_IMODE((tmp_path / name / "ticket").stat().st_mode) == 0o600
