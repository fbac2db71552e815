"""`hetpeer pause` and `resume`: a word to peers that run on this machine, in their folders."""

from pathlib import Path

from peer import pausing
from peer.process import Terminal, told
from peer.store.home import in_use, peer_folders
from peer.telemetry.events import Progress
from protocol.errors import ResourceError
from protocol.trust.ticket import find


def pause(ticket: str | None, directory: Path | None, terminal: Terminal) -> int:
    """Tell them to pause; the exit code."""

    def tell() -> int:
        for folder in _required([each for each in _folders(ticket, directory) if in_use(each)], directory):
            new = pausing.pause(folder)
            words = "pauses as soon as its inner step has ended" if new else "has been told to pause before"
            terminal.emit(Progress(f"the peer in {folder} {words}; `hetpeer resume` lets it go on"))
        return 0

    return told(terminal.emit, tell)


def resume(ticket: str | None, directory: Path | None, terminal: Terminal) -> int:
    """Tell them to go on; the exit code."""

    def tell() -> int:
        folders = _folders(ticket, directory)
        for folder in _required([each for each in folders if in_use(each) or pausing.is_told(each)], directory):
            words = "goes on" if pausing.resume(folder) else "had not been told to pause"
            terminal.emit(Progress(f"the peer in {folder} {words}"))
        return 0

    return told(terminal.emit, tell)


def _folders(ticket: str | None, directory: Path | None) -> list[Path]:
    return [directory] if directory is not None else peer_folders(find(ticket, Path()).run_id if ticket else None)


def _required(folders: list[Path], directory: Path | None) -> list[Path]:
    """Raises ResourceError where there are none."""
    if not folders:
        where = f"in {directory}" if directory else "here that was started without --dir"
        raise ResourceError(f"no peer runs {where}: name the folder of the one you mean with --dir")
    return folders
