"""`hetpeer runs`: the peers and nodes on this machine, each with its run, and how far it is."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peer.cli.options import RowsOption, terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from peer.process import Terminal
    from protocol.run.run_files import Descriptor

LAST_LINES = 64
"""The lines at the end of a log in which its round, and the end of its run, are looked for."""

RUNS_EXAMPLES = "Examples:\n\n  hetpeer runs\n\n  hetpeer runs --json"

ELSEWHERE = "A peer that was given a folder with --dir is not listed: `hetpeer why ROUND FOLDER` reads its log."


def runs(json: RowsOption = False) -> None:
    """List the runs on this machine: what each peer does in them, its folder, its round, and whether it runs."""
    sys.exit(list_runs(terminal(json)))


@dataclass(frozen=True, slots=True)
class RunHere:
    """A folder of a run on this machine. `role`: of a volunteer, with its stage; `round` is the one that its log was in
    last, or that a node has seen going on; 0: none."""

    run: str
    run_id: str
    role: str
    round: int
    rounds: int
    state: str
    folder: str


def list_runs(terminal: "Terminal") -> int:
    """Print the folders under `~/.hetpeer`; the exit code."""
    from peer.cli.tables import console_for_people, print_table
    from peer.process import exit_code_of

    def work() -> int:
        rows = [*runs_here()]
        print_table(terminal, map(asdict, rows), _drawn(rows, console_for_people().width))
        return 0

    return exit_code_of(terminal.emit, work)


def runs_here() -> Iterator[RunHere]:
    """The folders of peers and of operators' nodes under `~/.hetpeer` that hold a run; damaged ones are passed over."""
    from bootstrap.monitor.watch import kept_round
    from peer.store.home import home, in_use, peer_folders
    from protocol.errors import HetpeerError
    from protocol.run.run_files import DESCRIPTOR, read_kept

    nodes = sorted(path.parent for path in home().glob(f"bootstrap-*/{DESCRIPTOR}"))
    for folder in (*peer_folders(None), *nodes):
        try:
            descriptor = read_kept(folder)
        except HetpeerError:
            continue
        manifest, is_node = descriptor.manifest, folder in nodes
        role = "operator's node" if is_node else _role(folder, descriptor)
        round, last_event = _progress(folder / "observer" if is_node else folder)
        if is_node and (ended := kept_round(folder, descriptor.run_id)):
            round = max(round, min(ended + 1, manifest.outer.rounds))
        state = {"Finished": "finished"}.get(last_event, "stopped")
        if in_use(folder):
            state = {"Paused": "paused"}.get(last_event, "running")
        yield RunHere(manifest.run.name, descriptor.run_id, role, round, manifest.outer.rounds, state, str(folder))


def _role(folder: Path, descriptor: "Descriptor") -> str:
    """The role of a peer, by its card; the folder's name, where it has none that can be read."""
    from peer.store.membership import read_membership
    from protocol.errors import FormatError
    from protocol.trust.membership_card import Authority

    try:
        card = Authority(descriptor.run_id, descriptor.operator).read(read_membership(folder).card)
    except FormatError:
        return folder.name
    return f"volunteer, stage {card.stage}" if card.role == "volunteer" else card.role


def _progress(folder: Path) -> tuple[int, str]:
    """The last round in a folder's log, and the name of the last event there that tells the state of its peer."""
    from peer.telemetry.journal import EVENTS_FILE
    from protocol.errors import ResourceError
    from protocol.files import logged_lines

    try:
        lines = logged_lines(folder / EVENTS_FILE)[-LAST_LINES:]
    except ResourceError:
        lines = []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
            rows.append((int(row["in_round"]), str(row["event"])))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    state = next((event for _, event in reversed(rows) if event in ("Finished", "Paused", "PauseEnded", "Joined")), "")
    return max((round for round, _ in rows), default=0), state


LEAST_FOLDER = 20
"""The columns that the path of a folder has at least."""


def _drawn(rows: list[RunHere], width: int) -> "RenderableType":
    """The folders for a person, in lines of so many characters. A path breaks at its slashes."""
    from rich.console import Group
    from rich.text import Text

    from peer.cli.tables import empty_table
    from peer.store.home import home
    from peer.telemetry.terminal import GAP
    from protocol.wording import printable, wrapped

    if not rows:
        return f"No run is under {home()} yet. {ELSEWHERE}"
    names = ("run", "role", "round", "state", "folder")
    lines = [
        (row.run, row.role.removeprefix("volunteer, "), f"{row.round or '–'} of {row.rounds}", row.state)
        for row in rows
    ]
    room = width - sum(max(map(len, column)) + GAP for column in zip(names, *lines, strict=False))
    table = empty_table(*names, breaks=("folder",))
    for row, cells in zip(rows, lines, strict=True):
        folder = printable(row.folder.replace(f"{Path('~').expanduser()}/", "~/", 1))
        if len(folder) > room and " " not in folder:
            folder = wrapped(folder.replace("/", "/ "), max(room, LEAST_FOLDER)).replace("/ ", "/")
        table.add_row(*(Text(printable(cell)) for cell in cells), Text(folder))
    return Group(table, Text(ELSEWHERE))
