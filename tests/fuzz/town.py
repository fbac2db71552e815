"""Builds what hostile calls are made to: a peer, and an operator's node, on real sockets, and who calls them."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from bootstrap.admission.admission_policy import AdmissionPolicy
from bootstrap.admission.places import Admission
from bootstrap.admission.registration import RegistrationService
from bootstrap.admission.registration_answers import StatusAnswers
from bootstrap.monitor.watch import Monitor, MonitorService
from bootstrap.node import as_operator
from bootstrap.rate_limit import Rates
from peer.network.gossip import entry_to_wire, summary_to_wire
from peer.network.group import Attempt, Link, PipelineService
from peer.swarm.group.seats import GroupSeats
from protocol.codec.frames import FramePosition, FrameRules, unpack_forward
from protocol.codec.seating import AnswerFrame, OfferFrame, pack_answer, pack_offer, unpack_offer, unpack_start
from protocol.errors import HetpeerError
from protocol.events.activity import Refused
from protocol.events.peer_report import PeerReport, ReportedStatus, pack_report
from protocol.identity import EMBEDDING, PeerId, ReplicaId, RunId, stage_part
from protocol.net.allowances import RateLimit
from protocol.net.channels import channel_to, connect_to_registration, listen, options
from protocol.net.guard import Guard, no_objection
from protocol.net.lenient import AnyBytes
from protocol.outer.history import History
from protocol.outer.ledger import Revocation
from protocol.outer.set_difference import summary
from protocol.outer.window import Window
from protocol.run.run_files import RunFile, descriptor_of, file_names
from protocol.schemas import (
    blobs_pb2,
    credit_pb2,
    monitor_pb2,
    monitor_pb2_grpc,
    pipeline_pb2_grpc,
    reconciliation_pb2,
    run_pb2,
    run_pb2_grpc,
    snapshots_pb2,
    succession_pb2,
)
from protocol.trust import certificates, handovers, proofs
from protocol.trust.handovers import HandoverOffer, Handovers
from protocol.trust.keys import load_or_create
from protocol.trust.proofs import sign_contribution
from protocol.trust.records import Register
from tests.fuzz.hostile import MANIFEST, Town
from tests.reference.loopback_peers import LoopbackPeer, NoDht, Village

PART = stage_part(1)


@asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    """All of it, up and introduced to each other."""
    async with AsyncExitStack() as stack:
        operator = load_or_create(folder / "operator")
        clock = itertools.count()  # a second a call: nobody's allowance ends
        guard = Guard(clock=lambda: float(next(clock)))
        monitor = Monitor.of(MANIFEST, RunId("ab" * 32))
        pipelines: dict[PeerId, PipelineService] = {}

        def serve_more(server: grpc.aio.Server, peer: PeerId) -> None:
            pipelines[peer] = PipelineService(MANIFEST)
            pipeline_pb2_grpc.add_PipelineServicer_to_server(pipelines[peer], server)
            service = MonitorService(
                MANIFEST, monitor, no_objection
            )  # an operator's node has it on a port of this kind
            monitor_pb2_grpc.add_MonitorServicer_to_server(service, server)

        village = Village(MANIFEST, folder, stack, operator, [], [guard, AnyBytes()], serve_more)
        caller, victim = await village.join("caller", 1), await village.join("victim", 1)
        before = await village.join("before", 0)
        victim.receipt_collector.seen.exchange(1, PeerId(caller.id), 1, Attempt(ReplicaId(victim.id), 1))
        victim.handover.handovers, victim.handover.open = Handovers(), True
        for round in (1, 2):
            await village.round(round, [caller])
        record = victim.outer.discovery.record
        channel = channel_to(record, MANIFEST, caller.outer.reconciler.contacts.credentials)
        registration = await _serve_registration(village, stack, monitor)
        snapshots, state = victim.outer.followed.snapshots, victim.outer.followed.parts[PART].state
        snapshots.write(PART, 1, History(), [each.numpy() for each in state.grid.values()])
        link = channel_to(record, MANIFEST, before.outer.reconciler.contacts.credentials)
        known, signed = _material(village, caller, victim)
        honest = _honest(caller, before, victim)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        seats = GroupSeats(victim.outer.reconciler, pipelines[PeerId(victim.id)], tasks, open=True)
        made = Town(victim, caller, before, seats, channel, registration, link, known, signed, honest)
        stack.push_async_callback(channel.close, None)
        stack.push_async_callback(link.close, None)
        logging.getLogger().addHandler(made.complaints)
        stack.callback(logging.getLogger().removeHandler, made.complaints)
        follower = asyncio.create_task(_follow(seats))
        stack.callback(follower.cancel)
        yield made
        await village.calm()


async def _follow(seats: GroupSeats) -> None:
    """A volunteer that takes its seat behind whoever calls it, and goes with it as far as that speaks like a stage:
    from an offer to a start, and to a first frame. Then it leaves."""
    while True:
        while not seats.is_called:
            await seats.reconciler.discovery.news.wait(1.0)
        seats.sit_down()
        upstream = seats.upstream
        assert upstream is not None
        with suppress(HetpeerError):
            await _begin(upstream, seats.members[0])
        if seats.upstream is upstream:
            seats.leave()


async def _begin(upstream: Link, me: PeerId) -> None:
    """A round, as the stage before has it."""
    said = await upstream.receive()
    with upstream.blamed():
        offer = unpack_offer(said, MANIFEST, 1, me, upstream.peer)
    upstream.send(pack_answer(AnswerFrame(offer.round, offer.step, offer.embedding_digest)))
    said = await upstream.receive()
    with upstream.blamed():
        step, _ = unpack_start(said, offer.step, offer.goal)
    said = await upstream.receive()
    with upstream.blamed():
        place = FramePosition(offer.round, step, 0)
        unpack_forward([said], FrameRules.of(MANIFEST), place, offer.embedding_digest)


async def _serve_registration(village: Village, stack: Any, monitor: Monitor) -> grpc.aio.Channel:
    files = [RunFile(name, "ef" * 32, 5) for name in file_names(MANIFEST)]
    descriptor = descriptor_of(MANIFEST, village.operator.peer_id, files)
    credentials = as_operator(village.operator, 3600.0).credentials
    dht: Any = NoDht()
    rates = Rates(RateLimit(2**30, 1e-9), RateLimit(2**30, 1e-9))
    place = village.folder / "door"
    place.mkdir()
    register = Register(village.authority, MANIFEST)
    keeper = AdmissionPolicy(place, rates)
    registration = RegistrationService(
        descriptor, dht, register, Admission(MANIFEST), village.operator, credentials, 1, 3600.0, keeper
    )
    limit = RateLimit(2**30, 1e-9)
    registration.status = StatusAnswers(monitor.view, limit, limit)
    server = grpc.aio.server(options=options(None), interceptors=[AnyBytes()])
    port = listen(server, "127.0.0.1:0", credentials.for_registration())
    run_pb2_grpc.add_RunServicer_to_server(registration, server)
    await server.start()
    stack.push_async_callback(server.stop, None)
    at = connect_to_registration(f"127.0.0.1:{port}", village.operator.peer_id, credentials.root)
    channel: grpc.aio.Channel = await stack.enter_async_context(at)
    return channel


def _material(village: Village, caller: LoopbackPeer, victim: LoopbackPeer) -> tuple[list[str], list[bytes]]:
    """Names that the victim knows, and what the caller may rightly have signed."""
    ledgers = victim.intake.ledgers.values()
    entries = [entry for ledger in ledgers for entry in ledger.all_entries()]
    snapshots = victim.outer.followed.snapshots
    known = [PART, EMBEDDING, caller.id, victim.id, *snapshots.headers, *snapshots.pieces, "ab" * 32]
    known += [entry.sha256 for entry in entries]
    made = [sign_contribution(caller.signer, PART, round, "cd" * 32, size) for round, size in ((3, 1000), (4, 2**62))]
    proofs_made = [each.proof for each in (*entries, *made)]
    offers = [HandoverOffer(caller.id, victim.id, 1, 1, "ef" * 32, size) for size in (10, 2**62)]  # type: ignore[arg-type]
    revoked = proofs.sign_revocation(village.operator, village.authority, Revocation(PeerId("QmNobody"), 1, 1))
    signed = [
        caller.outer.reconciler.statement(),
        victim.outer.reconciler.statement(),
        *proofs_made,
        caller.signer.card,
    ]
    signed += [receipt for entry in entries for receipt in entry.receipts.values()]
    signed += [handovers.sign_handover(caller.signer, each) for each in offers]
    return known, [*signed, revoked, certificates.request(caller.signer.identity)]


def _honest(caller: LoopbackPeer, before: LoopbackPeer, victim: LoopbackPeer) -> dict[str, Any]:
    """Of each method, a request that is answered."""
    mine, theirs = caller.outer.reconciler, victim.outer.followed
    statement, entries = mine.statement(), mine.intake.ledgers[PART].all_entries()
    keys = [int.from_bytes(entry.key, "big") for entry in entries]
    held = reconciliation_pb2.PartKeys(part=PART, keys=[*keys, 7])
    offered = handovers.sign_handover(
        caller.signer, HandoverOffer(PeerId(caller.id), PeerId(victim.id), 1, 1, "ef" * 32, 10)
    )
    group = PeerId(before.id), PeerId(victim.id)
    said = Refused(victim.id, "something")
    requests = {
        "Blobs/Fetch": blobs_pb2.FetchRequest(sha256=entries[0].sha256),
        "Credit/Sign": credit_pb2.CreditQuestion(worked=[1, 2]),
        "Monitor/Tell": monitor_pb2.Batch(
            batch_json=pack_report(PeerReport(ReportedStatus(round=1, step=2, loss=5.0), [(0.0, said)]))
        ),
        "Pipeline/Exchange": pack_offer(OfferFrame(3, 1, group, 1, 0, "", MANIFEST.compressions[0], 3, 20.0)),
        "Reconciliation/Compare": reconciliation_pb2.Comparison(
            statement=statement,
            parts=[summary_to_wire(summary(ledger)) for ledger in mine.intake.ledgers.values()],
            attested=mine.attested.round,
        ),
        "Reconciliation/Ask": reconciliation_pb2.Question(part=PART, keys=keys),
        "Reconciliation/Tell": reconciliation_pb2.News(
            statement=statement, entries=[entry_to_wire(entry, Window(3, 1)) for entry in entries], held=[held]
        ),
        "Reconciliation/Revoke": reconciliation_pb2.Revocations(),
        "Run/Describe": run_pb2.DescribeRequest(),
        "Run/Measure": run_pb2.MeasureRequest(wanted=9),
        "Run/Register": run_pb2.RegisterRequest(
            signing_request=certificates.request(caller.signer.identity), role=run_pb2.VOLUNTEER
        ),
        "Run/Status": run_pb2.StatusRequest(),
        "Run/DialBack": run_pb2.DialBackRequest(peer_id=caller.id, address="127.0.0.1:9"),
        "Snapshots/Describe": snapshots_pb2.SnapshotRequest(digest=next(iter(theirs.snapshots.headers))),
        "Succession/Bequeath": succession_pb2.Bequest(proof=offered),
    }
    return {f"/hetpeer.v1.{method}": request for method, request in requests.items()}
