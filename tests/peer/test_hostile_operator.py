"""What a volunteer that was given a hostile operator's ticket does: nothing that costs it anything."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from bootstrap.admission.admission_policy import AdmissionPolicy
from bootstrap.admission.places import Admission
from bootstrap.admission.registration import RegistrationService
from bootstrap.data import published_text
from bootstrap.genesis import create_run
from bootstrap.node import as_operator
from peer.daemon import run_until
from peer.settings import PeerSettings
from peer.store.disk import space_in
from peer.swarm.node import Node, RoleWork
from peer.telemetry.status import EventStream
from protocol.errors import FormatError, HetpeerError, ResourceError
from protocol.events.event import Event
from protocol.manifest import Manifest
from protocol.net.blobs import BlobService
from protocol.net.channels import listen, options
from protocol.net.guard import Guard
from protocol.run.run_files import (
    BASIS,
    TRAIN,
    Descriptor,
    RunFile,
    descriptor_of,
    file_names,
    files_needed,
    genesis_file,
)
from protocol.schemas import blobs_pb2_grpc, run_pb2_grpc
from protocol.trust.membership_card import Authority
from protocol.trust.records import Register
from protocol.trust.ticket import Ticket
from tests.reference.admitted import identity
from tests.reference.small_manifest import small_manifest

OPERATOR = identity("operator")
MOST_GROWTH = 256 * 2**20
"""With the modules that joining loads."""


class Counted(RegistrationService):
    """The operator's door, by the code that honest ones run."""

    registered = 0

    async def Register(self, request: Any, context: Any) -> Any:
        self.registered += 1
        return await super().Register(request, context)


class NoRecords:
    async def read_all(self) -> dict[str, object]:
        return {}


class Endless(blobs_pb2_grpc.BlobsServicer):
    """Counts who asks for files."""

    fetched = 0

    async def Fetch(self, request: Any, context: Any) -> Any:
        self.fetched += 1
        await context.abort(grpc.StatusCode.NOT_FOUND, "this test ends here")
        yield


def run_of(manifest: Manifest, **sizes: int) -> Descriptor:
    """A run whose files have these sizes, and else ten bytes."""
    files = (
        RunFile(name, hashlib.sha256(name.encode()).hexdigest(), sizes.get(name, 10)) for name in file_names(manifest)
    )
    return descriptor_of(manifest, OPERATOR.peer_id, files)


def join(
    folder: Path,
    descriptor: Descriptor,
    stage: int | None = None,
    served: Path | None = None,
    work: RoleWork | None = None,
    **limits: Any,
) -> tuple[int, int, HetpeerError]:
    """How often a volunteer of such a run has asked for a place, and for a file, and how it ended. Where files are
    `served`, it comes to its `work`."""

    async def scene() -> tuple[int, int, HetpeerError]:
        by, admission_policy = as_operator(OPERATOR, 600.0), AdmissionPolicy(folder / "operator")
        outside = grpc.aio.server(options=options(None))
        inside = grpc.aio.server(options=options(descriptor.manifest), interceptors=[Guard(admission_policy.objection)])
        port = listen(outside, "127.0.0.1:0", by.credentials.for_registration())
        files = listen(inside, "127.0.0.1:0", by.credentials.serving())
        register = Register(Authority(descriptor.run_id, OPERATOR.peer_id), descriptor.manifest)
        places = Admission(descriptor.manifest), OPERATOR, by.credentials, files, 600.0, admission_policy, by.card
        registration, endless = Counted(descriptor, NoRecords(), register, *places), Endless()  # type: ignore[arg-type]
        run_pb2_grpc.add_RunServicer_to_server(registration, outside)
        files_of = BlobService(descriptor.manifest, published_text.lookup(descriptor, served)) if served else endless
        blobs_pb2_grpc.add_BlobsServicer_to_server(files_of, inside)
        await outside.start()
        await inside.start()
        ticket = Ticket(descriptor.run_id, OPERATOR.public, (f"127.0.0.1:{port}",), ())
        settings = PeerSettings(
            ticket=ticket, role="volunteer", directory=folder / "peer", stage=stage, device="cpu", **limits
        )
        settings.directory.mkdir()
        said: list[Event] = []
        try:
            await run_until(asyncio.Event(), settings, EventStream([said.append]), work)
        except HetpeerError as error:
            return registration.registered, endless.fetched, error
        finally:
            await outside.stop(None)
            await inside.stop(None)
        raise AssertionError("it has joined")

    (folder / "operator").mkdir(exist_ok=True)
    return asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize("name", [BASIS, TRAIN, genesis_file("embedding"), genesis_file("stage-1")])  # type: ignore[arg-type]
