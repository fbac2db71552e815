from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class CreditQuestion(_message.Message):
    __slots__ = ("worked",)
    WORKED_FIELD_NUMBER: _ClassVar[int]
    worked: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worked: _Optional[_Iterable[int]] = ...) -> None: ...

class CreditReceipts(_message.Message):
    __slots__ = ("receipts",)
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, receipts: _Optional[_Iterable[bytes]] = ...) -> None: ...
