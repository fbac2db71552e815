"""Contributions between peers: who has what of a round, and fetching what we lack.

Each peer keeps the blobs of the last rounds and serves them to whoever asks, its own and others' alike.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from protocol.blobs import fetch
from protocol.channels import connect, handshake, refuse, require_manifest
from protocol.contribution import max_bytes
from protocol.errors import FormatError
from protocol.identity import ContributionName, Part, ReplicaId
from protocol.layout import model_layout
from protocol.manifest import Manifest
from protocol.schemas import contributions_pb2 as pb
from protocol.schemas import contributions_pb2_grpc

ROUNDS_KEPT = 2
"""A peer that is one round behind still finds what it lacks."""

Check = Callable[[bytes, ContributionName], Awaitable[None]]
"""Raises FormatError unless the bytes are that contribution."""


@dataclass(slots=True)
class Shelf:
    """The contributions a peer has, and everyone who waits for more."""

    blobs: dict[ContributionName, bytes] = field(default_factory=dict)
    by_digest: dict[str, bytes] = field(default_factory=dict)
    in_flight: set[ContributionName] = field(default_factory=set)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(self, name: ContributionName, blob: bytes) -> None:
        """Keep a contribution, and wake who waits; drop those of rounds long past."""
        async with self.changed:
            self.blobs[name] = blob
            self.by_digest[hashlib.sha256(blob).hexdigest()] = blob
            for old in [each for each in self.blobs if each.round <= name.round - ROUNDS_KEPT]:
                del self.by_digest[hashlib.sha256(self.blobs.pop(old)).hexdigest()]
            self.changed.notify_all()

    def of(self, part: Part, round: int) -> dict[ReplicaId, bytes]:
        """What there is of one part and round, by author."""
        return {name.replica: blob for name, blob in self.blobs.items() if (name.part, name.round) == (part, round)}

    async def wait_for(self, part: Part, round: int, count: int) -> dict[ReplicaId, bytes]:
        """The round's contributions to one part, once there are `count`."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.of(part, round)) >= count)
            return self.of(part, round)

    def lookup(self, sha256: str) -> bytes | None:
        """For the blob service."""
        return self.by_digest.get(sha256)


class ContributionService(contributions_pb2_grpc.ContributionsServicer):
    """Tells callers what is on the shelf, as it comes."""

    def __init__(self, manifest: Manifest, shelf: Shelf) -> None:
        self.manifest = manifest
        self.shelf = shelf
        self.parts = set(model_layout(manifest))

    async def Have(self, request: pb.HaveRequest, context: Any) -> AsyncIterator[pb.Announcement]:
        await require_manifest(context, self.manifest)
        if request.part not in self.parts:
            await refuse(context, f"the model has no part {request.part[:40]!r}")
        told: set[ReplicaId] = set()
        while True:
            present = self.shelf.of(Part(request.part), request.round)
            for replica in present.keys() - told:
                blob = present[replica]
                told.add(replica)
                yield pb.Announcement(replica=replica, sha256=hashlib.sha256(blob).hexdigest(), size=len(blob))
            async with self.shelf.changed:
                current = self.shelf.of(Part(request.part), request.round)
                if current.keys() <= told:
                    await self.shelf.changed.wait()


async def follow(
    address: str,
    manifest: Manifest,
    part: Part,
    round: int,
    authors: frozenset[ReplicaId],
    shelf: Shelf,
    check: Check,
) -> None:
    """Fetch from one peer what the shelf lacks of a part and round, as it comes there, until cancelled.

    Raises:
        UnreachableError: the peer is gone.
        FormatError: it sent a contribution that is none, or by none of `authors`.
    """
    async with connect(address, manifest) as channel:
        request = pb.HaveRequest(part=part, round=round)
        async for told in contributions_pb2_grpc.ContributionsStub(channel).Have(request, metadata=handshake(manifest)):
            name = ContributionName(part, round, ReplicaId(told.replica))
            if name.replica not in authors:
                raise FormatError(f"{address} announced {name}, by a replica that is not in this run")
            if told.size > max_bytes(manifest, part):
                raise FormatError(f"{address} announced {name} of {told.size} bytes: more than possible")
            if name in shelf.blobs or name in shelf.in_flight:
                continue
            shelf.in_flight.add(name)
            try:
                blob = await fetch(channel, manifest, told.sha256, told.size)
                await check(blob, name)
                await shelf.put(name, blob)
            finally:
                shelf.in_flight.discard(name)


async def collect(
    sources: tuple[str, ...],
    manifest: Manifest,
    part: Part,
    round: int,
    authors: frozenset[ReplicaId],
    shelf: Shelf,
    check: Check,
) -> None:
    """Wait until the shelf has every author's contribution to a part and round, fetching from `sources`.

    Raises:
        UnreachableError, FormatError: as `follow`.
    """
    async with asyncio.TaskGroup() as tasks:
        following = [
            tasks.create_task(follow(address, manifest, part, round, authors, shelf, check)) for address in sources
        ]
        await shelf.wait_for(part, round, len(authors))
        for task in following:
            task.cancel()
