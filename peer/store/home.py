"""The folders of peers and operators on this machine. One process at a time uses a folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protocol.errors import ResourceError
from protocol.files import open_regular, reason_of, try_lock, write_atomically
from protocol.identity import RunId
from protocol.run.run_files import DESCRIPTOR
from protocol.trust.ticket import Ticket, parse_ticket

HOME_VARIABLE = "HETPEER_HOME"


def home() -> Path:
    """The folder above all others: `HETPEER_HOME`, or `~/.hetpeer`.

    Raises:
        ResourceError: this user has no home folder, as in a container that runs as a number alone.
    """
    try:
        return Path(os.environ.get(HOME_VARIABLE, "~/.hetpeer")).expanduser()
    except RuntimeError:
        raise ResourceError(
            f"user {os.getuid()} has no home folder: name a folder with --dir, or set {HOME_VARIABLE}"
        ) from None


def ticket_folders(directory: Path | None = None) -> list[Path]:
    """The folders that may hold the ticket last used: a peer's own, if it was given one, and the one above all."""
    folders = [directory] if directory is not None else []
    with suppress(ResourceError):
        folders.append(home())
    return folders


def own_folders(ticket: Ticket, place: str) -> list[Path]:
    """The folders that a peer without one may take, by run and place: the first that no other process holds."""
    base = home() / ticket.run_id[:12]
    return [base / place, *(base / f"{place}-{number}" for number in range(2, 100))]


def peer_folder(ticket: Ticket, place: str) -> Path:
    """The first of `own_folders` that no other process uses now."""
    folders = own_folders(ticket, place)
    return next((folder for folder in folders if not in_use(folder)), folders[0])


VISIT = "export"
"""The place of what `hetpeer export` fetches from a swarm: it is a visit, and no peer of this machine."""


def peer_folders(run: RunId | None) -> list[Path]:
    """The folders of peers that were given none, of one run or (None) of all."""
    folders = (lock.parent for lock in home().glob(f"{run[:12] if run else '*'}/*/lock"))
    return sorted(
        folder
        for folder in folders
        if not folder.parent.name.startswith("bootstrap-") and folder.name.partition("-")[0] != VISIT
    )


def operators_folder(given: Path | None) -> Path:
    """The bootstrap node's folder: the one given, or the only one there is.

    Raises:
        ResourceError: it holds no run, or there is not exactly one.
    """
    folders = [given] if given else sorted(path.parent for path in home().glob(f"bootstrap-*/{DESCRIPTOR}"))
    if len(folders) != 1 or not (folders[0] / DESCRIPTOR).exists():
        among = f" (there are {', '.join(map(str, folders))})" if len(folders) > 1 else ""
        raise ResourceError(
            f"name the bootstrap node's folder with --dir: the one that holds its key and run.json{among}"
        )
    return folders[0]


def operators_ticket(folder: Path) -> Ticket:
    """The ticket that the bootstrap node of this folder gave last. HETPEER_TICKET may be of another run.

    Raises:
        ResourceError: it has given none.
    """
    path = folder / "ticket"
    if not path.is_file():
        raise ResourceError(f"{folder} has no ticket yet: start `hetpeer bootstrap` once")
    return parse_ticket(path.read_text(encoding="utf-8", errors="replace"))


@contextmanager
def locked(folder: Path, *others: Path) -> Iterator[Path]:
    """Hold the first of these folders that no other process holds, made if it is missing, for this process alone.

    Raises:
        ResourceError: other processes hold all of them, or one cannot be made.
    """
    for lock_folder in (folder, *others):
        try:
            lock_folder.mkdir(parents=True, exist_ok=True)
            descriptor = open_regular(lock_folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ResourceError(f"cannot use the folder {lock_folder}: {reason_of(error)}") from None
        try:
            if try_lock(descriptor):
                yield lock_folder
                return
        finally:
            os.close(descriptor)
    raise ResourceError(
        f"another hetpeer process uses {folder}, so this peer or node runs already: stop that one first, or give this "
        "one a folder of its own with --dir"
    )


def in_use(folder: Path) -> bool:
    """Whether a process holds a folder."""
    path = folder / "lock"
    if not path.exists():
        return False
    descriptor = os.open(path, os.O_RDWR)
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def remember(ticket: Ticket) -> None:
    """Keep the last ticket used, so that `hetpeer join --stage 2` alone finds the run again."""
    path, line = home() / "ticket", f"{ticket}\n".encode()
    home().mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != line:  # several peers of one run may start at the same moment
        write_atomically(path, line, 0o600)
