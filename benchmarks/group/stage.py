"""One stage of a group: its server, its contacts, and how it meets the others."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from tls import shown

import peer.network.group
from peer.data.batches import Batch
from peer.network.contacts import Contacts
from peer.network.group import Link, PipelineService, call, make_link
from peer.swarm.group.inner_step import Carried, InnerStep, PipelineStage, Source, StepTaken
from peer.torch_thread import TorchThread
from protocol.codec.frames import FrameRules
from protocol.identity import Endpoint, PeerId, ReplicaId
from protocol.manifest import Manifest
from protocol.net.bandwidth import Bandwidth
from protocol.net.channels import Reachable, listen, options, translated
from protocol.net.guard import Guard
from protocol.net.lenient import AnyAnswer, AnyBytes
from protocol.schemas import pipeline_pb2_grpc
from protocol.trust.keys import load_or_create


@dataclass(frozen=True, slots=True)
class SameBatch:
    """What the first stage reads: one batch again and again, in a round that has no end."""

    of: Batch

    async def batch(self, later: int) -> Batch:
        """The batch of any step."""
        return self.of

    def ends(self) -> bool:
        """Whether the step in hand is the last: none is."""
        return False


@dataclass(slots=True)
class Steps:
    """The inner steps of a stage, one after the other: what each leaves goes to the next."""

    pipeline: PipelineStage
    carried: Carried = field(default_factory=Carried)

    async def take(self, round: int, step: int, source: Source | None) -> StepTaken:
        """Take a step of the stage."""
        outcome = await InnerStep(self.pipeline, self.carried, round, step, source).take()
        self.carried = outcome.carried
        return outcome


@dataclass(frozen=True, slots=True)
class Place:
    """A process that serves a stage, before it knows the others."""

    manifest: Manifest
    index: int
    peer_id: PeerId
    address: str
    contacts: Contacts
    pipeline: PipelineService

    def expect(self, seats: list[Endpoint]) -> Link | None:
        """Welcome the stage before this one of `seats`, stage after stage; the link to it. All do so before any of
        them meets the others."""
        if self.index == 0:
            return None
        upstream = self._link_to(self.index - 1, seats)
        self.pipeline.answer_calls(lambda neighbour, replica: upstream)
        return upstream

    async def meet(
        self,
        seats: list[Endpoint],
        upstream: Link | None,
        trainer: Any,
        torch_thread: TorchThread,
        tasks: asyncio.TaskGroup,
        room: int = sys.maxsize,
    ) -> Steps:
        """Be one group, with links as its members open them; `room`: microbatches in flight at most."""
        behind, last = self.index + 1, self.manifest.replicas.stages - 1
        downstream = self._link_to(behind, seats) if behind <= last else None
        if downstream is not None:
            tasks.create_task(call(seats[behind], self.contacts, ReplicaId(seats[0].peer_id), downstream))
        rules = FrameRules.of(self.manifest)
        return Steps(PipelineStage(trainer, torch_thread, rules, upstream, downstream, room=room))

    def _link_to(self, stage: int, seats: list[Endpoint]) -> Link:
        return make_link(self.manifest, seats[stage].peer_id, f"stage {stage}", self.contacts.bandwidth)


@contextlib.asynccontextmanager
async def place(
    index: int,
    folder: Path,
    manifest: Manifest,
    host: str = "127.0.0.1",
    also: Callable[[grpc.aio.Server], None] = lambda server: None,
    plain: bool = False,
    bandwidth: Bandwidth | None = None,
) -> AsyncIterator[Place]:
    """Keys, certificate and an open port; `also` adds services. Frames take their turn in `bandwidth`.

    `plain` is without TLS, and then nobody knows who calls: on loopback, to see what TLS costs.
    """
    me, authority = load_or_create(folder / str(index)), load_or_create(folder / "operator")
    credentials = shown(me, authority)
    pipeline = PipelineService(manifest)
    bandwidth = bandwidth or Bandwidth()
    if plain:
        peer.network.group.caller = _anybody  # type: ignore[attr-defined]
        contacts: Contacts = PlainContacts(manifest, credentials, bandwidth=bandwidth)
        server = grpc.aio.server(options=options(manifest), interceptors=[AnyBytes()])
        port = server.add_insecure_port(f"{host}:0")
    else:
        contacts = Contacts(manifest, credentials, bandwidth=bandwidth)
        server = grpc.aio.server(options=options(manifest), interceptors=[Guard(), AnyBytes()])
        port = listen(server, f"{host}:0", credentials.serving())
    pipeline_pb2_grpc.add_PipelineServicer_to_server(pipeline, server)
    also(server)
    await server.start()
    try:
        yield Place(manifest, index, me.peer_id, f"{host}:{port}", contacts, pipeline)
    finally:
        await contacts.close()
        await server.stop(None)


class PlainContacts(Contacts):
    """Channels without TLS."""

    @contextlib.asynccontextmanager
    async def alone(self, peer: Reachable) -> AsyncIterator[grpc.aio.Channel]:
        """A channel of its own."""
        async with AnyAnswer(grpc.aio.insecure_channel(peer.address, options=options(self.manifest))) as channel:
            with translated(peer.address, self.manifest):
                yield channel

    to = alone


def _anybody(context: Any) -> SimpleNamespace:
    """Without TLS nobody knows who calls."""
    return SimpleNamespace(peer="")
