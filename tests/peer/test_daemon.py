"""What the daemon puts together decides as its parts do: seen by the door that volunteers take."""

import asyncio
import resource
from datetime import datetime
from pathlib import Path

import grpc
import pytest

from bootstrap.admission.admission_policy import OBSERVER_FOLDER
from bootstrap.genesis import create_run
from peer.daemon import SHUT_OUT, run_with_pauses
from peer.diagnosis.machine import open_files
from peer.pausing import request_pause
from peer.settings import PeerSettings
from peer.swarm.node import Node
from peer.telemetry.status import EventStream
from peer.traffic import Used, read_used, write_used
from protocol.errors import RefusedError
from protocol.events.activity import Paused, Warned
from protocol.events.event import Event
from protocol.identity import EMBEDDING, RunId
from protocol.net.channels import connect, handshake
from protocol.outer.ledger import Revocation
from protocol.run.run_files import descriptor_of
from protocol.schemas import blobs_pb2, blobs_pb2_grpc
from protocol.trust.attestations import KEPT, Attestation, attest, grant
from protocol.trust.membership_card import Authority
from protocol.trust.proofs import sign_revocation
from protocol.trust.ticket import Ticket
from tests.peer.test_hostile_operator import OPERATOR, join
from tests.reference.admitted import There, credentials, identity
from tests.reference.small_manifest import small_manifest


def test_what_the_operator_says_at_the_door_and_later_is_heeded(tmp_path: Path) -> None:
    """Its observer's word about the past; and whom it takes out: another peer, and then this one."""
    text, observer, bob = tmp_path / "text.txt", identity("observer"), identity("bob")
    text.write_text("Some words of a small text, again and again.\n" * 200)
    made = create_run(small_manifest(), tmp_path / "run", text)
    descriptor = descriptor_of(made.manifest, OPERATOR.peer_id, made.files)
    authority = Authority(descriptor.run_id, OPERATOR.peer_id)
    seen = Attestation(observer.peer_id, 9, 0, {EMBEDDING: ("ef" * 32, 36)})
    (tmp_path / "operator" / OBSERVER_FOLDER).mkdir(parents=True)
    attested = attest(observer, authority, seen, grant(OPERATOR, authority, observer.peer_id))
    (tmp_path / "operator" / OBSERVER_FOLDER / KEPT).write_bytes(attested)
    answers: list[grpc.StatusCode] = []

    async def ask(channel: grpc.aio.Channel) -> None:
        fetched = blobs_pb2_grpc.BlobsStub(channel).Fetch(
            blobs_pb2.FetchRequest(sha256="ab" * 32), metadata=handshake(descriptor.manifest), timeout=20
        )
        with pytest.raises(grpc.aio.AioRpcError):
            await fetched.read()
        answers.append(await fetched.code())

    async def work(node: Node) -> None:
        intake, me = node.reconciler.intake, node.discovery.record
        assert node.reconciler.attested.round == 9
        for out in (None, bob.peer_id):
            if out:
                intake.revoke(sign_revocation(OPERATOR, authority, Revocation(out, 1, 1)))
            async with connect(There(me.peer_id, me.address), descriptor.manifest, credentials("bob")) as channel:
                await ask(channel)
        intake.revoke(sign_revocation(OPERATOR, authority, Revocation(me.peer_id, 1, 1)))
        await asyncio.Event().wait()

    _, _, error = join(tmp_path, descriptor, 1, tmp_path / "run", work)
    assert answers == [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED]
    assert isinstance(error, RefusedError)
    assert str(error) == SHUT_OUT


def test_whoever_starts_a_peer_is_warned_with_doctors_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(files: int) -> list[Event]:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (256, files))
        ticket, said = Ticket("ab" * 32, OPERATOR.public, ("127.0.0.1:1",), ()), list[Event]()  # type: ignore[arg-type]
        settings = PeerSettings(ticket=ticket, role="observer", directory=tmp_path, device="cpu")
        stop = asyncio.Event()
        stop.set()
        asyncio.run(run_with_pauses(stop, settings, EventStream([said.append])))
        return said

    assert warned(256) == [Warned(f"WARNING: {open_files().words}")]
    assert "256 at once; a large run takes 1024 → as root 1024 in /etc/security/limits.conf" in open_files().words
    assert warned(4096) == []


def paused_once(settings: PeerSettings) -> list[Event]:
    """The events of a peer that is stopped once it has paused, before it opens a socket."""
    said: list[Event] = []

    async def serve() -> None:
        stop = asyncio.Event()

        def hear(event: Event) -> None:
            said.append(event)
            if isinstance(event, Paused):
                stop.set()

        await run_with_pauses(stop, settings, EventStream([hear]))

    asyncio.run(asyncio.wait_for(serve(), 60))
    return said


def test_a_peer_whose_traffic_is_used_up_pauses_before_it_moves_anything(tmp_path: Path):
    write_used(tmp_path, Used(f"{datetime.now():%Y-%m}", 1000))
    ticket = Ticket(RunId("ab" * 32), OPERATOR.public, ("127.0.0.1:1",), ())
    limited = PeerSettings(ticket=ticket, role="observer", directory=tmp_path, device="cpu", max_traffic="1kB/month")
    assert [event.words for event in paused_once(limited) if isinstance(event, Paused)] == [
        f"Paused {limited.pausing}."
    ]


def test_what_a_peer_has_moved_is_in_its_folder_when_it_stops(tmp_path: Path):
    request_pause(tmp_path)
    ticket = Ticket(RunId("ab" * 32), OPERATOR.public, ("127.0.0.1:1",), ())
    settings = PeerSettings(ticket=ticket, role="observer", directory=tmp_path, device="cpu", max_traffic="1MB/day")
    settings.carried.wire_bytes = 500.0
    paused_once(settings)
    assert read_used(tmp_path).wire_bytes >= 500
