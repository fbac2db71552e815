"""What an observer does for others is bounded: by peer, by round, by time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from peer.network import spot_check_service
from peer.network.spot_check_service import PASSES_ANSWERED, SpotCheckService
from protocol.codec.spot_check import NOTHING, SAMPLED, Likeness, ReceivedPass, pack_question, unpack_likeness
from protocol.identity import PeerId
from protocol.limits import SPOT_CHECK_SAVED_SECONDS, SPOT_CHECKS_OF_ONE, SPOT_CHECKS_WAIT
from protocol.schemas import spot_checks_pb2 as pb
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"rounds": 5})
DIGEST = "ab" * 32


class RefusedCall(Exception):
    """What a refusal is to a handler."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""

    async def refuse(context: Any, reason: str) -> None:
        raise RefusedCall(reason)

    async def same_run(context: Any, manifest: Any) -> None:
        return

    now = [1000.0]
    monkeypatch.setattr(spot_check_service, "refuse", refuse)
    monkeypatch.setattr(spot_check_service, "require_manifest", same_run)
    monkeypatch.setattr(spot_check_service, "caller", lambda context: SimpleNamespace(peer=context))
    monkeypatch.setattr(spot_check_service, "monotonic", lambda: now[0])
    return now


def service(granted: bytes = b"the operator's word") -> SpotCheckService:
    attested: Any = SimpleNamespace(granted=granted)

    async def check(asked: ReceivedPass) -> Likeness:
        return Likeness(0.0, asked.round / 10, asked.group_digest == DIGEST)

    return SpotCheckService(MANIFEST, attested, check, lambda: 3)


def question(round: int = 3, first: int = 0, beside: tuple[PeerId, ...] = ()) -> pb.SpotCheckQuestion:
    tokens = np.full((MANIFEST.inner.microbatch, MANIFEST.model.context + 1), first)
    return pack_question(ReceivedPass(round, 0, 4, tokens, 1, NOTHING, np.ones(SAMPLED, np.float32), DIGEST, beside))


def ask(asked: SpotCheckService, peer: str = "one", round: int = 3, **about: Any) -> pb.SpotCheckAnswer:
    return asyncio.run(asked.Check(question(round, **about), PeerId(peer)))


def test_it_tells_what_neighbours_were_told_of_the_same_microbatch(now: list[float]):
    """And only what they were told themselves: nobody speaks for another."""
    here, beside = service(), (PeerId("one"), PeerId("other"))
    assert not ask(here, "one", beside=beside[1:]).neighbours
    told = ask(here, "between", beside=beside)
    assert unpack_likeness(told).neighbours == {beside[0]: (0.0, 0.3)}
    assert not ask(here, "between", first=1, beside=beside).neighbours


def test_of_so_many_microbatches_it_is_remembered_what_peers_were_told(now: list[float]):
    here, beside = service(), (PeerId("0"),)
    for number in range(PASSES_ANSWERED + 1):
        ask(here, str(number), first=number % 300)
    assert len(here.answered) == PASSES_ANSWERED
    assert not ask(here, "late", beside=beside).neighbours


def test_it_answers_about_the_round_in_hand(now: list[float]):
    here = service()
    answer = ask(here)
    assert (answer.activations, answer.gradients, answer.granted) == (0.0, 0.3, b"the operator's word")
    assert answer.same_state
    assert here.take_stock() == (1, 0.3)
    assert here.take_stock() == (0, 1.0)
    for round in (2, 4, 6):
        with pytest.raises(RefusedCall, match="round"):
            ask(here, round=round)


def test_only_an_observer_of_the_operators_that_audits_answers(now: list[float]):
    with pytest.raises(RefusedCall, match="does not audit"):
        ask(service(granted=b""))
    idle = service()
    idle.check = None
    with pytest.raises(RefusedCall, match="does not audit"):
        ask(idle)


def test_one_peer_has_so_many_checks_in_a_round(now: list[float]):
    here = service()
    for _ in range(SPOT_CHECKS_OF_ONE * MANIFEST.replicas.stages):
        ask(here)
    with pytest.raises(RefusedCall, match="one peer"):
        ask(here)
    ask(here, peer="another")
    here.clock = lambda: 4
    ask(here, round=4)


def test_it_spends_a_share_of_its_time(now: list[float]):
    here = service()

    async def slow(asked: ReceivedPass) -> Likeness:
        now[0] += SPOT_CHECK_SAVED_SECONDS
        return Likeness(0.0, 0.0, same_state=False)

    here.check = slow
    ask(here)
    with pytest.raises(RefusedCall, match="time"):
        ask(here, "another")
    now[0] += 2 * SPOT_CHECK_SAVED_SECONDS
    ask(here, "later")


def test_so_many_wait_and_one_of_a_peer(now: list[float]):
    here, goes_on = service(), asyncio.Event()

    async def wait(asked: ReceivedPass) -> Likeness:
        await goes_on.wait()
        return Likeness(0.0, 0.0, same_state=False)

    here.check = wait

    async def ask_at_once() -> None:
        names = [str(each) for each in range(SPOT_CHECKS_WAIT + 1)]
        asking = [asyncio.create_task(here.Check(question(), PeerId(each))) for each in ("0", *names)]
        await asyncio.sleep(0)
        goes_on.set()
        ended = await asyncio.gather(*asking, return_exceptions=True)
        assert [isinstance(each, RefusedCall) for each in ended] == [
            False,
            True,
            *[False] * (SPOT_CHECKS_WAIT - 1),
            True,
        ]

    asyncio.run(ask_at_once())
    assert here.waiting.total == 0
