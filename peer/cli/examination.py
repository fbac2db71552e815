"""What `hetpeer doctor` finds out about a run's network and about its stages on this machine, and how it is shown."""

import random
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from peer.cli.tables import TableRow
from peer.compute.capacity import BASE_BYTES, free_bytes, stage_bytes
from peer.diagnosis import machine, network, speed, verdict
from peer.diagnosis.finding import Finding, Outcome
from peer.diagnosis.verdict import Room
from peer.network import admission
from peer.network.admission import read_peers
from peer.network.reach import reach
from peer.network.reach.probing import Handshake, MeasuredWay, NoWay, measure_doors, shake_hands
from peer.network.reach.reach import Reach, Wish
from peer.process import Terminal
from peer.store import disk
from peer.telemetry.events import Progress
from protocol.errors import HetpeerError
from protocol.layout import parameter_count
from protocol.manifest import Manifest
from protocol.run.run_files import Descriptor, files_needed
from protocol.trust.keys import load_or_create
from protocol.trust.records import Peers
from protocol.trust.ticket import Ticket
from protocol.wording import millions, printable

PEERS_ASKED = 5

COLOURS: dict[Outcome, str] = {"ok": "green", "warning": "yellow", "failure": "bold red"}


@dataclass(frozen=True, slots=True)
class Around:
    """The nodes and peers that were found on the network. `unknown`: why nobody can tell who is in the run."""

    ways: Sequence[MeasuredWay | NoWay]
    descriptor: Descriptor | None
    reach: Reach | None = None
    peers: Peers = ()
    shaken: Sequence[Handshake | NoWay] = ()
    unknown: str = ""

    @property
    def round_seconds(self) -> float:
        """The seconds that the swarm takes for a round, as the nodes say; 0: none knows."""
        return max((each.round_seconds for each in self.ways if isinstance(each, MeasuredWay)), default=0.0)


async def look_around(ticket: Ticket, wish: Wish, terminal: Terminal) -> Around:
    """Ask the run's nodes and some of its peers, as one that has no place in it. `wish`: how others are to dial this
    machine."""
    terminal.emit(Progress(f"measuring the way to {', '.join(map(printable, ticket.doors))}"))
    ways = await measure_doors(ticket)
    if not any(map(network.answers, ways)):
        return Around(ways, None)
    descriptor = await admission.describe(ticket)
    terminal.emit(Progress("asking to be dialled"))
    with tempfile.TemporaryDirectory(prefix="hetpeer-doctor-") as temporary:
        identity = load_or_create(Path(temporary))
        try:
            found = await reach.find(wish, ticket, identity, Path(temporary))
        except HetpeerError as error:
            host = admission.address_towards(ticket.operator)
            found = Reach(host, 0, (host, None), doubt=str(error))
    terminal.emit(Progress("looking for who is in the run"))
    try:
        peers = [each for each in await read_peers(ticket, descriptor) if not each.gone]
    except HetpeerError as error:
        return Around(ways, descriptor, found, unknown=str(error))
    public = [each for each in peers if not each.via]  # others are reached by relays
    asked = random.sample(public, min(PEERS_ASKED, len(public)))
    shaken = await shake_hands([each.address for each in asked])
    return Around(ways, descriptor, found, tuple(peers), shaken)


def of_network(around: Around) -> list[Finding]:
    """The findings about the links to the nodes and peers, and about being dialled."""
    findings = network.ways(around.ways)
    if (clock := network.clocks(around.ways)) is not None:
        findings.append(clock)
    if (slow_start := network.slow_start(around.ways, machine.begins_slowly())) is not None:
        findings.append(slow_start)
    if around.reach is not None:
        findings.append(network.reachable(around.reach))
    if around.unknown:
        findings.append(network.hidden(around.unknown))
    elif around.descriptor is not None:
        findings.append(network.peers(around.shaken, len(around.peers)))
    return findings


def of_stages(
    manifest: Manifest,
    around: Around | None,
    *,
    device: torch.device,
    threads: int,
    folder: Path,
    limit: float,
    terminal: Terminal,
) -> list[Finding]:
    """The findings about each stage, and a group of them, on this machine. `limit`: seconds of computing a kind."""
    stages = range(manifest.replicas.stages)
    rooms = [Room(stage_bytes(manifest, stage) + BASE_BYTES, free_bytes(device)) for stage in stages]

    def tell(stage: int) -> None:
        terminal.emit(Progress(f"computing stage {stage}, for {limit:.0f} s or so"))

    speeds = speed.measure_stages(manifest, device, threads, limit, tell)
    link = network.link_of(around.ways, around.shaken) if around else None
    findings = []
    if around is not None and around.descriptor is not None:
        files = around.descriptor
        least = min(
            disk.space_in(folder, files, files_needed(files, stage), stage, True, None).needed for stage in stages
        )
        findings.append(machine.disk(folder, least))
    findings += verdict.stages(manifest, speeds, rooms, link, around.round_seconds if around else 0.0)
    group = verdict.group(manifest, speeds, link)
    return findings if group is None else [*findings, group]


def rows(findings: Sequence[Finding]) -> Iterable[TableRow]:
    """The findings for a program."""
    for each in findings:
        yield asdict(each)


def drawn(findings: Sequence[Finding], manifest: Manifest | None) -> RenderableType:
    """The findings for a person: a line for the run, a row for each check, and below it what to do."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in findings:
        found = Text(printable(each.value))
        if each.advice:
            found.append(f"\n→ {printable(each.advice)}", style="bold")
        table.add_row(Text(each.name), Text(each.outcome, style=COLOURS[each.outcome]), found)
    if manifest is None:
        return table
    replicas = manifest.replicas
    k = "k by link" if replicas.compression == "auto" else f"k = d/{replicas.compression}"
    line = (
        f"{manifest.run.name}: {millions(parameter_count(manifest), 0)} parameters in {replicas.stages} stages, "
        f"{replicas.total} replicas, H = {manifest.inner.steps}, {k}"
    )
    return Group(Text(printable(line)), "", table)
