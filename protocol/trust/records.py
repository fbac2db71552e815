"""Records: what peers tell about themselves, in the DHT; and statements, in person: a record with its peer's digests of
the last closed rounds.

A record travels as a signed message that carries the operator's word, or a gateway's, that its peer is of the run:
whoever holds or reads it checks it without asking anybody.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgpack
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
)

from protocol.errors import FormatError
from protocol.identity import NO_PEER, Part, PeerId, ReplicaId, RunId
from protocol.limits import ADDRESS_CHARACTERS, ADDRESSES_NAMED, PARTS_BESIDE_STAGES, RECORD_BYTES, RELAYS_NAMED
from protocol.manifest import Manifest
from protocol.manifest_tables import MOST_STAGES
from protocol.outer.history import Claim
from protocol.outer.phases import RunPhase
from protocol.outer.window import SKEW
from protocol.patience import RECORD_SECONDS
from protocol.trust import signed
from protocol.trust.membership_card import Authority, Card, Role, Signer

RECORD, STATEMENT = "record", "statement"

CLAIMS_TOLD = 3
"""The number of closed rounds of which a statement tells. Peers close rounds within a round or two of each other, so
that some closed round is in both their statements."""

Claims = Mapping[Part, list[Claim]]

RECORDS_UNDER_A_KEY = 64
"""The number of records that are expected under each of a large run's keys."""

FAR_BEHIND = 2 * SKEW
"""The rounds that a holder is behind whom messages have not failed to reach, but who cannot follow the run."""

LIBP2P = r"^(/(ip4|ip6|dns4|dns6)/[^/\s]+/tcp/[0-9]{1,5}/p2p/[1-9A-HJ-NP-Za-km-z]+)?$"

RELAY_CHARACTERS = 192

RelayAddress = Annotated[str, StringConstraints(min_length=1, max_length=RELAY_CHARACTERS, pattern=LIBP2P)]
"""The libp2p address of a relay."""

OtherAddress = Annotated[str, StringConstraints(min_length=1, max_length=ADDRESS_CHARACTERS)]
"""One more address, host:port, at which a peer's gRPC services answer."""

MOST_TOKENS_PER_SECOND = 1e9

LATER = (
    "relays",
    "via",
    "tokens_per_second",
    "ending",
    "moves_to",
    "phase",
    "awaits",
    "last_holder",
    "other_addresses",
)
"""The fields that the first version had not. A peer that has nothing to say of one leaves it out."""

Scored = Annotated[str, StringConstraints(min_length=1, max_length=64)]
"""The peer id of the scored author."""


def is_relay(address: str) -> bool:
    """Whether a relay's address may stand in a record."""
    return 0 < len(address) <= RELAY_CHARACTERS and re.fullmatch(LIBP2P, address) is not None


