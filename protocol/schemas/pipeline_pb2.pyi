from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORMAT_UNSPECIFIED: _ClassVar[Format]
    BF16: _ClassVar[Format]
    FP32: _ClassVar[Format]
    INT8: _ClassVar[Format]
    INT4: _ClassVar[Format]
FORMAT_UNSPECIFIED: Format
BF16: Format
FP32: Format
INT8: Format
INT4: Format

class Frame(_message.Message):
    __slots__ = ("forward", "backward", "rest", "sums", "end", "seats", "offer", "answer", "start", "doubt")
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    forward: Forward
    backward: Backward
    rest: bytes
    sums: StepSums
    end: StepEnd
    seats: Seats
    offer: RoundOffer
    answer: RoundAnswer
    start: RoundStart
    doubt: Place
    def __init__(self, forward: _Optional[_Union[Forward, _Mapping]] = ..., backward: _Optional[_Union[Backward, _Mapping]] = ..., rest: _Optional[bytes] = ..., sums: _Optional[_Union[StepSums, _Mapping]] = ..., end: _Optional[_Union[StepEnd, _Mapping]] = ..., seats: _Optional[_Union[Seats, _Mapping]] = ..., offer: _Optional[_Union[RoundOffer, _Mapping]] = ..., answer: _Optional[_Union[RoundAnswer, _Mapping]] = ..., start: _Optional[_Union[RoundStart, _Mapping]] = ..., doubt: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class Seats(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, members: _Optional[_Iterable[str]] = ...) -> None: ...

class RoundOffer(_message.Message):
    __slots__ = ("round", "step", "members", "attempt", "slot", "embedding_digest", "compression", "goal", "patience")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    members: _containers.RepeatedScalarFieldContainer[str]
    attempt: int
    slot: int
    embedding_digest: str
    compression: int
    goal: int
    patience: float
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., attempt: _Optional[int] = ..., slot: _Optional[int] = ..., embedding_digest: _Optional[str] = ..., compression: _Optional[int] = ..., goal: _Optional[int] = ..., patience: _Optional[float] = ...) -> None: ...

class RoundAnswer(_message.Message):
    __slots__ = ("round", "step", "embedding_digest", "group_digest")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    GROUP_DIGEST_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    embedding_digest: str
    group_digest: str
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., embedding_digest: _Optional[str] = ..., group_digest: _Optional[str] = ...) -> None: ...

class RoundStart(_message.Message):
    __slots__ = ("step", "group_digest")
    STEP_FIELD_NUMBER: _ClassVar[int]
    GROUP_DIGEST_FIELD_NUMBER: _ClassVar[int]
    step: int
    group_digest: str
    def __init__(self, step: _Optional[int] = ..., group_digest: _Optional[str] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("round", "step", "microbatch")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    microbatch: int
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., microbatch: _Optional[int] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("format", "shape", "data")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    format: Format
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, format: _Optional[_Union[Format, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Forward(_message.Message):
    __slots__ = ("place", "activations", "tokens", "embedding_digest")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    place: Place
    activations: Tensor
    tokens: bytes
    embedding_digest: bytes
    def __init__(self, place: _Optional[_Union[Place, _Mapping]] = ..., activations: _Optional[_Union[Tensor, _Mapping]] = ..., tokens: _Optional[bytes] = ..., embedding_digest: _Optional[bytes] = ...) -> None: ...

class Backward(_message.Message):
    __slots__ = ("place", "gradients")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    place: Place
    gradients: Tensor
    def __init__(self, place: _Optional[_Union[Place, _Mapping]] = ..., gradients: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class StepSums(_message.Message):
    __slots__ = ("round", "step", "squared_norms", "passes", "loss")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SQUARED_NORMS_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    squared_norms: _containers.RepeatedScalarFieldContainer[float]
    passes: _containers.RepeatedScalarFieldContainer[float]
    loss: float
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., squared_norms: _Optional[_Iterable[float]] = ..., passes: _Optional[_Iterable[float]] = ..., loss: _Optional[float] = ...) -> None: ...

class StepEnd(_message.Message):
    __slots__ = ("round", "step", "clip_factor", "last", "squared_norms")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CLIP_FACTOR_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SQUARED_NORMS_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    clip_factor: float
    last: bool
    squared_norms: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., clip_factor: _Optional[float] = ..., last: _Optional[bool] = ..., squared_norms: _Optional[_Iterable[float]] = ...) -> None: ...
