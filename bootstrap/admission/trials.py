"""Whose contributions count only once the operator's audit has seen what one of them would do: the list of peers that
have stood their trial. The node reads it whenever somebody asks for a certificate."""

from pathlib import Path

from bootstrap.admission.database import changing, reading
from bootstrap.admission.lists import Trials
from protocol.identity import PeerId


def read_trials(folder: Path) -> Trials:
    """What the operator's database says of trials; in a new one nobody is tried.

    Raises:
        ResourceError: it cannot be read: then nobody can be admitted.
    """
    with reading(folder) as lists:
        ((required,),) = lists.execute("SELECT trials FROM run")
        stood = frozenset(PeerId(peer) for (peer,) in lists.execute("SELECT peer FROM stood"))
        return Trials(required=bool(required), stood=stood)


def require(folder: Path, required: bool) -> None:
    """Try newcomers from now on, or no longer."""
    with changing(folder) as lists:
        lists.execute("UPDATE run SET trials = ?", (required,))


def note_stood(folder: Path, peer: PeerId) -> None:
    """Note that a peer's trial is over: its next card lets its contributions count."""
    with changing(folder) as lists:
        lists.execute("INSERT OR IGNORE INTO stood VALUES (?)", (peer,))
