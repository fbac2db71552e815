"""The steps before a peer has a place in a run: learn what the run is, from the operator or from its folder, and
whether it fits here."""

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from peer.compute.capacity import find_device
from peer.compute.fitting import require_memory
from peer.devices.fit import require_devices
from peer.governor import SensorLimits, readings_on, require_sensors
from peer.network import admission
from peer.network.admission import Admitted
from peer.planning.memory import Duty, memory_of
from peer.settings import PeerSettings
from peer.store.disk import Space, require_space, space_in
from peer.store.membership import StoredMembership, read_membership, recall, write_membership
from peer.store.served import ContributionStore
from peer.swarm.text_reader import TextSources
from protocol import manifest as manifests
from protocol.clock import unix_time
from protocol.codec.frames import FrameRules
from protocol.errors import (
    FormatError,
    HetpeerError,
    ManifestError,
    ResourceError,
    Shortage,
    UnreachableError,
    UserError,
)
from protocol.events.activity import Joined, Notice, Progress
from protocol.events.decisions import Placed
from protocol.events.event import Listener
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.net.bandwidth import WIRE, Bandwidth
from protocol.patience import FIRST_STEP_SECONDS
from protocol.run.prepared import require_same
from protocol.run.run_files import TOKENIZER, Descriptor, RunFile
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Authority
from protocol.trust.proofs import read_revocation
from protocol.trust.records import PeerRecord
from protocol.wording import moment, numbers_named


async def learn(
    settings: PeerSettings, identity: Identity, emit: Listener
) -> tuple[Descriptor, StoredMembership | None]:
    """Learn what the run is from the operator's node; or from this peer's folder, if the node does not answer and this
    peer has been in the run before.

    Raises:
        UnreachableError: the node does not answer, and the folder has not all that this peer needs.
    """
    try:
        return await admission.fetch_descriptor(settings.ticket), None
    except UnreachableError as error:
        stored = await recall_place(settings, identity)
        if stored is None:
            raise
        if stored.credentials.ends < unix_time():
            raise UnreachableError(
                f"{error}; this peer's certificate ended on {moment(stored.credentials.ends)}, and only a "
                "bootstrap node can renew it"
            ) from None
        emit(Notice(f"{error}; going on with what {settings.directory} has of the run"))
        return stored.descriptor, stored


async def comes_too_late(settings: PeerSettings, identity: Identity, emit: Listener) -> bool:
    """Whether the run is over, by the word of the operator's node, and this peer has never been in it: then it is told
    so. Who has been is told as well, and takes the last state, if somebody holds it."""
    try:
        rounds = (await admission.ask_node(settings.ticket)).finished
    except HetpeerError:
        return False  # joining says it better
    if not rounds or await recall_place(settings, identity) is not None:
        return False
    how = "`hetpeer export TICKET --out model` takes its model from who holds it"
    emit(Notice(f"the run is over: its {rounds} rounds are finished; {how}"))
    return True


async def recall_place(settings: PeerSettings, identity: Identity) -> StoredMembership | None:
    """Return the place that this peer's folder has for these settings; None: it has none."""
    place = settings.directory, settings.ticket, identity, settings.role, settings.stage
    return await asyncio.to_thread(recall, *place)


async def register_here(
    settings: PeerSettings, descriptor: Descriptor, identity: Identity, servable: tuple[int, ...]
) -> Admitted:
    """Get a place in the run and a certificate, and keep both in this peer's folder. `servable`: of a volunteer that
    leaves its stage to the node, the stages that it can serve; none: any.

    Raises:
        HetpeerError: there is none; the message says why.
    """
    admitted = await ask_for_place(settings, descriptor, identity, servable)
    await asyncio.to_thread(keep_place, settings.directory, admitted)
    return admitted


async def ask_for_place(
    settings: PeerSettings, descriptor: Descriptor, identity: Identity, servable: tuple[int, ...]
) -> Admitted:
    """Get a place as `register_here` does, and keep nothing of it yet."""
    folder = settings.directory
    known = read_membership(folder).card
    revoked = await asyncio.to_thread(_revoked, folder, Authority(descriptor.run_id, descriptor.operator))
    servable = servable if settings.role == "volunteer" and settings.stage is None else ()
    wish = settings.role, settings.stage, known, revoked, servable
    return await admission.register(settings.ticket, descriptor, identity, *wish)


