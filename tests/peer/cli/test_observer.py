"""The observer beside the bootstrap node: a small script stands in for it."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bootstrap.admission.admission_policy import OBSERVER_FOLDER
from bootstrap.monitor.watch import Monitor
from peer.cli import observer
from peer.cli.bootstrap import BootstrapOptions, serve_run
from peer.cli.observer import keep_model, keep_observer, name_attester, why_not_held
from peer.cli.revoking import Operator
from peer.process import Terminal, first_error
from peer.store import disk
from peer.testnet.child import arguments
from peer.testnet.swarm import BOOTSTRAP, Swarm
from peer.testnet.testnet_options import TestnetOptions
from protocol.errors import LostMemberError, RefusedError
from protocol.events.activity import Failed, Finished, Progress, Warned
from protocol.events.decisions import Suspected, Tried
from protocol.events.event import Event
from protocol.events.lines import to_line
from protocol.identity import RunId
from protocol.run.run_files import RunFile, descriptor_of, file_names
from protocol.trust.attestations import GRANTED, read_grant
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority
from protocol.trust.ticket import Ticket
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
TICKET = Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, ("127.0.0.1:1",), ())
STOOD, FAILED = Tried(4, "QmGood", 0.02), Tried(4, "QmPoor", -0.5, "it would do harm")
HARM, COPY = Suspected("QmEvil", "the loss is higher with it", 3), Suspected("QmCopy", "one copies")

acquitted: list[str] = []
"""Who has stood its trial in the scene played last."""

SCRIPT = """
import sys
print("\\n".join({lines!r}), flush=True)
if {serves}:
    sys.stdin.read()
