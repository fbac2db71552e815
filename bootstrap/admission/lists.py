"""What the operator's lists hold: invitations, revoked peers, and trials. Pure."""

from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field

from protocol.errors import RefusedError
from protocol.identity import PeerId

MOST_USES = 10_000
"""Peers that one invitation can let in."""

END_OF_TIME = 2**37
"""Unix seconds that no calendar here goes beyond: the year 6325."""

ASK = "ask the run's operator for a new ticket"


class Invitation(BaseModel):
    """A promise to let in some peers. `issued` and `expires` are Unix seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: str = Field(pattern=r"^[0-9a-f]{8}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False, description="of the whole token")
    uses: int = Field(ge=1, le=MOST_USES)
    issued: int = Field(ge=0, lt=END_OF_TIME)
    expires: int = Field(ge=0, lt=END_OF_TIME)
    used_by: tuple[PeerId, ...] = ()
    revoked: bool = False
    gateway: bool = Field(False, description="it makes gateways, and nothing else; others never make one")

    @property
    def left(self) -> int:
        """How many more peers the invitation lets in, unless it has ended."""
        return self.uses - len(self.used_by)

    def state(self, now: float) -> str:
        """What the invitation is to a peer that comes with it for the first time, in words for the operator."""
        if self.revoked:
            return "withdrawn"
        if now >= self.expires:
            return "expired"
        return "open" if self.left else "used up"

    def require(self, peer: PeerId, now: float) -> None:
        """Check that the invitation lets `peer` in. A peer that it has let in may come again for as long as it is not
        withdrawn: `expires` is the end for newcomers, and a volunteer's ticket must not lapse in the middle of a run.

        Raises:
            RefusedError: the invitation lets nobody in, or not this peer any more.
        """
        if self.revoked:
            raise RefusedError(f"this ticket's invitation was withdrawn; {ASK}")
        if peer in self.used_by:
            return
        if now >= self.expires:
            raise RefusedError(f"this ticket's invitation ended on {date(self.expires)}; {ASK}")
        if not self.left:
            number = "the one peer" if self.uses == 1 else f"all {self.uses} peers"
            raise RefusedError(f"this ticket's invitation has been used by {number} that it was for; {ASK}")


class RevokedPeer(BaseModel):
    """A peer that gets no new certificate."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_bytes="base64", val_json_bytes="base64"
    )

    peer: PeerId
    start: int = Field(ge=0, lt=2**63, description="the first round without its contributions; 0: none was named")
    at: float = Field(ge=0, lt=END_OF_TIME, description="Unix seconds")
    signed: bytes = Field(b"", description="the operator's signed revocation, where one was made")


class Trials(BaseModel):
    """Whether peers that come after the run has begun are tried (`required`), and those that have stood their trial:
    the contributions of others count only once the operator's audit has seen what one of them would do."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    required: bool = False
    stood: frozenset[PeerId] = frozenset()

    def must_try(self, peer: PeerId) -> bool:
        """Whether a newcomer of a run that has begun has its trial still before it."""
        return self.required and peer not in self.stood


def date(seconds: float) -> str:
    """Unix seconds as a person reads them, the same everywhere."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
