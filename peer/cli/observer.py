"""The observer beside the bootstrap node: a process of its own, since the node has no torch. It evaluates; or it only
takes the run's last state, and holds it for those who come late."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from bootstrap.admission import operator_lists
from bootstrap.admission.admission_policy import OBSERVER_FOLDER
from bootstrap.monitor.watch import Monitor
from peer.cli.revoking import Operator, spread
from peer.planning.memory import Duty, memory_of
from peer.process import LINE_BYTES, Terminal, read_events
from peer.store.disk import require_space, space_in
from protocol.clock import unix_time
from protocol.errors import HetpeerError, LostMemberError, ResourceError
from protocol.events.activity import Failed, Finished, Progress, Warned
from protocol.events.decisions import Suspected, Tried
from protocol.events.event import Listener
from protocol.files import write_atomically
from protocol.identity import PeerId
from protocol.net.allowances import pause_after
from protocol.net.tasks import first_of
from protocol.run.run_files import HELD_OUT, TRAIN, Descriptor, files_needed
from protocol.trust.attestations import GRANTED, grant
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority
from protocol.trust.ticket import TICKET_VARIABLE, Ticket
from protocol.wording import size

OBSERVER_OUTPUT_SECONDS = 2.0
"""The seconds for reading the observer's last output; a child of its own may hold the pipe open longer."""

FIRST_REVOCATION_RETRY_SECONDS = 15.0
MOST_RETRY_SECONDS = 300.0
"""The longest pause between two attempts to publish a revocation, in seconds."""

OWN_SECONDS = 3600
"""The validity of the invitation with which this node's own observer joins, in seconds."""

END_POLL_SECONDS = 2.0
"""The interval, at most, at which the node checks whether the run is near its end, in seconds."""

Revoke = Callable[[Suspected], Awaitable[None]]
"""Takes a peer out of the run. Raises HetpeerError where that cannot be done now."""

Acquit = Callable[[Tried], Awaitable[None]]
"""Lets what a peer on trial contributes count. Raises HetpeerError where that cannot be done now."""


async def keep_observer(
    ticket: Ticket,
    folder: Path,
    terminal: Terminal,
    stop: asyncio.Event,
    audit: bool = False,
    revoke: Revoke | None = None,
    acquit: Acquit | None = None,
    command: tuple[str, ...] = (sys.executable, "-m", "peer.cli"),
    holds: bool = False,
    held: Callable[[], None] = lambda: None,
) -> None:
    """Keep an observer with this folder until `stop` is set; it stops when its standard input closes. What it says,
    this process says; `revoke` is told of whom it suspects of harm, `acquit` of who has stood its trial, and `held`
    that it holds the last state. `holds`: it only does that, and a person reads its warnings alone.

    Raises:
        LostMemberError: it died.
    """
    arguments = ["observe", "--stay", "--dir", str(folder), "--json", "--until-stdin-closes"]
    arguments.append("--private-mirrors")  # which this operator has named
    observer = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        *(["--audit"] if audit else []),
        *(["--hold"] if holds else []),
        env=os.environ | {TICKET_VARIABLE: str(ticket)},  # not an argument: everybody on this machine reads those
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES,
    )
    assert observer.stdin is not None and observer.stdout is not None
    async with asyncio.TaskGroup() as tasks:
        acting: set[asyncio.Task[None]] = set()

        async def listen(stdout: asyncio.StreamReader) -> None:
            async for event in read_events(stdout):
                line = Warned(event.message) if holds and isinstance(event, Failed) else event
                if not holds or terminal.json or line.level == "warning":  # else the node says it in its place
                    terminal.emit(line)
                if isinstance(event, Finished):
                    held()
                if isinstance(event, Suspected) and event.since and revoke is not None:
                    work = _carry_out(partial(revoke, event), f"peer {event.peer[-8:]} is not revoked yet", terminal)
                    acting.add(tasks.create_task(work))
                if isinstance(event, Tried) and not event.objection and acquit is not None:
                    work = _carry_out(partial(acquit, event), f"peer {event.peer[-8:]} stays on trial", terminal)
                    acting.add(tasks.create_task(work))

        listening = tasks.create_task(listen(observer.stdout))
        try:
            await first_of(observer.wait(), stop.wait())
        finally:
            observer.stdin.close()
            code = await observer.wait()
            await asyncio.wait((listening,), timeout=OBSERVER_OUTPUT_SECONDS)
            for task in (listening, *acting):
                task.cancel()
    if (code or holds) and not stop.is_set():
        what = "that holds the model" if holds else "that evaluates"
        raise LostMemberError(f"the observer {what} (process {observer.pid}) ended with exit code {code}")


async def _carry_out(act: Callable[[], Awaitable[None]], otherwise: str, terminal: Terminal) -> None:
    """Try `act` until it is done: an observer tells of each peer once."""
    failures = 0
    while True:
        try:
            return await act()
        except HetpeerError as error:
            terminal.emit(Progress(f"{otherwise}: {error}"))
        failures += 1
        await asyncio.sleep(pause_after(failures, FIRST_REVOCATION_RETRY_SECONDS, MOST_RETRY_SECONDS))