def keep_place(folder: Path, place: Admitted) -> None:
    """Keep a place in a peer's folder: from now on it is its place."""
    write_membership(folder, place.signed_card, place.credentials, place.mirrors, place.node)


def _revoked(folder: Path, authority: Authority) -> set[PeerId]:
    """Return the peers that the operator has taken out, as far as this folder has heard: gateways may be among them."""
    found = set()
    for signed in ContributionStore(folder / "contributions").revocations():
        with suppress(FormatError):
            found.add(read_revocation(signed, authority).author)
    return found


def require_fit(settings: PeerSettings, descriptor: Descriptor) -> torch.device:
    """Return the device to compute on, if this machine and these settings fit the run. Nothing has been fetched or
    asked for yet, and the stage of a volunteer that leaves it to the node is not known.

    Raises:
        HetpeerError: they do not fit; the message says in what.
    """
    manifest = descriptor.manifest
    if settings.manifest is not None:  # join only a run of exactly this manifest
        field = manifests.first_difference(manifests.load_manifest(settings.manifest), manifest)
        if field is not None:
            raise ManifestError(f"the run has another manifest than {settings.manifest}: {field}")
    device, stages, process = find_device(settings.device), manifest.replicas.stages, settings.process_bytes
    manifest = settings.computed_manifest(manifest, device)
    if settings.role == "volunteer" and settings.stage is not None and not 0 <= settings.stage < stages:
        raise UserError(f"there is no stage {settings.stage}: this run's stages are 0 to {stages - 1}")
    if settings.nproc * settings.nnodes > 1:
        most = settings.memory_limit
        require_devices(manifest, settings.nproc, device, most, settings.memory, settings.nnodes, process=process)
    elif settings.role != "volunteer":
        duty = Duty(settings.role, holds=settings.hold, audits=settings.audit)
        require_memory(manifest, duty, device, settings.memory_limit, settings.memory, process)
    elif settings.stage is not None:
        with _told_what_fits(settings, descriptor, device):
            require_place(settings, descriptor, settings.stage, device)
    if settings.role != "volunteer":
        require_disk(settings, descriptor, None)
    settings.arithmetic(manifest, settings.stage, device).require(device)
    if settings.limits != SensorLimits():
        require_sensors(settings.limits, readings_on(device.type))
    return device


def require_disk(settings: PeerSettings, descriptor: Descriptor, stage: int | None) -> Space:
    """Check that this peer's place in the run fits its disk, and return what it takes and has there. `stage` is a
    volunteer's; for other roles, which keep the whole model, it is ignored.

    Raises:
        ResourceError: the place takes more than the disk, or its owner's limit, has.
    """
    stage = stage if settings.role == "volunteer" else None
    names = settings.files(descriptor, stage or 0)  # without a stage, 0 is ignored: all files
    trains, limit = settings.role != "observer", settings.disk_limit
    space = space_in(settings.directory, descriptor, names, stage, trains, limit)
    what = "the whole model" if stage is None else f"stage {stage}"
    require_space(space, settings.directory, what, limited=limit is not None)
    return space


def require_place(settings: PeerSettings, descriptor: Descriptor, stage: int, device: torch.device) -> Space:
    """Check that a place fits, before anything is fetched for it.

    Raises:
        HetpeerError: the place does not fit; the message says in what.
    """
    if settings.role == "volunteer":
        limit, memory, process = settings.memory_limit, settings.memory, settings.process_bytes
        require_memory(descriptor.manifest, Duty("volunteer", stage), device, limit, memory, process)
        require_bandwidth(descriptor.manifest, stage, settings.max_up, settings.max_down)
    return require_disk(settings, descriptor, stage)


