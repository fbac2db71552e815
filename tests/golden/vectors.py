"""The golden vectors, as our code writes and reads them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from peer.model.number_format import DTYPES, from_bytes, number_format, to_bytes
from peer.optim.grid import grid_digest
from protocol.codec.contribution import SparseTensor, compose, decode, grids
from protocol.codec.frames import (
    BackwardFrame,
    ForwardFrame,
    FramePosition,
    FrameRules,
    Payload,
    pack_frame,
    unpack_backward,
    unpack_forward,
)
from protocol.codec.snapshot import Header, parse_header, pieces_of, tensors_of
from protocol.identity import EMBEDDING, ContributionName, Part, PeerId, RunId, stage_part
from protocol.layout import part_layout
from protocol.manifest import Manifest, check_manifest
from protocol.outer.data_plan import Plan, Reading
from protocol.outer.history import Claim, History
from protocol.outer.ledger import Entry, Revocation
from protocol.schemas import pipeline_pb2, reconciliation_pb2
from protocol.trust import handovers, proofs, receipts, records, signed, ticket
from protocol.trust.keys import Identity, peer_id_of, peer_id_of_public
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.proofs import sign_contribution, sign_receipt
from protocol.trust.records import PeerRecord
from protocol.trust.ticket import Ticket

FOLDER = Path(__file__).parent
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Vector:
    """`kind` says how `values` are to be read; `keys` are private scalars by peer id. Where rounding loses something,
    `made_from` are the floats that were rounded."""

    name: str
    kind: str
    manifest_tables: dict[str, dict[str, Any]]
    keys: dict[str, str]
    values: Values
    made_from: list[float] | None = None

    @staticmethod
    def read(name: str) -> "Vector":
        said = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        manifest, keys = said.get("manifest", {}), said.get("keys", {})
        return Vector(name, said["kind"], manifest, keys, said["values"], said.get("made_from"))

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.bin"

    @property
    def data(self) -> bytes:
        return self.file.read_bytes()

    @property
    def manifest(self) -> Manifest:
        return check_manifest(self.manifest_tables)

    def identity(self, peer: str) -> Identity:
        return identity(self.keys[peer])


def identity(scalar: str) -> Identity:
    """A test key, which is no secret."""
    key = ec.derive_private_key(int(scalar, 16), ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return Identity(Path(), peer_id_of(key.public_key()), public, key)


def part_of(number: int) -> Part:
    return EMBEDDING if number == 0 else stage_part(number - 1)


# Writing


def encode(vector: Vector) -> bytes:
    """The bytes of what is described, by our code."""
    values = vector.values
    match vector.kind:
        case "contribution":
            return _contribution(vector)
        case "frame":
            (message,) = _frame(vector)
            return message.SerializeToString()
        case "snapshot header":
            history = History({PeerId(who): [(a, b) for a, b in rounds] for who, rounds in values["history"].items()})
            reading = _reading(values["reading"]) if values["reading"] else None
            return Header(values["part"], values["round"], history, tuple(values["pieces"]), reading).to_bytes()
        case "snapshot bytes":
            shapes = part_layout(vector.manifest, values["part"])
            grid = [np.array(values["tensors"][name], np.int32).reshape(shape) for name, shape in shapes.items()]
            return b"".join(pieces_of(grid))
        case "card":
            return _card(vector, values)
        case "entry":
            return _entry(vector)
        case "revocation":
            authority = Authority(RunId(values["run"]), values["operator"])
            record = Revocation(values["author"], values["first"], values["issued"])
            return proofs.sign_revocation(vector.identity(values["operator"]), authority, record)
        case "bequest":
            return handovers.sign_handover(_signer(vector, values["giver"], values["card"]), _handover(values))
        case "inheritance":
            return handovers.sign_answer(_signer(vector, values["heir"]), _handover(values), values["reason"])
        case "work":
            return receipts.sign_credit_receipt(_signer(vector, values["signer"], values["card"]), _receipt(vector))
        case "record":
            record = PeerRecord.model_validate(values["record"])
            return records.sign_record(_signer(vector, record.peer_id, values["card"]), record)
        case "statement":
            record = PeerRecord.model_validate(values["record"])
            claims = {
                Part(part): [Claim(folded, digest, count, True) for folded, digest, count in told]
                for part, told in values["claims"].items()
            }
            return records.make_statement(_signer(vector, record.peer_id, values["card"]), record, claims)
        case "ticket":
            authority = bytes.fromhex(values["authority"])
            where = tuple(values["doors"]), tuple(values["addresses"])
            return str(Ticket(RunId(values["run"]), authority, *where, bytes.fromhex(values["token"]))).encode()
    raise ValueError(vector.kind)


def _contribution(vector: Vector) -> bytes:
    values, manifest = vector.values, vector.manifest
    part, picked = part_of(values["part"]), {}
    for name, grid in grids(manifest, part).items():
        positions, integers = (np.array(each) for each in values["tensors"][name])
        if len(grid.shape) == 1:
            offsets = positions % grid.size
        else:
            row, column = np.divmod(positions, grid.shape[1])
            offsets = row % grid.rows * grid.columns + column % grid.columns
        picked[name] = SparseTensor(offsets.astype(np.int16), integers)
    name = ContributionName(part, values["round"], values["author"])
    return compose(name, values["run"], values["steps"], picked, manifest, values["slot"])[0]


def _reading(said: Values) -> Reading:
    def pairs(listed: list[list[int]]) -> tuple[tuple[int, int], ...]:
        return tuple((first, last) for first, last in listed)

    plans = tuple(Plan(tuple(plan["seats"]), pairs(plan["spans"])) for plan in said["plans"])
    return Reading(said["folded"], said["fresh"], pairs(said["free"]), pairs(said["seen"]), plans)


def _frame(vector: Vector) -> list[pipeline_pb2.Frame]:
    values, rules = vector.values, FrameRules.of(vector.manifest)
    place = FramePosition(values["round"], values["step"], values["microbatch"])

    def payload(floats: list[float]) -> bytes:
        expected = rules.gradients if values["kind"] == "backward" else rules.activations
        numbers = torch.tensor(vector.made_from or floats, dtype=DTYPES.get(expected.wire, torch.float32)).reshape(
            expected.shape
        )
        return to_bytes(number_format(expected.wire, expected.width).pack(numbers))

    if values["kind"] == "backward":
        return pack_frame(BackwardFrame(place, payload(values["gradients"])), rules)
    tokens = np.array(values["tokens"], np.int64).reshape(rules.sequences, rules.context + 1)
    return pack_frame(ForwardFrame(place, payload(values["activations"]), tokens, values["embedding_digest"]), rules)


def _card(vector: Vector, values: Values) -> bytes:
    card = Card(values["peer"], values["role"], values["stage"], values["slot"], bool(values["on_trial"]))
    by = _card(vector, values["by"]) if values["by"] else b""
    return issue(vector.identity(values["issuer"]), RunId(values["run"]), card, by)


def _entry(vector: Vector) -> bytes:
    values = vector.values
    author = _signer(vector, values["author"], values["card"])
    entry = sign_contribution(author, values["part"], values["round"], values["sha256"], values["size"])
    receipts = [sign_receipt(_signer(vector, each["holder"], each["card"]), entry) for each in values["receipts"]]
    return reconciliation_pb2.Entry(proof=entry.proof, receipts=receipts).SerializeToString()


def _signer(vector: Vector, peer: str, card: Values | None = None) -> Signer:
    authority = Authority(vector.values["run"], PeerId(""))
    return Signer(vector.identity(peer), authority, _card(vector, card) if card else b"")


def _handover(values: Values) -> handovers.HandoverOffer:
    sha256, size, stage = values.get("sha256", ""), values.get("size", 0), values.get("card", {}).get("stage", 0)
    return handovers.HandoverOffer(values["giver"], values["heir"], values["number"], stage, sha256, size)


def _receipt(vector: Vector) -> receipts.Work:
    said = {name: value for name, value in vector.values.items() if name not in ("run", "card")}
    return receipts.Work(**said, beside=vector.values["card"]["stage"])


# Reading


def read(vector: Vector, data: bytes) -> Values:
    """What our code finds in bytes, in the description's words."""
    values, run = vector.values, RunId(vector.values.get("run", ""))
    match vector.kind:
        case "contribution":
            return _read_contribution(data, vector.manifest)
        case "frame":
            return _read_frame(data, vector)
        case "snapshot header":
            header = parse_header(data, vector.manifest)
            said = {"part": header.part, "round": header.round, "history": header.history.to_wire()}
            read = json.loads(json.dumps(asdict(header.reading))) if header.reading else None
            return said | {"pieces": list(header.pieces), "digest": header.digest, "reading": read}
        case "snapshot bytes":
            found = tensors_of(data, vector.manifest, values["part"])
            tensors = {name: tensor.ravel().tolist() for name, tensor in found.items()}
            state = grid_digest({name: torch.from_numpy(tensor) for name, tensor in found.items()})
            return {"part": values["part"], "tensors": tensors, "state": state}
        case "card":
            return _read_card(data)
        case "entry":
            return _read_entry(data, _authority(values["card"], run))
        case "revocation":
            record = proofs.read_revocation(data, Authority(run, values["operator"]))
            return values | {"author": record.author, "first": record.start, "issued": record.issued}
        case "bequest":
            offer = handovers.read_handover(data, _authority(values["card"], run))
            said = {"run": run, "giver": offer.giver, "heir": offer.successor, "number": offer.number}
            card = _read_card(signed.read_signed(data, "bequest")[1][-1])
            return said | {"sha256": offer.sha256, "size": offer.size, "card": card}
        case "inheritance":
            reason = handovers.read_answer(data, _handover(values), Authority(run, PeerId("")))
            return values | {"reason": reason}
        case "work":
            receipt = asdict(receipts.read_receipt(data, _authority(values["card"], run)))
            card = _read_card(signed.read_signed(data, vector.kind)[1][-1])
            assert receipt.pop("beside", card["stage"]) == card["stage"]
            return {"run": run} | receipt | {"card": card}
        case "record":
            record = records.read_record(data, values["record"]["peer_id"], _authority(values["card"], run))
            card = _read_card(signed.read_signed(data, "record")[1][-1])
            return {"run": run, "record": record.model_dump(), "card": card}
        case "statement":
            found = records.read_statement(data, _authority(values["card"], run))
            card = _read_card(signed.read_signed(data, "statement")[1][-1])
            claims = {
                part: [[c.folded, c.digest, c.contributions] for c in told] for part, told in found.claims.items()
            }
            return {"run": run, "record": found.record.model_dump(), "claims": claims, "card": card}
        case "ticket":
            pasted = ticket.parse_ticket(data.decode())
            said = {"run": pasted.run_id, "authority": pasted.authority.hex()}
            said |= {"operator": peer_id_of_public(pasted.authority), "token": pasted.token.hex()}
            return said | {"doors": list(pasted.node_addresses), "addresses": list(pasted.addresses)}
    raise ValueError(vector.kind)


