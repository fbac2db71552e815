"""The monitor of a node that runs: the fold with a clock, kept in the node's folder across restarts."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from pydantic import ValidationError

from bootstrap.monitor.fold import MOST_PEERS, Fold, KeptMonitor
from bootstrap.monitor.peers import AWAY_STATES
from bootstrap.monitor.run_state import LastState, RunStatus
from protocol.clock import monotonic, unix_time
from protocol.errors import FormatError, RefusedError, ResourceError
from protocol.events.peer_report import unpack_report
from protocol.files import write_atomically
from protocol.identity import PeerId, RunId
from protocol.manifest import Manifest
from protocol.monitor import View
from protocol.net.allowances import RateLimit
from protocol.net.channels import EOF, caller, refuse, require_manifest
from protocol.net.lenient import NO_MESSAGE
from protocol.net.tasks import Children, Notifier, first_of, wait_at_most
from protocol.schemas import monitor_pb2 as pb
from protocol.schemas import monitor_pb2_grpc
from protocol.trust.certificates import Caller
from protocol.trust.records import PeerRecord

MONITOR_FILE = "monitor.json"

MONITOR_SAVE_SECONDS = 30.0
"""The interval, at least, at which the view is written to disk, in seconds: a node that is killed forgets no more."""

RUN_POLL_SECONDS = 2.0
"""The interval at which peers and rounds are checked, in seconds, also when all have gone: the run may be over."""

BATCH_BURST, BATCH_SECONDS = 30, 0.5
"""Batches of one peer: at once, as one that comes back has, and then twice as many as an honest one sends."""


STREAMS_OF_PEER = 4
"""A peer has one, and a new one before the node has noticed that the old one is broken."""


@dataclass(slots=True)
class Monitor:
    """The view that one node has of its run. `folder`: where it is kept; None: nowhere."""

    fold: Fold
    folder: Path | None = None
    clock: Callable[[], float] = unix_time
    batches: RateLimit = field(default_factory=lambda: RateLimit(BATCH_BURST, BATCH_SECONDS, MOST_PEERS))
    _changed: Notifier = field(default_factory=Notifier)
    _outdated: asyncio.Event = field(default_factory=asyncio.Event)
    _urgent: asyncio.Event = field(default_factory=asyncio.Event)
    """The run has ended, or a peer is here that was not: that is written down at once."""
    _known: int = 0
    _end_is_known: bool = False
    _unkept: bool = False

    @staticmethod
    def of(manifest: Manifest, run_id: RunId, folder: Path | None = None) -> "Monitor":
        """A monitor that goes on from what `folder` has. What cannot be read there is passed over: it is for people."""
        fold = Fold(manifest, run_id, unix_time())
        if folder is not None and (kept := _read(folder, run_id)) is not None:
            fold.recall(kept)
        return Monitor(fold, folder)

    def view(self) -> View:
        """The run, now."""
        return self.fold.view(self.clock())

    def finished(self) -> int:
        """The run's last round, once it is over; 0 before."""
        return self.fold.manifest.outer.rounds if self.fold.over else 0

    def taking(self) -> bool:
        """Whether this node is about to take the last state."""
        return self.fold.last_state == "coming"

    def note_last_state(self, last_state: LastState) -> None:
        """This node is about to take the last state, or holds it, or does neither."""
        self.fold.last_state = last_state
        self._ring()

    def is_near_the_end(self) -> bool:
        """Whether the last round has begun, or the run is over."""
        begun = self.fold.state.state != "gathering"
        return self.fold.over or (begun and self.fold.finished >= self.fold.manifest.outer.rounds - 1)

    def leaving_holder(self) -> PeerId | None:
        """A peer that would leave, and is the last that holds the newest state of its parts; None: there is none."""
        peers = ((peer.id, peer.record) for peer in self.fold.peers.values() if peer.state not in AWAY_STATES)
        return next((id for id, record in peers if record is not None and record.last_holder), None)

    @property
    def run_state(self) -> RunStatus:
        """The run's state, as this node saw it last."""
        return self.fold.state

    async def until_changed(self, seconds: float) -> None:
        """Wait until a new report has come, or for so many seconds."""
        await self._changed.wait(seconds)

    async def until_outdated(self, seconds: float) -> None:
        """Wait until the record of a peer that reports is not known here, or older than what it reports, or a peer ends
        its reports; `seconds` at most."""
        await wait_at_most(seconds, self._outdated.wait())
        self._outdated.clear()

    def see_records(
        self, records: Iterable[PeerRecord], is_revoked: Callable[[PeerId], bool] = lambda peer: False
    ) -> None:
        """Take the checked records in the DHT. `is_revoked` tells whether the operator has revoked a peer."""
        for peer in self.fold.peers.values():
            peer.revoked = peer.revoked or is_revoked(peer.id)
        self.fold.see_records(records, self.clock())
        self._ring()

    def begin(self, peer: PeerId) -> None:
        """A peer begins to tell."""
        self.fold.begin(peer, self.clock())
        self._ring()

    def receive_report(self, peer: PeerId, data: bytes) -> None:
        """A batch of a peer's.

        Raises:
            FormatError: it is none.
            RefusedError: it comes too soon.
        """
        now = self.clock()
        if wait := self.batches.wait_seconds(peer, now):
            raise RefusedError(f"too much is told at once: try again in {math.ceil(wait)} s")
        self.fold.apply_report(peer, unpack_report(data), now)
        peer_known = self.fold.peers.get(peer)
        if peer_known is not None and (peer_known.record is None or peer_known.done > peer_known.record.round):
            self._outdated.set()
        self._ring()

    def end(self, peer: PeerId) -> None:
        """A stream of a peer's has ended."""
        self.fold.end(peer, self.clock())
        self._outdated.set()
        self._ring()

    async def keep(self) -> None:
        """See who has gone, and write down what is known, for as long as the node runs; and write at its end."""
        try:
            while True:
                due_at = monotonic() + MONITOR_SAVE_SECONDS
                while not self._urgent.is_set() and monotonic() < due_at:
                    await wait_at_most(RUN_POLL_SECONDS, self._urgent.wait())
                    self._look()
                self._urgent.clear()
                await asyncio.to_thread(self.write, *self._to_keep())
        finally:
            self.write(*self._to_keep())

    def _to_keep(self) -> tuple[bool, KeptMonitor]:
        changed, self._unkept = self._unkept, False
        return changed, self.fold.to_keep(self.clock())

    def write(self, changed: bool, kept: KeptMonitor) -> None:
        """Put it into the folder. A full disk loses it: the node goes on, which then has worse to tell."""
        if self.folder is not None and changed:
            with suppress(ResourceError):
                write_atomically(self.folder / MONITOR_FILE, kept.model_dump_json().encode(), 0o600)

    def _look(self) -> None:
        """See what follows from the time that has passed."""
        self.fold.look(self.clock())
        if self.fold.over and not self._end_is_known:
            self._ring()
        if len(self.fold.firsts) > self._known:
            self._known = len(self.fold.firsts)
            self._urgent.set()

    def _ring(self) -> None:
        self._unkept = True
        if self.fold.over and not self._end_is_known:
            self._end_is_known = True
            self._urgent.set()
        self._changed.ring()


