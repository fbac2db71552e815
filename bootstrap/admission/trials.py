"""Whose contributions count only once the operator's audit has seen what one of them would do.

The list is of peers that have stood their trial. The node reads it whenever somebody asks for a certificate.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from bootstrap.admission.invitations import read_json
from protocol.files import exclusive, write_atomically
from protocol.identity import PeerId

TRIALS = "trials.json"


class Trials(BaseModel):
    """`required`: who comes when the run has begun is tried. `stood`: by whom that is done with."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    required: bool = False
    stood: frozenset[PeerId] = frozenset()

    def must_try(self, peer: PeerId) -> bool:
        """Whether a newcomer of a run that has begun has its trial still before it."""
        return self.required and peer not in self.stood


def read_trials(folder: Path) -> Trials:
    """What the folder says; without the file, nobody is tried.

    Raises:
        ResourceError: it cannot be read: then nobody can be admitted.
    """
    return read_json(folder / TRIALS, Trials, "delete it to try newcomers anew")


def require(folder: Path, required: bool) -> None:
    """Try newcomers from now on, or no longer."""
    with exclusive(folder / TRIALS):
        _write(folder, read_trials(folder).model_copy(update={"required": required}))


def note_stood(folder: Path, peer: PeerId) -> None:
    """A peer's trial is over: its next card lets its contributions count."""
    with exclusive(folder / TRIALS):
        known = read_trials(folder)
        _write(folder, known.model_copy(update={"stood": known.stood | {peer}}))


def _write(folder: Path, trials: Trials) -> None:
    write_atomically(folder / TRIALS, trials.model_dump_json().encode(), 0o600)