def _read_contribution(data: bytes, manifest: Manifest) -> Values:
    found = decode(data, manifest)
    name, tensors = found.name, {}
    for tensor, grid in grids(manifest, name.part).items():
        sparse = found.tensors[tensor]
        tensors[tensor] = [grid.positions(sparse.offsets).tolist(), sparse.values.tolist()]
    part = 0 if name.part == EMBEDDING else 1 + int(name.part.removeprefix("stage-"))
    said = {"run": found.run, "round": name.round, "steps": found.steps, "slot": found.slot}
    return said | {"part": part, "author": name.author, "tensors": tensors}


def _read_frame(data: bytes, vector: Vector) -> Values:
    values, rules = vector.values, FrameRules.of(vector.manifest)
    place = FramePosition(values["round"], values["step"], values["microbatch"])
    messages = [pipeline_pb2.Frame.FromString(data)]

    def floats(raw: bytes, payload: Payload) -> list[float]:
        packed = from_bytes(raw, payload, torch.device("cpu"))
        found: list[float] = number_format(payload.wire, payload.width).unpack(packed).ravel().tolist()
        return found

    said = {"kind": values["kind"], "round": place.round, "step": place.step, "microbatch": place.microbatch}
    if values["kind"] == "backward":
        return said | {"gradients": floats(unpack_backward(messages, rules, place).gradients, rules.gradients)}
    frame = unpack_forward(messages, rules, place, values["embedding_digest"])
    said |= {"activations": floats(frame.activations, rules.activations), "tokens": frame.tokens.ravel().tolist()}
    return said | {"embedding_digest": frame.embedding_digest}


