"""Readers of a peer's own folder: a disk errs, and a power cut leaves anything."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpcore2
import msgpack
import torch
from safetensors.torch import save

from bootstrap.data.corpus import read_corpus
from bootstrap.data.documents import Meter, find
from bootstrap.genesis import load_run
from examples.experiments import results as lab_results
from examples.experiments.experiment import Case
from examples.experiments.sweep import _text
from peer.data.text import open_tokens
from peer.lab.switches import Switches
from peer.model.first_weights import read_part
from peer.network.intake import Intake
from peer.network.web import redirected, require_plain
from peer.store.checkpoint import Checkpoint, candidates
from peer.store.membership import MEMBERSHIP, OLD_FILES, KeptMembership, mirrors_of, recall
from peer.store.served import ContributionStore, SnapshotStore
from peer.traffic import USED_FILE, Used, read_used
from protocol.codec.snapshot import Header, pieces_of
from protocol.errors import ResourceError
from protocol.events.activity import RoundDone
from protocol.events.lines import from_line, to_line
from protocol.identity import EMBEDDING, RunId
from protocol.layout import EMBEDDING_TENSOR
from protocol.net.tasks import Notifier
from protocol.outer.data_plan import Reading
from protocol.outer.history import History
from protocol.outer.ledger import Entry, Ledger
from protocol.outer.window import Window
from protocol.run.dataset import DataManifest, Dataset, TokenShard
from protocol.run.dataset import parse_data_manifest as parse_data
from protocol.run.run_files import DESCRIPTOR, descriptor_of, file_names, genesis_file, measure_file
from protocol.trust import certificates
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import CARD_KIND, Card, issue
from protocol.trust.proofs import sign_contribution, sign_revocation
from protocol.trust.ticket import PEERS, Ticket
from tests.fuzz.certified import CERTIFIED, ENDS
from tests.fuzz.material import AUTHOR, AUTHORITY, MANIFEST, OPERATOR, folder, from_file, signer
from tests.fuzz.reader import Reader
from tests.fuzz.signatures import RECEIPT, REVOCATION, behind_signature

BLOB = b"the bytes of a contribution"
SHELVED = sign_contribution(signer(AUTHOR), EMBEDDING, 2, hashlib.sha256(BLOB).hexdigest(), len(BLOB))
NOTHING: tuple[type[Exception], ...] = ()

# Contributions


def ledger() -> Ledger:
    return Ledger(EMBEDDING, AUTHOR.peer_id, Window(3, 1), clock=3)


def read_shelf(path: Path) -> list[tuple[bytes, list[bytes], bool]]:
    found = list(ContributionStore(path.parent.parent).found())
    assert all(isinstance(proof, bytes) for proof, _, _ in found)
    assert all(isinstance(receipt, bytes) for _, receipts, _ in found for receipt in receipts)
    return found


def restore(path: Path) -> list[Entry]:
    """What a peer takes up from its contributions when it starts."""
    ledgers = {EMBEDDING: ledger()}
    unused: Any = None
    Intake(MANIFEST, signer(AUTHOR), unused, ContributionStore(path.parent.parent), ledgers, Notifier()).restore()
    return ledgers[EMBEDDING].all_entries()


def restored() -> list[Entry]:
    own = ledger()
    own.take(SHELVED, vouched=True)
    return own.all_entries()


REVOKED = sign_revocation(OPERATOR, AUTHORITY, REVOCATION)
ON_SHELF = f"{EMBEDDING}/{2:08d}-{SHELVED.sha256}"
SHELF_FILE = msgpack.packb([SHELVED.proof, [RECEIPT]]) + BLOB

# Snapshots

GRID = [torch.arange(300 * 16, dtype=torch.int32).reshape(300, 16).numpy()]
READING = Reading.begin(MANIFEST).fold({0: 3}, MANIFEST).fold({1: 1}, MANIFEST).fold({}, MANIFEST)
PIECES = tuple(hashlib.sha256(piece).hexdigest() for piece in pieces_of(GRID))
STATE = Header(EMBEDDING, 3, History(), PIECES, READING)


def resume(path: Path) -> object:
    store = SnapshotStore(path.parent, MANIFEST)
    header_file, grid_file = (store.path(EMBEDDING, 3).with_suffix(suffix) for suffix in (".header", ".grid"))
    grid_file.write_bytes(b"".join(pieces_of(GRID)) if path == header_file else path.read_bytes())
    if path != header_file:
        header_file.write_bytes(STATE.to_bytes())
    found = store.resume(EMBEDDING)
    return found and found[0]


# Checkpoints

ERROR_FEEDBACK = save({"w": torch.arange(12, dtype=torch.int32).reshape(3, 4)})
CHECKPOINT = {
    "version": 1,
    "round": 2,
    "contributed": 3,
    "parts": {"stage-0": {"sent": {"3": "ab" * 32}, "returned": {}}},
    "files": {"stage-0.error_feedback.safetensors": hashlib.sha256(ERROR_FEEDBACK).hexdigest()},
    "given": 1,
    "heir": "QmHeir",
    "taken": {"QmGiver": 2},
}


def checkpoint_with(state: bytes, error_feedback: bytes) -> list[tuple[int, int, list[str]]]:
    place = folder() / "checkpoints" / "checkpoint-00000001"
    place.mkdir(parents=True, exist_ok=True)
    (place / "state.json").write_bytes(state)
    (place / "stage-0.error_feedback.safetensors").write_bytes(error_feedback)
    return [said(each) for each in candidates(place.parent)]


def said(each: Checkpoint) -> tuple[int, int, list[str]]:
    return each.round, each.contributed, [name for part in each.parts.values() for name in part.error_feedback]


def with_error_feedback(data: bytes) -> object:
    """Its hash is right: so it was written."""
    files = {"stage-0.error_feedback.safetensors": hashlib.sha256(data).hexdigest()}
    return checkpoint_with(json.dumps(CHECKPOINT | {"files": files}).encode(), data)


# What is remembered of a run


def place_in_a_run() -> tuple[Path, Ticket]:
    here = folder() / "remembered"
    if not here.exists():
        here.mkdir()
        for name in file_names(MANIFEST):
            (here / name).write_bytes(name.encode())
        descriptor = descriptor_of(
            MANIFEST, OPERATOR.peer_id, (measure_file(here / each) for each in file_names(MANIFEST))
        )
        (here / DESCRIPTOR).write_bytes(descriptor.canonical())
    run = hashlib.sha256((here / DESCRIPTOR).read_bytes()).hexdigest()
    return here, Ticket(RunId(run), OPERATOR.public, ("127.0.0.1:9",), ())


def own_card() -> bytes:
    _, ticket = place_in_a_run()
    return issue(OPERATOR, ticket.run_id, Card(AUTHOR.peer_id, "volunteer", 1, 0))


def recall_with(name: str) -> Callable[[bytes], object]:
    """What a volunteer finds of its place in the run, given the bytes of one file; the others are whole."""
    root = certificates.authority(OPERATOR)
    old = dict(zip(OLD_FILES, (own_card(), CERTIFIED, root, b"", b""), strict=True))

    def read(data: bytes) -> object:
        here, ticket = place_in_a_run()
        (here / MEMBERSHIP).unlink(missing_ok=True)
        for each, whole in {**old, PEERS: b""}.items():
            (here / each).write_bytes(whole)
        (here / name).write_bytes(data)
        found = recall(here, ticket, AUTHOR, "volunteer", None)
        return found and (found.card, found.addresses, found.credentials.ends)

    return read


def own_membership() -> bytes:
    shown = {"certificate": CERTIFIED.decode(), "authority": certificates.authority(OPERATOR).decode()}
    return KeptMembership(card=own_card(), mirrors=("https://example.org/text",), **shown).model_dump_json().encode()


RECALLED = Card(AUTHOR.peer_id, "volunteer", 1, 0), (), ENDS


def read_run(path: Path) -> object:
    for name in file_names(MANIFEST):
        if not path.with_name(name).exists():
            shutil.copyfile(place_in_a_run()[0] / name, path.with_name(name))
    return load_run(path.parent).operator


# Lab

MEASURED = lab_results.Record(
    id="",
    axes={"mode": "uniform"},
    seed=1,
    replicas=4,
    groups=4,
    curve=[lab_results.Point(1000, 5.5, 5.25)],
    boundary_bytes=2.0,
    outer_bytes=5000.0,
    seconds=2.0,
    tokens_per_second=1000.0,
    peak=None,
    manifest=MANIFEST.model_dump(mode="json"),
    switches=Switches().model_dump(mode="json"),
)


def read_results(path: Path) -> list[lab_results.Record]:
    """A manifest and switches may be of another version, and anything: the id says whether they are known."""
    return [replace(each, manifest={}, switches={}) for each in lab_results.read_records(path.parent)]


MEETING = "/ip4/1.2.3.4/tcp/4001/p2p/QmPeer"
ENDED = RoundDone(2, 1.5, 64, {"stage-0": 2}, {"stage-0": "ab" * 32}, 10, 20)


def measured() -> lab_results.Record:
    case = Case({}, 1, MANIFEST, Switches())
    return replace(MEASURED, id=case.id, manifest={}, switches={})


def identity_file() -> tuple[bytes, object]:
    identity = load_or_create(folder() / "some identity")
    return identity.path.read_bytes(), identity.peer_id


# Prepared text

BLOCK_DIGESTS = hashlib.sha256(b"a block").digest() * 3
PREPARED = DataManifest(
    dtype="uint16",
    vocabulary=300,
    tokenizer="ab" * 32,
    end_of_text=0,
    block_tokens=10,
    documents=3,
    shards=(
        TokenShard(name="a.bin", tokens=11, sha256="cd" * 32),
        TokenShard(name="b.bin", tokens=5, sha256="cd" * 32),
    ),
    held_out_documents=1,
    held_out=TokenShard(name="c.bin", tokens=7, sha256="cd" * 32),
    blocks=hashlib.sha256(BLOCK_DIGESTS).hexdigest(),
    mirrors=("https://example.org/text",),
)


def read_documents(path: Path) -> list[str]:
    """Of a stranger's data set."""
    return [piece.text for source in find([str(path)], "text") for piece in source.pieces(Meter())]