class PeerRecord(BaseModel):
    """One peer of a run. `replica` is empty while it has no group.

    `round` is the last it has finished, `contributed` the last it made a contribution to, and of two records the one
    with the higher `sequence` is the newer: milliseconds since 1970, of when it was said. `scores` are what its audits
    found, if it makes any: author → mean gain of its last contributions in nats per token, those of who gained least.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    peer_id: PeerId
    address: str = Field(max_length=256, description="host:port of its gRPC services")
    libp2p: str = Field("", max_length=256, pattern=LIBP2P, description="where its node of the DHT listens")
    role: Role
    stage: int = Field(ge=0, le=1023, description="0 for a datacenter or observer, which hold all")
    slot: int = Field(ge=0, lt=2**20)
    on_trial: bool = Field(False, description="what it contributes does not count yet: nobody waits for it")
    replica: ReplicaId | Literal[""] = ""
    round: int = Field(0, ge=0, lt=2**31)
    contributed: int = Field(0, ge=0, lt=2**31)
    sequence: int = Field(0, ge=0, lt=2**62)
    gone: bool = Field(False, description="it has said goodbye")
    scores: dict[Scored, FiniteFloat] = Field(default_factory=dict, max_length=16)
    relays: bool = Field(False, description="it carries streams to peers that cannot be dialled")
    via: list[RelayAddress] = Field(
        default_factory=list, max_length=RELAYS_NAMED, description="the relays that hold it, if it cannot be dialled"
    )
    tokens_per_second: FiniteFloat = Field(
        0.0, ge=0, le=MOST_TOKENS_PER_SECOND, description="a volunteer's, at its own stage; 0: not measured"
    )
    ending: bool = Field(False, description="it has finished the last round, and still takes what others bring of it")
    moves_to: list[Annotated[int, Field(ge=0, lt=MOST_STAGES)]] = Field(
        default_factory=list, max_length=MOST_STAGES, description="the stages that a volunteer would serve instead"
    )

    phase: Literal["", RunPhase.CATCHING_UP, RunPhase.AWAITING_STATE] = Field(
        "", description="why it does not hold the run's newest state; empty: it does, as far as it knows"
    )

    awaits: int = Field(
        0, ge=0, lt=2**31, description="the last round that the run had finished, of a peer that awaits a state of it"
    )

    last_holder: bool = Field(
        False, description="it leaves as soon as another holds the newest state that it alone holds here"
    )

    other_addresses: list[OtherAddress] = Field(
        default_factory=list,
        max_length=ADDRESSES_NAMED,
        description="host:port of the same services, for peers that get no answer at `address`",
    )

    issuer: PeerId = Field(
        NO_PEER, exclude=True, description="the gateway that let it in, by its card; never on the wire"
    )

    @model_serializer(mode="wrap")
    def _spoken(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the later fields of which this peer has nothing to say: its bytes are then those of the first
        version."""
        said: dict[str, Any] = serialize(self)
        return {key: value for key, value in said.items() if key not in LATER or value}

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses of its gRPC services, in the order in which others try them."""
        return self.address, *self.other_addresses

    @property
    def leads(self) -> bool:
        """Whether this peer leads a replica that has formed."""
        return self.replica == self.peer_id


Peers = tuple[PeerRecord, ...]
"""Records of peers, checked."""


def sign_record(signer: Signer, record: PeerRecord) -> bytes:
    """Sign a record as it lies in the DHT."""
    return signed.sign_fields(signer.identity, RECORD, [signer.authority.run, pack_record(record), signer.card])


def read_record(data: object, owner: str, authority: Authority) -> PeerRecord:
    """Check the bytes that lie in the DHT as the record of `owner`.

    Raises:
        FormatError: it is too long or malformed, of another run, not signed by `owner`, or says what `unpack` refuses.
    """
    if not isinstance(data, bytes) or len(data) > RECORD_BYTES:
        raise FormatError(f"the record of {owner} is not {RECORD_BYTES} bytes at most")
    signer, fields, card = authority.read_signed(data, RECORD)
    if signer != owner:
        raise FormatError(f"peer {signer[-8:]} signed a record of {owner}")
    match fields:
        case [_, bytes(packed), _]:
            return unpack_record(packed, card, authority)
    raise FormatError(f"peer {signer[-8:]} signed no record of this run")


def expiration(record: PeerRecord) -> float:
    """The time when a record ceases to hold, in seconds since 1970.

    It follows from what is signed, so nobody can keep a record alive that its peer has replaced, nor a newer one out.
    """
    return record.sequence / 1000 + RECORD_SECONDS


def may_author(record: PeerRecord) -> bool:
    """Whether what a peer contributes counts: nobody else's word says where the run is."""
    return record.role in ("volunteer", "datacenter") and not record.on_trial


def holds_newest(record: PeerRecord) -> bool:
    """Whether a peer holds the run's newest state of its parts, by its own word."""
    return not record.phase


def lost_states(peers: Iterable[PeerRecord], stages: int) -> tuple[int, list[int]]:
    """The last round that any of these peers has finished, and the stages whose state after it none of them holds
    though some serve the stage: they wait for it, or are rounds behind. Both by their own word: words for people follow
    from it, and nothing else, since a peer may lie here."""
    present = list(peers)
    last = max((max(peer.round, peer.awaits) for peer in present), default=0)
    holders = [peer for peer in present if holds_newest(peer) and peer.round >= last - FAR_BEHIND]
    if any(peer.role != "volunteer" for peer in holders):
        return last, []
    held = {peer.stage for peer in holders}
    lack = [peer for peer in present if peer.phase == RunPhase.AWAITING_STATE or peer.round < last - FAR_BEHIND]
    lacked = {peer.stage for peer in lack if peer.role == "volunteer" and peer.phase != RunPhase.CATCHING_UP}
    if any(peer.role != "volunteer" and peer.phase == RunPhase.AWAITING_STATE for peer in lack):
        lacked = set(range(stages))
    return last, sorted(lacked - held)


def pack_record(record: PeerRecord) -> bytes:
    """Encode a record as it lies in a signed message."""
    packed: bytes = msgpack.packb(record.model_dump())
    return packed


def unpack_record(packed: bytes, place: Card, authority: Authority) -> PeerRecord:
    """Check a record that came in a message of the peer that has a `place`, by its card; both signatures hold.

    Raises:
        FormatError: the place is none any more, or another than it says; the record is too long, malformed or
            another's.
    """
    authority.require_standing(place)
    signer = place.peer
    if len(packed) > RECORD_BYTES:
        raise FormatError(f"the record of {signer} is not {RECORD_BYTES} bytes at most")
    try:
        record = PeerRecord.model_validate(msgpack.unpackb(packed, max_array_len=max(RELAYS_NAMED, MOST_STAGES)))
    except ValidationError as error:
        first = error.errors()[0]
        raise FormatError(f"the record of {signer} is malformed: {first['loc']}: {first['msg']}"[:200]) from None
    except (ValueError, msgpack.UnpackException):
        raise FormatError(f"the record of {signer} is malformed") from None
    if record.peer_id != signer:
        other = record.peer_id[:64] if record.peer_id.isprintable() else "another"
        raise FormatError(f"the record of {signer} speaks for {other}")
    own_fields = record.role, record.stage, record.slot, record.on_trial
    if own_fields != (place.role, place.stage, place.slot, place.on_trial):
        raise FormatError(f"the record of {signer} names another place than its card")
    if "issuer" in record.model_fields_set:
        raise FormatError(f"the record of {signer} is malformed: its card tells who let it in")
    return record.model_copy(update={"issuer": place.issuer}) if place.issuer else record


