"""`hetpeer doctor`: what this machine and its links would be to a run, before it joins."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import DeviceOption, RowsOption, ThreadsOption, TicketArgument, takes, terminal
from protocol.errors import TicketError

if TYPE_CHECKING:
    import torch
    from rich.console import RenderableType

    from peer.diagnosis.finding import Finding, Outcome
    from peer.diagnosis.verdict import Room
    from peer.network.reach.probing import Handshake, MeasuredWay, NoWay
    from peer.network.reach.reach import Reach, Wish
    from peer.process import Terminal
    from protocol.manifest import Manifest
    from protocol.run.run_files import Descriptor
    from protocol.trust.records import Peers
    from protocol.trust.ticket import Ticket

PEERS_ASKED = 5

FINDING_COLOURS: dict["Outcome", str] = {"ok": "green", "warning": "yellow", "failure": "bold red"}

DOCTOR_EXAMPLES = (
    "Examples:\n\n  hetpeer doctor hetpeer1-…\n\n  hetpeer doctor hetpeer1-… --listen 0.0.0.0:7800\n\n"
    "  hetpeer doctor --preset 512m --stages 4 --device cpu"
)

NOT_TO_JOIN = 1
"""Exit code: something must be mended first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """The options of `hetpeer doctor`. With a `preset`, nobody is asked: its model in so many stages is the run."""

    ticket: TicketArgument = None
    preset: Annotated[
        str | None, typer.Option(help="Ask nobody: this machine alone, with the model of this name, such as 512m.")
    ] = None
    stages: Annotated[int, typer.Option(min=1, help="With --preset: pipeline stages.")] = 4
    device: DeviceOption = "auto"
    threads: ThreadsOption = 0
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder that the peer would have. Default: under ~/.hetpeer.")
    ] = None
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="As `hetpeer join` would have it: whether others can dial it is tried there."
        ),
    ] = None
    announce: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="What others dial, where a router forwards to this peer.")
    ] = None
    seconds: Annotated[
        float,
        typer.Option(min=0.1, metavar="S", help="How long to compute on each kind of stage."),
    ] = 8.0
    json: RowsOption = False


@takes(DoctorOptions)
def doctor(options: DoctorOptions) -> None:
    """Say, without joining, what would be wrong, and which stages of a run this machine could serve how fast."""
    sys.exit(examine(options, terminal(options.json)))


def examine(options: DoctorOptions, terminal: "Terminal") -> int:
    """Check everything, and show the findings. Returns the exit code: 0 if this machine can join."""
    import peer.daemon  # the modules of a peer's process, so that this one has its size
    from peer.cli.tables import print_table
    from peer.compute.capacity import cores, find_device, resident_bytes
    from peer.diagnosis import machine, verdict
    from peer.diagnosis.finding import gravest
    from peer.network.reach.reach import Wish
    from peer.planning.memory import process_bytes
    from peer.process import exit_code_of, run_query
    from peer.store.home import home, peer_folder

    assert peer.daemon

    def work() -> int:
        process = process_bytes(resident_bytes())  # as a peer counts itself: nothing of the run or network is here yet
        ticket = None if options.preset else _ticket(options)
        device, threads = find_device(options.device), options.threads or cores()
        folder = options.directory or (peer_folder(ticket, "volunteer") if ticket else home())
        findings = machine.examine_machine(device, threads, folder)
        around = None
        if ticket is not None:
            wish = Wish(options.listen, tuple(filter(None, [options.announce])))
            around = run_query(lambda: look_around(ticket, wish, terminal), terminal)
            findings = [finding for finding in findings if finding.name not in ("clock", "disk")]
            findings += of_network(around)
        manifest = _manifest(options, around)
        whole = None
        if manifest is not None:
            more, whole = of_stages(
                manifest,
                around,
                device=device,
                threads=threads,
                process=process,
                folder=folder,
                limit=options.seconds,
                terminal=terminal,
            )
            findings += more
        findings.append(verdict.conclusion(findings, whole, around is not None and around.is_over))
        kind = "The run" if around else "A run like"
        print_table(terminal, map(asdict, findings), findings_table(findings, manifest, kind))
        return NOT_TO_JOIN if gravest([finding.outcome for finding in findings]) == "failure" else 0

    return exit_code_of(terminal.emit, work)


