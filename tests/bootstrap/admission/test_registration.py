"""The door, over real sockets, as newcomers find it. The DHT is stood in for by the records that a test puts there."""

import asyncio
import base64
import hashlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import grpc
import pytest

from bootstrap.admission import operator_lists
from bootstrap.admission.admission_policy import OBSERVER_FOLDER, AdmissionPolicy
from bootstrap.admission.audit_log import last
from bootstrap.admission.database import RevokedPeer, changing
from bootstrap.admission.operator_lists import set_closed
from bootstrap.admission.places import Admission
from bootstrap.admission.registration import GATEWAY_SECONDS, RegistrationService
from bootstrap.admission.registration_answers import NOBODY, StatusAnswers
from bootstrap.monitor.watch import Monitor
from bootstrap.node import ServingRights, as_operator
from bootstrap.rate_limit import Rates
from peer.network import admission as nodes
from peer.network.admission import Admitted
from peer.network.reach.reach import answering
from protocol.errors import FormatError, HetpeerError, PeerError, RefusedError, UnreachableError
from protocol.identity import RunId
from protocol.limits import PEERS_SHARE, REGISTRATION_SHARE
from protocol.monitor import NodeWord
from protocol.net import gate as gates
from protocol.net.allowances import RateLimit
from protocol.net.blobs import BlobService, fetch
from protocol.net.channels import (
    Credentials,
    connect,
    connect_to_registration,
    handshake,
    options,
    registration_options,
)
from protocol.net.connection_limits import OF_PEERS, OF_REGISTRATION
from protocol.net.guard import Guard
from protocol.run.run_files import RunFile, descriptor_of, file_names
from protocol.schemas import blobs_pb2, blobs_pb2_grpc, run_pb2, run_pb2_grpc
from protocol.trust import certificates
from protocol.trust.attestations import KEPT
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Authority, Card, Role, Signer, issue
from protocol.trust.records import PeerRecord, Register, sign_record
from protocol.trust.ticket import Ticket
from tests.reference.admitted import certified, identity
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
OPERATOR, GATEWAY, ANN, BOB = (identity(name) for name in ("operator", "gateway", "ann", "bob"))
BLOB = b"some bytes"
LIFE = 600.0
DESCRIPTOR = descriptor_of(MANIFEST, OPERATOR.peer_id, [RunFile(name, "ab" * 32, 1) for name in file_names(MANIFEST)])


@dataclass
class Records:
    """A DHT that holds what a test has put there."""

    values: dict[str, object] = field(default_factory=dict)

    async def read_all(self) -> dict[str, object]:
        return self.values

    def put(self, who: Identity, round: int) -> None:
        """A datacenter that has finished this round says so."""
        card = issue(OPERATOR, DESCRIPTOR.run_id, Card(who.peer_id, "datacenter", 0, 0))
        signer = Signer(who, Authority(DESCRIPTOR.run_id, OPERATOR.peer_id), card)
        record = PeerRecord(peer_id=who.peer_id, address="h:1", role="datacenter", stage=0, slot=0, round=round)
        self.values[who.peer_id] = sign_record(signer, record)


@dataclass
class House:
    """A node with its door, and its other port."""

    folder: Path
    registration: RegistrationService
    ticket: Ticket
    records: Records
    said: list[str] = field(default_factory=list)
    """Every error that a caller was shown."""

    async def register(
        self,
        who: Identity = ANN,
        role: Role | Literal["gateway"] = "volunteer",
        stage: int | None = None,
        token: bytes = b"",
        card: bytes = b"",
    ) -> Admitted:
        return await nodes.register(replace(self.ticket, token=token), DESCRIPTOR, who, role, stage, card)

    async def refused(self, error: type[HetpeerError], words: str, **asked: Any) -> None:
        with pytest.raises(error, match=words) as caught:
            await self.register(**asked)
        self.said.append(str(caught.value))

    def invited(self, uses: int = 1, gateway: bool = False) -> bytes:
        return operator_lists.add_invitation(self.folder, uses, 3600, 0x7FFFFFFF, gateway)


