"""Invitations, the control stream, and a link between two stages, over real sockets; and the lease: whose group a
volunteer is in."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from peer.network.duplex import Duplex
from peer.network.group import (
    Attempt,
    GroupService,
    Lease,
    LeaseEvent,
    LeaseState,
    Link,
    Membership,
    PipelineService,
    Seat,
    call,
    invite,
    lead,
    link,
    orders_to,
)
from protocol.errors import LostMemberError
from protocol.identity import ReplicaId
from protocol.limits import LEASE_SECONDS
from protocol.net.channels import listen, options
from protocol.schemas import group_pb2, group_pb2_grpc, pipeline_pb2, pipeline_pb2_grpc
from tests.reference.admitted import contacts, credentials, identity, there
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
A, B = ReplicaId("a"), ReplicaId("b")
ATTEMPT = Attempt(ReplicaId("r"), 1)
SECONDS = 10.0


@asynccontextmanager
async def member() -> AsyncIterator[tuple[GroupService, Seat]]:
    """A volunteer of stage 1."""
    service = GroupService(MANIFEST, 1, identity("member").peer_id)
    service.ready = True
    server = grpc.aio.server(options=options(MANIFEST))
    group_pb2_grpc.add_GroupServicer_to_server(service, server)
    address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials('member').serving())}"
    await server.start()
    try:
        yield service, Seat(identity("member").peer_id, address)
    finally:
        await server.stop(None)


def group(leader: str) -> Membership:
    return Membership(ReplicaId(identity(leader).peer_id), 0)


@asynccontextmanager
async def led(
    stopped: bool = False,
) -> AsyncIterator[
    tuple[Duplex[group_pb2.Order, group_pb2.Report], Duplex[group_pb2.Report, group_pb2.Order], asyncio.Task[None]]
]:
    """A leader's orders to a member, its reports, and the task that carries them; of a leader that has `stopped`
    nothing is heard, nor does it listen."""
    async with member() as (service, seat):
        membership = group("a")
        await invite(1, seat, membership, contacts("a", MANIFEST))
        orders = orders_to(1, seat)
        if stopped:
            orders.beat = None
        leading = asyncio.create_task(lead(seat, membership.replica, contacts("a", MANIFEST), orders))
        _, reports = await service.wait_for_leader()
        yield orders, reports, leading
        leading.cancel()


def test_an_invited_member_hears_its_leaders_orders_and_answers():
    async def scene() -> None:
        async with member() as (service, seat):
            membership = group("a")
            assert await invite(1, seat, membership, contacts("a", MANIFEST))
            orders = orders_to(1, seat)
            leading = asyncio.create_task(lead(seat, membership.replica, contacts("a", MANIFEST), orders))
            heard, reports = await service.wait_for_leader()
            assert heard == membership
            orders.send(group_pb2.Order(begin=group_pb2.Begin(attempt=7)))
            assert (await reports.receive()).begin.attempt == 7
            reports.send(group_pb2.Report(ready=group_pb2.Ready()))
            assert (await orders.receive()).WhichOneof("kind") == "ready"
            orders.close()
            with pytest.raises(LostMemberError, match="the group's leader"):
                await reports.receive()
            await leading

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_a_second_leader_is_declined_while_the_first_ones_lease_lasts():
    async def scene() -> None:
        async with member() as (_, seat):
            assert await invite(1, seat, group("a"), contacts("a", MANIFEST))
            assert not await invite(1, seat, group("b"), contacts("b", MANIFEST))
            assert await invite(1, seat, group("a"), contacts("a", MANIFEST))

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_another_stage_and_a_member_that_has_not_caught_up_decline():
    async def scene() -> None:
        async with member() as (service, seat):
            assert not await invite(2, seat, group("a"), contacts("a", MANIFEST))
            service.ready = False
            assert not await invite(1, seat, group("a"), contacts("a", MANIFEST))

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_a_member_that_takes_no_part_any_more_hangs_up_on_a_leader_that_has_called():
    async def scene() -> None:
        async with member() as (service, seat):
            membership = group("a")
            assert await invite(1, seat, membership, contacts("a", MANIFEST))
            orders = orders_to(1, seat)
            leading = asyncio.create_task(lead(seat, membership.replica, contacts("a", MANIFEST), orders))
            service._called.put_nowait(await service.wait_for_leader())  # it has called, and nobody has taken it yet
            service.close()
            orders.send(group_pb2.Order(begin=group_pb2.Begin(attempt=1)))
            with pytest.raises(LostMemberError, match="is gone"):
                await orders.receive()
            await leading
            late = orders_to(1, seat)
            await lead(seat, membership.replica, contacts("a", MANIFEST), late)
            with pytest.raises(LostMemberError):
                await late.receive()

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_a_leader_that_falls_silent_is_noticed_in_seconds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("peer.network.duplex.BEAT_SECONDS", 0.1)

    async def scene() -> None:
        async with led(stopped=True) as (_, reports, _):
            with pytest.raises(LostMemberError, match="silent"):
                await reports.receive()

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_a_machine_that_stood_still_hears_what_has_come_before_it_takes_anybody_for_gone(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("peer.network.duplex.BEAT_SECONDS", 0.1)

    async def scene() -> None:
        async with led() as (orders, reports, _):
            hearing = asyncio.create_task(reports.receive())
            for _ in range(3):
                await asyncio.sleep(0.15)
                time.sleep(1.0)  # noqa: ASYNC251 - both sides stand still, for longer than either may be silent
            orders.send(group_pb2.Order(halt=group_pb2.Halt(attempt=1)))
            assert (await hearing).halt.attempt == 1

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_a_peer_that_is_not_there_does_not_accept():
    async def scene() -> None:
        async with member() as (_, seat):
            pass
        assert not await invite(1, seat, group("a"), contacts("a", MANIFEST))

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_nobody_leads_who_was_not_accepted():
    async def scene() -> None:
        async with member() as (_, seat):
            orders = orders_to(1, seat)
            leading = asyncio.create_task(lead(seat, group("a").replica, contacts("a", MANIFEST), orders))
            with pytest.raises(LostMemberError):
                await orders.receive()
            await asyncio.gather(leading, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_the_end_of_a_conversation_stays_the_end():
    async def scene() -> None:
        async with led() as (_, reports, leading):
            leading.cancel()
            for _ in range(3):
                with pytest.raises(LostMemberError):
                    await reports.receive()

    asyncio.run(asyncio.wait_for(scene(), 20))


# The lease


def test_a_free_peer_becomes_a_member_when_its_leader_calls():
    lease = Lease()
    assert lease.take(LeaseEvent.INVITED, A, now=0.0)
    assert lease.take(LeaseEvent.CALLED, A, now=1.0)
    assert lease.state is LeaseState.MEMBER


def test_a_second_leader_is_declined_while_the_lease_lasts():
    lease = Lease()
    lease.take(LeaseEvent.INVITED, A, now=0.0)
    assert not lease.take(LeaseEvent.INVITED, B, now=1.0)
    assert not lease.take(LeaseEvent.CALLED, B, now=1.0)
    assert lease.leader == A


def test_a_lease_that_ran_out_frees_the_peer():
    lease = Lease()
    lease.take(LeaseEvent.INVITED, A, now=0.0)
    assert not lease.take(LeaseEvent.CALLED, A, now=LEASE_SECONDS)
    assert lease.take(LeaseEvent.INVITED, B, now=LEASE_SECONDS)


def test_a_member_stays_until_its_leaders_stream_ends():
    lease = Lease()
    lease.take(LeaseEvent.INVITED, A, now=0.0)
    lease.take(LeaseEvent.CALLED, A, now=1.0)
    assert not lease.take(LeaseEvent.INVITED, B, now=10 * LEASE_SECONDS)
    assert lease.take(LeaseEvent.LEFT, A, now=3.0)
    assert lease.state is LeaseState.FREE


def test_nobody_is_called_without_an_invitation():
    assert not Lease().take(LeaseEvent.CALLED, A, now=0.0)


# Links


def _link(neighbour: str) -> Link:
    return link(MANIFEST, identity(neighbour).peer_id, neighbour)


@pytest.mark.parametrize("first", ["the stage that called", "the stage that was called", "both at once"])
def test_when_one_side_closes_a_link_what_it_had_sent_arrives_and_the_stream_is_over_on_both(first: str):
    async def scene() -> None:
        server, service = grpc.aio.server(), PipelineService(MANIFEST)
        pipeline_pb2_grpc.add_PipelineServicer_to_server(service, server)
        address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials('stage 1').serving())}"
        await server.start()
        upstream, downstream = _link("stage 0"), _link("stage 1")
        service.expect(ATTEMPT, identity("stage 0").peer_id, upstream)
        calling = asyncio.create_task(
            call(there("stage 1", address), contacts("stage 0", MANIFEST), ATTEMPT, downstream)
        )
        downstream.send(pipeline_pb2.Frame(forward=pipeline_pb2.Forward(embedding_digest=b"1")))
        assert (await asyncio.wait_for(upstream.receive(), SECONDS)).forward.embedding_digest == b"1"
        upstream.send(pipeline_pb2.Frame(backward=pipeline_pb2.Backward(gradients=pipeline_pb2.Tensor(data=b"2"))))
        if first != "the stage that called":
            upstream.close()
        if first != "the stage that was called":
            downstream.close()
        assert (await asyncio.wait_for(downstream.receive(), SECONDS)).backward.gradients.data == b"2"
        await asyncio.wait_for(calling, SECONDS)
        for each in (upstream, downstream):
            with pytest.raises(LostMemberError):
                await asyncio.wait_for(each.receive(), SECONDS)
        await server.stop(None)

    asyncio.run(scene())
