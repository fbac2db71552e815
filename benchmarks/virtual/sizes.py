"""How long the messages are: real ones, made, signed and serialised here."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from protocol.codec.contribution import grids
from protocol.identity import Part, RunId
from protocol.manifest import Manifest
from protocol.outer.history import Claim
from protocol.outer.window import Window
from protocol.schemas import blobs_pb2
from protocol.schemas import reconciliation_pb2 as pb
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.proofs import sign_contribution, sign_receipt
from protocol.trust.records import PeerRecord, make_statement, sign_record

CALL_BYTES = 200
"""Of a message beside its content: HTTP/2 and gRPC headers, TCP/IP headers and acknowledgements. An estimate."""

RUN = RunId("ab" * 32)
BITS = {"2bit": 10.47, "bf16": 24.47}
"""Of a kept value on the wire (measured, benchmarks/codec.py)."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """In bytes, each with `CALL_BYTES` where it is a message of its own."""

    blob: int
    record: int
    comparison: int
    differences: int
    told: int
    fetch: int
    entry: int
    author_entry: int
    key: int = 8
    call: int = CALL_BYTES


def sizes(manifest: Manifest, part: Part) -> Sizes:
    """Of a run's messages, where every peer follows one part."""
    outer = manifest.outer
    blob = sum(round(grid.kept * BITS[outer.values] / 8) for grid in grids(manifest, part).values())
    with tempfile.TemporaryDirectory() as folder:
        operator, author = load_or_create(Path(folder, "operator")), load_or_create(Path(folder, "author"))
        card = issue(operator, RUN, Card(author.peer_id, "volunteer", 0, 500))
        signer = Signer(author, Authority(RUN, operator.peer_id), card)
        entry = sign_contribution(signer, part, 1000, "ab" * 32, blob)
        receipts = [sign_receipt(signer, entry)] * Window(outer.grace, outer.liars).most_receipts
        record = PeerRecord(
            peer_id=author.peer_id,
            address="203.0.113.200:40000",
            role="volunteer",
            stage=0,
            slot=500,
            replica=author.peer_id,
            round=1000,
            contributed=1001,
            sequence=1_700_000_000_000,
        )
        said = make_statement(signer, record, {part: [Claim(1000, "ab" * 32, 10**6, True)] * 3})
    rounds = [pb.RoundCheck(round=1000 + n, check=2**63) for n in range(Window(outer.grace, outer.liars).width + 1)]
    summary = pb.PartSummary(part=part, clock=1000, folded=993, rounds=rounds)
    return Sizes(
        blob=blob,
        record=len(sign_record(signer, record)),
        comparison=CALL_BYTES + pb.Comparison(statement=said, parts=[summary]).ByteSize(),
        differences=CALL_BYTES + pb.Differences(statement=said, parts=[pb.PartKeys(part=part)]).ByteSize(),
        told=CALL_BYTES + pb.News(statement=said).ByteSize(),
        fetch=CALL_BYTES + blobs_pb2.FetchRequest(sha256="ab" * 32).ByteSize(),
        entry=pb.News(entries=[pb.Entry(proof=entry.proof, receipts=receipts)]).ByteSize(),
        author_entry=pb.News(entries=[pb.Entry(proof=entry.proof)]).ByteSize(),
    )