def _read(folder: Path, run_id: RunId) -> KeptMonitor | None:
    """Return what a folder keeps of a run's view; None: nothing that can be read."""
    with suppress(OSError, ValidationError):
        kept = KeptMonitor.model_validate_json((folder / MONITOR_FILE).read_bytes())
        return kept if kept.run_id == run_id else None
    return None


def kept_round(folder: Path, run_id: RunId) -> int:
    """Return the last round that the run had finished when the node of this folder last wrote it down; 0: it has not.
    `MONITOR_SAVE_SECONDS` later it may be another."""
    kept = _read(folder, run_id)
    return max((entry.round for entry in kept.history if entry.ended is not None), default=0) if kept is not None else 0


class MonitorService(monitor_pb2_grpc.MonitorServicer):
    """Hears peers on one stream each. `objection`: why a peer is not heard any longer, as when it is revoked."""

    def __init__(self, manifest: Manifest, monitor: Monitor, objection: Callable[[PeerId], str]) -> None:
        self.manifest, self.monitor, self.objection = manifest, monitor, objection
        self.streams: dict[PeerId, int] = {}
        self._stopping = asyncio.Event()

    def hang_up(self) -> None:
        """The node stops: end all streams, which would go on for as long as their peers."""
        self._stopping.set()

    async def Tell(self, request_iterator: AsyncIterator[pb.Batch], context: Any) -> None:
        await require_manifest(context, self.manifest)
        who = caller(context)
        peer = who.peer
        if self.streams.get(peer, 0) >= STREAMS_OF_PEER:
            await refuse(context, f"a peer tells on {STREAMS_OF_PEER} streams at most")
        self.streams[peer] = self.streams.get(peer, 0) + 1
        self.monitor.begin(peer)
        try:
            async with Children() as children:
                reading = children.spawn(self._receive_reports(who, context))
                await first_of(asyncio.wait((reading,)), self._stopping.wait())
            if not reading.cancelled() and (reason := reading.result()):
                await refuse(context, reason)
        finally:
            self.monitor.end(peer)
            self.streams[peer] -= 1
            if not self.streams[peer]:
                del self.streams[peer]

    async def _receive_reports(self, who: Caller, context: Any) -> str:
        """Hear all that comes, until the stream ends or breaks. Returns why no more is heard, or empty."""
        with suppress(grpc.aio.BaseError, grpc.aio.AioRpcError):
            while (message := await context.read()) is not EOF:
                if reason := self.objection(who.peer) or self.objection(who.issuer):
                    return reason
                if message is NO_MESSAGE:
                    return "bytes that are no message"
                try:
                    self.monitor.receive_report(who.peer, message.batch_json)
                except (FormatError, RefusedError) as error:
                    return str(error)
        return ""
