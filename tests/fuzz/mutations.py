"""What is done to valid inputs: values put where others belong, bytes turned, and lengths that no memory holds."""

import json
from collections.abc import Iterator
from typing import Any

import msgpack
from hypothesis import strategies as st

from tests.fuzz.reader import Grammar, Reader

# Another value in the place of one

ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**40, 2**63, -(2**63), 1.5, float("inf"), float("nan"), "", "x" * 300),
    *("a\nb", "\x1b[31m", "é", "\u0661", "1" * 5000, [], [[]], {}, {"x": {}}, [0] * 300, ["x"]),
)
ODD_BYTES: tuple[Any, ...] = (b"", b"\0" * 300, msgpack.Timestamp(0, 0), msgpack.ExtType(5, b"x"), {b"x": 1})


def odd(reader: Reader) -> Iterator[bytes]:
    """Each example with each of its values in turn replaced by each odd one; and without it, or with one more."""
    for seed in reader.seeds if reader.grammar in ("msgpack", "json") else ():
        lines = seed.splitlines(keepends=True)
        ending = b"\n" if len(lines) == 1 and seed.endswith(b"\n") else b""
        for value in _changed(_parsed(seed, reader.grammar), reader.grammar):
            try:
                yield _said(value, reader.grammar) + ending
            except (ValueError, OverflowError, TypeError):  # this grammar has no such value
                continue


def _parsed(data: bytes, grammar: Grammar) -> Any:
    return msgpack.unpackb(data) if grammar == "msgpack" else json.loads(data)


def _said(value: Any, grammar: Grammar) -> bytes:
    if grammar == "msgpack":
        packed: bytes = msgpack.packb(value)
        return packed
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _changed(value: Any, grammar: Grammar) -> Iterator[Any]:
    yield from ODD
    if grammar == "msgpack":
        yield from ODD_BYTES
    match value:
        case dict():
            for key, each in value.items():
                rest = {other: value[other] for other in value if other != key}
                yield rest
                yield rest | {f"{key}x": each}
                for changed in _changed(each, grammar):
                    yield value | {key: changed}
        case list():
            yield [*value, 1]
            for at, each in enumerate(value):
                yield value[:at] + value[at + 1 :]
                for changed in _changed(each, grammar):
                    yield [*value[:at], changed, *value[at + 1 :]]
        case _:
            pass


# Other bytes

HEADS = (
    *(
        b"\xdd\xff\xff\xff\xff",
        b"\xdc\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ),
    *(
        b"\xcf\0\0\x01\0\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\x7f",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\0\0\0\0",
    ),
)
"""Lengths: msgpack's of lists, maps and bytes, a large number, numbers of 32 bits, protobuf's."""

WORDS = (
    *(
        b"[[[[",
        b"]",
        b"{",
        b'"',
        b"\\u",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"9" * 400,
        b"0x" + b"f" * 40,
        b"true",
        b"null",
    ),
    *(b"=", b"[x]", b"\n", b"@", b"+", b"1979-05-27", "\u0661".encode(), b"\xed\xa0\x80", b"&#99999;", b"E<9>", b"B<<"),
)
"""What JSON, TOML and the other grammars know."""


@st.composite
def mutated(draw: st.DrawFn, reader: Reader) -> bytes:
    """A valid input, turned, cut, filled, joined with another, or given a length."""
    data = draw(st.sampled_from(reader.seeds))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + draw(st.sampled_from((0, 1, 1, 4, 1000))))))
        other = draw(st.sampled_from(reader.seeds))
        piece = draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from(HEADS if reader.grammar in ("bytes", "msgpack") else WORDS),
                st.integers(0, len(other)).map(lambda start, other=other: other[start:]),
            )
        )
        data = data[:at] + piece + data[end:]
    return data


# Lengths that no memory holds

KIB, MIB = 2**10, 2**20
EDGES = 24
"""Places in an example where a length is put."""


def bombs(reader: Reader) -> Iterator[bytes]:
    """Small inputs that ask for much, and inputs of a MiB or two that may ask for no more than a few times that."""
    for seed in (*reader.seeds, b""):
        for at in sorted({len(seed) * edge // EDGES for edge in range(EDGES + 1)}):
            for head in HEADS:
                yield seed[:at] + head + seed[at:]
    match reader.grammar:
        case "bytes" | "msgpack":
            yield from _packed_bombs()
        case _:
            yield from _written_bombs()
    yield from (bytes(2 * MIB), b"\xff" * (2 * MIB))
    for seed in reader.seeds:
        yield seed + bytes(2 * MIB)
        yield (seed * (1 + MIB // max(1, len(seed))))[:MIB]


def _packed_bombs() -> Iterator[bytes]:
    for size in (4 * KIB, 15 * KIB, MIB):
        for depth in (1, 500, 1000):
            yield ((b"\xdd" + size.to_bytes(4, "big")) * depth).ljust(size, b"\0")
        yield b"\xdd" + (size - 5).to_bytes(4, "big") + b"\x90" * (size - 5)
        yield b"\xdd" + (size // 2).to_bytes(4, "big") + b"\x80" * (size // 2)
        yield b"\x91" * size
        yield b"\x95\x01\xa9embedding\x03" + b"\xdd" + size.to_bytes(4, "big") + b"\x90" * size
        yield b"\x95\x01\xa9embedding\x03" + b"\x81\xa1a\xdd" + size.to_bytes(4, "big") + b"\x90" * size
    for field in (1, 2, 3, 4):  # of protobuf: bytes within bytes, and a packed list
        inner = b"\x12" + _varint(MIB) + b"\x01" * MIB
        for within in (b"\x12", b"\x1a"):
            frame = bytes([field << 3 | 2]) + _varint(len(inner)) + inner
            yield b"\x0a" + _varint(len(frame) + 6) + within + _varint(len(frame)) + frame
        yield bytes([field << 3 | 2]) * (100 * KIB)


def _varint(number: int) -> bytes:
    said = b""
    while number > 127:
        said, number = said + bytes([number & 127 | 128]), number >> 7
    return said + bytes([number])


def _written_bombs() -> Iterator[bytes]:
    for many in (KIB, 100 * KIB):
        yield b"[" * many
        yield b"[" * many + b"]" * many
        yield b'{"a":' * many + b"1" + b"}" * many
        yield b"a = " + b"[" * many
        yield b"a = " + b"{a=" * many
        yield b"a" + b".a" * (many // 20) + b" = 1"
        yield b"9" * many
        yield b"a = " + b"9" * many
        yield b"a = 0x" + b"f" * many
        yield b'{"a":' + b"9" * many + b"}"
        yield b'"' + b"x" * many + b'"'
        yield b"x" * many
        yield b"E<" + b"9" * many + b">"
        yield b"&#" + b"9" * many + b";"
        yield b"kill:stage=" + b"1" * many
        yield b"hetpeer1-" + b"A" * many