Scene = Callable[[House], Awaitable[None]]


def play(folder: Path, scene: Scene, who: Identity = OPERATOR, rights: ServingRights | None = None) -> None:
    """A scene before the operator's door, or another's."""

    async def run() -> None:
        by = rights or as_operator(OPERATOR, LIFE)
        admission_policy = AdmissionPolicy(folder)
        registration_gate = await gates.bind("127.0.0.1", 0, OF_REGISTRATION, REGISTRATION_SHARE)
        peers_gate = await gates.bind("127.0.0.1", 0, OF_PEERS, PEERS_SHARE)
        registration_server = grpc.aio.server(options=registration_options())
        guard = Guard(admission_policy.objection, peers_gate.authenticate)
        peers_server = grpc.aio.server(options=options(MANIFEST), interceptors=[guard])
        register = Register(Authority(DESCRIPTOR.run_id, OPERATOR.peer_id), MANIFEST)
        places = (
            Admission(MANIFEST),
            who,
            by.credentials,
            peers_gate.port,
            by.certificate_seconds,
            admission_policy,
            by.card,
        )
        records = Records()
        registration = RegistrationService(DESCRIPTOR, records, register, *places, named=registration_gate.caller)  # type: ignore[arg-type]
        run_pb2_grpc.add_RunServicer_to_server(registration, registration_server)
        blobs_pb2_grpc.add_BlobsServicer_to_server(BlobService(MANIFEST, lambda sha256: BLOB), peers_server)
        try:
            await peers_gate.serve(peers_server, by.credentials.serving())
            await registration_gate.serve(registration_server, by.credentials.for_registration())
            address = f"127.0.0.1:{registration_gate.port}"
            await scene(
                House(folder, registration, Ticket(DESCRIPTOR.run_id, OPERATOR.public, (address,), ()), records)
            )
        finally:
            await registration_gate.close(0.0)
            await peers_gate.close(0.0)

    asyncio.run(asyncio.wait_for(run(), 60))


async def fetched(admitted: Admitted) -> bytes:
    """What a peer with this place gets at the node's other port."""
    async with connect(admitted.node, MANIFEST, admitted.credentials) as channel:
        return await fetch(channel, MANIFEST, hashlib.sha256(BLOB).hexdigest(), len(BLOB))


def test_who_has_no_place_yet_is_dialled_back(tmp_path: Path):
    async def scene(house: House) -> None:
        async with answering(ANN, "127.0.0.1", 0) as port:
            here = f"127.0.0.1:{port}"
            assert await nodes.dial_back(house.ticket, ANN.peer_id, here) == (here, "")
            assert await nodes.dial_back(house.ticket, ANN.peer_id, f"192.0.2.1:{port}") == (here, "")
            assert await nodes.dial_back(house.ticket, BOB.peer_id, here) == (here, "another peer answers there")
            by_name = replace(house.ticket, node_addresses=(house.ticket.operator.replace("127.0.0.1", "localhost"),))
            assert await nodes.dial_back(by_name, ANN.peer_id, here) == (here, "")
        assert await nodes.dial_back(house.ticket, ANN.peer_id, here) == (here, NOBODY)

    play(tmp_path, scene)


def test_a_door_that_swallows_everything_keeps_nobody_from_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nodes, "TLS_SECONDS", 3600.0)  # the first door's handshake outlasts this test

    async def scene(house: House) -> None:
        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with await asyncio.start_server(swallow, "127.0.0.1", 0) as hole:
            dead = f"127.0.0.1:{hole.sockets[0].getsockname()[1]}"
            ticket = replace(house.ticket, node_addresses=(dead, *house.ticket.node_addresses))
            assert await nodes.fetch_descriptor(ticket) == DESCRIPTOR

    play(tmp_path, scene)


