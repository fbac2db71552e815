from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RoundCheck(_message.Message):
    __slots__ = ("round", "check")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    round: int
    check: int
    def __init__(self, round: _Optional[int] = ..., check: _Optional[int] = ...) -> None: ...

class PartSummary(_message.Message):
    __slots__ = ("part", "clock", "folded", "rounds")
    PART_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    FOLDED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    part: str
    clock: int
    folded: int
    rounds: _containers.RepeatedCompositeFieldContainer[RoundCheck]
    def __init__(self, part: _Optional[str] = ..., clock: _Optional[int] = ..., folded: _Optional[int] = ..., rounds: _Optional[_Iterable[_Union[RoundCheck, _Mapping]]] = ...) -> None: ...

class Comparison(_message.Message):
    __slots__ = ("statement", "parts", "attested", "rewound", "proven")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ATTESTED_FIELD_NUMBER: _ClassVar[int]
    REWOUND_FIELD_NUMBER: _ClassVar[int]
    PROVEN_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    parts: _containers.RepeatedCompositeFieldContainer[PartSummary]
    attested: int
    rewound: int
    proven: int
    def __init__(self, statement: _Optional[bytes] = ..., parts: _Optional[_Iterable[_Union[PartSummary, _Mapping]]] = ..., attested: _Optional[int] = ..., rewound: _Optional[int] = ..., proven: _Optional[int] = ...) -> None: ...

class PartKeys(_message.Message):
    __slots__ = ("part", "keys")
    PART_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    part: str
    keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, part: _Optional[str] = ..., keys: _Optional[_Iterable[int]] = ...) -> None: ...

class Differences(_message.Message):
    __slots__ = ("statement", "parts", "revocations", "attestation", "rewind", "holders")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    ATTESTATION_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    parts: _containers.RepeatedCompositeFieldContainer[PartKeys]
    revocations: _containers.RepeatedScalarFieldContainer[bytes]
    attestation: bytes
    rewind: bytes
    holders: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, statement: _Optional[bytes] = ..., parts: _Optional[_Iterable[_Union[PartKeys, _Mapping]]] = ..., revocations: _Optional[_Iterable[bytes]] = ..., attestation: _Optional[bytes] = ..., rewind: _Optional[bytes] = ..., holders: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("part", "keys")
    PART_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    part: str
    keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, part: _Optional[str] = ..., keys: _Optional[_Iterable[int]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("proof", "receipts")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, proof: _Optional[bytes] = ..., receipts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Entries(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...

class News(_message.Message):
    __slots__ = ("statement", "entries", "revocations", "held")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    revocations: _containers.RepeatedScalarFieldContainer[bytes]
    held: _containers.RepeatedCompositeFieldContainer[PartKeys]
    def __init__(self, statement: _Optional[bytes] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., revocations: _Optional[_Iterable[bytes]] = ..., held: _Optional[_Iterable[_Union[PartKeys, _Mapping]]] = ...) -> None: ...

class Revocations(_message.Message):
    __slots__ = ("revocations",)
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    revocations: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, revocations: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
