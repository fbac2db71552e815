"""What peers tell about themselves in the DHT. A record is checked before anybody reads it."""

from hashlib import sha256
from typing import Literal

import msgpack
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import FormatError
from protocol.identity import PeerId, ReplicaId, RunId
from protocol.limits import RECORD_BYTES
from protocol.manifest import Manifest

RECORDS_UNDER_A_KEY = 64
"""As many are expected under each of a large run's keys."""

Role = Literal["volunteer", "datacenter", "observer"]

LIBP2P = r"^(/(ip4|ip6|dns4|dns6)/[^/\s]+/tcp/[0-9]{1,5}/p2p/[1-9A-HJ-NP-Za-km-z]+)?$"


class PeerRecord(BaseModel):
    """One peer of a run. `replica` is empty while it has no group.

    `round` is the last it has finished, `contributed` the last it made a contribution to, and of two records the one
    with the higher `sequence` is the newer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    peer_id: PeerId
    address: str = Field(max_length=256, description="host:port of its gRPC services")
    libp2p: str = Field("", max_length=256, pattern=LIBP2P, description="where its node of the DHT listens")
    role: Role
    stage: int = Field(ge=0, le=1023, description="0 for a datacenter or observer, which hold all")
    slot: int = Field(ge=0, lt=2**20)
    replica: ReplicaId | Literal[""] = ""
    round: int = Field(0, ge=0, lt=2**31)
    contributed: int = Field(0, ge=0, lt=2**31)
    sequence: int = Field(0, ge=0, lt=2**62)
    gone: bool = Field(False, description="it has said goodbye")

    @property
    def leads(self) -> bool:
        """Whether this peer leads a replica that has formed."""
        return self.replica == self.peer_id


def pack(record: PeerRecord) -> bytes:
    """A record as it lies in the DHT."""
    packed: bytes = msgpack.packb(record.model_dump())
    return packed


def unpack(data: object, owner: str) -> PeerRecord:
    """Check a record read from the DHT.

    Raises:
        FormatError: it is too long, malformed, or speaks for another peer than its `owner`.
    """
    if not isinstance(data, bytes) or len(data) > RECORD_BYTES:
        raise FormatError(f"the record of {owner} is not {RECORD_BYTES} bytes at most")
    try:
        record = PeerRecord.model_validate(msgpack.unpackb(data, max_array_len=0))
    except ValidationError as error:
        first = error.errors()[0]
        raise FormatError(f"the record of {owner} is malformed: {first['loc']}: {first['msg']}"[:200]) from None
    except (ValueError, msgpack.UnpackException):
        raise FormatError(f"the record of {owner} is malformed") from None
    if record.peer_id != owner:
        other = record.peer_id[:64] if record.peer_id.isprintable() else "another"
        raise FormatError(f"the record of {owner} speaks for {other}")
    return record


def peers_keys(run_id: RunId, manifest: Manifest) -> list[str]:
    """The DHT keys under which the peers of a run have subkeys, their peer ids. As many as keep the records under one
    key few, since the nodes that hold it answer everybody with all of them."""
    replicas = manifest.replicas
    count = -(-(replicas.groups * replicas.stages + replicas.datacenters) // RECORDS_UNDER_A_KEY)
    return [f"hetpeer.{run_id}.peers.{number}" for number in range(count)]


def peers_key(run_id: RunId, manifest: Manifest, peer_id: PeerId) -> str:
    """The one of them for a peer's own record."""
    keys = peers_keys(run_id, manifest)
    return keys[int.from_bytes(sha256(peer_id.encode()).digest()[:8]) % len(keys)]