def test_who_asks_is_told_whether_the_run_is_over(tmp_path: Path):
    async def scene(house: House) -> None:
        assert await nodes.ask_node(house.ticket) == NodeWord()
        word = NodeWord(7, taking=True, run=6, holders=(b"one", b"two"), rewind=b"three", keeps=True)
        house.registration.word = lambda: word
        assert await nodes.ask_node(house.ticket) == word
        assert await nodes.fetch_descriptor(house.ticket) == DESCRIPTOR

    play(tmp_path, scene)


def test_a_newcomer_learns_what_the_run_is(tmp_path: Path):
    async def scene(house: House) -> None:
        assert await nodes.fetch_descriptor(house.ticket) == DESCRIPTOR

    play(tmp_path, scene)


def test_who_has_the_ticket_may_ask_how_the_run_goes(tmp_path: Path):
    async def scene(house: House) -> None:
        with pytest.raises(RefusedError, match="does not watch the run"):
            await nodes.ask_status(house.ticket)
        house.registration.status = StatusAnswers(Monitor.of(MANIFEST, DESCRIPTOR.run_id).view)
        assert (await nodes.ask_status(house.ticket)).rounds == MANIFEST.outer.rounds
        house.registration.status = StatusAnswers(Monitor.of(MANIFEST, RunId("cd" * 32)).view)
        with pytest.raises(FormatError, match="another run"):
            await nodes.ask_status(house.ticket)

    play(tmp_path, scene)


def test_a_newcomer_gets_a_place_and_a_certificate_that_opens_the_other_port(tmp_path: Path):
    async def scene(house: House) -> None:
        given = await house.register(stage=1)
        assert given.card == Card(ANN.peer_id, "volunteer", 1, 0)
        assert Authority(DESCRIPTOR.run_id, OPERATOR.peer_id).admitted(ANN.peer_id, given.signed_card) == given.card
        assert certificates.read_certificate(given.credentials.chain).peer == ANN.peer_id
        assert given.credentials.root == certificates.authority(OPERATOR)
        assert await fetched(given) == BLOB
        (entry,) = last(house.folder, 9)
        assert (entry.what, entry.peer, entry.stage, entry.address) == ("admitted", ANN.peer_id, 1, "127.0.0.1")

    play(tmp_path, scene)


def test_a_newcomer_gets_a_stage_that_it_can_serve(tmp_path: Path):
    async def scene(house: House) -> None:
        first = await nodes.register(house.ticket, DESCRIPTOR, ANN, "volunteer", None, servable=[1])
        assert first.card == Card(ANN.peer_id, "volunteer", 1, 0)
        second = await nodes.register(house.ticket, DESCRIPTOR, BOB, "volunteer", None, servable=[1])
        assert second.card == Card(BOB.peer_id, "volunteer", 1, 1)
        again = await nodes.register(house.ticket, DESCRIPTOR, ANN, "volunteer", None, first.signed_card, (), [0, 1])
        assert again.card == first.card
        third = await nodes.register(house.ticket, DESCRIPTOR, identity("carol"), "volunteer", None, servable=[1, 0])
        assert third.card.stage == 0

    play(tmp_path, scene)


def answering_with_time(monkeypatch: pytest.MonkeyPatch, time: Callable[[float], float]) -> None:
    """Let every door tell another time than it would."""
    honest = RegistrationService.Register

    async def register(
        self: RegistrationService, request: run_pb2.RegisterRequest, context: Any
    ) -> run_pb2.RegisterReply:
        reply = await honest(self, request, context)
        reply.time = time(reply.time)
        return reply

    monkeypatch.setattr(RegistrationService, "Register", register)


@pytest.mark.parametrize("ahead", [0.0, 7200.0, -7200.0])
def test_a_newcomer_learns_how_far_its_clock_is_from_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
):
    async def scene(house: House) -> None:
        assert (await house.register()).clock_ahead == pytest.approx(ahead, abs=20.0)

    answering_with_time(monkeypatch, lambda time: time - ahead)
    play(tmp_path, scene)


def test_of_a_node_that_tells_no_time_no_clock_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene(house: House) -> None:
        assert (await house.register()).clock_ahead == 0.0

    answering_with_time(monkeypatch, lambda time: 0.0)
    play(tmp_path, scene)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), 1e11])