def _ticket(options: DoctorOptions) -> "Ticket | None":
    """The ticket, as `hetpeer join` finds it; None where there is none and none was asked for."""
    from peer.store.home import ticket_folders
    from protocol.trust import ticket as tickets

    try:
        return tickets.find_ticket(options.ticket, *ticket_folders(options.directory))
    except TicketError:
        if options.ticket is not None:
            raise
        return None


def _manifest(options: DoctorOptions, around: "Around | None") -> "Manifest | None":
    """The manifest of the run, or of a preset's model; None where the run's is not known."""
    from protocol import manifest as manifests

    if around is not None:
        return around.descriptor.manifest if around.descriptor else None
    preset = options.preset or "512m"
    return manifests.check_manifest(
        {"run": {"name": preset}, "model": {"preset": preset}, "replicas": {"stages": options.stages}},
        "--preset, --stages",
    )


# What there is to find out


@dataclass(frozen=True, slots=True)
class Around:
    """The nodes and peers that were found on the network. `unknown`: why nobody can tell who is in the run."""

    ways: Sequence["MeasuredWay | NoWay"]
    descriptor: "Descriptor | None"
    reach: "Reach | None" = None
    peers: "Peers" = ()
    shaken: Sequence["Handshake | NoWay"] = ()
    unknown: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the run's last round is finished, as the nodes say."""
        from peer.network.reach.probing import MeasuredWay

        rounds = self.descriptor.manifest.outer.rounds if self.descriptor is not None else 0
        return 0 < rounds <= max((way.round for way in self.ways if isinstance(way, MeasuredWay)), default=0)

    @property
    def round_seconds(self) -> float:
        """The seconds that the swarm takes for a round, as the nodes say; 0: none knows, or the run is over."""
        from peer.network.reach.probing import MeasuredWay

        ways = [] if self.is_over else [way for way in self.ways if isinstance(way, MeasuredWay)]
        return max((way.round_seconds for way in ways), default=0.0)


async def look_around(ticket: "Ticket", wish: "Wish", terminal: "Terminal") -> Around:
    """Ask the run's nodes and some of its peers, as one that has no place in it. `wish`: how others are to dial this
    machine."""
    import random
    import tempfile

    from peer.diagnosis import network
    from peer.network import admission
    from peer.network.admission import read_peers
    from peer.network.reach import reach
    from peer.network.reach.probing import measure_nodes, shake_hands
    from peer.network.reach.reach import Reach
    from protocol.errors import HetpeerError
    from protocol.events.activity import Progress
    from protocol.trust.keys import load_or_create
    from protocol.wording import printable

    terminal.emit(Progress(f"measuring the way to {', '.join(map(printable, ticket.node_addresses))}"))
    ways = await measure_nodes(ticket)
    if not any(map(network.node_answers, ways)):
        return Around(ways, None)
    descriptor = await admission.fetch_descriptor(ticket)
    terminal.emit(Progress("asking to be dialled"))
    with tempfile.TemporaryDirectory(prefix="hetpeer-doctor-") as temporary:
        identity = load_or_create(Path(temporary))
        try:
            own_reach = await reach.find_reach(wish, ticket, identity, Path(temporary))
        except HetpeerError as error:
            host = admission.address_towards(ticket.operator)
            own_reach = Reach(host, 0, (host, None), doubt=str(error))
    terminal.emit(Progress("looking for who is in the run"))
    try:
        peers = [record for record in await read_peers(ticket, descriptor) if not record.gone]
    except HetpeerError as error:
        return Around(ways, descriptor, own_reach, unknown=str(error))
    public = [record for record in peers if not record.via]  # others are reached by relays
    sample = random.sample(public, min(PEERS_ASKED, len(public)))
    shaken = await shake_hands([record.address for record in sample])
    return Around(ways, descriptor, own_reach, tuple(peers), shaken)


