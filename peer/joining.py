"""Before a peer has a place in a run: what the run is, from the operator or from memory, and whether it fits here."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import torch

from peer.compute.machine import DeviceName, find_device, require_memory
from peer.events import Listener, Progress
from peer.network import operator
from peer.network.remembered import Remembered, recall
from protocol import manifest as manifests
from protocol.errors import ManifestError, UnreachableError, UserError
from protocol.keys import Identity
from protocol.manifest import Manifest
from protocol.records import Role
from protocol.run_files import Descriptor
from protocol.ticket import Ticket


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """What is this machine's own. `listen` None: the interface towards the operator, any port."""

    ticket: Ticket
    role: Role
    directory: Path
    stage: int | None = None
    device: DeviceName = "auto"
    threads: int = 1
    listen: str | None = None
    manifest: Path | None = None
    audit: bool = False


async def learn(settings: PeerOptions, identity: Identity, emit: Listener) -> tuple[Descriptor, Remembered | None]:
    """What the run is, from the operator's node; if that does not answer, and this peer has been in the run before, as
    its folder has it.

    Raises:
        UnreachableError: the node does not answer, and the folder has not all that this peer needs.
    """
    try:
        return await operator.describe(settings.ticket), None
    except UnreachableError as error:
        remembered = await recall_place(settings, identity)
        if remembered is None:
            raise
        emit(Progress(f"{error}; going on with what {settings.directory} has of the run"))
        return remembered.descriptor, remembered


async def recall_place(settings: PeerOptions, identity: Identity) -> Remembered | None:
    place = settings.directory, settings.ticket, identity.peer_id, settings.role, settings.stage
    return await asyncio.to_thread(recall, *place)


def require_fit(settings: PeerOptions, manifest: Manifest) -> torch.device:
    """The device to compute on, if this machine and these settings fit the run.

    Raises:
        HetpeerError: they do not; the message says in what.
    """
    _require_same_manifest(settings.manifest, manifest)
    device = find_device(settings.device)
    if settings.role == "volunteer":
        _require_stage(settings.stage, manifest)
    if settings.stage is not None or settings.role != "volunteer":
        require_memory(manifest, settings.stage, device)
    return device


def _require_same_manifest(path: Path | None, theirs: Manifest) -> None:
    """`--manifest`: join only a run of exactly this manifest."""
    if path is None:
        return
    field = manifests.difference(manifests.load(path), theirs)
    if field is not None:
        raise ManifestError(f"the run has another manifest than {path}: {field}")


def _require_stage(stage: int | None, manifest: Manifest) -> None:
    stages = manifest.replicas.stages
    if stage is not None and not 0 <= stage < stages:
        raise UserError(f"there is no stage {stage}: this run's stages are 0 to {stages - 1}")