def _authority(card: Values, run: RunId) -> Authority:
    """The operator that a card goes back to."""
    return _authority(card["by"], run) if card["by"] else Authority(run, card["issuer"])


def _read_card(data: bytes) -> Values:
    issuer, (run, *_, by) = signed.read_signed(data, "card")
    gateway = _read_card(by) if by else None
    card = Authority(run, gateway["issuer"] if gateway else issuer).read(data)
    said = {"issuer": issuer, "run": run, "peer": card.peer, "role": card.role, "stage": card.stage, "slot": card.slot}
    said["on_trial"] = int(card.on_trial)
    return said | {"by": gateway}


def _read_entry(data: bytes, authority: Authority) -> Values:
    message = reconciliation_pb2.Entry.FromString(data)
    found: Entry = proofs.read_entry(message.proof, list(message.receipts), authority)
    said = {"run": authority.run, "part": found.name.part, "round": found.name.round, "author": found.name.author}
    said |= {"sha256": found.sha256, "size": found.size, "key": found.key.hex()}
    receipts = [
        {"holder": holder, "card": _read_card(signed.read_signed(receipt, "receipt")[1][-1])}
        for holder, receipt in found.receipts.items()
    ]
    return said | {"card": _read_card(signed.read_signed(found.proof, "contribution")[1][-1]), "receipts": receipts}
