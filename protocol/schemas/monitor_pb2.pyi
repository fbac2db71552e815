from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Batch(_message.Message):
    __slots__ = ("batch_json",)
    BATCH_JSON_FIELD_NUMBER: _ClassVar[int]
    batch_json: bytes
    def __init__(self, batch_json: _Optional[bytes] = ...) -> None: ...

class TellReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
