"""Readers of what other peers send."""

import hashlib
import json
import math
from typing import Any

import numpy as np

from peer.network.gossip import summary_of
from peer.optim import handover_state
from protocol import manifest
from protocol.codec import bitstream, frames, quantize, rice, seating, spot_check
from protocol.codec import contribution as contributions
from protocol.codec import snapshot as snapshots
from protocol.codec.chunks import chunk_grid
from protocol.codec.contribution import SparseTensor
from protocol.codec.frames import BackwardFrame, EndFrame, ForwardFrame, FramePosition, FrameRules, SumsFrame
from protocol.errors import FormatError, ManifestError
from protocol.events import peer_report
from protocol.events.activity import GroupFormed, RoundDone
from protocol.events.decisions import WentOn
from protocol.identity import EMBEDDING, ContributionName, Part, PeerId, RunId, stage_part
from protocol.manifest import Manifest, check_manifest
from protocol.outer.data_plan import Reading
from protocol.outer.history import History
from protocol.outer.ledger import Ledger
from protocol.outer.set_difference import different
from protocol.outer.window import Window
from protocol.run import run_files
from protocol.run.run_files import RunFile
from protocol.schemas import pipeline_pb2, reconciliation_pb2, spot_checks_pb2
from protocol.tensor_formats import Codec
from protocol.trust import records
from tests.fuzz.material import (
    AUTHOR,
    AUTHORITY,
    MANIFEST,
    OPERATOR,
    PEER,
    RUN,
    TWO_BITS,
    card,
)
from tests.fuzz.reader import Reader, from_protobuf
from tests.fuzz.signatures import RECORD, SHA256, SIGNED

PLACE = FramePosition(2, 1, 0)
RULES = FrameRules.of(MANIFEST)
EMBEDDING_DIGEST = "cd" * 32
MOMENT_SHAPES = {"w.exp_avg": (2, 3), "w.exp_avg_sq": (2, 3), "w.step": ()}


# Manifest, descriptor, record


NANO = {"preset": "nano", "layers": 3}
PRESET = json.dumps({"model": NANO}).encode()
UNEVEN = check_manifest({"model": NANO, "replicas": {"layers": [1, 2]}})
BALANCED = json.dumps({"model": NANO, "replicas": {"balance": "memory"}}).encode()


def read_manifest(data: bytes) -> dict[str, Any]:
    found = manifest.parse_manifest(data)
    assert manifest.parse_manifest(found.canonical()) == found
    assert manifest.first_difference(found, found) is None
    return found.model_dump(mode="json")


def descriptor() -> run_files.Descriptor:
    files = [RunFile(name, SHA256, 5) for name in run_files.file_names(MANIFEST)]
    return run_files.descriptor_of(MANIFEST, OPERATOR.peer_id, files)


def read_descriptor(data: bytes) -> run_files.Descriptor:
    return run_files.parse_descriptor(data, RunId(hashlib.sha256(data).hexdigest()))


def unpack_record(data: bytes) -> records.PeerRecord:
    """Its signer's card holds."""
    return records.unpack_record(data, AUTHORITY.read(card(AUTHOR)), AUTHORITY)


# Contributions and what they are made of

GRID = chunk_grid((64, 96), 64, 32)
OFFSETS = np.sort(np.random.default_rng(5).permuted(np.tile(np.arange(GRID.size), (GRID.full, 1)), axis=1)[:, : GRID.k])
UNARY, RESTS = rice.encode_offsets(OFFSETS.ravel().astype(np.int16), GRID)
VALUES = np.arange(-40, 60, dtype=np.int32) * 1000


def contribution(of: Manifest) -> bytes:
    """Some part's, with the largest first."""
    picked = {}
    for name, grid in contributions.grids(of, stage_part(0)).items():
        offsets = np.concatenate([np.arange(count) for count in grid.counts]).astype(np.int16)
        picked[name] = SparseTensor(offsets, (np.arange(grid.kept, dtype=np.int32) - 3) * 1001)
    return contributions.compose(ContributionName(stage_part(0), 2, AUTHOR.peer_id), RUN, 3, picked, of, 2)[0]


def read_contribution(data: bytes, of: Manifest) -> bytes:
    """The bytes of a contribution are the only ones."""
    found = contributions.decode(data, of)
    return contributions.compose(found.name, found.run, found.steps, found.tensors, of, found.slot)[0]


def read_offsets(data: bytes) -> bytes:
    length = min(len(data), max(0, len(data) - len(RESTS)))
    offsets = rice.decode_offsets(data[:length], data[length:], GRID)
    return b"".join(rice.encode_offsets(offsets, GRID))


def read_fixed(data: bytes) -> bytes:
    values = np.zeros(100, np.uint16)
    bitstream.unpack_fixed(data, 11, values)
    return bitstream.pack_fixed(values, 11)


def read_unary(data: bytes) -> bytes:
    return bitstream.pack_unary(bitstream.unpack_unary(data, 50, 64, 3), 3)