def test_a_run_with_a_file_of_a_tebibyte_is_no_run(tmp_path: Path, name: str) -> None:
    registered, fetched, error = join(tmp_path, run_of(small_manifest(), **{name: 2**40}))
    assert (registered, fetched) == (0, 0)
    assert isinstance(error, FormatError)
    assert f"{name} has {2**40} bytes" in str(error)
    assert [path.name for path in (tmp_path / "peer").iterdir()] == ["identity.key"]


ENORMOUS = {"layers": 1024, "d": 65536, "heads": 64, "kv_heads": 64, "ffn": 2**20, "vocabulary": 2**18, "context": 8}


@pytest.mark.parametrize("stage", [None, 1])
def test_an_enormous_model_is_refused_by_arithmetic(tmp_path: Path, stage: int | None) -> None:
    """200 million million parameters, as many as a manifest can name: before a file is fetched or a place asked for."""
    descriptor = run_of(small_manifest(model=ENORMOUS))
    before = psutil.Process().memory_info().rss
    registered, fetched, error = join(tmp_path, descriptor, stage)
    assert psutil.Process().memory_info().rss - before < MOST_GROWTH
    assert (registered, fetched) == (0, 0)
    assert isinstance(error, ResourceError)
    assert ("not enough memory" if stage else "no stage of this run fits this machine") in str(error)


def test_a_text_that_the_owner_gives_no_room_for_is_not_fetched(tmp_path: Path) -> None:
    """Its size is the operator's to choose, up to 16 GiB."""
    registered, fetched, error = join(tmp_path, run_of(small_manifest(), **{TRAIN: 2**29}), 0, max_disk=500 * 10**6)
    assert (registered, fetched) == (0, 0)
    assert isinstance(error, ResourceError)
    assert "--max-disk 500.0 MB is not enough for stage 0" in str(error)


def test_a_peer_ends_when_what_others_contribute_has_no_room_left(tmp_path: Path) -> None:
    """Its store of contributions has what --max-disk leaves beside what the place itself keeps."""
    text, most = tmp_path / "text.txt", 2 * 10**8
    text.write_text("Some words of a small text, again and again.\n" * 200)
    made = create_run(small_manifest(), tmp_path / "run", text)
    descriptor = descriptor_of(made.manifest, OPERATOR.peer_id, made.files)

    async def work(node: Node) -> None:
        intake = node.reconciler.intake
        names = files_needed(descriptor, 1)
        assert intake.contribution_store.most_bytes == most - space_in(tmp_path, descriptor, names, 1, True, most).fixed
        intake.unkept(ResourceError("the disk is full"))
        await asyncio.Event().wait()

    _, _, error = join(tmp_path, descriptor, 1, tmp_path / "run", work, max_disk=most)
    assert str(error) == "the disk is full"


@pytest.mark.parametrize(
    "tables",
    [
        {"inner": {"sequences": 2**30, "microbatch": 1}},
        {"inner": {"sequences": 2**22, "microbatch": 2**22}},
        {"evaluation": {"sequences": 2**30}},
    ],
)
def test_batches_that_no_memory_holds_are_no_manifest(tmp_path: Path, tables: dict[str, Any]) -> None:
    registered, fetched, error = join(tmp_path, Hostile(run_of(small_manifest()), tables))  # type: ignore[arg-type]
    assert (registered, fetched) == (0, 0)
    assert isinstance(error, FormatError)
    assert "tokens" in str(error)


class Hostile:
    """A descriptor that honest code would not make."""

    def __init__(self, honest: Descriptor, tables: dict[str, Any]) -> None:
        document = json.loads(honest.canonical())
        for table, fields in tables.items():
            document["manifest"][table] |= fields
        self.bytes = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        self.run_id, self.manifest = hashlib.sha256(self.bytes).hexdigest(), honest.manifest

    def canonical(self) -> bytes:
        return self.bytes