def test_a_time_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float):
    async def scene(house: House) -> None:
        await house.refused(FormatError, "tells a time that is none")

    answering_with_time(monkeypatch, lambda time: wrong)
    play(tmp_path, scene)


def test_a_certificate_lasts_as_long_as_the_operator_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bootstrap.admission.registration.unix_time", lambda: 1_900_000_000.0)

    async def scene(house: House) -> None:
        key = certificates.request(ANN)
        context: Any = Context()
        peer = run_pb2.RegisterRequest(signing_request=key, role=run_pb2.VOLUNTEER)
        given = await house.registration.Register(peer, context)
        assert certificates.read_certificate(given.certificate).ends == 1_900_000_000.0 + LIFE
        gateway = run_pb2.RegisterRequest(
            signing_request=certificates.request(GATEWAY), role=run_pb2.GATEWAY, token=house.invited(gateway=True)
        )
        given = await house.registration.Register(gateway, context)
        assert certificates.read_certificate(given.certificate).ends == 1_900_000_000.0 + GATEWAY_SECONDS

    play(tmp_path, scene)


class Context:
    """Of a call, as far as the door looks."""

    def peer(self) -> str:
        return "ipv4:192.0.2.1:5000"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return handshake(MANIFEST)


def test_who_asks_again_has_the_same_place_and_a_new_certificate(tmp_path: Path):
    async def scene(house: House) -> None:
        await house.register(BOB, stage=1)
        first = await house.register(stage=1)
        again = await house.register(card=first.signed_card)
        assert again.card == first.card
        assert again.credentials.chain != first.credentials.chain
        assert [entry.what for entry in last(house.folder, 9)] == ["admitted", "admitted", "renewed"]

    play(tmp_path, scene)


def test_a_node_that_has_forgotten_gives_the_place_that_a_card_shows(tmp_path: Path):
    card = Card(ANN.peer_id, "volunteer", 1, 4)

    async def scene(house: House) -> None:
        assert (await house.register(card=issue(OPERATOR, DESCRIPTOR.run_id, card))).card == card

    play(tmp_path, scene)


@pytest.mark.parametrize(
    "shown",
    [
        issue(OPERATOR, DESCRIPTOR.run_id, Card(BOB.peer_id, "volunteer", 1, 4)),
        issue(ANN, DESCRIPTOR.run_id, Card(ANN.peer_id, "volunteer", 1, 4)),
        issue(OPERATOR, DESCRIPTOR.run_id, Card(ANN.peer_id, "datacenter", 1, 4)),
        b"garbage",
    ],
    ids=["another's", "self-made", "of another role", "garbage"],
)
def test_another_card_is_no_claim_to_a_place(tmp_path: Path, shown: bytes):
    async def scene(house: House) -> None:
        assert (await house.register(stage=0, card=shown)).card == Card(ANN.peer_id, "volunteer", 0, 0)

    play(tmp_path, scene)


def test_a_closed_run_admits_by_invitation_and_its_token_is_in_no_error_and_no_file(tmp_path: Path):
    set_closed(tmp_path, True)

    async def scene(house: House) -> None:
        await house.refused(RefusedError, "this run is closed, and this ticket has no invitation")
        token = house.invited()
        forged = token[:-1] + bytes([token[-1] ^ 1])
        await house.refused(RefusedError, "no invitation like this ticket's", token=forged)
        await house.refused(RefusedError, "no invitation like this ticket's", token=bytes(64))
        assert (await house.register(token=token)).card.peer == ANN.peer_id
        await house.register(token=token)  # and again
        await house.refused(RefusedError, "has been used by the one peer", who=BOB, token=token)
        (invitation,) = operator_lists.read_invitations(house.folder)
        operator_lists.withdraw_invitation(house.folder, invitation.id)
        await house.refused(RefusedError, "was withdrawn", token=token)
        kept = b"".join(path.read_bytes() for path in house.folder.iterdir())
        seen = "\n".join([*house.said, repr(house.ticket), repr(replace(house.ticket, token=token))]).encode()
        for secret in (token, forged):
            for spelt in (secret[4:], secret[4:].hex().encode(), base64.urlsafe_b64encode(secret)[6:20]):
                assert spelt not in kept
                assert spelt not in seen

    play(tmp_path, scene)