def read_values(data: bytes, codec: Codec) -> bytes:
    return quantize.quantize(quantize.dequantize(data, len(VALUES), codec), codec)[0]


def itself(*examples: bytes) -> tuple[tuple[bytes, object], ...]:
    """For readers that write again what they have read."""
    return tuple((example, example) for example in examples)


CONTRIBUTIONS = (
    Reader("contribution in bf16", lambda data: read_contribution(data, MANIFEST), itself(contribution(MANIFEST))),
    Reader("contribution in 2 bits", lambda data: read_contribution(data, TWO_BITS), itself(contribution(TWO_BITS))),
    Reader("offsets", read_offsets, itself(UNARY + RESTS)),
    Reader("fields of bits", read_fixed, itself(bitstream.pack_fixed(np.arange(100, dtype=np.uint16) * 20, 11))),
    Reader("unary numbers", read_unary, itself(bitstream.pack_unary(np.arange(50, dtype=np.uint16) * 8, 3))),
    Reader("values in bf16", lambda data: read_values(data, "bf16"), itself(quantize.quantize(VALUES, "bf16")[0])),
    Reader("values in 2 bits", lambda data: read_values(data, "2bit"), itself(quantize.quantize(VALUES, "2bit")[0])),
)

# Frames, seats and rounds, summaries, snapshots, handovers


def forward() -> bytes:
    tokens = np.arange(RULES.sequences * (RULES.context + 1)).reshape(RULES.sequences, -1)
    frame = ForwardFrame(PLACE, bytes(RULES.activations.size), tokens, EMBEDDING_DIGEST)
    (message,) = frames.pack_frame(frame, RULES)
    return message.SerializeToString()


def read_forward(data: bytes) -> FramePosition:
    message = from_protobuf(pipeline_pb2.Frame, data)
    frame = frames.unpack_forward([message], RULES, PLACE, EMBEDDING_DIGEST)
    assert frame.tokens.shape == (RULES.sequences, RULES.context + 1)
    assert int(frame.tokens.max()) < MANIFEST.model.vocabulary
    return frame.position


def read_backward(data: bytes) -> FramePosition:
    return frames.unpack_backward([from_protobuf(pipeline_pb2.Frame, data)], RULES, PLACE).position


(BACKWARD,) = frames.pack_frame(BackwardFrame(PLACE, bytes(RULES.activations.size)), RULES)


SUMS = SumsFrame((4.0, 0.0), (0.5, 0.25), 6.5)


END = EndFrame(0.5, True, (4.0, 0.0))


def read_sums(data: bytes) -> SumsFrame:
    sums = frames.unpack_sums(from_protobuf(pipeline_pb2.Frame, data), 2, 1, 2)
    assert math.isfinite(sum(sums.squared_norms) + sum(sums.passes) + sums.loss)
    return sums


def read_end(data: bytes) -> EndFrame:
    end = frames.unpack_end(from_protobuf(pipeline_pb2.Frame, data), 2, 1, 2)
    assert 0.0 < end.clip_factor <= 1.0
    assert math.isfinite(sum(end.before))
    return end


GROUP = PEER, AUTHOR.peer_id
OFFER = seating.OfferFrame(2, 1, GROUP, 3, 1, SHA256, MANIFEST.compressions[0], MANIFEST.inner.steps, 20.0)
ANSWER = seating.AnswerFrame(2, 1, SHA256, SHA256)


def read_seats(data: bytes) -> tuple[PeerId, ...]:
    return seating.unpack_seats(from_protobuf(pipeline_pb2.Frame, data), PEER, 2)


def read_offer(data: bytes) -> seating.OfferFrame:
    return seating.unpack_offer(from_protobuf(pipeline_pb2.Frame, data), MANIFEST, 1, AUTHOR.peer_id, PEER)


def read_answer(data: bytes) -> seating.AnswerFrame:
    return seating.unpack_answer(from_protobuf(pipeline_pb2.Frame, data), MANIFEST)


def read_start(data: bytes) -> tuple[int, str]:
    return seating.unpack_start(from_protobuf(pipeline_pb2.Frame, data), 1, 3)


QUESTION = spot_check.ReceivedPass(
    2,
    0,
    MANIFEST.compressions[0],
    np.zeros((MANIFEST.inner.microbatch, MANIFEST.model.context + 1), np.int64),
    7,
    spot_check.NOTHING,
    np.ones(spot_check.SAMPLED, np.float32),
    SHA256,
)


def read_question(data: bytes) -> tuple[int, int, int, str]:
    asked = spot_check.unpack_question(from_protobuf(spot_checks_pb2.SpotCheckQuestion, data), MANIFEST)
    assert np.isfinite(spot_check.likeness(asked.gradients, asked.gradients))
    assert asked.tokens.max() < MANIFEST.model.vocabulary
    return asked.round, asked.stage, asked.seed, asked.group_digest