# What its operator's node makes of it


async def observe_beside(
    node: Operator,
    ticket: Ticket,
    terminal: Terminal,
    stop: asyncio.Event,
    held: Callable[[], None],
    *,
    audit: bool,
    revoke: bool,
    attests: bool,
) -> None:
    """Keep an observer beside this node, which audits if it is to: let what newcomers contribute count once they have
    stood their trial, and revoke whom it suspects if that is the policy. `attests`: this node is the operator's own.
    `held` is told once it holds the last state.

    Raises:
        LostMemberError: it died.
    """
    folder = node.folder

    async def acquit(tried: Tried) -> None:
        """Note it on this node's list, which it reads when a peer asks for its next card."""
        await asyncio.to_thread(operator_lists.note_stood, folder, PeerId(tried.peer))

    async def revoke_by_hand(suspected: Suspected) -> None:
        """Do as the operator does by hand, with its key in this node's folder."""
        await spread(suspected.peer, suspected.since, node, ticket, terminal)

    if attests:
        await asyncio.to_thread(name_attester, node)
    await keep_observer(
        _invited(folder, ticket),
        folder / OBSERVER_FOLDER,
        terminal,
        stop,
        audit=audit,
        revoke=revoke_by_hand if revoke else None,
        acquit=acquit,
        held=held,
    )


def _invited(folder: Path, ticket: Ticket) -> Ticket:
    """The ticket by which this node's observer comes in, for the next hour."""
    if not operator_lists.is_closed(folder):
        return ticket
    return replace(ticket, token=operator_lists.add_invitation(folder, 1, OWN_SECONDS, unix_time()))


def name_attester(node: Operator) -> None:
    """Write the operator's word that its own observer attests what it sees of closed rounds."""
    attester = load_or_create(node.folder / OBSERVER_FOLDER).peer_id
    word = grant(node.identity, Authority(node.descriptor.run_id, node.descriptor.operator), attester)
    write_atomically(node.folder / OBSERVER_FOLDER / GRANTED, word)


# What holds the run's last state where nobody evaluates

Hold = Callable[[Callable[[], None]], Awaitable[None]]
"""Takes the run's last state, tells its argument once it has it, and gives it to whoever asks until the node stops.
Raises HetpeerError where it cannot, or no longer."""


async def keep_model(monitor: Monitor, hold: Hold, emit: Listener, stop: asyncio.Event) -> None:
    """Have `hold` follow the run and take its last state, from when the last round has begun, or a last holder leaves;
    and again after each failure, until `stop` is set. `monitor` knows meanwhile how far that is: whoever has finished
    stays for it."""
    monitor.note_last_state("coming")
    while not (monitor.is_near_the_end() or monitor.leaving_holder() or stop.is_set()):
        await first_of(monitor.until_changed(END_POLL_SECONDS), stop.wait())
    if leaver := monitor.leaving_holder():
        emit(Progress(f"taking the model over: peer {leaver[-8:]} leaves, the last that holds the state of its stage"))

    def held() -> None:
        monitor.note_last_state("here")
        if not monitor.is_near_the_end():  # at the end, the state of the run says so
            emit(Progress("this node holds the newest state: a leaver may go"))

    failures = 0
    while not stop.is_set():
        try:
            await hold(held)
            return
        except HetpeerError as error:
            monitor.note_last_state("")  # nobody waits for it
            failures += 1
            pause = pause_after(failures, FIRST_REVOCATION_RETRY_SECONDS, MOST_RETRY_SECONDS)
            emit(Warned(f"WARNING: this node does not hold the model: {error}; trying again in {pause:.0f} s"))
            await first_of(asyncio.sleep(pause), stop.wait())
            monitor.note_last_state("coming")


async def hold_beside(
    node: Operator, ticket: Ticket, terminal: Terminal, stop: asyncio.Event, held: Callable[[], None]
) -> None:
    """Keep a process beside this node that holds the run's last state, and computes nothing.

    Raises:
        LostMemberError: it died.
    """
    await keep_observer(
        _invited(node.folder, ticket), node.folder / OBSERVER_FOLDER, terminal, stop, holds=True, held=held
    )


def why_not_held(descriptor: Descriptor, folder: Path) -> str:
    """Return why the model does not fit this machine's memory, or the disk of the node's `folder`; empty: it fits.
    Reads the sizes of all files in the observer's folder: call it off the event loop."""
    needed = memory_of(descriptor.manifest, Duty("observer", holds=True)).total
    free = int(psutil.virtual_memory().available)
    if needed > free:
        return f"not enough memory for the whole model: it takes about {size(needed)}, {size(free)} are free"
    names = [name for name in files_needed(descriptor, None) if name not in (TRAIN, HELD_OUT)]
    observer_folder = folder / OBSERVER_FOLDER
    try:
        require_space(
            space_in(observer_folder, descriptor, names, None, False, None),
            observer_folder,
            "the whole model",
            limited=False,
        )
    except ResourceError as error:
        return str(error)
    return ""