def test_a_revoked_peer_gets_no_certificate_and_nothing_at_the_other_port(tmp_path: Path):
    async def scene(house: House) -> None:
        given = await house.register()
        assert await fetched(given) == BLOB
        operator_lists.add_revoked(house.folder, RevokedPeer(peer=ANN.peer_id, start=0, at=0.0, signed=b""))
        await house.refused(RefusedError, "the run's operator has revoked this peer")
        with pytest.raises(RefusedError, match="the run's operator has revoked this peer"):
            await fetched(given)
        assert await fetched(await house.register(BOB)) == BLOB

    play(tmp_path, scene)


def test_who_asks_too_often_is_told_when_to_come_back_and_leaves_no_line_in_the_log(tmp_path: Path):
    async def scene(house: House) -> None:
        house.registration.admission_policy.rates = Rates(by_network=RateLimit(burst=2, seconds=3600.0))
        await house.register()
        await house.register()
        await house.refused(RefusedError, "too many peers ask from your network at once: try again in 3600 s")
        assert [entry.what for entry in last(house.folder, 9)] == ["admitted", "admitted"]

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (run_pb2.RegisterRequest(signing_request=b"garbage", role=run_pb2.VOLUNTEER), "not a signing request"),
        (run_pb2.RegisterRequest(signing_request=bytes(9999), role=run_pb2.VOLUNTEER), "are allowed"),
        (run_pb2.RegisterRequest(signing_request=certificates.request(ANN)), "no request for a place"),
        (run_pb2.RegisterRequest(signing_request=certificates.request(ANN), role=77), "no request for a place"),  # type: ignore[arg-type]
        (
            run_pb2.RegisterRequest(signing_request=certificates.request(ANN), role=run_pb2.VOLUNTEER, stage=9),
            "no stage 9",
        ),
        (
            run_pb2.RegisterRequest(signing_request=certificates.request(ANN), role=run_pb2.VOLUNTEER, stages=[0, 9]),
            "no stage 9",
        ),
        (
            run_pb2.RegisterRequest(
                signing_request=certificates.request(ANN), role=run_pb2.VOLUNTEER, stages=[0] * 200_000
            ),
            "200000 stages are more than this run has",
        ),
    ],
    ids=["garbage", "large", "no role", "unknown role", "no such stage", "cannot serve it", "200,000 stages"],
)
def test_a_request_that_is_none_is_refused_and_written_down(tmp_path: Path, asked: run_pb2.RegisterRequest, words: str):
    async def scene(house: House) -> None:
        async with connect_to_registration(
            house.ticket.operator, OPERATOR.peer_id, certificates.authority(OPERATOR)
        ) as channel:
            stub = run_pb2_grpc.RunStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match=words):
                await stub.Register(asked, metadata=handshake(MANIFEST), timeout=20)
        (entry,) = last(house.folder, 9)
        assert entry.what == "refused"
        assert words in entry.reason

    play(tmp_path, scene)


def test_the_door_is_for_newcomers_alone(tmp_path: Path):
    async def scene(house: House) -> None:
        async with connect_to_registration(
            house.ticket.operator, OPERATOR.peer_id, certificates.authority(OPERATOR)
        ) as channel:
            call = blobs_pb2_grpc.BlobsStub(channel).Fetch(blobs_pb2.FetchRequest())
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call.read()
            assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED

    play(tmp_path, scene)


# Gateways


