"""The wire, read by another program: written from docs/wire.md alone, with nothing of hetpeer and nothing but Python.

Slow and plain. What the document marks ✗ is a ValueError here.
"""

import base64
import hashlib
import math
import re
import struct
from typing import Any

Manifest = dict[str, dict[str, Any]]
Shape = tuple[int, ...]
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise ValueError(reason)


class Bytes:
    """Bytes taken from front to back."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        require(0 <= count <= len(self.data) - self.at, "the bytes end too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def numbers(self, format: str) -> tuple[Any, ...]:
        return struct.unpack(format, self.take(struct.calcsize(format)))


# The model's tensors


def layout(manifest: Manifest, part: int) -> dict[str, Shape]:
    model, stages = manifest["model"], manifest["replicas"]["stages"]
    d, ffn, vocabulary = model["d"], model["ffn"], model["vocabulary"]
    if part == 0:
        return {"model.embed_tokens.weight": (vocabulary, d)}
    queries, keys = d, model["kv_heads"] * (d // model["heads"])
    stage, shapes = part - 1, {}
    share, extra = divmod(model["layers"], stages)
    cut = manifest["replicas"].get("layers", [share + (s < extra) for s in range(stages)])
    first, width = sum(cut[:stage]), manifest["replicas"].get("ngram_width", d // 8)
    for n in range(1, manifest["replicas"].get("ngrams", 0) + 1 if stage else 1):
        shapes[f"model.ngrams.{first}.{n}"] = (vocabulary if n == 1 else 4 * vocabulary, width)
    for layer in range(first, sum(cut[: stage + 1])):
        for name, shape in (
            ("input_layernorm", (d,)),
            ("self_attn.q_proj", (queries, d)),
            ("self_attn.k_proj", (keys, d)),
            ("self_attn.v_proj", (keys, d)),
            ("self_attn.o_proj", (d, queries)),
            ("post_attention_layernorm", (d,)),
            ("mlp.gate_proj", (ffn, d)),
            ("mlp.up_proj", (ffn, d)),
            ("mlp.down_proj", (d, ffn)),
        ):
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    if stage == stages - 1:
        shapes |= {"model.norm.weight": (d,), "lm_head.weight": (vocabulary, d)}
    return shapes


def part_number(name: str) -> int:
    return 0 if name == "embedding" else 1 + int(name.removeprefix("stage-"))


# The contribution


def contribution(data: bytes, manifest: Manifest) -> dict[str, Any]:
    """The tensors as (row-major positions, values), in canonical order."""
    outer, reader = manifest["outer"], Bytes(data)
    magic, run, round, steps, slot, part, codec, n = reader.numbers("<4s32sIIIHBB")
    require(magic == b"HPC2", "another magic")
    require(1 <= round <= outer["rounds"] and 0 <= steps <= manifest["inner"]["steps"], "a round or steps out of range")
    require(part <= manifest["replicas"]["stages"], "no such part")
    require(codec < 2 and ("bf16", "2bit")[codec] == outer["values"], "another codec")
    require(1 <= n <= 64, "an author of no length that may be")
    author = reader.take(n).decode("latin-1")
    require(set(author) <= set(ALPHABET), "an author that is not base58")
    tensors = {name: tensor(reader, shape, manifest) for name, shape in layout(manifest, part).items()}
    require(reader.at == len(data), "bytes behind the last tensor")
    said = {"run": run.hex(), "round": round, "steps": steps, "slot": slot, "part": part, "author": author}
    return said | {"tensors": tensors}


def tensor(reader: Bytes, shape: Shape, manifest: Manifest) -> list[list[int]]:
    side, top_k = manifest["outer"]["chunk_side"], manifest["outer"]["top_k"]
    if len(shape) == 1:
        full, rest = divmod(shape[0], side**2)
        sizes = [side**2] * full + [rest] * (rest > 0)
    else:
        rows, columns = (max(i for i in range(1, side + 1) if length % i == 0) for length in shape)
        sizes = [rows * columns] * (shape[0] // rows * (shape[1] // columns))
    counts = [max(1, round(size * top_k / side**2)) for size in sizes]
    kept = sum(counts)
    x = 69 * sizes[0] // (100 * counts[0])
    r = max(0, int(math.log2(x))) if x else 0
    (m,) = reader.numbers("<I")
    require(m <= (kept + sum(size // 2**r for size in sizes) + 7) // 8, "a unary stream too long to be one")
    gaps = [q * 2**r + rest for q, rest in zip(unary(reader.take(m), kept), fields(reader, kept, r), strict=True)]
    values, positions, chunks = values_of(reader, kept, manifest["outer"]["values"]), [], iter(gaps)
    for chunk, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        offset = -1
        for _ in range(count):
            offset += next(chunks) + 1
            require(offset < size, "an offset outside its chunk")
            if len(shape) == 1:
                positions.append(chunk * side**2 + offset)
            else:
                across = shape[1] // columns
                row = chunk // across * rows + offset // columns
                positions.append(row * shape[1] + chunk % across * columns + offset % columns)
    return [positions, values]


def unary(data: bytes, count: int) -> list[int]:
    bits = [byte >> i & 1 for byte in data for i in range(8)]
    runs, zeros = [], 0
    for at, bit in enumerate(bits):
        zeros += 1
        if bit:
            runs.append(zeros - 1)
            zeros = 0
            last = at
    require(len(runs) == count and last // 8 == len(data) - 1, "not as many unary values as are kept")
    return runs


def fields(reader: Bytes, count: int, width: int) -> list[int]:
    numbers, low = [0] * count, 0
    while low < width:
        bits = next(bits for bits in (8, 4, 2, 1) if bits <= width - low)
        length = (count * bits + 7) // 8
        stream = reader.take(length)
        for i in range(length * 8 // bits):
            piece = stream[i % length] >> bits * (i // length) & (1 << bits) - 1
            require(i < count or piece == 0, "a bit set in the filling")
            if i < count:
                numbers[i] |= piece << low
        low += bits
    return numbers


def values_of(reader: Bytes, kept: int, codec: str) -> list[int]:
    if codec == "bf16":
        halves = reader.numbers(f"<{kept}H")
        require(0x8000 not in halves, "minus zero")
        floats = [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]
        require(all(math.isfinite(v) and v == int(v) and abs(v) < 2**31 for v in floats), "not an integer of the grid")
        return [int(v) for v in floats]
    low, high = reader.numbers("<II")
    codes = fields(reader, kept, 2)
    require(low <= high < 2**31, "levels out of order or range")
    used = {code & 1 for code in codes}
    require(used == ({0, 1} if low < high else {0}), "levels said in another way than the one there is")
    values = [(high if code & 1 else low) * (-1 if code & 2 else 1) for code in codes]
    require(all(value or not code & 2 for value, code in zip(values, codes, strict=True)), "a negative zero")
    return values


# Frames


def protobuf(data: bytes) -> dict[int, list[Any]]:
    """Field number → values: numbers, or bytes."""
    reader, found = Bytes(data), {}

    def varint() -> int:
        number = shift = 0
        while True:
            (byte,) = reader.take(1)
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while reader.at < len(data):
        key = varint()
        require(key & 7 in (0, 2), "a wire type that is not used here")
        found.setdefault(key >> 3, []).append(varint() if key & 7 == 0 else reader.take(varint()))
    return found


def frame(data: bytes, manifest: Manifest) -> dict[str, Any]:
    """Tensors and token ids as flat lists."""
    (kind,) = message = protobuf(data)
    fields = protobuf(message[kind][0])
    place = protobuf(fields[1][0])
    said: dict[str, Any] = {"kind": {1: "forward", 2: "backward"}[kind]}
    said |= {name: place.get(number, [0])[0] for number, name in ((1, "round"), (2, "step"), (3, "microbatch"))}
    b, context = manifest["inner"]["microbatch"], manifest["model"]["context"]
    shape = [b, context, manifest["model"]["d"] // manifest["replicas"]["compression"]]
    replicas = manifest["replicas"]
    name, wire = ("activations", replicas["wire"]) if kind == 1 else ("gradients", replicas["gradient_wire"])
    said[name] = frame_tensor(fields[2][0], shape, replicas["wire"] if wire == "same" else wire)
    if kind == 1:
        require(len(fields[3][0]) == 4 * b * (context + 1), "another number of tokens")
        said["tokens"] = list(struct.unpack(f"<{b * (context + 1)}I", fields[3][0]))
        require(max(said["tokens"]) < manifest["model"]["vocabulary"], "a token not in the vocabulary")
        said["embedding_digest"] = fields[4][0].hex()
    return said


def frame_tensor(data: bytes, shape: list[int], wire: str) -> list[float]:
    fields = protobuf(data)
    sides, number = protobuf_numbers(fields[2][0]), math.prod(shape)
    formats = {"bf16": 1, "fp32": 2, "int8": 3, "int4": 4}
    require(sides == shape and fields[1] == [formats[wire]], "another shape or number format")
    if wire in ("int8", "int4"):
        return integers(fields[3][0], shape, wire)
    if wire == "fp32":
        return list(struct.unpack(f"<{number}f", fields[3][0]))
    halves = struct.unpack(f"<{number}H", fields[3][0])
    return [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]


def integers(data: bytes, shape: list[int], wire: str) -> list[float]:
    b, context, width = shape
    packed = width if wire == "int8" else (width + 1) // 2
    half, step = {"int8": (128, 0.0308), "int4": (8, 0.3352)}[wire]
    require(len(data) == b * context * (2 + packed), "another length")
    values = []
    for at in range(0, len(data), 2 + packed):
        (upper,) = struct.unpack("<H", data[at : at + 2])
        (scale,) = struct.unpack("<f", struct.pack("<I", upper << 16))
        token = data[at + 2 : at + 2 + packed]
        cells = list(token) if wire == "int8" else [half for byte in token for half in (byte & 15, byte >> 4)]
        require(not any(cells[width:]), "something in the half byte that is left over")
        values += [float32((cell - half + 0.5) * float32(scale * float32(step))) for cell in cells[:width]]
    return values


def float32(number: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", number))
    return float(rounded)


def protobuf_numbers(packed: bytes) -> list[int]:
    """A packed list of varints."""
    numbers, shift = [0], 0
    for at, byte in enumerate(packed):
        numbers[-1] |= (byte & 127) << shift
        shift = shift + 7 if byte > 127 else 0
        if byte < 128 and at + 1 < len(packed):
            numbers.append(0)
    return numbers


# What is signed


def msgpack(data: bytes) -> Any:
    """The one value that these bytes say, each of its parts in its shortest form."""
    reader = Bytes(data)
    value = item(reader)
    require(reader.at == len(data), "bytes behind the value")
    return value


NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xCB: ">d"}
LENGTHS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
COUNTS = {0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def item(reader: Bytes) -> Any:
    (code,) = reader.take(1)
    if code < 0x80:
        return code
    if code in (0xC2, 0xC3):
        return code == 0xC3
    if code in NUMBERS:
        return reader.numbers(NUMBERS[code])[0]
    if code in LENGTHS:
        raw = reader.take(reader.numbers(LENGTHS[code])[0])
        return raw if code < 0xD9 else raw.decode()
    if code >> 5 == 5:
        return reader.take(code & 31).decode()
    count = code & 15 if code < 0xA0 else reader.numbers(COUNTS[code])[0]
    if code >> 4 == 9 or code in (0xDC, 0xDD):
        return [item(reader) for _ in range(count)]
    return {item(reader): item(reader) for _ in range(count)}


def signed(data: bytes, kind: str) -> tuple[str, list[Any]]:
    """(Peer id of the signer, fields)."""
    require(len(data) <= 24576, "too long")
    reader = Bytes(data)
    r, s = (int.from_bytes(reader.take(32), "big") for _ in range(2))
    public, body = reader.take(33), data[97:]
    require(body.startswith(kind.encode() + b"\0"), "another kind")
    point = uncompressed(public)
    require(holds(point, r, s, hashlib.sha256(body).digest()), "the signature does not hold")
    found = msgpack(body[len(kind) + 1 :])
    require(isinstance(found, list), "no list")
    return peer_id(point), found


def peer_id(point: tuple[int, int]) -> str:
    key = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")
    key += b"".join(each.to_bytes(32, "big") for each in point)
    hashed = b"\x12\x20" + hashlib.sha256(b"\x08\x03\x12\x5b" + key).digest()
    number, letters = int.from_bytes(hashed, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        letters = ALPHABET[digit] + letters
    return letters


# P-256, as FIPS 186 has it

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
Point = tuple[int, int] | None


def uncompressed(public: bytes) -> tuple[int, int]:
    x = int.from_bytes(public[1:], "big")
    y = pow(x**3 - 3 * x + B, (P + 1) // 4, P)
    require(public[0] in (2, 3) and x < P and (y * y - x**3 + 3 * x - B) % P == 0, "no point of the curve")
    return x, y if y % 2 == public[0] % 2 else P - y


def plus(one: Point, other: Point) -> Point:
    if one is None or other is None:
        return one or other
    (x, y), (u, v) = one, other
    if x == u and (y + v) % P == 0:
        return None
    slope = (3 * x * x - 3) * pow(2 * y, -1, P) if one == other else (v - y) * pow(u - x, -1, P)
    w = (slope * slope - x - u) % P
    return w, (slope * (x - w) - y) % P


def times(factor: int, point: Point) -> Point:
    total: Point = None
    while factor:
        if factor & 1:
            total = plus(total, point)
        point, factor = plus(point, point), factor >> 1
    return total


def holds(key: Point, r: int, s: int, digest: bytes) -> bool:
    if not (0 < r < ORDER and 0 < s < ORDER):
        return False
    inverse = pow(s, -1, ORDER)
    where = plus(times(int.from_bytes(digest, "big") * inverse % ORDER, G), times(r * inverse % ORDER, key))
    return where is not None and where[0] % ORDER == r


def card(data: bytes) -> dict[str, Any]:
    issuer, (run, peer, role, stage, slot, on_trial, by) = signed(data, "card")
    said = {
        "issuer": issuer,
        "run": run,
        "peer": peer,
        "role": role,
        "stage": stage,
        "slot": slot,
        "on_trial": on_trial,
    }
    return said | {"by": card(by) if by else None}


def entry(data: bytes) -> dict[str, Any]:
    message = protobuf(data)
    author, (run, part, round, sha256, size, own) = signed(message[1][0], "contribution")
    said = {"run": run, "part": part, "round": round, "author": author, "sha256": sha256.hex(), "size": size}
    key = hashlib.blake2b(f"{part} {round} {author} {sha256.hex()}".encode(), digest_size=8).hexdigest()
    return said | {"card": card(own), "key": key, "receipts": [receipt(each, said) for each in message[2]]}


def receipt(data: bytes, said: dict[str, Any]) -> dict[str, Any]:
    holder, (run, part, round, author, sha256, own) = signed(data, "receipt")
    named = {"run": run, "part": part, "round": round, "author": author, "sha256": sha256.hex()}
    require(said == said | named, "a receipt for something else")
    return {"holder": holder, "card": card(own)}


def revocation(data: bytes) -> dict[str, Any]:
    operator, (run, author, first, issued) = signed(data, "revocation")
    return {"operator": operator, "run": run, "author": author, "first": first, "issued": issued}


def bequest(data: bytes) -> dict[str, Any]:
    giver, (run, heir, number, sha256, size, own) = signed(data, "bequest")
    said = {"run": run, "giver": giver, "heir": heir, "number": number, "sha256": sha256.hex()}
    return said | {"size": size, "card": card(own)}


def inheritance(data: bytes) -> dict[str, Any]:
    heir, (run, giver, number, reason) = signed(data, "inheritance")
    return {"run": run, "giver": giver, "heir": heir, "number": number, "reason": reason}


def work(data: bytes) -> dict[str, Any]:
    signer, said = signed(data, "work")
    names = ["run", "receiver", "round", "replica", "stage", "since", "attempts", "forward", "backward", "tokens"]
    require(len(said) == len(names) + 1, "other fields than those of work")
    own = card(said[-1])
    require(own["peer"] == signer and abs(own["stage"] - said[4]) == 1, "not a neighbour's")
    return dict(zip(names, said, strict=False)) | {"signer": signer, "card": own}


def peer_record(data: bytes) -> dict[str, Any]:
    require(len(data) <= 4096, "too long")
    peer, (run, packed, own) = signed(data, "record")
    return said_with(packed, peer, run, own)


def statement(data: bytes) -> dict[str, Any]:
    peer, (run, packed, told, own) = signed(data, "statement")
    claims = {part: [[r, digest.hex(), count] for r, digest, count in closed] for part, closed in told.items()}
    return said_with(packed, peer, run, own) | {"claims": claims}


def said_with(packed: bytes, peer: str, run: str, own: bytes) -> dict[str, Any]:
    record, place = msgpack(packed), card(own)
    require(record["peer_id"] == place["peer"] == peer, "it speaks for another")
    require(place["run"] == run, "a card of another run")
    require(
        all(record[field] == place[field] for field in ("role", "stage", "slot", "on_trial")),
        "another place than its card's",
    )
    return {"run": run, "record": record, "card": place}


# The ticket


def ticket(data: bytes) -> dict[str, Any]:
    text = "".join(data.decode().split())
    require(text.startswith("hetpeer1-"), "no ticket")
    encoded = text.removeprefix("hetpeer1-")
    require(re.fullmatch("[A-Za-z0-9_-]*", encoded) is not None, "other characters")
    raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    require(base64.urlsafe_b64encode(raw).decode().rstrip("=") == encoded, "unused bits are set")
    require(hashlib.sha256(raw[4:]).digest()[:4] == raw[:4], "a damaged ticket")
    run, authority, doors, addresses, token = msgpack(raw[4:])
    require(len(run) == 32 and len(token) <= 64, "a run or token of another length")
    require(1 <= len(doors) <= 1024 >= len(addresses), "no door, or too many addresses")
    ports = [re.fullmatch(r"[^\s\[\]:]+:([0-9]+)|\[[^\s\[\]]*:[^\s\[\]]*\]:([0-9]+)", door) for door in doors]
    require(all(port and 1 <= int(port[1] or port[2]) <= 65535 for port in ports), "no address")
    said = {"run": run.hex(), "authority": authority.hex(), "operator": peer_id(uncompressed(authority))}
    return said | {"token": token.hex(), "doors": doors, "addresses": addresses}


# The snapshot


def snapshot_header(data: bytes, manifest: Manifest) -> dict[str, Any]:
    version, part, round, history, joined, read = msgpack(data)
    require(version == 2, "another version")
    size = 4 * sum(map(math.prod, layout(manifest, part_number(part)).values()))
    require(len(joined) == 32 * -(-size // 2**20), "another number of pieces")
    require(list(history) == sorted(history), "authors out of order")
    pieces = [joined[at : at + 32].hex() for at in range(0, len(joined), 32)]
    digest = hashlib.sha256(data).hexdigest()
    said = {"part": part, "round": round, "history": history, "pieces": pieces, "digest": digest}
    return said | {"reading": reading(read) if part == "embedding" else None}


def reading(data: bytes) -> dict[str, Any]:
    numbers = iter(struct.unpack(f"<{len(data) // 8}Q", data))

    def pairs() -> list[list[int]]:
        return [[next(numbers), next(numbers)] for _ in range(next(numbers))]

    said = {"folded": next(numbers), "fresh": next(numbers), "free": pairs(), "seen": pairs()}
    plans = []
    for count in numbers:
        plans.append({"seats": [next(numbers) for _ in range(count)], "spans": pairs()})
    return said | {"plans": plans}


def snapshot_state(data: bytes, manifest: Manifest, part: str) -> dict[str, Any]:
    reader, tensors, state = Bytes(data), {}, hashlib.sha256()
    for name, shape in layout(manifest, part_number(part)).items():
        values = reader.take(4 * math.prod(shape))
        tensors[name] = list(struct.unpack(f"<{math.prod(shape)}i", values))
        state.update(f"{name} {shape}\n".encode() + values)
    require(reader.at == len(data), "bytes behind the last tensor")
    return {"part": part, "tensors": tensors, "state": state.hexdigest()}
