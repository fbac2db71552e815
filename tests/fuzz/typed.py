"""Readers of what people write or fetch: tickets, manifests, experiments, chaos, archives of texts."""

import gzip
import hashlib
import io
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import msgpack

from examples.experiments.experiment import PAPER, cases, load_experiment
from examples.experiments.texts.decoders import MAX_TOTAL, DocumentDecoder, plain, r_lines, read_members, sword
from peer.cli.options import duration
from peer.testnet.chaos import NOTATIONS, parse_chaos
from peer.testnet.faults import Fault
from protocol.errors import ManifestError, TicketError, UserError
from protocol.manifest import load_manifest
from protocol.trust import ticket as tickets
from protocol.trust.ticket import TICKET_PREFIX, Ticket
from tests.fuzz.material import MANIFEST, OPERATOR, RUN, folder, from_file
from tests.fuzz.reader import Reader
from tests.reference.small_manifest import SMALL

TICKET = Ticket(
    RUN, OPERATOR.public, ("example.org:4000", "[::1]:4000"), ("/ip4/1.2.3.4/tcp/4001/p2p/QmPeer",), b"t" * 20
)
TICKET_FIELDS = [
    bytes.fromhex(RUN),
    TICKET.authority,
    [*TICKET.node_addresses],
    [*TICKET.addresses],
    TICKET.token,
]
TOML = "\n".join(
    f"[{table}]\n" + "\n".join(f"{key} = {value}" for key, value in of.items()) for table, of in SMALL.items()
)
EXPERIMENT = """
title = "Does it matter?"
seeds = [1]
replicas = 4
steps = 12
x = "replicas.compression"
[base.model]
preset = "nano"
[base.outer]
rounds = 7
[[grid]]
mode = ["uniform", "heterogeneous"]
"replicas.compression" = [8, 16]
"lab.values" = "exact"
"""


def read_ticket_body(data: bytes) -> Ticket:
    """Its check is right."""
    from base64 import urlsafe_b64encode

    check = hashlib.sha256(data).digest()[:4]
    return tickets.parse_ticket(TICKET_PREFIX + urlsafe_b64encode(check + data).decode().rstrip("="))


def read_given(data: bytes) -> Ticket:
    """An argument holds no zero."""
    return tickets.find_ticket(data.decode(errors="replace").replace("\0", "") or None, folder() / "no home")


def read_experiment(path: Path) -> list[str]:
    return [case.name for case in cases(load_experiment(path, PAPER))]


def read_chaos(data: bytes) -> tuple[Fault, ...]:
    faults = parse_chaos(data.decode(errors="replace"), NOTATIONS)
    assert parse_chaos(",".join(map(str, faults)), NOTATIONS) == faults
    return faults


def documents(decode: DocumentDecoder, name: str, **more: bytes) -> Callable[[bytes], object]:
    return lambda data: list(decode({name: data} | more))


BLOCK = zlib.compress(b"<p>In the beginning</p>")
INDEX = struct.pack("<III", 0, len(BLOCK), 23)
STRINGS = b"X\n" + struct.pack(">iii", 2, 0, 0) + struct.pack(">ii", 16, 1) + struct.pack(">ii", 9, 4) + b"Emma"
VECTOR = struct.pack(">I", len(STRINGS)) + zlib.compress(STRINGS)


def wheel(compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as opened:
        opened.writestr(zipfile.ZipInfo("a/one.txt"), b"One." * 20)
    return packed.getvalue()


def tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as opened:
        member = tarfile.TarInfo("a/one.txt")
        member.size = 4
        opened.addfile(member, io.BytesIO(b"One."))
    return packed.getvalue()


def members(path: Path) -> dict[str, bytes]:
    return read_members(path, re.compile(r"a/(.+)\.txt"))


MANIFEST_ONLY = (ManifestError,)
UNPACKED = {"one": b"One."}

TYPED = (
    Reader(
        "ticket",
        lambda data: tickets.parse_ticket(data.decode(errors="replace")),
        ((str(TICKET).encode(), TICKET),),
        "text",
        (TicketError,),
    ),
    Reader(
        "ticket's body",
        read_ticket_body,
        ((msgpack.packb(TICKET_FIELDS), TICKET),),
        "msgpack",
        (TicketError,),
    ),
    Reader("ticket given", read_given, ((str(TICKET).encode(), TICKET),), "text", (TicketError,)),
    Reader(
        "run.toml",
        from_file("run.toml", lambda path: load_manifest(path, {"run.seed": 7, "outer.rounds": 100}).digest),
        ((TOML.encode(), MANIFEST.digest),),
        "text",
        MANIFEST_ONLY,
    ),
    Reader(
        "experiment",
        from_file("experiment.toml", read_experiment),
        (
            (
                EXPERIMENT.encode(),
                [
                    f"{mode}, compression {compression}, values exact, seed 1"
                    for mode in ("uniform", "heterogeneous")
                    for compression in (8, 16)
                ],
            ),
        ),
        "text",
        MANIFEST_ONLY,
    ),
    Reader(
        "chaos",
        read_chaos,
        tuple((each.example.encode(), parse_chaos(each.example, NOTATIONS)) for each in NOTATIONS.values()),
        "text",
        (UserError,),
    ),
    Reader(
        "duration",
        lambda data: duration(data.decode(errors="replace")),
        ((b"30m", 1800), (b"7d", 7 * 86400)),
        "text",
        (UserError,),
    ),
    Reader("text", documents(plain, "one"), ((b"One.", [("one", "One.")]),), "text"),
    Reader("text in gzip", documents(plain, "one.gz"), ((gzip.compress(b"One."), [("one.gz", "One.")]),)),
    Reader(
        "SWORD's index", documents(sword, "ot.czs", **{"ot.czz": BLOCK}), ((INDEX, [("ot-000", "In the beginning")]),)
    ),
    Reader("R's vectors", documents(r_lines, "Rdata.rdb"), ((VECTOR, [("Emma", "Emma")]),)),
    Reader(
        "R's strings",
        documents(lambda files: r_lines({"": struct.pack(">I", len(files[""])) + zlib.compress(files[""])}), ""),
        ((STRINGS, [("Emma", "Emma")]),),
    ),
    Reader(
        "wheel",
        from_file("one.whl", members),
        tuple(
            (wheel(kind), {"one": b"One." * 20}) for kind in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)
        ),
    ),
    Reader(
        "tar", from_file("one.tar", members), ((tar(), UNPACKED), (gzip.compress(tar()), UNPACKED)), room=2 * MAX_TOTAL
    ),
)
