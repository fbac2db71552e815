"""The types of the fields of events and of a peer's status, with the bounds that a report is checked against. A peer's
own events are not checked: what comes from another peer is."""

from typing import Annotated

from pydantic import AfterValidator, Field, FiniteFloat, StringConstraints

from protocol.wording import printable

MOST_TEXT = 300
"""The characters of a text. What is longer is cut when it is written into a journal or a report."""

MOST_LISTED = 256
"""The elements of a list or a table. What has more is cut likewise."""

PeerName = Annotated[str, StringConstraints(max_length=64, pattern=r"^[1-9A-HJ-NP-Za-km-z]*$")]
"""A peer id, or empty where there is none."""

ShortText = Annotated[str, StringConstraints(max_length=MOST_TEXT), AfterValidator(printable)]
ShortName = Annotated[str, StringConstraints(max_length=16, pattern=r"^[0-9A-Za-z -]*$")]
"""A role, or a part of the model."""

HexDigest = Annotated[str, StringConstraints(max_length=64, pattern=r"^[0-9a-f]*$")]
Whole = Annotated[int, Field(ge=0, lt=2**31)]
"""A number of rounds, steps or peers, or the number of one."""

Count = Annotated[int, Field(ge=0, le=2**53)]
"""A number of tokens or bytes: the largest is the largest that every reader of JSON keeps exactly."""

Loss = Annotated[FiniteFloat, Field(ge=0, le=1e6)]
Nats = Annotated[FiniteFloat, Field(ge=-1e6, le=1e6)]
Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e9)]
Ratio = Annotated[FiniteFloat, Field(ge=-1e9, le=1e9)]
MOST_PER_SECOND = 1e12
"""Tokens or bytes a second: nobody does more."""

PerSecond = Annotated[FiniteFloat, Field(ge=0, le=MOST_PER_SECOND)]

Celsius = Annotated[FiniteFloat, Field(ge=-100, le=200)]
Percent = Annotated[int, Field(ge=0, le=100)]
UnixTime = Annotated[FiniteFloat, Field(ge=0, le=2**33)]
PeerNames = Annotated[list[PeerName], Field(max_length=MOST_LISTED)]
PartNames = Annotated[list[ShortName], Field(max_length=MOST_LISTED)]
ChunkSpans = Annotated[tuple[tuple[Count, Count], ...], Field(max_length=MOST_LISTED)]
CountByPart = Annotated[dict[ShortName, Count], Field(max_length=MOST_LISTED)]
DigestByPart = Annotated[dict[ShortName, HexDigest], Field(max_length=MOST_LISTED)]
NatsByPeer = Annotated[dict[PeerName, Nats], Field(max_length=MOST_LISTED)]
