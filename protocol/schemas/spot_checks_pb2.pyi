from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SpotCheckQuestion(_message.Message):
    __slots__ = ("round", "stage", "compression", "tokens", "seed", "activations", "gradients", "group_digest", "neighbours")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    GROUP_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    round: int
    stage: int
    compression: int
    tokens: bytes
    seed: int
    activations: bytes
    gradients: bytes
    group_digest: str
    neighbours: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, round: _Optional[int] = ..., stage: _Optional[int] = ..., compression: _Optional[int] = ..., tokens: _Optional[bytes] = ..., seed: _Optional[int] = ..., activations: _Optional[bytes] = ..., gradients: _Optional[bytes] = ..., group_digest: _Optional[str] = ..., neighbours: _Optional[_Iterable[str]] = ...) -> None: ...

class SpotCheckAnswer(_message.Message):
    __slots__ = ("activations", "gradients", "granted", "same_state", "neighbours")
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    SAME_STATE_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    activations: float
    gradients: float
    granted: bytes
    same_state: bool
    neighbours: _containers.RepeatedCompositeFieldContainer[NeighbourLikeness]
    def __init__(self, activations: _Optional[float] = ..., gradients: _Optional[float] = ..., granted: _Optional[bytes] = ..., same_state: _Optional[bool] = ..., neighbours: _Optional[_Iterable[_Union[NeighbourLikeness, _Mapping]]] = ...) -> None: ...

class NeighbourLikeness(_message.Message):
    __slots__ = ("peer", "activations", "gradients")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    peer: str
    activations: float
    gradients: float
    def __init__(self, peer: _Optional[str] = ..., activations: _Optional[float] = ..., gradients: _Optional[float] = ...) -> None: ...