@dataclass(frozen=True, slots=True)
class StageChoice:
    """The stages of which the operator's node may give this volunteer one; none: whichever it likes, or there is
    nothing to choose. `others` says what those need that do not fit; `held`: this peer has its place from an earlier
    time."""

    stages: tuple[int, ...] = ()
    others: str = ""
    held: bool = False


def choose_stages(
    settings: PeerSettings,
    descriptor: Descriptor,
    identity: Identity,
    stored: StoredMembership | None,
    device: torch.device,
) -> StageChoice:
    """Find out what to ask the operator's node for: the place that this peer has, or, of a volunteer that names no
    stage, those that fit.

    Raises:
        ResourceError: no stage fits; the message says what each needs.
    """
    if stored is not None:
        return StageChoice((stored.card.stage,), held=True)
    if settings.role != "volunteer" or settings.stage is not None:
        return StageChoice()
    with suppress(FormatError):
        card = Authority(descriptor.run_id, descriptor.operator).read(read_membership(settings.directory).card)
        has_stage = card.stage < descriptor.manifest.replicas.stages
        if (card.peer, card.role) == (identity.peer_id, "volunteer") and has_stage:
            return StageChoice((card.stage,), held=True)
    return stages_that_fit(settings, descriptor, device)


def stages_that_fit(settings: PeerSettings, descriptor: Descriptor, device: torch.device) -> StageChoice:
    """Find the stages of a run that a volunteer with these settings can serve on this machine.

    Raises:
        ResourceError: there is none; the message says what each needs and what there is, those that take least memory
            first, and what would help.
    """
    manifest, fitting = descriptor.manifest, list[int]()
    shortages: dict[int, Shortage] = {}
    for stage in range(manifest.replicas.stages):
        try:
            require_place(settings, descriptor, stage, device)
            fitting.append(stage)
        except UserError as error:
            if error.shortage is None:
                raise
            shortages[stage] = error.shortage
    if fitting:
        return StageChoice(tuple(fitting), _needs(shortages))
    least_first = sorted(
        shortages, key=lambda stage: (memory_of(manifest, Duty("volunteer", stage, recompute=True)).total, stage)
    )
    help = f"for stage {least_first[0]}, {shortages[least_first[0]].remedy}"
    with suppress(UserError):
        require_fit(replace(settings, role="observer"), descriptor)
        help += "; or follow the run with `hetpeer observe`, which fits"
    needs = _needs({stage: shortages[stage] for stage in least_first})
    raise ResourceError(f"no stage of this run fits this machine: {needs}; {help}")


def _needs(shortages: Mapping[int, Shortage]) -> str:
    """Say what stages need beside what there is; those that lack the same together."""
    lacking: dict[str, list[int]] = {}
    for stage, shortage in shortages.items():
        lacking.setdefault(shortage.words, []).append(stage)
    return "; ".join(
        f"{'stages' if len(stages) > 1 else 'stage'} {numbers_named(sorted(stages))} "
        f"{'need' if len(stages) > 1 else 'needs'} {words}"
        for words, stages in lacking.items()
    )


def require_given(settings: PeerSettings, descriptor: Descriptor, stage: int, device: torch.device) -> Space:
    """Check that the place fits that the operator's node has given this peer. It may have it from before its limits
    were lower; older nodes know nothing of them.

    Raises:
        HetpeerError: it does not; the message says in what, and which stages would fit.
    """
    with _told_what_fits(settings, descriptor, device):
        return require_place(settings, descriptor, stage, device)


def stages_elsewhere(settings: PeerSettings, descriptor: Descriptor, stage: int, device: torch.device) -> list[int]:
    """Find the stages to which a volunteer may move from its own: if its owner lets it, the others that fit."""
    fitting: tuple[int, ...] = ()
    with suppress(ResourceError):
        fitting = stages_that_fit(settings, descriptor, device).stages if settings.any_stage else ()
    return [other_stage for other_stage in fitting if other_stage != stage]