def read_first_weights(path: Path) -> float:
    return read_part(path.parent, MANIFEST, EMBEDDING)[EMBEDDING_TENSOR].sum().item()


PART_VALUES = MANIFEST.model.vocabulary * MANIFEST.model.d
FIRST_WEIGHTS = save({EMBEDDING_TENSOR: torch.ones(MANIFEST.model.vocabulary, MANIFEST.model.d, dtype=torch.int32)})


def redirect(data: bytes) -> str:
    """And the address can be asked."""
    url = redirected("https://mirror.example/text/a.bin", data.decode("latin-1"))
    require_plain(url)
    httpcore2.URL(url)
    return url


TOKENS = b"".join(number.to_bytes(2, "little") for number in range(300))

DISK = (
    Reader(
        "shelf",
        from_file(f"shelf/{ON_SHELF}", read_shelf),
        ((SHELF_FILE, [(SHELVED.proof, [RECEIPT], True)]),),
        allowed=NOTHING,
    ),
    Reader("shelf taken up", from_file(f"taken/{ON_SHELF}", restore), ((SHELF_FILE, restored()),)),
    Reader(
        "revocations taken up",
        from_file("revoked/revocations/one", lambda path: restore(path)),
        ((REVOKED, []),),
        allowed=NOTHING,
    ),
    Reader(
        "snapshot's header file",
        from_file(f"headers/{EMBEDDING}-{3:08d}.header", resume),
        ((STATE.to_bytes(), STATE),),
        "msgpack",
        NOTHING,
    ),
    Reader(
        "snapshot's file",
        from_file(f"grids/{EMBEDDING}-{3:08d}.other", resume),
        ((b"".join(pieces_of(GRID)), STATE),),
        allowed=NOTHING,
    ),
    Reader(
        "checkpoint's state",
        lambda data: checkpoint_with(data, ERROR_FEEDBACK),
        ((json.dumps(CHECKPOINT).encode(), [(2, 3, ["w"])]),),
        "json",
        NOTHING,
    ),
    Reader("checkpoint's tensors", with_error_feedback, ((ERROR_FEEDBACK, [(2, 3, ["w"])]),), allowed=NOTHING),
    Reader("membership", recall_with(MEMBERSHIP), ((own_membership(), RECALLED),), "json", NOTHING),
    behind_signature("remembered card", OPERATOR, CARD_KIND, recall_with("card"), own_card(), RECALLED),
    Reader("remembered certificate", recall_with("certificate"), ((CERTIFIED, RECALLED),), "text", NOTHING),
    Reader(
        "remembered authority",
        recall_with("authority"),
        ((certificates.authority(OPERATOR), RECALLED),),
        "text",
        NOTHING,
    ),
    Reader(
        "remembered peers",
        recall_with(PEERS),
        ((f"{MEETING}\n".encode(), (RECALLED[0], (MEETING,), ENDS)),),
        "text",
        NOTHING,
    ),
    Reader(
        "run.json",
        from_file(f"run/{DESCRIPTOR}", read_run),
        (((place_in_a_run()[0] / DESCRIPTOR).read_bytes(), OPERATOR.peer_id),),
        "json",
        (ResourceError,),
    ),
    Reader(
        "key",
        from_file("identity/identity.key", lambda path: load_or_create(path.parent).peer_id),
        (identity_file(),),
        allowed=(ResourceError,),
    ),
    Reader("tokens", from_file("train.bin", lambda path: open_tokens(path, 300).tobytes()), ((TOKENS, TOKENS),)),
    Reader("data.json", parse_data, ((PREPARED.canonical(), PREPARED),), "json"),
    Reader(
        "first weights of a part",
        from_file(genesis_file(EMBEDDING), read_first_weights),
        ((FIRST_WEIGHTS, PART_VALUES),),
        allowed=(ResourceError,),
    ),
    Reader("blocks.sha256", lambda data: Dataset.of(PREPARED, data).blocks, ((BLOCK_DIGESTS, 3),)),
    Reader(
        "remembered mirrors",
        from_file(f"mirrors/{MEMBERSHIP}", lambda path: mirrors_of(path.parent)),
        ((own_membership(), ("https://example.org/text",)),),
        "json",
        NOTHING,
    ),
    Reader(
        "where a mirror redirects to",
        redirect,
        (
            (b"/moved/a.bin", "https://mirror.example/moved/a.bin"),
            (b"https://b.example/x?y#z", "https://b.example/x?y"),
        ),
        "text",
    ),
    Reader(
        "lines of JSON",
        from_file("documents/some.jsonl", read_documents),
        ((b'{"text": "one", "number": 2}', ["one"]),),
        "json",
        (ResourceError,),
    ),
    Reader(
        "a folder's text",
        from_file("documents/some.txt", read_documents),
        ((b"Text.\n", ["Text.\n"]),),
        "text",
        (ResourceError,),
    ),
    Reader(
        "results of the lab",
        from_file(f"lab/{lab_results.RESULTS}", read_results),
        ((MEASURED.line().encode() + b"\n", [measured()]),),
        "json",
    ),
    Reader(
        "traffic that is used",
        from_file(f"traffic/{USED_FILE}", lambda path: read_used(path.parent)),
        ((b'{"window": "2026-11", "bytes": 12}', Used("2026-11", 12)),),
        "json",
        (ResourceError,),
    ),
    Reader("text of a sweep", from_file("setting.json", _text), ((b'{"data": "texts"}', "texts"),), "json"),
    Reader(
        "event",
        lambda data: to_line(from_line(data.decode(errors="replace"))),
        ((to_line(ENDED).encode(), to_line(ENDED)),),
        "json",
        (ValueError,),
    ),
    Reader(
        "corpus",
        from_file("corpus.txt", lambda path: read_corpus(path).documents),
        ((b"A text.\n", ("A text.\n",)),),
        "text",
        (ResourceError,),
    ),
)
