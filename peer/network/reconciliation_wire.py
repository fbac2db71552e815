"""What peers say when they reconcile, between its messages and what they are about."""

from collections.abc import Iterable, Mapping

from protocol.identity import Part
from protocol.ledger import Entry
from protocol.reconciliation import Summary
from protocol.schemas import reconciliation_pb2 as pb


def summary_to_wire(mine: Summary) -> pb.PartSummary:
    """A summary as it travels."""
    rounds = [pb.RoundCheck(round=round, check=int.from_bytes(check, "big")) for round, check in mine.checks.items()]
    return pb.PartSummary(part=mine.part, clock=mine.clock, folded=mine.folded, rounds=rounds)


def keys_to_wire(part: Part, keys: list[bytes]) -> pb.PartKeys:
    """Keys of a part's entries as they travel."""
    return pb.PartKeys(part=part, keys=[int.from_bytes(key, "big") for key in keys])


def entry_to_wire(entry: Entry) -> pb.Entry:
    """An entry as it travels."""
    return pb.Entry(proof=entry.proof, receipts=list(entry.receipts.values()))


def summary_of(theirs: pb.PartSummary) -> Summary:
    """A summary that another peer sent."""
    checks: Mapping[int, bytes] = {each.round: each.check.to_bytes(8, "big") for each in theirs.rounds}
    return Summary(Part(theirs.part), theirs.clock, theirs.folded, checks)


def keys_of(held: Iterable[pb.PartKeys]) -> set[tuple[Part, bytes]]:
    """All the keys in what another peer says that it holds."""
    return {(Part(each.part), key.to_bytes(8, "big")) for each in held for key in each.keys}