def as_gateway(seconds: float = GATEWAY_SECONDS) -> ServingRights:
    """Another node of the operator's, which it has let admit."""
    chain = certificates.certify(OPERATOR, GATEWAY.key.public_key(), time.time(), seconds, gateway=True)
    shown = Credentials(certificates.private_key(GATEWAY), chain, certificates.authority(OPERATOR))
    return ServingRights(shown, LIFE, issue(OPERATOR, DESCRIPTOR.run_id, Card(GATEWAY.peer_id, "gateway", 0, 0)))


def test_who_comes_in_at_a_gateway_has_a_card_and_a_chain_that_hold(tmp_path: Path):
    async def scene(house: House) -> None:
        assert await nodes.fetch_descriptor(house.ticket) == DESCRIPTOR
        given = await house.register()
        assert given.node.peer_id == GATEWAY.peer_id
        assert given.credentials.chain.count(b"BEGIN CERTIFICATE") == 2
        assert await fetched(given) == BLOB

    play(tmp_path, scene, GATEWAY, as_gateway())


def test_who_knows_that_a_gateway_is_revoked_passes_it_by(tmp_path: Path):
    async def scene(house: House) -> None:
        given = await nodes.register(house.ticket, DESCRIPTOR, ANN, "volunteer", 1, b"", {BOB.peer_id})
        assert given.card.issuer == GATEWAY.peer_id
        with pytest.raises(PeerError, match="the operator has taken out the gateway at"):
            await nodes.register(house.ticket, DESCRIPTOR, ANN, "volunteer", 1, b"", {GATEWAY.peer_id})
        assert len(last(house.folder, 9)) == 1

    play(tmp_path, scene, GATEWAY, as_gateway())


def test_no_certificate_outlasts_the_gateways_that_gave_it(tmp_path: Path):
    rights = as_gateway(seconds=60.0)

    async def scene(house: House) -> None:
        given = await house.register()
        assert given.credentials.ends <= rights.credentials.ends

    play(tmp_path, scene, GATEWAY, rights)


def test_a_gateway_admits_no_gateways(tmp_path: Path):
    async def scene(house: House) -> None:
        await house.refused(RefusedError, "only the operator's own node can admit", role="gateway")

    play(tmp_path, scene, GATEWAY, as_gateway())


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_only_an_invitation_for_a_gateway_makes_one_and_it_makes_nothing_else(tmp_path: Path, closed: bool):
    set_closed(tmp_path, closed)

    async def scene(house: House) -> None:
        plain, grant = house.invited(uses=9), house.invited(gateway=True)
        only = "only a ticket of hetpeer admin invite --gateway"
        for token in (b"", plain, grant[:-1] + bytes([grant[-1] ^ 1])):
            await house.refused(RefusedError, only, role="gateway", token=token)
        if closed:
            await house.refused(RefusedError, "is for a gateway, and for nothing else", token=grant)
            assert (await house.register(token=plain)).card.role == "volunteer"
            await house.refused(RefusedError, only, role="gateway")
        else:
            assert (await house.register(token=grant)).card.role == "volunteer"  # as without it, and it is not used up
        given = await house.register(GATEWAY, "gateway", token=grant)
        assert (given.card.role, given.closed) == ("gateway", closed)
        assert certificates.read_certificate(given.credentials.chain).certifies
        await house.refused(RefusedError, "has been used by the one peer", who=BOB, role="gateway", token=grant)
        assert (await house.register(GATEWAY, "gateway")).card.role == "gateway"  # it starts again, and shows none
        for each in operator_lists.read_invitations(house.folder):
            operator_lists.withdraw_invitation(house.folder, each.id)
        await house.refused(RefusedError, "was withdrawn", who=GATEWAY, role="gateway", token=grant)
        await house.refused(RefusedError, only, who=GATEWAY, role="gateway")

    play(tmp_path, scene)


