from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Member(_message.Message):
    __slots__ = ("peer_id", "address")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    address: str
    def __init__(self, peer_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Invitation(_message.Message):
    __slots__ = ("replica", "slot", "members")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    replica: str
    slot: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, replica: _Optional[str] = ..., slot: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class InvitationReply(_message.Message):
    __slots__ = ("code",)
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CODE_UNSPECIFIED: _ClassVar[InvitationReply.Code]
        ACCEPTED: _ClassVar[InvitationReply.Code]
        ENGAGED: _ClassVar[InvitationReply.Code]
        WRONG_STAGE: _ClassVar[InvitationReply.Code]
    CODE_UNSPECIFIED: InvitationReply.Code
    ACCEPTED: InvitationReply.Code
    ENGAGED: InvitationReply.Code
    WRONG_STAGE: InvitationReply.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    code: InvitationReply.Code
    def __init__(self, code: _Optional[_Union[InvitationReply.Code, str]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: str
    def __init__(self, replica: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Order(_message.Message):
    __slots__ = ("begin", "step")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    begin: Begin
    step: Step
    def __init__(self, begin: _Optional[_Union[Begin, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: str
    def __init__(self, replica: _Optional[str] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("round", "step", "clip_factor")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CLIP_FACTOR_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    clip_factor: float
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., clip_factor: _Optional[float] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("gradients", "round_end", "ready")
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    ROUND_END_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    gradients: Gradients
    round_end: RoundEnd
    ready: Ready
    def __init__(self, gradients: _Optional[_Union[Gradients, _Mapping]] = ..., round_end: _Optional[_Union[RoundEnd, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Gradients(_message.Message):
    __slots__ = ("round", "step", "squared_norm", "loss")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SQUARED_NORM_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    squared_norm: float
    loss: float
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., squared_norm: _Optional[float] = ..., loss: _Optional[float] = ...) -> None: ...

class RoundEnd(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...
