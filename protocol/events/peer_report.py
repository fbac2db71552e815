"""The reports of peers to the operator's node, for people to see: their status and their events, in batches. Nothing in
the run follows from them, but for its end; and nothing in them is secret: a peer that lies here misleads people, and no
other peer.

A batch is one message of JSON. It names no sender, since the stream it comes on has one, and no time by the peer's
clock: `ago` is seconds before it was sent. A node skips fields and events of a later version that it does not know.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import to_json

from protocol.errors import FormatError
from protocol.events.activity import NO_READINGS, DeviceReadings
from protocol.events.event import CHECKED, Event, PeerState
from protocol.events.fields import Count, Loss, PerSecond, ShortText, Whole
from protocol.events.lines import reported_event, row_of, to_plain
from protocol.wording import printable

REPORT_VERSION = 1

BATCH_BYTES = 64 * 1024
"""The size of a batch, at most."""

EVENTS_REPORTED = 64
"""The events in one batch, at most. A peer that has more says how many it left out."""

MOST_AGO_SECONDS = 3600.0
"""The largest `ago`: an event that is older is reported as of an hour ago."""


@dataclass(slots=True, kw_only=True)
class ReportedStatus:
    """The part of a peer's status that it reports, and that the view of the run shows. `step` inner steps of `round`
    are done; rates are bytes and tokens a second."""

    __pydantic_config__: ClassVar[ConfigDict] = CHECKED

    version: Annotated[str, StringConstraints(max_length=32, pattern=r"^[0-9A-Za-z.+-]*$")] = ""
    """The version of the peer's program."""
    state: PeerState = PeerState.STARTING
    doing: ShortText = ""
    """The peer's work when it neither trains nor waits, or the reason for its state, in words."""
    waits_for: ShortText = ""
    """The present wait, and what ends it, in words; empty: there is none."""
    slow: ShortText = ""
    """The member of its group that is slow, and by how much, in words; empty: nobody is."""
    round: Whole = 0
    step: Whole = 0
    loss: Loss | None = None
    """The mean training loss of the last inner step that told one, in nats per token."""
    tokens: Count = 0
    """The tokens of its replica's inner steps since it joined last."""
    tokens_per_second: PerSecond = 0.0
    """The rate of the last inner steps; 0 while the peer does not train."""
    up: PerSecond = 0.0
    down: PerSecond = 0.0
    sent: Count = 0
    """The bytes that it has sent since it joined last."""
    compression: Annotated[int, Field(ge=0, le=65536)] = 0
    """d / k as the peer's group has chosen it; 0: the run's own."""
    credit: Count = 0
    """Tokens of work that receipts show."""
    device: DeviceReadings = NO_READINGS


@dataclass(frozen=True, slots=True)
class PeerReport:
    """A batch: the status of a peer now, and its events since the last batch, each with the seconds since then.
    `sent_before` are the bytes that it had sent in the pipeline and in contributions at the end of the last round that
    an earlier batch told. `left_out` events are not told; `unknown` ones are not known to the reader."""

    status: ReportedStatus
    events: Sequence[tuple[float, Event]] = ()
    sent_before: tuple[int, int] = (0, 0)
    left_out: int = 0
    unknown: int = 0


class _Batch(BaseModel):
    """A batch on the wire, but for the fields of its events."""

    model_config = ConfigDict(strict=True)

    version: Literal[1]
    status: ReportedStatus
    events: list[dict[str, Any]] = Field(max_length=EVENTS_REPORTED)
    sent_before: tuple[Count, Count]
    left_out: Count


_AGO: TypeAdapter[float] = TypeAdapter(
    Annotated[FiniteFloat, Field(ge=0, le=MOST_AGO_SECONDS)], config=ConfigDict(strict=True)
)
_STATUS = TypeAdapter(ReportedStatus)
STATUS_FIELDS = tuple(value.name for value in fields(ReportedStatus))


def pack_report(report: PeerReport) -> bytes:
    """Encode a batch as it is sent. What is out of its bounds in the status is not told."""
    status = {name: to_plain(getattr(report.status, name), cut=True) for name in STATUS_FIELDS}
    try:
        _STATUS.validate_json(to_json(status))
    except ValidationError as error:
        status = {
            name: value for name, value in status.items() if name not in {row["loc"][0] for row in error.errors()}
        }
    events = [{"ago": ago} | row_of(event, cut=True) for ago, event in report.events]
    return to_json(
        {
            "version": REPORT_VERSION,
            "status": status,
            "events": events,
            "sent_before": report.sent_before,
            "left_out": report.left_out,
        }
    )


def unpack_report(data: bytes) -> PeerReport:
    """Check a batch that a peer sent.

    Raises:
        FormatError: it is too long, or is none.
    """
    if len(data) > BATCH_BYTES:
        raise FormatError(f"a batch of {len(data)} bytes, where {BATCH_BYTES} are allowed")
    try:
        batch = _Batch.model_validate_json(data)
        events = [(_AGO.validate_python(row.pop("ago", 0.0)), reported_event(row)) for row in batch.events]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = printable(".".join(map(str, first["loc"])))
        raise FormatError(f"what is told is malformed: {where}: {printable(first['msg'])}"[:200]) from None
    except ValueError:
        raise FormatError("what is told is malformed") from None
    known_events = [(ago, event) for ago, event in events if event is not None]
    unknown = len(events) - len(known_events)
    return PeerReport(batch.status, known_events, batch.sent_before, batch.left_out, unknown)
