"""The observer beside the bootstrap node: a process of its own, since the node has no torch."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from bootstrap.admission import operator_lists
from bootstrap.admission.admission_policy import OBSERVER
from peer.cli.admin import Operator, spread
from peer.process import LINE_BYTES, Terminal, heard
from peer.telemetry.decisions import Suspected, Tried
from peer.telemetry.events import Progress
from protocol.clock import unix_time
from protocol.errors import HetpeerError, LostMemberError
from protocol.files import write_atomically
from protocol.identity import PeerId
from protocol.net.allowances import pause_after
from protocol.net.tasks import first_of
from protocol.trust.attestations import GRANTED, grant
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority
from protocol.trust.ticket import ENVIRONMENT, Ticket

LAST_WORDS_SECONDS = 2.0
"""For reading what it wrote last; a child of its own may hold the pipe open longer."""

RETRY_SECONDS = 15.0
MOST_RETRY_SECONDS = 300.0
"""Between two attempts at a revocation that nobody could be told of."""

OWN_SECONDS = 3600
"""For this node's observer to come in."""

Revoke = Callable[[Suspected], Awaitable[None]]
"""Takes a peer out of the run. Raises HetpeerError where that cannot be done now."""

Acquit = Callable[[Tried], Awaitable[None]]
"""Lets what a peer on trial contributes count. Raises HetpeerError where that cannot be done now."""


async def observe(
    ticket: Ticket,
    folder: Path,
    terminal: Terminal,
    stop: asyncio.Event,
    audit: bool = False,
    revoke: Revoke | None = None,
    acquit: Acquit | None = None,
    command: tuple[str, ...] = (sys.executable, "-m", "peer.cli"),
) -> None:
    """Keep an observer with this folder until `stop` is set; it stops when its standard input closes. What it says,
    this process says; `revoke` is told of whom it suspects of harm, `acquit` of who has stood its trial.

    Raises:
        LostMemberError: it died.
    """
    arguments = ["observe", "--stay", "--dir", str(folder), "--json", "--until-stdin-closes"]
    arguments.append("--private-mirrors")  # which this operator has named
    observer = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        *(["--audit"] if audit else []),
        env=os.environ | {ENVIRONMENT: str(ticket)},  # not an argument: everybody on this machine reads those
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES,
    )
    assert observer.stdin is not None and observer.stdout is not None
    async with asyncio.TaskGroup() as tasks:
        acting: set[asyncio.Task[None]] = set()

        async def listen(stdout: asyncio.StreamReader) -> None:
            async for event in heard(stdout):
                terminal.emit(event)
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
            await asyncio.wait((listening,), timeout=LAST_WORDS_SECONDS)
            for task in (listening, *acting):
                task.cancel()
    if code and not stop.is_set():
        raise LostMemberError(f"the observer that evaluates (process {observer.pid}) ended with exit code {code}")


async def _carry_out(act: Callable[[], Awaitable[None]], otherwise: str, terminal: Terminal) -> None:
    """Try `act` until it is done: an observer tells of each peer once."""
    failures = 0
    while True:
        try:
            return await act()
        except HetpeerError as error:
            terminal.emit(Progress(f"{otherwise}: {error}"))
        failures += 1
        await asyncio.sleep(pause_after(failures, RETRY_SECONDS, MOST_RETRY_SECONDS))


# What its operator's node makes of it


async def observe_beside(
    node: Operator, ticket: Ticket, terminal: Terminal, stop: asyncio.Event, *, audit: bool, revoke: bool, attests: bool
) -> None:
    """Keep an observer beside this node, which audits if it is to: let what newcomers contribute count once they have
    stood their trial, and revoke whom it suspects if that is the policy. `attests`: this node is the operator's own.

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

    if operator_lists.is_closed(folder):
        ticket = replace(ticket, token=operator_lists.invite(folder, 1, OWN_SECONDS, unix_time()))
    if attests:
        await asyncio.to_thread(name_attester, node)
    await observe(
        ticket,
        folder / OBSERVER,
        terminal,
        stop,
        audit=audit,
        revoke=revoke_by_hand if revoke else None,
        acquit=acquit,
    )


def name_attester(node: Operator) -> None:
    """Write the operator's word that its own observer attests what it sees of closed rounds."""
    attester = load_or_create(node.folder / OBSERVER).peer_id
    word = grant(node.identity, Authority(node.descriptor.run_id, node.descriptor.operator), attester)
    write_atomically(node.folder / OBSERVER / GRANTED, word)
