"""The settings of a peer's owner: its place in a run, how it computes, and what it may use of machine and line."""

import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

import torch
from pydantic import ValidationError

from peer.compute.arithmetic import Arithmetic, PrecisionName, precision_on
from peer.compute.capacity import DeviceName
from peer.compute.fitting import best_way, fits_device, manifest_on
from peer.devices.fit import workers_fit, workers_recompute
from peer.devices.workers import Split
from peer.governor import SensorLimits
from peer.network.reach.reach import ReachMode, Wish
from peer.pausing import Pauses, QuietHours
from peer.planning import welcome
from peer.planning.memory import PROCESS_BYTES, Duty, MemoryName, memory_of
from peer.store.disk import Space, bytes_to_fetch
from peer.traffic import TrafficLimit, read_used
from protocol import addresses
from protocol.errors import FormatError, ResourceError, UserError
from protocol.manifest import Manifest
from protocol.net.bandwidth import ACKNOWLEDGED, WIRE, Bandwidth, WireTotal
from protocol.run.run_files import HELD_OUT, TRAIN, Descriptor, files_needed
from protocol.trust.membership_card import Role
from protocol.trust.ticket import Ticket
from protocol.wording import size

LOW_NICENESS = 10
"""The niceness of a volunteer's torch thread: whatever else runs on the machine goes first."""

UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "mib": 2**20, "gib": 2**30, "tib": 2**40}