def require_rounds(record: PeerRecord, manifest: Manifest, closed: Iterable[int] = ()) -> None:
    """Check that a peer is in a round that its run has, and has `closed` none that it has not.

    Raises:
        FormatError: it says to be beyond the last.
    """
    if (last := max(record.round, record.contributed, record.awaits, *closed)) > manifest.outer.rounds:
        raise FormatError(f"peer {record.peer_id[-8:]} speaks of round {last}, and the run has {manifest.outer.rounds}")


# Statements


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, checked. `claims` are by part, of the last closed rounds in rising order."""

    record: PeerRecord
    claims: Claims


def make_statement(signer: Signer, record: PeerRecord, claims: Claims) -> bytes:
    """Sign a statement of what this peer is and holds now."""
    told = {
        part: [[claim.folded, bytes.fromhex(claim.digest), claim.contributions] for claim in last[-CLAIMS_TOLD:]]
        for part, last in claims.items()
    }
    return signed.sign_fields(
        signer.identity, STATEMENT, [signer.authority.run, pack_record(record), told, signer.card]
    )


def read_statement(data: bytes, authority: Authority) -> Statement:
    """Check a statement.

    Raises:
        FormatError: it is malformed, of another run, or its record is none that its signer may tell.
    """
    signer, fields, card = authority.read_signed(data, STATEMENT)
    match fields:
        case [_, bytes(packed), dict(told), _] if len(told) <= MOST_STAGES + PARTS_BESIDE_STAGES:
            record = unpack_record(packed, card, authority)
            trains = bool(record.replica) and not record.on_trial
            return Statement(record, {Part(str(part)): _claims(claim, signer, trains) for part, claim in told.items()})
    raise FormatError(f"peer {signer[-8:]} made no statement of this run")


def _claims(told: object, signer: PeerId, author: bool) -> list[Claim]:
    if not isinstance(told, list) or len(told) > CLAIMS_TOLD:
        raise FormatError(f"peer {signer[-8:]} claims nothing that can be read")
    claims = []
    for claim in told:
        match claim:
            case [int(folded), bytes(digest), int(contributions)] if (
                type(folded) is type(contributions) is int and folded >= 0 and len(digest) == 32
            ):
                claims.append(Claim(folded, digest.hex(), contributions, author))
            case _:
                raise FormatError(f"peer {signer[-8:]} claims nothing that can be read")
    return claims


# Where records lie


@dataclass(frozen=True, slots=True)
class Register:
    """The register of a run's records in the DHT: where each lies, and what may lie there."""

    authority: Authority
    manifest: Manifest

    @property
    def keys(self) -> list[str]:
        """All keys of the DHT under which the run's peers have subkeys, their peer ids."""
        return peers_keys(self.authority.run, self.manifest)

    def key(self, peer: str) -> str:
        """The key of the DHT under which a peer's own record lies."""
        return peers_key(self.authority.run, self.manifest, peer)

    def expiration(self, key: str, owner: str, value: object) -> float:
        """Check a value that is to lie under (`key`, `owner`). Returns when it expires, in seconds since 1970.

        Raises:
            FormatError: it is not the owner's record, or has its place under another key.
        """
        record = read_record(value, owner, self.authority)
        if key != self.key(owner):
            raise FormatError(f"the record of {owner} lies under another peer's key")
        require_rounds(record, self.manifest)
        return expiration(record)

    def signatures(self, value: object) -> int:
        """Count the signatures that checking a value takes now: those of cards that are known take none."""
        if not isinstance(value, bytes) or len(value) > RECORD_BYTES:
            return 0
        return self.authority.unchecked(value, RECORD)

    def read(self, found: Mapping[str, object]) -> tuple[PeerRecord, ...]:
        """Select the valid records among what was found in the DHT, by peer id."""
        records = []
        for owner in sorted(found):
            try:
                record = read_record(found[owner], owner, self.authority)
                require_rounds(record, self.manifest)
            except FormatError:
                continue
            records.append(record)
        return tuple(records)


def peers_keys(run_id: RunId, manifest: Manifest) -> list[str]:
    """The DHT keys under which the peers of a run have subkeys, their peer ids. As many as keep the records under one
    key few, since the nodes that hold it answer everybody with all of them."""
    replicas = manifest.replicas
    count = -(-(replicas.groups * replicas.stages + replicas.datacenters) // RECORDS_UNDER_A_KEY)
    return [f"hetpeer.{run_id}.peers.{number}" for number in range(count)]


def peers_key(run_id: RunId, manifest: Manifest, peer_id: str) -> str:
    """The key of the DHT under which a peer's own record lies."""
    keys = peers_keys(run_id, manifest)
    return keys[int.from_bytes(sha256(peer_id.encode()).digest()[:8]) % len(keys)]