@contextmanager
def _told_what_fits(settings: PeerSettings, descriptor: Descriptor, device: torch.device) -> Iterator[None]:
    """Add to what a volunteer is told within the block, whose stage does not fit: the stages that would."""
    try:
        yield
    except UserError as error:
        if settings.role != "volunteer" or error.shortage is None:
            raise
        try:
            fitting = stages_that_fit(settings, descriptor, device).stages
        except ResourceError as none_fits:
            raise (none_fits if settings.stage is None else error) from None
        raise type(error)(
            f"{error}; of this run's stages, this machine fits {numbers_named(fitting)}: take it with "
            f"--stage {fitting[0]}",
            error.shortage,
        ) from None


def emit_place(
    settings: PeerSettings, manifest: Manifest, record: PeerRecord, choice: StageChoice, emit: Listener
) -> None:
    """Say where this peer is in the run, and why there."""
    emit(Joined(record.peer_id, record.role, record.stage, record.slot, record.address))
    reason = f"{record.role}s hold all stages"
    if record.role == "volunteer":
        reason = "the operator's node gave it the stage that had the fewest volunteers"
        if choice.others:
            fitting = numbers_named(choice.stages)
            only = f"this machine fits no other stage ({choice.others})"
            scarcest = f"it is the scarcest of the stages that fit this machine ({fitting}; {choice.others})"
            reason = only if len(choice.stages) == 1 else scarcest
        reason = "its owner asked for this stage" if settings.stage is not None else reason
    earlier = choice.held and record.stage in choice.stages
    reason = "its folder has this place from an earlier time" if earlier else reason
    emit(Placed(record.stage, manifest.outer.rounds, manifest.inner.steps, reason))


def text_sources(
    settings: PeerSettings,
    descriptor: Descriptor,
    place: Admitted | StoredMembership,
    bandwidth: Bandwidth,
    space: Space,
) -> TextSources | None:
    """Return the sources of the run's text for this peer, if that is prepared text.

    Raises:
        ResourceError: `--data` is not the run's text.
    """
    if settings.data is not None:
        require_same(descriptor, settings.data)
    if not descriptor.prepared:
        return None
    tokenizer = descriptor.file(TOKENIZER).sha256
    cache = space.cache(int(settings.data_cache * 1e9))
    private = settings.private_mirrors
    credentials, node_addresses = place.credentials, settings.ticket.other_node_addresses
    return TextSources(settings.data, cache, tokenizer, credentials, bandwidth, private, node_addresses)


async def fetch_needed_files(
    settings: PeerSettings, descriptor: Descriptor, place: Admitted, bandwidth: Bandwidth, emit: Listener
) -> None:
    """Fetch the run's files that this role needs."""
    names = settings.files(descriptor, place.card.stage)

    def progress(file: RunFile, received: int) -> None:
        emit(Progress(f"fetching {file.name}", received, file.size))

    await admission.fetch_files(place, descriptor, names, settings.directory, progress, bandwidth)


def require_bandwidth(manifest: Manifest, stage: int, max_up: float | None, max_down: float | None) -> None:
    """Check that a stage's frames get through this peer's own limits, Mb/s, before its group calls an inner step off.

    Raises:
        UserError: they do not; the message names the least limit that would do.
    """
    rules, last = FrameRules.of(manifest), manifest.replicas.stages - 1
    ahead = rules.activations.size, rules.gradients.size
    up = (ahead[0] if stage < last else 0) + (ahead[1] if stage > 0 else 0)
    down = (ahead[0] if stage > 0 else 0) + (ahead[1] if stage < last else 0)
    for flag, limit, frames in (("--max-up", max_up, up), ("--max-down", max_down, down)):
        megabits = 8 * WIRE * frames * manifest.inner.microbatches / 1e6
        if limit is not None and megabits / limit > FIRST_STEP_SECONDS / 2:
            least = math.ceil(2 * megabits / FIRST_STEP_SECONDS)
            raise UserError(
                f"{flag} {limit:g}: the frames of one inner step of stage {stage} take {megabits / limit:.0f} s at this"
                f" rate, and a group gives a first step {FIRST_STEP_SECONDS:.0f} s in all; "
                f"give at least {least}, or no limit",
                Shortage(
                    f"{least} Mb/s {flag.removeprefix('--max-')}, and {flag} gives {limit:g}", f"give {flag} {least}"
                ),
            )
