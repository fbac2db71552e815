"""`hetpeer admin rewind`: the operator's decision that a run goes on from an older state, as the newest one is lost."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import JsonOption, NodeFolderOption, terminal
from peer.cli.revoking import Operator
from protocol.errors import UnreachableError, UserError

if TYPE_CHECKING:
    from peer.process import Terminal
    from protocol.trust.records import PeerRecord, Peers
    from protocol.trust.ticket import Ticket


REWIND_EXAMPLES = (
    "Examples:\n\n  hetpeer admin rewind\n\n  hetpeer admin rewind --to-round 120\n\n"
    "Without --to-round it only lists what is held of each stage, and by whom. Peers that train are not touched: only "
    "where nobody brings back the newest state does an older one stand for it."
)


def rewind(
    ticket: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="The run's ticket, or a file with it. Default: the one in the folder."),
    ] = None,
    to_round: Annotated[
        int | None,
        typer.Option(min=0, help="Go on from states after this round, or later ones: what came after is lost."),
    ] = None,
    directory: NodeFolderOption = None,
    json: JsonOption = False,
) -> None:
    """Let a run go on from an older state of a stage, when nobody can bring back the newest one."""
    from peer.process import exit_code_of, run_query
    from peer.store.home import operators_folder, operators_ticket
    from protocol.trust.ticket import find_ticket

    shown = terminal(json)

    def work() -> int:
        folder = operators_folder(directory)
        run = find_ticket(ticket, folder) if ticket else operators_ticket(folder)
        operator = Operator.of(folder, run.run_id)

        run_query(lambda: decide(to_round, operator, run, shown), shown)
        return 0

    sys.exit(exit_code_of(shown.emit, work))


async def decide(to_round: int | None, operator: Operator, ticket: "Ticket", terminal: "Terminal") -> None:
    """Show what is held of each stage; and sign a rewind to a round (None: only show), which the node tells the peers.

    Raises:
        UserError: the run has not finished that round, or no later one.
        ResourceError: the node's folder cannot be written.
    """
    import asyncio

    from bootstrap.admission import audit_log, operator_lists
    from bootstrap.admission.audit_log import AuditEntry
    from bootstrap.monitor.holders import Holders
    from peer.network.admission import read_peers
    from protocol.clock import unix_time
    from protocol.events.activity import Progress
    from protocol.files import write_atomically
    from protocol.outer.progress import Rewind
    from protocol.trust.membership_card import Authority
    from protocol.trust.rewinds import REWIND_FILE, sign_rewind

    authority = Authority(operator.descriptor.run_id, operator.descriptor.operator)
    holders = await asyncio.to_thread(Holders, authority, operator.folder)
    try:
        peers = await read_peers(ticket, operator.descriptor)
    except UnreachableError as error:
        terminal.emit(Progress(str(error)))
        peers = ()
    revoked = {entry.peer for entry in operator_lists.read_revoked(operator.folder)}
    staying = tuple(peer for peer in peers if not peer.gone)
    present = tuple(peer for peer in staying if peer.peer_id not in revoked)
    lost = lost_round(holders.newest.records(), staying)
    stages = operator.descriptor.manifest.replicas.stages
    for line in inventory(stages, holders.newest.rounds(), present):
        terminal.emit(Progress(line))
    for peer in staying:
        if peer.peer_id in revoked:
            words = f"peer {peer.peer_id[-8:]}, with round {peer.round}, is revoked: nobody takes its state"
            terminal.emit(Progress(words))
    if to_round is None:
        terminal.emit(Progress(next_step(stages, lost, present)))
        return
    if to_round >= lost:
        raise UserError(
            f"--to-round {to_round}: the last round that this run is known to have finished is {lost}, and a rewind "
            f"goes to an earlier one: {_allowed(lost)}"
        )
    now = unix_time()
    signed = sign_rewind(operator.identity, authority, Rewind(to_round, lost, int(now * 1000)))
    write_atomically(operator.folder / REWIND_FILE, signed)  # no await from here on: it is signed, written and logged
    reason = f"to round {to_round}; the run had finished round {lost}"
    audit_log.append_entry(operator.folder, AuditEntry(what="rewound", at=now, reason=reason))
    terminal.emit(
        Progress(
            f"the run is rewound to round {to_round}: where nobody brings back the state after round {lost}, the "
            f"newest one after round {to_round} or later stands for it. The node tells the peers within half a minute"
        )
    )


def _allowed(lost: int) -> str:
    """The rounds to which a run can be rewound, in words."""
    return f"give 0 to {lost - 1}" if lost > 1 else "give 0" if lost else "there is none before its first"


def next_step(stages: int, lost: int, here: "Peers") -> str:
    """A sentence on what the operator types next. `lost` is the last round that the run has finished."""
    newest = min(max((peer.round for peer in here if _serves(peer, stage)), default=0) for stage in range(stages))
    if newest >= lost:
        return "the newest state of every stage is here: the run needs no rewind"
    return (
        "wait, or start the peers again that held the newest state. If they are lost for good, "
        f"`hetpeer admin rewind --to-round {newest}` goes on from what is here"
    )


def _serves(peer: "PeerRecord", stage: int) -> bool:
    return peer.role != "volunteer" or peer.stage == stage


def lost_round(known: "Iterable[PeerRecord]", here: "Peers") -> int:
    """Return the last round that the run has finished, by the records of known holders and by what those who are here
    say; who awaits a state names the round itself."""
    return max((max(record.round, record.awaits) for record in (*known, *here)), default=0)


def inventory(stages: int, held: Mapping[int, int], here: "Peers") -> Sequence[str]:
    """Make lines on what is held of each stage: the newest state that is known of, and the newest one here. `held` is
    the round of the newest known holder by stage, -1 standing for all of them."""
    lines = []
    for stage in range(stages):
        holders = [peer for peer in here if _serves(peer, stage)]
        newest = max(holders, key=lambda peer: peer.round, default=None)
        last_seen = f"peer {newest.peer_id[-8:]}, heard of within a minute, has round {newest.round}" if newest else ""
        newest_round = max(held.get(stage, 0), held.get(-1, 0), newest.round if newest else 0)
        lines.append(
            f"stage {stage}: the newest known state is of round {newest_round}; "
            f"{last_seen or 'nobody who is here has one'}"
        )
    lines += [
        f"peer {peer.peer_id[-8:]} awaits a state, and says that the run has finished round {peer.awaits}"
        for peer in here
        if peer.awaits
    ]
    return lines
