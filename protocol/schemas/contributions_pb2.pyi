from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class HaveRequest(_message.Message):
    __slots__ = ("part", "round")
    PART_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    part: str
    round: int
    def __init__(self, part: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("replica", "sha256", "size")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    replica: str
    sha256: str
    size: int
    def __init__(self, replica: _Optional[str] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...
