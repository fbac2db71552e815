"""Rewinds, signed by the run's operator: the only word by which an older state stands for one that is lost."""

from protocol.errors import FormatError
from protocol.outer.progress import Rewind
from protocol.trust import signed
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Authority

REWIND_KIND = "rewind"

REWIND_FILE = "rewind"
"""The name of the file, in the folder of a peer or node, that keeps the newest rewind it knows."""


def sign_rewind(operator: Identity, authority: Authority, rewind: Rewind) -> bytes:
    """Sign a rewind as the operator."""
    return signed.sign_fields(operator, REWIND_KIND, [authority.run, rewind.to_round, rewind.lost, rewind.issued])


def read_rewind(data: bytes, authority: Authority) -> Rewind:
    """Check a rewind.

    Raises:
        FormatError: it is malformed, or not one of this run's operator.
    """
    signer, fields = signed.read_signed(data, REWIND_KIND)
    match fields:
        case [authority.run, int(to_round), int(lost), int(issued)] if (
            signer == authority.operator and 0 <= to_round < lost < 2**31 and 0 < issued < 2**62
        ):
            return Rewind(to_round, lost, issued)
    raise FormatError("a rewind that is not this run's operator's")