def test_the_card_of_a_gateway_that_is_revoked_is_no_place_and_saves_no_trial(tmp_path: Path):
    by_gateway = issue(
        GATEWAY,
        DESCRIPTOR.run_id,
        Card(BOB.peer_id, "datacenter", 0, 4),
        issue(OPERATOR, DESCRIPTOR.run_id, Card(GATEWAY.peer_id, "gateway", 0, 0)),
    )

    async def scene(house: House) -> None:
        operator_lists.require_trials(house.folder, True)
        for founder in (ANN, OPERATOR):
            house.records.put(founder, round=3)
        held = await house.register(BOB, "datacenter", card=by_gateway)
        assert (held.card.slot, held.card.on_trial) == (4, False)
        house.registration.admission.places.clear()
        operator_lists.add_revoked(house.folder, RevokedPeer(peer=GATEWAY.peer_id, start=0, at=0.0, signed=b""))
        fallen = await house.register(BOB, "datacenter", card=by_gateway)
        assert (fallen.card.slot == 4, fallen.card.on_trial) == (False, True)
        assert fallen.card.issuer == ""
        again = house.invited(gateway=True)
        await house.refused(RefusedError, "has revoked this peer", who=GATEWAY, role="gateway", token=again)

    play(tmp_path, scene)


def test_a_gateway_whose_certificate_has_ended_is_said_to(tmp_path: Path):
    async def scene(house: House) -> None:
        await house.refused(UnreachableError, "the certificate of who answers there has ended")

    play(tmp_path, scene, GATEWAY, as_gateway(seconds=-60.0))


# Whom a newcomer takes for a door


def test_a_peer_of_the_run_is_no_door(tmp_path: Path):
    rights = ServingRights(certified(BOB, OPERATOR), LIFE)

    async def scene(house: House) -> None:
        await house.refused(PeerError, "is no bootstrap node of this run: it is a peer of the run")

    play(tmp_path, scene, BOB, rights)


def test_a_ticket_with_another_authority_than_the_doors_is_said_to_be(tmp_path: Path):
    async def scene(house: House) -> None:
        house.ticket = replace(house.ticket, authority=BOB.public)
        await house.refused(PeerError, "not certified by the authority that the ticket names")
        with pytest.raises(PeerError, match="not certified by the authority that the ticket names"):
            await nodes.fetch_descriptor(house.ticket)

    play(tmp_path, scene)


def test_a_ticket_of_another_run_of_the_same_operator_is_said_to_be(tmp_path: Path):
    async def scene(house: House) -> None:
        with pytest.raises(FormatError):
            await nodes.fetch_descriptor(replace(house.ticket, run_id="cd" * 32))  # type: ignore[arg-type]

    play(tmp_path, scene)


