"""Every error hetpeer raises on purpose, drawn as a tree.

    HetpeerError
    ├── UserError              something the user gave is wrong; the message says what to do
    │   ├── TicketError        the ticket cannot be read
    │   ├── ManifestError      run.toml is invalid, or differs from the run's
    │   └── ResourceError      this machine lacks a device, memory, a port or a file
    ├── UnreachableError       nobody answered at an address
    ├── RefusedError           a peer answered, and said no
    ├── PeerError              a peer broke the protocol: its bytes are not acted on
    │   └── FormatError        bytes that do not parse as what they claim to be
    ├── LostMemberError        a member of this replica is gone
    └── DivergedError          this replica's numbers left every range: its training has diverged

`exit_code` is what the command line returns for each.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource of which a place in the run takes more than there is, and what this machine's owner can do about it,
    in a few words: "3.1 GB of memory, and 2.0 GB are free", "end other programs"."""

    words: str
    remedy: str


class HetpeerError(Exception):
    """The root. Its message is one line that a volunteer can act on."""

    exit_code = 1


class UserError(HetpeerError):
    """The user gave something that is wrong. `shortage`: a place in the run does not fit for lack of this."""

    exit_code = 2

    def __init__(self, message: str, shortage: Shortage | None = None) -> None:
        super().__init__(message)
        self.shortage = shortage


class TicketError(UserError):
    """The ticket cannot be read."""


class ManifestError(UserError):
    """`run.toml` is invalid, or differs from the manifest of the run."""

    exit_code = 3


class UnknownFieldError(ManifestError):
    """A table has a field that this version does not know."""


class ResourceError(UserError):
    """This machine lacks a device, memory, a port or a file."""

    exit_code = 4


class UnreachableError(HetpeerError):
    """An address at which no peer answered."""

    exit_code = 5


class RefusedError(HetpeerError):
    """A peer answered, and said no."""

    exit_code = 6


class PeerError(HetpeerError):
    """A peer broke the protocol. Nothing it sent is acted on."""

    exit_code = 7


class FormatError(PeerError):
    """Bytes that do not parse as what they claim to be."""


class LostMemberError(HetpeerError):
    """A member of this replica is gone, and the inner step in flight with it."""

    exit_code = 8


class DivergedError(HetpeerError):
    """This replica's numbers left every range: its training has diverged."""

    exit_code = 9
