"""Messages that parse and mean harm: any fields of a kind of message, with any values that protobuf has for them."""

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

EDGES = (0, 1, 2, 3, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**31), -(2**63))
BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
MOST_REPEATED = 4


def messages(kind: Descriptor, known: list[str], signed: list[bytes], like: Any = None) -> st.SearchStrategy[Any]:
    """Messages of a kind, some of whose names are `known` to the other side and some of whose bytes are `signed`. With
    `like`, that message with few of its fields, or none, otherwise."""
    make: Callable[..., Any] = GetMessageClass(kind)
    fields = {field.name: _values(field, known, signed) for field in kind.fields}
    if like is None or not fields:
        return st.fixed_dictionaries({}, optional=fields).map(lambda given: make(**given))
    some = st.lists(st.sampled_from(sorted(fields)), max_size=2, unique=True)
    given = some.flatmap(lambda names: st.fixed_dictionaries({name: fields[name] for name in names}))
    return given.map(lambda other: _with(like, make(**other), list(other)))


def _with(like: Any, other: Any, names: list[str]) -> Any:
    changed = type(other)()
    changed.CopyFrom(like)
    for name in names:
        changed.ClearField(name)
    changed.MergeFrom(other)
    return changed


def _values(field: FieldDescriptor, known: list[str], signed: list[bytes]) -> st.SearchStrategy[Any]:
    one = _value(field, known, signed)
    return st.lists(one, max_size=MOST_REPEATED) if field.is_repeated else one


def _value(field: FieldDescriptor, known: list[str], signed: list[bytes]) -> st.SearchStrategy[Any]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return messages(field.message_type, known, signed)
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return st.one_of(st.sampled_from(signed), st.sampled_from(signed).flatmap(_damaged), st.binary(max_size=50))
        case FieldDescriptor.CPPTYPE_STRING:
            return st.one_of(st.sampled_from(known), st.text(st.characters(codec="utf-8"), max_size=70))
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return st.floats(width=32)
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case other:
            low, high = BITS[other]
            return st.one_of(st.sampled_from([each for each in EDGES if low <= each <= high]), st.integers(low, high))


def _damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """One byte of it another, or cut there."""
    places = st.integers(0, max(0, len(data) - 1))
    return st.tuples(places, st.binary(max_size=1)).map(lambda how: data[: how[0]] + how[1] + data[how[0] + 1 :])
