"""The messages of gossip: what they say, as values, and their bounds."""

import random
from collections.abc import Iterable, Mapping, Sequence

from peer.network.gossip_policy import some
from protocol.errors import FormatError
from protocol.identity import Part
from protocol.limits import ENTRIES_NAMED, KEYS_NAMED, PARTS_BESIDE_STAGES, REVOCATIONS_NAMED, ROUNDS_NAMED
from protocol.manifest import Manifest
from protocol.outer.ledger import Entry
from protocol.outer.set_difference import Summary
from protocol.outer.window import Window
from protocol.schemas import reconciliation_pb2 as pb


def summary_to_wire(mine: Summary) -> pb.PartSummary:
    """Encode a summary."""
    newest = [*mine.checks.items()][-ROUNDS_NAMED:]
    rounds = [pb.RoundCheck(round=round, check=int.from_bytes(check, "big")) for round, check in newest]
    return pb.PartSummary(part=mine.part, clock=mine.clock, folded=mine.folded, rounds=rounds)


def some_named(keys: Mapping[Part, Sequence[bytes]]) -> dict[Part, list[bytes]]:
    """Select the keys that go into one message: all, or so many of each part drawn at random."""
    share = KEYS_NAMED if sum(map(len, keys.values())) <= KEYS_NAMED else KEYS_NAMED // len(keys)
    return {part: some(each, share, random) for part, each in keys.items()}


def require_differences(told: pb.Differences, manifest: Manifest) -> None:
    """Check the bounds of an answer.

    Raises:
        FormatError: it names more than there can be.
    """
    _require_keys(told.parts, manifest)
    _require("revocations", len(told.revocations), REVOCATIONS_NAMED)


def require_news(told: pb.News, manifest: Manifest) -> None:
    """Check the bounds of news.

    Raises:
        FormatError: they name more than there can be.
    """
    _require_keys(told.held, manifest)
    _require("entries", len(told.entries), ENTRIES_NAMED)
    _require("revocations", len(told.revocations), REVOCATIONS_NAMED)


def require_revocations(told: pb.Revocations, manifest: Manifest) -> None:
    """Check the number of revocations.

    Raises:
        FormatError: there are more than there can be.
    """
    _require("revocations", len(told.revocations), REVOCATIONS_NAMED)


def require_comparison(asked: pb.Comparison, manifest: Manifest) -> None:
    """Check the bounds of a comparison.

    Raises:
        FormatError: it names more than there can be.
    """
    _require_parts([each.part for each in asked.parts], manifest)
    for each in asked.parts:
        _require(f"rounds of {each.part[:40]}", len(each.rounds), ROUNDS_NAMED)


def _require_keys(named: Sequence[pb.PartKeys], manifest: Manifest) -> None:
    _require_parts([each.part for each in named], manifest)
    _require("keys", sum(len(each.keys) for each in named), KEYS_NAMED)


def _require_parts(named: Sequence[str], manifest: Manifest) -> None:
    _require("parts", len(named), manifest.replicas.stages + PARTS_BESIDE_STAGES)
    if len(set(named)) < len(named):
        raise FormatError("a message that names one part twice")


def _require(what: str, count: int, most: int) -> None:
    if count > most:
        raise FormatError(f"a message with {count} {what}, where {most} are allowed")


def keys_to_wire(part: Part, keys: list[bytes]) -> pb.PartKeys:
    """Encode the keys of a part's entries."""
    return pb.PartKeys(part=part, keys=[int.from_bytes(key, "big") for key in keys])


def entry_to_wire(entry: Entry, window: Window) -> pb.Entry:
    """Encode an entry, with as many receipts as are told."""
    return pb.Entry(proof=entry.proof, receipts=[*entry.receipts.values()][: window.most_told])


def summary_of(theirs: pb.PartSummary) -> Summary:
    """Decode a summary that another peer sent."""
    checks: Mapping[int, bytes] = {each.round: each.check.to_bytes(8, "big") for each in theirs.rounds}
    return Summary(Part(theirs.part), theirs.clock, theirs.folded, checks)


def keys_of(held: Iterable[pb.PartKeys]) -> set[tuple[Part, bytes]]:
    """Decode all keys that another peer says it holds."""
    return {(Part(each.part), key.to_bytes(8, "big")) for each in held for key in each.keys}
