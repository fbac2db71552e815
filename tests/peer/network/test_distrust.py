"""Whom this peer does not talk to, and for how long."""

from dataclasses import dataclass, field

import pytest

from peer.events import Event, Refused
from peer.network.distrust import FIRST_SECONDS, MOST_SECONDS, Distrust
from peer.network.duplex import BreachError
from protocol.errors import FormatError, HetpeerError, RefusedError, UnreachableError
from protocol.identity import PeerId

LIAR, FRIEND = PeerId("liar"), PeerId("friend")


@dataclass
class Scene:
    """A clock that is set by hand, and what is heard."""

    now: float = 0.0
    said: list[Event] = field(default_factory=list)
    cut: list[PeerId] = field(default_factory=list)

    def distrust(self) -> Distrust:
        return Distrust(self.said.append, lambda: self.now, hang_up=self.cut.append)


@pytest.mark.parametrize("error", [FormatError("no frame"), BreachError(LIAR, "no frame")])
def test_who_breaks_the_protocol_is_hung_up_on_and_avoided_and_nobody_else_is(error: HetpeerError):
    scene = Scene()
    distrust = scene.distrust()
    distrust.note(LIAR, error)
    assert scene.cut == [LIAR]
    assert scene.said == [Refused(LIAR, "no frame")]
    assert "no frame" in distrust.objection(LIAR)
    assert distrust.objection(FRIEND) == ""
    scene.now = FIRST_SECONDS
    assert distrust.objection(LIAR) == ""


@pytest.mark.parametrize("error", [RefusedError("wrong round"), UnreachableError("gone")])
def test_an_honest_mistake_costs_nothing(error: HetpeerError):
    scene = Scene()
    distrust = scene.distrust()
    distrust.note(FRIEND, error)
    assert distrust.objection(FRIEND) == ""
    assert scene.cut == []


def test_each_time_it_is_avoided_for_twice_as_long_up_to_an_hour():
    scene = Scene()
    distrust = scene.distrust()
    for count in range(12):
        distrust.note(LIAR, FormatError("again"))
        scene.now += min(MOST_SECONDS, FIRST_SECONDS * 2**count) - 0.5
        assert distrust.objection(LIAR)
        scene.now += 0.5
        assert not distrust.objection(LIAR)


def test_what_comes_while_it_is_avoided_already_makes_it_no_worse():
    scene = Scene()
    distrust = scene.distrust()
    for _ in range(5):
        distrust.note(LIAR, FormatError("no frame"))
    assert distrust.offenders[LIAR].count == 1
    assert len(scene.said) == 1


def test_who_was_taken_out_stays_out():
    scene = Scene()
    distrust = scene.distrust()
    distrust.revoke(LIAR)
    scene.now = 10 * MOST_SECONDS
    assert "taken peer" in distrust.objection(LIAR)
    assert scene.cut == [LIAR]