print({last!r}.format(flags=" ".join(each for each in sys.argv if each.startswith("--"))), flush=True)
sys.exit({code})
"""


def play(
    *events: Event, serves: bool = True, code: int = 0, audit: bool = False, revoked: int = 0, refused: int = 0
) -> tuple[list[Event], list[Suspected]]:
    """Observe until so many are revoked (0: until the observer ends); what was said, and who was revoked. The first
    `refused` attempts fail."""
    said: list[Event] = []
    tried: list[Suspected] = []
    acquitted.clear()

    async def scene() -> None:
        stop = asyncio.Event()

        async def revoke(suspected: Suspected) -> None:
            tried.append(suspected)
            if len(tried) <= refused:
                raise RefusedError("no peer could be told")
            if len(tried) - refused == revoked:
                stop.set()

        async def acquit(tried: Tried) -> None:
            acquitted.append(tried.peer)
            stop.set()

        last = '{{"event": "Progress", "doing": "{flags}"}}'
        script = SCRIPT.format(lines=[to_line(each) for each in events], serves=serves, last=last, code=code)
        command = (sys.executable, "-c", script)
        await keep_observer(TICKET, Path("folder"), Terminal(said.append), stop, audit, revoke, acquit, command)

    asyncio.run(asyncio.wait_for(scene(), 60))
    return said, tried[refused:]


def test_what_it_says_this_process_says_to_the_last_word():
    said, _ = play(Progress("waiting"), Finished(2), serves=False)
    stays = "--stay --dir --json --until-stdin-closes --private-mirrors"
    assert said == [Progress("waiting"), Finished(2), Progress(stays)]


def test_it_audits_if_it_is_to():
    said, _ = play(serves=False, audit=True)
    assert said == [Progress("--stay --dir --json --until-stdin-closes --private-mirrors --audit")]


def test_whom_it_suspects_of_harm_is_revoked_and_copies_are_not():
    said, revoked = play(COPY, HARM, revoked=1)
    assert revoked == [HARM]
    assert said[:2] == [COPY, HARM]


def test_who_has_stood_its_trial_is_acquitted_and_who_has_not_is_not():
    said, _ = play(FAILED, STOOD)
    assert said[:2] == [FAILED, STOOD]
    assert acquitted == ["QmGood"]


def test_a_revocation_that_nobody_heard_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(observer, "FIRST_REVOCATION_RETRY_SECONDS", 0.0)
    said, revoked = play(HARM, revoked=1, refused=2)
    assert revoked == [HARM]
    assert said.count(Progress("peer QmEvil is not revoked yet: no peer could be told")) == 2


def test_its_death_is_an_error():
    with pytest.raises((LostMemberError, BaseExceptionGroup)) as caught:
        play(serves=False, code=3)
    error = caught.value if isinstance(caught.value, LostMemberError) else first_error(caught.value)
    assert "ended with exit code 3" in str(error)


def test_a_node_without_the_operators_key_does_not_promise_to_revoke():
    said: list[Event] = []
    options = BootstrapOptions(listen="127.0.0.1:0", join="hetpeer1-x", revoke=True)
    assert serve_run(options, Terminal(said.append)) != 0
    assert [type(each) for each in said] == [Failed]
    assert "--revoke is for the operator's own node" in said[0].message  # type: ignore[union-attr]


@pytest.mark.parametrize(("audit", "flags"), [(True, ["--audit", "--revoke"]), (False, ["--no-keep-model"])])
def test_a_testnet_audits_and_revokes_beside_its_bootstrap_node(audit: bool, flags: list[str], tmp_path: Path):
    options = TestnetOptions("nano", 2, 2, 1, 8, 6, 20, audit=audit)
    line = arguments(BOOTSTRAP, Swarm.of(2, 2, 1), options, tmp_path, "127.0.0.1:0", "", evaluate=False)
    assert line[4:] == flags


def test_the_operators_own_observer_is_named_as_one_that_attests(tmp_path: Path):
    operator = load_or_create(tmp_path)
    files = [RunFile(name, "ab" * 32, 1) for name in file_names(MANIFEST)]
    descriptor = descriptor_of(MANIFEST, operator.peer_id, files)
    name_attester(Operator(tmp_path, operator, descriptor))
    word = (tmp_path / OBSERVER_FOLDER / GRANTED).read_bytes()
    assert (
        read_grant(word, Authority(descriptor.run_id, operator.peer_id))
        == load_or_create(tmp_path / OBSERVER_FOLDER).peer_id
    )


@pytest.mark.parametrize("json_lines", [False, True])
def test_what_holds_the_model_computes_nothing_and_its_end_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, json_lines: bool
):
    """A person reads its warnings alone, a program all that it says."""
    monkeypatch.setattr(observer, "FIRST_REVOCATION_RETRY_SECONDS", 0.0)
    said: list[Event] = []
    monitor = Monitor.of(MANIFEST, RunId("ab" * 32))
    states: list[str] = []

    async def scene() -> None:
        stop = asyncio.Event()
        lines = [to_line(each) for each in (Finished(2), Failed("no room", 1))]
        last = '{{"event": "Progress", "doing": "{flags}"}}'
        script = SCRIPT.format(lines=lines, serves=False, last=last, code=0)

        async def hold(held: Callable[[], None]) -> None:
            states.append(monitor.fold.last_state)
            if len(states) == 2:
                stop.set()
                return
            command = (sys.executable, "-c", script)
            shown = Terminal(said.append, json=json_lines)
            await keep_observer(TICKET, Path("folder"), shown, stop, command=command, holds=True, held=held)

        keeping = asyncio.create_task(keep_model(monitor, hold, said.append, stop))
        await asyncio.sleep(0)
        assert monitor.taking()
        assert not states  # as long as the last round has not begun
        monitor.fold.over = True
        monitor.note_last_state("coming")
        await keeping

    asyncio.run(asyncio.wait_for(scene(), 60))
    assert states == ["coming", "coming"]
    flags = Progress("--stay --dir --json --until-stdin-closes --private-mirrors --hold")
    *before, last = said
    everything = [Finished(2), Warned("no room"), flags]
    assert before == (everything if json_lines else [Warned("no room")]), "the run's state says who holds the model"
    assert isinstance(last, Warned)
    assert "this node does not hold the model: the observer that holds the model (process" in last.doing


def test_a_node_says_at_once_that_the_model_does_not_fit_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = [RunFile(name, "ab" * 32, 1) for name in file_names(MANIFEST)]
    descriptor = descriptor_of(MANIFEST, load_or_create(tmp_path).peer_id, files)
    assert why_not_held(descriptor, tmp_path) == ""
    monkeypatch.setattr(disk, "free_disk", lambda folder: 10**6)
    assert why_not_held(descriptor, tmp_path).startswith("not enough disk for the whole model, which keeps up to")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**6))
    assert why_not_held(descriptor, tmp_path).startswith("not enough memory for the whole model: it takes about")