def read_comparison(data: bytes) -> list[list[bytes]]:
    ledger = Ledger(EMBEDDING, AUTHOR.peer_id, Window(3, 1))
    return [different(ledger, summary_of(each)) for each in from_protobuf(reconciliation_pb2.Comparison, data).parts]


def comparison() -> bytes:
    checks = [reconciliation_pb2.RoundCheck(round=2, check=2**63)]
    part = reconciliation_pb2.PartSummary(part=EMBEDDING, clock=3, folded=1, rounds=checks)
    return reconciliation_pb2.Comparison(statement=b"signed", parts=[part]).SerializeToString()


READING = Reading.begin(MANIFEST).fold({0: 3, 2: 1}, MANIFEST).fold({5: 2}, MANIFEST).fold({}, MANIFEST)


def header() -> snapshots.Header:
    history = History({PEER: [(1, 1), (3, 3)]})
    return snapshots.Header(EMBEDDING, 3, history, (SHA256,), READING)


def from_json(data: bytes) -> object:
    """Any value: a history comes as one."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise FormatError("no JSON") from None


def handed_over() -> tuple[bytes, object]:
    import torch

    layout = handover_state.part_layout(MANIFEST, Part("stage-1"))
    grid = {name: torch.ones(shape, dtype=torch.int32) for name, shape in layout.items()}
    moments = {"w.exp_avg": torch.zeros(2, 3), "w.exp_avg_sq": torch.ones(2, 3), "w.step": torch.tensor(2.0)}
    return handover_state.pack_state(handover_state.HandoverState({stage_part(1): grid}, moments)), (
        sorted(grid),
        sorted(moments),
    )


def read_handed_over(data: bytes) -> object:
    found = handover_state.unpack_state(data, [stage_part(1)], MANIFEST, MOMENT_SHAPES)
    return sorted(found.error_feedback[stage_part(1)]), sorted(found.optimizer)


TOLD = peer_report.PeerReport(
    peer_report.ReportedStatus(round=2, step=1, loss=5.5, tokens=96, version="0.1.0"),
    [
        (1.5, WentOn(2, [AUTHOR.peer_id], "it is late")),
        (0.0, GroupFormed(AUTHOR.peer_id, 0, [AUTHOR.peer_id])),
        (0.0, RoundDone(2, 1.5, 96, {"stage-0": 2}, {"stage-0": "ab" * 32}, 5, 6)),
    ],
)

WIRE = (
    Reader(
        "manifest",
        read_manifest,
        (
            (MANIFEST.canonical(), MANIFEST.model_dump(mode="json")),
            (PRESET, check_manifest({"model": NANO}).model_dump(mode="json")),
            (UNEVEN.canonical(), UNEVEN.model_dump(mode="json")),
            (BALANCED, check_manifest(json.loads(BALANCED)).model_dump(mode="json")),
        ),
        "json",
        (ManifestError,),
    ),
    Reader("descriptor", read_descriptor, ((descriptor().canonical(), descriptor()),), "json"),
    Reader("record", unpack_record, ((records.pack_record(RECORD), RECORD),), "msgpack"),
    *SIGNED,
    *CONTRIBUTIONS,
    Reader("forward frame", read_forward, ((forward(), PLACE),)),
    Reader("backward frame", read_backward, ((BACKWARD.SerializeToString(), PLACE),)),
    Reader("a step's sums", read_sums, ((frames.pack_sums(2, 1, SUMS).SerializeToString(), SUMS),)),
    Reader(
        "a step's end",
        read_end,
        ((frames.pack_end(2, 1, END).SerializeToString(), END),),
    ),
    Reader("seats", read_seats, ((seating.pack_seats(GROUP).SerializeToString(), GROUP),)),
    Reader("a round's offer", read_offer, ((seating.pack_offer(OFFER).SerializeToString(), OFFER),)),
    Reader("a round's answer", read_answer, ((seating.pack_answer(ANSWER).SerializeToString(), ANSWER),)),
    Reader("a round's start", read_start, ((seating.pack_start(2, SHA256).SerializeToString(), (2, SHA256)),)),
    Reader(
        "a spot check's question",
        read_question,
        ((spot_check.pack_question(QUESTION).SerializeToString(), (2, 0, 7, SHA256)),),
    ),
    Reader("comparison", read_comparison, ((comparison(), [[]]),)),
    Reader(
        "snapshot header",
        lambda data: snapshots.parse_header(data, MANIFEST),
        ((header().to_bytes(), header()),),
        "msgpack",
    ),
    Reader(
        "history",
        lambda data: History.from_wire(from_json(data), 3),
        ((json.dumps(header().history.to_wire()).encode(), header().history),),
        "json",
    ),
    Reader("what is read", lambda data: Reading.from_bytes(data, 3, MANIFEST), ((READING.to_bytes(), READING),)),
    Reader("what a peer tells", peer_report.unpack_report, ((peer_report.pack_report(TOLD), TOLD),), "json"),
    Reader("tensors that are handed over", read_handed_over, (handed_over(),)),
)