@dataclass(frozen=True, slots=True)
class Meeting:
    """The meeting point of the machines of one datacenter: the first machine's address, as the others dial it."""

    host: str
    port: int
    secret_file: Path

    @classmethod
    def of(cls, nnodes: int, node_rank: int, rendezvous: str | None, secret_file: Path | None) -> "Meeting":
        """Read the options of a datacenter of several machines.

        Raises:
            UserError: they do not go together; the message says how they would.
        """
        if rendezvous is None or secret_file is None:
            raise UserError("--nnodes: several machines need --rendezvous HOST:PORT of the first, and --secret-file")
        if not 0 <= node_rank < nnodes:
            raise UserError(f"--node-rank {node_rank}: of {nnodes} machines, the ranks are 0 to {nnodes - 1}")
        try:
            host, port = addresses.split_address(rendezvous)
        except FormatError as error:
            raise UserError(f"--rendezvous: {error}") from None
        return cls(host, port, secret_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """One peer of a run, and its owner's wishes. From `stage` to `priority` the fields are options of `hetpeer join`,
    `replica` and `observe`, by the same names; `peer.cli.options.ServingOptions` says what each means. `--stage any`,
    the default of `join`, is no `stage`, and `any_stage`.

    Raises:
        UserError: a limit, or the quiet hours, make no sense; the message says what would.
    """

    ticket: Ticket
    role: Role
    directory: Path
    stage: int | None = None
    device: DeviceName = "auto"
    threads: int = 1
    listen: str | None = None
    announce: list[str] | None = None
    reach: ReachMode = "auto"
    relay: bool = False
    data: Path | None = None
    manifest: Path | None = None
    audit: bool = False
    stay: bool = False
    hold: bool = False
    nproc: int = 1
    nnodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None
    secret_file: Path | None = None
    precision: PrecisionName = "auto"
    compiled: bool = False
    memory: MemoryName = "auto"
    microbatch: int | None = None
    max_up: float | None = None
    max_down: float | None = None
    max_traffic: str | None = None
    max_memory: str | int | None = None
    max_disk: str | int | None = None
    max_temperature: float | None = None
    max_power: float | None = None
    data_cache: float = 4.0
    private_mirrors: bool = False
    quiet_hours: str | None = None
    priority: Literal["low", "normal"] = "normal"
    any_stage: bool = False
    """Whether this volunteer moves to a stage that is short, if it is surplus for long at its own."""
    without: tuple[str, ...] = ()
    """Files of the run that this peer does not fetch, though others in its role do."""
    process_bytes: int = PROCESS_BYTES
    """The memory that this peer's process takes without a model, in bytes."""
    carried: WireTotal = field(default_factory=WireTotal)
    """The traffic of this peer since its process began."""

    def __post_init__(self) -> None:
        _ = (
            self.bandwidth(),
            self.quiet,
            self.memory_limit,
            self.disk_limit,
            self.traffic_limit,
        )  # each raises if it makes no sense
        if self.precision == "fp16" and self.nproc * self.nnodes > 1:
            raise UserError("--precision fp16 goes with one process: take --precision fp32, or leave --nproc out")
        if self.nnodes > 1:
            _ = self.meeting
        elif self.rendezvous or self.secret_file or self.node_rank:
            raise UserError("--rendezvous, --secret-file and --node-rank are for several machines: give --nnodes, too")

    def bandwidth(self) -> Bandwidth:
        """The two directions of this peer's connection, with its limits."""
        return Bandwidth.of(self.max_up, self.max_down, self.carried)

    @property
    def traffic_limit(self) -> TrafficLimit | None:
        """The traffic that this peer may move in a month or a day; None: any."""
        if self.max_traffic is None:
            return None
        amount, _, span = self.max_traffic.strip().lower().partition("/")
        if span.strip() not in ("month", "day"):
            raise UserError(
                f"--max-traffic {self.max_traffic!r}: give a size and its time, such as 200GB/month or 5GB/day"
            )
        most_bytes = bytes_of("--max-traffic", amount)
        assert most_bytes is not None
        return TrafficLimit(most_bytes, "month" if span.strip() == "month" else "day", self.max_traffic.strip())

    @property
    def memory_limit(self) -> int | None:
        """The bytes of memory that this peer plans with; None: as many as are free."""
        return bytes_of("--max-memory", self.max_memory)

    @property
    def limits(self) -> SensorLimits:
        """The most that the sensors where this peer computes may show."""
        return SensorLimits(self.max_temperature, self.max_power)

    @property
    def disk_limit(self) -> int | None:
        """The bytes of disk that this peer may keep; None: a share of what is free."""
        return bytes_of("--max-disk", self.max_disk)

    @property
    def quiet(self) -> QuietHours:
        """The hours at which this peer pauses."""
        return QuietHours.parse(self.quiet_hours) if self.quiet_hours else QuietHours()

    @property
    def pausing(self) -> str:
        """Return why this peer pauses now; empty: it does not."""
        if (reason := Pauses(self.directory, self.quiet).reason()) or self.traffic_limit is None:
            return reason
        try:
            return self.traffic_limit.reason(read_used(self.directory), datetime.now())
        except ResourceError:
            return ""

    @property
    def meeting(self) -> Meeting:
        """The meeting point of the machines of a datacenter, and the file with their secret."""
        return Meeting.of(self.nnodes, self.node_rank, self.rendezvous, self.secret_file)

    @property
    def niceness(self) -> int:
        """The niceness of what computes."""
        return LOW_NICENESS if self.priority == "low" else 0

    @property
    def wish(self) -> Wish:
        """The way in which others are to reach this peer."""
        return Wish(self.listen, tuple(self.announce or ()), self.reach)

    def arithmetic(self, manifest: Manifest, stage: int | None, device: torch.device) -> Arithmetic:
        """The precision in which this peer trains a stage (None: all) on a device, whether torch compiles its layers,
        and whether it computes their activations again. Nothing of the stage is in memory yet."""
        several = self.nproc * self.nnodes > 1
        if several:
            recompute = workers_recompute(
                manifest, self.nproc, device, self.memory_limit, self.memory, self.nnodes, self.process_bytes
            )
        else:
            duty, limit = Duty(self.role, stage or 0), self.memory_limit
            recompute = best_way(manifest, duty, device, limit, self.memory, self.process_bytes)[0].recompute
        precision = precision_on(self.precision, device)
        if precision == "fp16" and several:
            precision = "fp32"
        return Arithmetic(precision, self.compiled, recompute)

    def computed_manifest(self, manifest: Manifest, device: torch.device) -> Manifest:
        """Return the manifest by which this peer computes: the run's, but for the microbatch of a datacenter, which is
        what its owner says or its device holds.

        Raises:
            UserError: the run cannot be computed in the microbatches that the owner asks for.
        """
        if self.role != "datacenter":
            return manifest
        if self.microbatch is not None:
            return self._with_microbatch(manifest, self.microbatch)
        recompute, limit = self.arithmetic(manifest, None, device).recompute, self.memory_limit
        if self.nproc * self.nnodes == 1:
            duty = Duty(self.role, recompute=recompute)
            return manifest_on(device, manifest, fits_device(device, duty, limit, self.process_bytes))
        fits = workers_fit(self.nproc, device, limit, recompute, self.nnodes, self.process_bytes)
        return manifest_on(device, manifest, fits, self.nproc * self.nnodes)

    def _with_microbatch(self, manifest: Manifest, sequences: int) -> Manifest:
        share = manifest.inner.sequences // (self.nproc * self.nnodes)
        if share % sequences:
            divisors = ", ".join(str(number) for number in range(1, share + 1) if share % number == 0)
            raise UserError(
                f"--microbatch {sequences}: an inner step has {share} sequences for each process, and a microbatch "
                f"must divide them: take one of {divisors}, or auto"
            )
        try:
            return manifest.with_microbatch(sequences)
        except ValidationError as error:
            raise UserError(f"--microbatch {sequences}: {error.errors()[0]['msg']}") from None

    def first_download(self, descriptor: Descriptor, stage: int, ahead: welcome.RestOfRun) -> float:
        """The most bytes on the wire that this peer takes before it helps. Looks at its folder: off the event loop."""
        place, has_begun = stage if self.role == "volunteer" else None, ahead.rounds < descriptor.manifest.outer.rounds
        names = self.files(descriptor, stage)
        return (WIRE + ACKNOWLEDGED) * bytes_to_fetch(self.directory, descriptor, names, place, has_begun)

    def what_is_taken(
        self,
        manifest: Manifest,
        stage: int,
        space: Space,
        device: torch.device,
        ahead: welcome.RestOfRun,
        first: float = 0.0,
    ) -> list[str]:
        """The sentences on what a place in a run takes of this machine and its line, in the rounds that are `ahead`.
        `stage`: of a volunteer; `first`: bytes of the first download."""
        sentences = []
        if takes := welcome.what_it_takes(manifest, self.role, stage, ahead):
            sentences.append(takes)
        if first:
            sentences.append(f"the first download: up to {size(first)}")
        if self.traffic_limit is not None and sentences and self.role != "observer":
            moved = 2 * welcome.bytes_of_a_round(manifest, self.role, stage)
            sentences.append(welcome.allowance(self.traffic_limit, moved, ahead, first))
        memory = 0
        if self.nproc * self.nnodes == 1:
            duty = Duty(self.role, stage, holds=self.hold, audits=self.audit)
            way, _ = best_way(manifest, duty, device, self.memory_limit, self.memory, self.process_bytes)
            memory = memory_of(manifest, way, self.process_bytes).total
        machine = memory, self.threads, device.type, self.priority == "low"
        return [*sentences, welcome.what_it_keeps(*machine, space.needed, space.limit, self.directory)]

    def split(self, manifest: Manifest, device: torch.device) -> Split:
        """Return how a datacenter spreads its replica over this machine, and over others."""
        return Split(self.nproc, self.threads, self.niceness, self.arithmetic(manifest, None, device), self.nnodes)

    def files(self, descriptor: Descriptor, stage: int) -> list[str]:
        """The names of the run's files that this peer fetches; `stage`: of a volunteer."""
        needed = files_needed(descriptor, stage if self.role == "volunteer" else None)
        unread = (*self.without, TRAIN, HELD_OUT) if self.hold else self.without
        return [name for name in needed if name not in unread]


def bytes_of(flag: str, given: str | int | None) -> int | None:
    """`8GB`, `7.5 GiB` or `900MB` in bytes; what is bytes already, or None, as it is.

    Raises:
        UserError: it says something else; the message names the option `flag`.
    """
    if not isinstance(given, str):
        return given
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", given.strip().lower())
    if matched is None or matched[2] not in UNITS or not float(matched[1]):
        raise UserError(f"{flag} {given!r}: give a size with its unit, such as 8GB or 900MB")
    return int(float(matched[1]) * UNITS[matched[2]])