@contextmanager
def plain_server(answer: bytes) -> Iterator[str]:
    """What answers every connection with these bytes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1024)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 mail\r\n"], ids=["HTTP", "SMTP"])
def test_another_service_at_the_address_is_said_to_speak_no_tls(answer: bytes):
    with plain_server(answer) as address:
        ticket = Ticket(DESCRIPTOR.run_id, OPERATOR.public, (address,), ())
        with pytest.raises(PeerError, match=f"what answers at {address} is no bootstrap node: it speaks no TLS"):
            asyncio.run(nodes.fetch_descriptor(ticket))


def test_what_hangs_up_at_once_is_nobody():
    with plain_server(b"") as address:
        ticket = Ticket(DESCRIPTOR.run_id, OPERATOR.public, (address,), ())
        with pytest.raises(HetpeerError, match=address):
            asyncio.run(nodes.fetch_descriptor(ticket))


def test_a_wrong_door_and_one_that_is_away_do_not_hide_the_one_that_opens(tmp_path: Path):
    async def scene(house: House) -> None:
        with plain_server(b"220 mail\r\n") as wrong, socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            away = f"127.0.0.1:{unused.getsockname()[1]}"
            many = replace(house.ticket, node_addresses=(wrong, away, *house.ticket.node_addresses))
            assert await nodes.fetch_descriptor(many) == DESCRIPTOR

    play(tmp_path, scene)


def test_who_comes_when_the_run_has_begun_is_on_trial_until_it_has_stood_it(tmp_path: Path):
    async def scene(house: House) -> None:
        operator_lists.require_trials(house.folder, True)
        founder = await house.register(stage=1)
        assert (founder.card.on_trial, founder.trials) == (False, True)
        house.records.put(GATEWAY, round=1)
        newcomer = await house.register(BOB, stage=1)
        assert newcomer.card.on_trial
        assert last(house.folder, 1)[0].reason == "on trial"
        assert (await house.register(BOB, card=newcomer.signed_card)).card.on_trial
        operator_lists.note_stood(house.folder, BOB.peer_id)
        assert not (await house.register(BOB, card=newcomer.signed_card)).card.on_trial
        assert not (await house.register(card=founder.signed_card)).card.on_trial
        assert (await house.register()).card.on_trial  # without its card it is a newcomer
        watching = await house.register(ANN, role="observer")
        assert (await house.register(card=watching.signed_card)).card.on_trial  # it has never contributed
        assert (await house.register(identity("carol"), card=founder.signed_card)).card.on_trial  # it is another's

    play(tmp_path, scene)


def test_who_moves_to_another_stage_has_one_place_and_stays_on_trial_or_not(tmp_path: Path):
    async def scene(house: House) -> None:
        operator_lists.require_trials(house.folder, True)
        founder = await house.register(stage=0)
        house.records.put(GATEWAY, round=1)
        moved = await house.register(stage=1, card=founder.signed_card)
        assert (moved.card.stage, moved.card.on_trial) == (1, False)
        assert last(house.folder, 1)[0].what == "admitted"
        newcomer = await house.register(BOB, stage=0)
        assert (newcomer.card.slot, newcomer.card.on_trial) == (founder.card.slot, True)  # the place is free
        assert (await house.register(BOB, stage=1, card=newcomer.signed_card)).card.on_trial
        back = await house.register(stage=0, card=founder.signed_card)  # an old card is no second place
        places = house.registration.admission.places.values()
        assert sorted(each.stage for each in places if each.role == "volunteer") == [0, 1]
        assert back.card.stage == 0

    play(tmp_path, scene)


def test_nobody_is_tried_who_contributes_nothing_or_where_no_trials_are_asked_for(tmp_path: Path):
    async def scene(house: House) -> None:
        house.records.put(GATEWAY, round=1)
        given = await house.register()
        assert (given.card.on_trial, given.trials) == (False, False)
        operator_lists.require_trials(house.folder, True)
        assert not (await house.register(BOB, role="observer")).card.on_trial

    play(tmp_path, scene)


def test_a_liar_alone_does_not_put_the_founders_on_trial(tmp_path: Path):
    async def scene(house: House) -> None:
        operator_lists.require_trials(house.folder, True)
        house.records.put(GATEWAY, round=9)
        house.records.put(BOB, round=0)
        assert MANIFEST.outer.liars == 1
        assert not (await house.register()).card.on_trial

    play(tmp_path, scene)


def test_a_damaged_list_of_trials_lets_nobody_in(tmp_path: Path):
    async def scene(house: House) -> None:
        house.records.put(GATEWAY, round=1)
        with changing(house.folder) as lists:
            lists.execute("DELETE FROM run")
        await house.refused(RefusedError, "cannot keep its records")

    play(tmp_path, scene)


def test_who_is_admitted_is_given_what_the_operators_observer_attests(tmp_path: Path):
    async def scene(house: House) -> None:
        assert (await house.register()).attestation == b""
        (house.folder / OBSERVER_FOLDER).mkdir()
        (house.folder / OBSERVER_FOLDER / KEPT).write_bytes(b"signed")
        assert (await house.register()).attestation == b"signed"

    play(tmp_path, scene)


def test_who_is_admitted_is_told_where_the_prepared_text_is(tmp_path: Path):
    async def scene(house: House) -> None:
        house.registration.mirrors = ("https://a.example/text", "http://b.example:8000")
        assert (await house.register()).mirrors == house.registration.mirrors
        house.registration.mirrors = ("file:///etc/passwd",)
        await house.refused(PeerError, "is no mirror", who=BOB)

    play(tmp_path, scene)
