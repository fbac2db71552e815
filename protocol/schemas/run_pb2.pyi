from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    VOLUNTEER: _ClassVar[Role]
    DATACENTER: _ClassVar[Role]
    OBSERVER: _ClassVar[Role]
    GATEWAY: _ClassVar[Role]
ROLE_UNSPECIFIED: Role
VOLUNTEER: Role
DATACENTER: Role
OBSERVER: Role
GATEWAY: Role

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("descriptor_json", "finished", "taking", "run", "holders", "rewind", "keeps")
    DESCRIPTOR_JSON_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TAKING_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    descriptor_json: bytes
    finished: int
    taking: bool
    run: int
    holders: _containers.RepeatedScalarFieldContainer[bytes]
    rewind: bytes
    keeps: bool
    def __init__(self, descriptor_json: _Optional[bytes] = ..., finished: _Optional[int] = ..., taking: _Optional[bool] = ..., run: _Optional[int] = ..., holders: _Optional[_Iterable[bytes]] = ..., rewind: _Optional[bytes] = ..., keeps: _Optional[bool] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("signing_request", "role", "stage", "token", "card", "stages")
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CARD_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    signing_request: bytes
    role: Role
    stage: int
    token: bytes
    card: bytes
    stages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, signing_request: _Optional[bytes] = ..., role: _Optional[_Union[Role, str]] = ..., stage: _Optional[int] = ..., token: _Optional[bytes] = ..., card: _Optional[bytes] = ..., stages: _Optional[_Iterable[int]] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("stage", "slot", "card", "certificate", "authority", "port", "closed", "trials", "mirrors", "attestation", "time")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    CARD_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    MIRRORS_FIELD_NUMBER: _ClassVar[int]
    ATTESTATION_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    stage: int
    slot: int
    card: bytes
    certificate: bytes
    authority: bytes
    port: int
    closed: bool
    trials: bool
    mirrors: _containers.RepeatedScalarFieldContainer[str]
    attestation: bytes
    time: float
    def __init__(self, stage: _Optional[int] = ..., slot: _Optional[int] = ..., card: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., port: _Optional[int] = ..., closed: _Optional[bool] = ..., trials: _Optional[bool] = ..., mirrors: _Optional[_Iterable[str]] = ..., attestation: _Optional[bytes] = ..., time: _Optional[float] = ...) -> None: ...

class DialBackRequest(_message.Message):
    __slots__ = ("peer_id", "address")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    address: str
    def __init__(self, peer_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class DialBackReply(_message.Message):
    __slots__ = ("dialled", "objection")
    DIALLED_FIELD_NUMBER: _ClassVar[int]
    OBJECTION_FIELD_NUMBER: _ClassVar[int]
    dialled: str
    objection: str
    def __init__(self, dialled: _Optional[str] = ..., objection: _Optional[str] = ...) -> None: ...

class MeasureRequest(_message.Message):
    __slots__ = ("piece", "wanted")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    piece: bytes
    wanted: int
    def __init__(self, piece: _Optional[bytes] = ..., wanted: _Optional[int] = ...) -> None: ...

class MeasureReply(_message.Message):
    __slots__ = ("piece", "time", "round", "round_seconds")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    piece: bytes
    time: float
    round: int
    round_seconds: float
    def __init__(self, piece: _Optional[bytes] = ..., time: _Optional[float] = ..., round: _Optional[int] = ..., round_seconds: _Optional[float] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("view_json",)
    VIEW_JSON_FIELD_NUMBER: _ClassVar[int]
    view_json: bytes
    def __init__(self, view_json: _Optional[bytes] = ...) -> None: ...
