from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
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
    __slots__ = ("descriptor_json",)
    DESCRIPTOR_JSON_FIELD_NUMBER: _ClassVar[int]
    descriptor_json: bytes
    def __init__(self, descriptor_json: _Optional[bytes] = ...) -> None: ...

class AdmitRequest(_message.Message):
    __slots__ = ("peer_id", "role", "stage")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    role: Role
    stage: int
    def __init__(self, peer_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., stage: _Optional[int] = ...) -> None: ...

class AdmitReply(_message.Message):
    __slots__ = ("stage", "slot", "card")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    CARD_FIELD_NUMBER: _ClassVar[int]
    stage: int
    slot: int
    card: bytes
    def __init__(self, stage: _Optional[int] = ..., slot: _Optional[int] = ..., card: _Optional[bytes] = ...) -> None: ...
