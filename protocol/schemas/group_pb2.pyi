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
    __slots__ = ("replica", "slot", "stage")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    replica: str
    slot: int
    stage: int
    def __init__(self, replica: _Optional[str] = ..., slot: _Optional[int] = ..., stage: _Optional[int] = ...) -> None: ...

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

class Order(_message.Message):
    __slots__ = ("begin", "go", "halt", "end", "release")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    GO_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    begin: Begin
    go: Go
    halt: Halt
    end: End
    release: Release
    def __init__(self, begin: _Optional[_Union[Begin, _Mapping]] = ..., go: _Optional[_Union[Go, _Mapping]] = ..., halt: _Optional[_Union[Halt, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("attempt", "round", "step", "members", "embedding_digest", "compression", "goal")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    round: int
    step: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    embedding_digest: str
    compression: int
    goal: int
    def __init__(self, attempt: _Optional[int] = ..., round: _Optional[int] = ..., step: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., embedding_digest: _Optional[str] = ..., compression: _Optional[int] = ..., goal: _Optional[int] = ...) -> None: ...

class Go(_message.Message):
    __slots__ = ("attempt", "step")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    step: int
    def __init__(self, attempt: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Halt(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    def __init__(self, attempt: _Optional[int] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Report(_message.Message):
    __slots__ = ("ready", "broken", "halted", "round_end")
    READY_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    HALTED_FIELD_NUMBER: _ClassVar[int]
    ROUND_END_FIELD_NUMBER: _ClassVar[int]
    ready: Ready
    broken: Broken
    halted: Halted
    round_end: RoundEnd
    def __init__(self, ready: _Optional[_Union[Ready, _Mapping]] = ..., broken: _Optional[_Union[Broken, _Mapping]] = ..., halted: _Optional[_Union[Halted, _Mapping]] = ..., round_end: _Optional[_Union[RoundEnd, _Mapping]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("attempt", "embedding_digest", "round", "step")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    embedding_digest: str
    round: int
    step: int
    def __init__(self, attempt: _Optional[int] = ..., embedding_digest: _Optional[str] = ..., round: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Broken(_message.Message):
    __slots__ = ("attempt", "reason", "culprit")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CULPRIT_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    reason: str
    culprit: str
    def __init__(self, attempt: _Optional[int] = ..., reason: _Optional[str] = ..., culprit: _Optional[str] = ...) -> None: ...

class Halted(_message.Message):
    __slots__ = ("attempt", "waited_for")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WAITED_FOR_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    waited_for: str
    def __init__(self, attempt: _Optional[int] = ..., waited_for: _Optional[str] = ...) -> None: ...

class RoundEnd(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...
