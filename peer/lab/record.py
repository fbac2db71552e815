"""What is kept of a run that has ended: one line of `results.jsonl`."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config

from peer.lab.experiment import Case, Value, identity
from peer.lab.switches import Switches
from protocol.errors import FormatError, ManifestError, ResourceError
from protocol.manifest import check_manifest
from protocol.toml_tables import validated

RESULTS = "results.jsonl"


STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class Point:
    """After a round: tokens of all replicas so far, and both losses in nats per token."""

    tokens: int
    through: float
    plain: float


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class Record:
    """One run. `groups` of `replicas` are compressed; bytes are those of one boundary, direction and token, and of what
    one replica publishes in a round. `peak` is the share of what this machine multiplies at best."""

    id: str
    axes: dict[str, Value]
    seed: int
    replicas: int
    groups: int
    curve: list[Point]
    boundary_bytes: float
    outer_bytes: float
    seconds: float
    tokens_per_second: float
    peak: float | None
    manifest: dict[str, Any]
    switches: dict[str, Any]

    def loss(self, which: str) -> float:
        """At the end: `through` the boundaries, `plain`, or of `replicas`: the mean over all, each as it runs."""
        return loss_of(self.curve[-1], which, self.groups / self.replicas)

    def line(self) -> str:
        """As a line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)


RECORDS = TypeAdapter(Record)


def loss_of(point: Point, which: str, share: float) -> float:
    """One of the losses at a point; `share` of the replicas are compressed."""
    match which:
        case "through":
            return point.through
        case "plain":
            return point.plain
        case _:
            return share * point.through + (1 - share) * point.plain


def append(folder: Path, record: Record) -> None:
    """Add a run that has ended.

    Raises:
        ResourceError: it cannot be written.
    """
    try:
        with (folder / RESULTS).open("a", encoding="utf-8") as file:
            file.write(record.line() + "\n")
    except OSError as error:
        raise ResourceError(f"cannot write {folder / RESULTS}: {error.strerror}") from None


def read_records(folder: Path) -> list[Record]:
    """All runs that have ended. A last line that was cut short does not count.

    Raises:
        FormatError: another line is none that `append` wrote.
    """
    path = folder / RESULTS
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    return [_parse(line, f"{path}, line {number}") for number, line in enumerate(whole, 1)]


def of(cases: Iterable[Case], records: Iterable[Record]) -> dict[str, Record]:
    """The records of these cases by case id, with their axes: another experiment may have run them."""
    by_id = {record.id: record for record in records}
    return {case.id: by_id[case.id] for case in cases if case.id in by_id}


def _parse(line: bytes, where: str) -> Record:
    try:
        found = RECORDS.validate_json(line, strict=True)
    except ValueError:
        raise FormatError(f"{where}: not a run's record") from None
    return replace(found, id=_today(found))


def _today(record: Record) -> str:
    """Under which id its run is known now: an option that came after it has its default. One that has gone since makes
    it a run that cannot be made again."""
    try:
        return identity(check_manifest(record.manifest), validated(Switches, record.switches, "results", "lab"))
    except ManifestError:
        return record.id
