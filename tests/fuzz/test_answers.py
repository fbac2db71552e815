"""Whatever answers a call, who has made it goes on, or is told in one of our errors: hostile are also those called."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.node import as_operator
from peer.network import admission
from peer.network.gossip import send_revocation
from peer.network.group import Attempt, call, make_link
from peer.network.handover_service import offer_handover
from peer.network.reach.probing import measure_nodes
from peer.network.snapshot_transfer import fetch_snapshot
from protocol.codec.seating import OfferFrame, pack_offer, unpack_answer, unpack_seats
from protocol.errors import HetpeerError
from protocol.identity import PeerId, ReplicaId
from protocol.net.blobs import fetch
from protocol.net.channels import listen, options
from protocol.net.tasks import Children
from protocol.run.run_files import RunFile, descriptor_of, file_names
from protocol.trust.handovers import HandoverOffer
from protocol.trust.keys import load_or_create
from protocol.trust.records import PeerRecord
from protocol.trust.ticket import Ticket
from tests.fuzz.hostile import MANIFEST, METHODS, Complaints
from tests.fuzz.messages import messages
from tests.reference.loopback_peers import LoopbackPeer, Village

SHA256 = "ab" * 32
Asks = Callable[["Liar"], Awaitable[object]]


class Liar(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every call with `answers`. `peer` is who asks it, and takes it for `record`, or for a door."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.complaints = Complaints()
        self.peer: LoopbackPeer
        self.record: PeerRecord
        self.ticket: Ticket
        self.signed: list[bytes] = []

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.answer)

    async def answer(self, requests: Any, context: Any) -> None:
        await context.read()
        for each in self.answers:
            await context.write(each)


async def compare(liar: Liar) -> None:
    await liar.peer.outer.reconciler.compare(liar.record, whole=True)


async def sit_before(liar: Liar) -> None:
    """Call it to the seat behind this peer, and offer it a round."""
    me, it = PeerId(liar.peer.id), liar.record.peer_id
    downstream = make_link(MANIFEST, it, "stage 1")
    async with Children() as children:
        children.spawn(call(liar.record, liar.peer.outer.reconciler.contacts, ReplicaId(me), downstream))
        downstream.send(pack_offer(OfferFrame(1, 0, (me, it), 1, 0, "", MANIFEST.compressions[0], 3, 20.0)))
        try:
            said = await downstream.receive()
            with downstream.blamed():
                unpack_seats(said, it, 1)
            said = await downstream.receive()
            with downstream.blamed():
                unpack_answer(said, MANIFEST)
        finally:
            downstream.abort("enough")


async def offer(liar: Liar) -> None:
    offered = HandoverOffer(PeerId(liar.peer.id), liar.record.peer_id, 1, 1, SHA256, 10)
    await offer_handover(offered, liar.record, liar.peer.outer.reconciler)


async def ask_for_credit(liar: Liar) -> None:
    receipt_collector, group = liar.peer.receipt_collector, Attempt(ReplicaId(liar.record.peer_id), 1)
    receipt_collector.tries.clear()
    receipt_collector.seen.exchange(1, liar.record.peer_id, 0, group)
    receipt_collector.reconciler.discovery.records[liar.record.peer_id] = liar.record
    await receipt_collector.ask()


async def fetch_blob(liar: Liar) -> None:
    async with liar.peer.outer.reconciler.contacts.to(liar.record) as channel:
        await fetch(channel, MANIFEST, SHA256, 10)


async def fetch_state(liar: Liar) -> None:
    followed, contacts = liar.peer.outer.followed, liar.peer.outer.reconciler.contacts
    await fetch_snapshot([liar.record], SHA256, contacts, followed.snapshots, lambda *at: None, lambda *how: None)


async def revoke(liar: Liar) -> None:
    assert await send_revocation(liar.record, b"", liar.peer.outer.reconciler.contacts) in (True, False)


async def knock(liar: Liar) -> None:
    await admission.fetch_descriptor(liar.ticket)


async def register(liar: Liar) -> None:
    identity = liar.peer.signer.identity
    files = [RunFile(name, SHA256, 5) for name in file_names(MANIFEST)]
    descriptor = descriptor_of(MANIFEST, liar.peer.signer.authority.operator, files)
    await admission.register(liar.ticket, descriptor, identity, "volunteer", 1)


async def measure(liar: Liar) -> None:
    assert len(await measure_nodes(liar.ticket)) == 1


ASKS: dict[Asks, str] = {
    compare: "Reconciliation/Compare",
    sit_before: "Pipeline/Exchange",
    offer: "Succession/Bequeath",
    ask_for_credit: "Credit/Sign",
    fetch_blob: "Blobs/Fetch",
    fetch_state: "Snapshots/Describe",
    revoke: "Reconciliation/Revoke",
    knock: "Run/Describe",
    register: "Run/Register",
    measure: "Run/Measure",
}
every_question = pytest.mark.parametrize("ask", ASKS, ids=ASKS.values())


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, Liar]]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        yield runner, runner.run(set_up(stack, tmp_path_factory.mktemp("liar")))
        runner.run(stack.aclose())


async def set_up(stack: AsyncExitStack, folder: Path) -> Liar:
    liar = Liar()
    village = Village(MANIFEST, folder, stack, load_or_create(folder / "operator"))
    liar.peer, other = await village.join("peer", 1), await village.join("liar", 1)
    credentials = other.outer.reconciler.contacts.credentials
    for_registration = as_operator(village.operator, 60.0).credentials.for_registration()
    ports = []
    for shown in (credentials.serving(), for_registration):
        server = grpc.aio.server(options=options(MANIFEST))
        server.add_generic_rpc_handlers((liar,))
        ports.append(listen(server, "127.0.0.1:0", shown))
        await server.start()
        stack.push_async_callback(server.stop, None)
    liar.record = other.outer.discovery.record.model_copy(update={"address": f"127.0.0.1:{ports[0]}"})
    liar.ticket = Ticket(village.authority.run, village.operator.public, (f"127.0.0.1:{ports[1]}",), ())
    liar.signed = [other.outer.reconciler.statement(), other.signer.card, liar.peer.signer.card]
    logging.getLogger().addHandler(liar.complaints)
    stack.callback(logging.getLogger().removeHandler, liar.complaints)
    return liar


async def hear(ask: Asks, liar: Liar, answers: list[bytes]) -> None:
    """Ask, and be told this. Our own errors are what is meant."""
    liar.answers = answers
    liar.peer.outer.discovery.lost.clear()
    with suppress(HetpeerError):
        await asyncio.wait_for(ask(liar), 10.0)
    while tasks := liar.peer.outer.reconciler.tasks:
        await asyncio.wait(tasks)
    assert not liar.complaints.heard, liar.complaints.heard


@every_question
def test_any_answer_is_taken_or_refused(here: tuple[asyncio.Runner, Liar], ask: Asks):
    runner, liar = here
    method = METHODS[f"/hetpeer.v1.{ASKS[ask]}"]
    most = 3 if method.server_streaming else 1  # who gets a second answer waits until its own time is over
    known = [liar.peer.id, liar.record.peer_id, "stage-1", SHA256]
    message = messages(method.output_type, known, liar.signed).map(lambda each: each.SerializeToString())

    @settings(max_examples=20)
    @given(answers=st.lists(st.one_of(message, message, st.binary(max_size=60)), max_size=most))
    def attempt(answers: list[bytes]) -> None:
        runner.run(hear(ask, liar, answers))

    attempt()


@every_question
def test_an_answer_that_is_no_message_or_none_at_all_is_an_empty_one(here: tuple[asyncio.Runner, Liar], ask: Asks):
    runner, liar = here
    for answers in ([b"\xff"], [b""], []):
        runner.run(hear(ask, liar, answers))


def test_an_endless_stream_of_empty_chunks_is_cut_off(here: tuple[asyncio.Runner, Liar]):
    runner, liar = here
    liar.answers = [b""] * 10
    with pytest.raises(HetpeerError, match="a chunk of 0 bytes"):
        runner.run(fetch_blob(liar))