def of_network(around: Around) -> list["Finding"]:
    """The findings about the links to the nodes and peers, and about being dialled."""
    from peer.diagnosis import machine, network

    findings = network.node_findings(around.ways)
    if (clock := network.clocks(around.ways)) is not None:
        findings.append(clock)
    if (slow_start := network.slow_start(around.ways, machine.begins_slowly())) is not None:
        findings.append(slow_start)
    if around.reach is not None:
        findings.append(network.reachable(around.reach))
    if around.unknown:
        findings.append(network.unknown_peers(around.unknown))
    elif around.descriptor is not None:
        findings.append(network.peers_finding(around.shaken, len(around.peers)))
    return findings


def of_stages(
    manifest: "Manifest",
    around: Around | None,
    *,
    device: "torch.device",
    threads: int,
    process: int,
    folder: Path,
    limit: float,
    terminal: "Terminal",
) -> tuple[list["Finding"], "Room"]:
    """The findings about each stage, a group of them, and a whole replica, on this machine; and the room for that.
    `process`: bytes of a process without a model; `limit`: seconds of computing a kind."""
    from peer.compute.capacity import free_memory
    from peer.compute.fitting import best_way, where_computed
    from peer.diagnosis import machine, network, speed, verdict
    from peer.diagnosis.verdict import Room
    from peer.planning.memory import Duty, memory_of
    from peer.store import disk
    from protocol.events.activity import Progress
    from protocol.run.run_files import files_needed
    from protocol.wording import size

    stages = range(manifest.replicas.stages)

    def room(duty: Duty) -> Room:
        way, lacking = best_way(manifest, duty, device, process=process)
        needed = where_computed(memory_of(manifest, way, process), device)
        return Room(needed, free_memory(device), way.recompute, lacking.words if lacking is not None else "")

    rooms, whole = [room(Duty("volunteer", stage)) for stage in stages], room(Duty("datacenter"))

    def on_stage(stage: int) -> None:
        terminal.emit(Progress(f"computing stage {stage}, for {limit:.0f} s or so"))

    speeds = speed.measure_stages(manifest, device, threads, limit, on_stage, process)
    link = network.link_of(around.ways, around.shaken) if around else None
    findings = []
    if around is not None and around.is_over:
        findings.append(machine.over(manifest.outer.rounds))
    if around is not None and around.descriptor is not None:
        files = around.descriptor
        spaces = [disk.space_in(folder, files, files_needed(files, stage), stage, True, None) for stage in stages]
        findings.append(machine.disk(folder, [space.needed for space in spaces]))
        space = disk.space_in(folder, files, files_needed(files, None), None, True, None)
        if whole.fits and space.needed > space.limit:
            whole = replace(whole, lacking=f"{size(space.needed)} of disk, and {size(space.limit)} can be had")
    swarm = around.round_seconds if around else 0.0
    findings += verdict.stages(manifest, speeds, rooms, link, swarm)
    group, replica = verdict.group(manifest, speeds, link), verdict.whole_replica(manifest, speeds, whole, link, swarm)
    seconds = swarm or (group.numbers["round"] if group is not None else 0.0)
    findings.append(verdict.traffic(manifest, seconds))
    return [*findings, *(finding for finding in (group, replica) if finding is not None)], whole


def findings_table(findings: Sequence["Finding"], manifest: "Manifest | None", kind: str) -> "RenderableType":
    """The findings for a person: a line for the run (of this `kind`), a row for each check, and below it what to do."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from protocol.layout import parameter_count
    from protocol.wording import abbreviated, printable

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        value = Text(printable(finding.value))
        if finding.advice:
            value.append(f"\n→ {printable(finding.advice)}", style="bold")
        table.add_row(Text(finding.name), Text(finding.outcome, style=FINDING_COLOURS[finding.outcome]), value)
    if manifest is None:
        return table
    replicas = manifest.replicas
    k = "k by link" if replicas.compression == "auto" else f"k = d/{replicas.compression} in {replicas.wire}"
    line = (
        f"{kind} {manifest.run.name}: {abbreviated(parameter_count(manifest))} parameters in {replicas.stages} stages, "
        f"{replicas.total} replicas, H = {manifest.inner.steps}, {k}"
    )
    return Group(Text(printable(line)), "", table)
