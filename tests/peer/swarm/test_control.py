"""The clip factor that a group agrees on, and what a leader or a member refuses."""

import asyncio

import pytest

from peer.network.duplex import Duplex
from peer.optim.inner import clip_factor
from peer.swarm.control import LeaderControl, MemberControl
from protocol.errors import HetpeerError, PeerError
from protocol.identity import ReplicaId
from protocol.schemas import group_pb2 as pb


def pair() -> tuple[Duplex, Duplex]:
    """Two ends of a conversation, joined in memory."""
    one, other = Duplex("the member", 8), Duplex("the leader", 8)
    one._outgoing, other._outgoing = other._incoming, one._incoming
    return one, other


def test_leader_and_members_take_the_factor_of_the_whole_replica():
    async def scene() -> None:
        (orders_1, reports_1), (orders_2, reports_2) = pair(), pair()
        leader = LeaderControl(ReplicaId("a"), (orders_1, orders_2), clip=1.0)
        one, two = MemberControl(reports_1), MemberControl(reports_2)
        agreed = await asyncio.gather(
            leader.agree(1, 0, 4.0, None), one.agree(1, 0, 9.0, None), two.agree(1, 0, 3.0, 6.5)
        )
        assert {each.clip_factor for each in agreed} == {clip_factor([4.0, 9.0, 3.0], 1.0)}
        assert agreed[0].loss == agreed[2].loss == 6.5

    asyncio.run(scene())


@pytest.mark.parametrize(
    "report",
    [
        pb.Report(ready=pb.Ready()),
        pb.Report(),
        pb.Report(gradients=pb.Gradients(round=1, step=1, squared_norm=1.0)),
        pb.Report(gradients=pb.Gradients(round=2, step=0, squared_norm=1.0)),
        pb.Report(gradients=pb.Gradients(round=1, step=0, squared_norm=-1.0)),
        pb.Report(gradients=pb.Gradients(round=1, step=0, squared_norm=float("nan"))),
    ],
    ids=["ready", "empty", "another step", "another round", "negative norm", "no number"],
)
def test_a_leader_refuses_a_report_that_is_not_the_one_due(report: pb.Report):
    async def scene() -> None:
        orders, reports = pair()
        reports.send(report)
        await LeaderControl(ReplicaId("a"), (orders,), clip=1.0).agree(1, 0, 1.0, None)

    with pytest.raises(PeerError, match="the member"):
        asyncio.run(scene())


@pytest.mark.parametrize(
    "order",
    [
        pb.Order(begin=pb.Begin(replica="a")),
        pb.Order(step=pb.Step(round=1, step=1, clip_factor=1.0)),
        pb.Order(step=pb.Step(round=1, step=0, clip_factor=0.0)),
        pb.Order(step=pb.Step(round=1, step=0, clip_factor=1.5)),
        pb.Order(step=pb.Step(round=1, step=0, clip_factor=float("nan"))),
    ],
    ids=["begin", "another step", "zero", "above one", "no number"],
)
def test_a_member_refuses_an_order_that_no_leader_gives(order: pb.Order):
    async def scene() -> None:
        orders, reports = pair()
        orders.send(order)
        await MemberControl(reports).agree(1, 0, 1.0, None)

    with pytest.raises(HetpeerError, match="the leader"):
        asyncio.run(scene())


def test_a_round_ends_when_all_stages_say_so():
    async def scene() -> None:
        orders, reports = pair()
        leader, member = LeaderControl(ReplicaId("a"), (orders,), 1.0), MemberControl(reports)
        await member.end_round(4)
        await leader.end_round(4)
        await member.end_round(5)
        with pytest.raises(PeerError, match="did not end round 6"):
            await leader.end_round(6)

    asyncio.run(scene())
