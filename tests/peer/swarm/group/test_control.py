"""The clip factor that a group agrees on, and what a leader or a member refuses."""

import asyncio

import pytest

from peer.network.duplex import BreachError, Duplex
from peer.optim.inner import clip_factor
from peer.swarm.group.control import Gradients, HaltedError, LeaderControl, MemberControl
from protocol.errors import HetpeerError, LostMemberError
from protocol.identity import PeerId
from protocol.schemas import group_pb2 as pb


def pair() -> tuple[Duplex, Duplex]:
    """Two ends of a conversation, joined in memory."""
    one, other = Duplex(PeerId("m"), "the member", 8), Duplex(PeerId("l"), "the leader", 8)
    one._outgoing, other._outgoing = other._incoming, one._incoming
    return one, other


def test_leader_and_members_take_the_factor_of_the_whole_replica():
    async def scene() -> None:
        (orders_1, reports_1), (orders_2, reports_2) = pair(), pair()
        leader = LeaderControl({1: orders_1, 2: orders_2}, clip=1.0)
        one, two = MemberControl(reports_1), MemberControl(reports_2)
        agreed = await asyncio.gather(
            leader.agree(1, 0, Gradients(4.0)), one.agree(1, 0, Gradients(9.0)), two.agree(1, 0, Gradients(3.0, 6.5))
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
        pb.Report(gradients=pb.Gradients(round=1, step=0, squared_norm=1e308)),
        pb.Report(gradients=pb.Gradients(round=1, step=0, squared_norm=1.0, loss=float("nan"))),
    ],
    ids=["ready", "empty", "another step", "another round", "negative norm", "no number", "too large", "no loss"],
)
def test_a_leader_refuses_a_report_that_is_not_the_one_due(report: pb.Report):
    async def scene() -> None:
        orders, reports = pair()
        reports.send(report)
        await LeaderControl({1: orders}, clip=1.0).agree(1, 0, Gradients(1.0))

    with pytest.raises(BreachError, match="the member") as error:
        asyncio.run(scene())
    assert error.value.peer == "m"


@pytest.mark.parametrize(
    "order",
    [
        pb.Order(begin=pb.Begin(attempt=1)),
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
        await MemberControl(reports).agree(1, 0, Gradients(1.0))

    with pytest.raises(HetpeerError, match="the leader"):
        asyncio.run(scene())


def test_the_leader_says_when_the_inner_loop_ends():
    async def scene() -> None:
        orders, reports = pair()
        leader, member = LeaderControl({1: orders}, 1.0), MemberControl(reports)
        for last in (False, True):
            leader.last = lambda last=last: last
            agreed = await asyncio.gather(leader.agree(1, 0, Gradients(1.0)), member.agree(1, 0, Gradients(1.0, 2.0)))
            assert [each.last for each in agreed] == [last, last]

    asyncio.run(scene())


def test_what_the_leader_learns_while_a_step_lasts_can_make_it_the_last():
    async def scene() -> None:
        orders, reports = pair()
        others_wait = False
        leader, member = LeaderControl({1: orders}, 1.0, lambda: others_wait), MemberControl(reports)
        agreeing = asyncio.create_task(leader.agree(1, 0, Gradients(1.0)))
        await asyncio.sleep(0)
        others_wait = True  # the leader has its own gradients, and waits for the slow member's
        assert (await member.agree(1, 0, Gradients(1.0, 2.0))).last
        assert (await agreeing).last

    asyncio.run(scene())


def test_nobody_takes_the_step_when_a_member_misses_its_neighbour():
    async def scene() -> None:
        orders, reports = pair()
        reports.send(pb.Report(broken=pb.Broken(attempt=1, reason="stage 2 is gone")))
        with pytest.raises(LostMemberError, match="stage 2 is gone"):
            await LeaderControl({1: orders}, 1.0).agree(1, 0, Gradients(1.0))

    asyncio.run(scene())


def test_a_member_does_not_take_a_step_that_was_called_off():
    async def scene() -> None:
        orders, reports = pair()
        orders.send(pb.Order(halt=pb.Halt(attempt=1)))
        with pytest.raises(HaltedError):
            await MemberControl(reports).agree(1, 0, Gradients(1.0))

    asyncio.run(scene())
