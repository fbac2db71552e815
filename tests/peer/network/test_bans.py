"""Whom a peer avoids, for how long, and for what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.network.bans import FIRST_BAN_SECONDS, LONGEST_BAN_SECONDS, OFFENDERS_KEPT, Bans
from protocol.errors import FormatError, LostMemberError, ManifestError, PeerError, RefusedError, UnreachableError
from protocol.events.activity import Refused
from protocol.events.decisions import Avoided
from protocol.events.event import Event
from protocol.identity import NO_PEER, PeerId
from protocol.trust.records import PeerRecord

ANN, BOB = PeerId("QmAnn"), PeerId("QmBob")


class Neighbourhood:
    """A peer's bans, with a clock by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.said: list[Event] = []
        self.left: list[PeerId] = []
        self.records: dict[PeerId, PeerRecord] = {}
        self.bans = Bans(self.said.append, lambda: self.now, records=self.records, listeners=[self.left.append])

    def avoided_seconds(self, peer: PeerId) -> float:
        """How long a peer is avoided from now on, to the millisecond."""
        start, low, high = self.now, 0.0, 2 * LONGEST_BAN_SECONDS
        while high - low > 1e-3:
            self.now = start + (low + high) / 2
            low, high = (self.now - start, high) if self.bans.objection(peer) else (low, self.now - start)
        self.now = start
        return high


def test_whom_a_revoked_gateway_let_in_is_not_talked_to_until_another_node_lets_it_in():
    here = Neighbourhood()
    here.records[ANN] = PeerRecord.model_construct(issuer=PeerId("QmGateway"))
    here.records[BOB] = PeerRecord.model_construct(issuer=NO_PEER)
    here.bans.note(PeerId("QmGateway"), PeerError("lies"))
    assert here.bans.objection(ANN) == ""  # what the gateway does wrong itself is its own affair
    here.bans.revoke(PeerId("QmGateway"))
    assert here.bans.objection(ANN) == "the operator has taken out the gateway that let peer QmAnn in"
    assert here.bans.objection(BOB) == ""
    here.records[ANN] = here.records[BOB]
    assert here.bans.objection(ANN) == ""


@pytest.mark.parametrize("error", [PeerError("lies"), FormatError("garbage")])
def test_who_breaks_the_protocol_is_named_hung_up_on_and_avoided_for_a_while(error: PeerError):
    here = Neighbourhood()
    here.bans.note(ANN, error)
    assert here.bans.objection(ANN) == f"peer {ANN[-8:]} is avoided for 10 s: {error}"
    assert here.bans.objection(BOB) == ""
    assert here.said == [Refused(ANN, str(error)), Avoided(ANN, FIRST_BAN_SECONDS, f"offence 1: {error}")]
    assert here.left == [ANN]
    here.now += FIRST_BAN_SECONDS
    assert here.bans.objection(ANN) == ""


@pytest.mark.parametrize(
    "error", [UnreachableError("away"), RefusedError("no"), ManifestError("another"), LostMemberError("gone")]
)
def test_an_honest_mistake_costs_nothing(error: Exception):
    here = Neighbourhood()
    here.bans.note(ANN, error)  # type: ignore[arg-type]
    assert here.bans.objection(ANN) == ""
    assert here.said == here.left == []


@given(st.integers(1, 40))
def test_each_time_it_is_twice_as_long_and_an_hour_at_most(times: int):
    here, expected = Neighbourhood(), FIRST_BAN_SECONDS
    for _ in range(times):
        here.bans.note(ANN, PeerError("lies"))
        assert here.avoided_seconds(ANN) == pytest.approx(expected, abs=1e-2)
        here.now += expected
        expected = min(LONGEST_BAN_SECONDS, 2 * expected)


def test_what_is_still_under_way_when_a_peer_is_avoided_already_counts_once():
    here = Neighbourhood()
    for _ in range(5):
        here.bans.note(ANN, PeerError("lies"))
    assert len([event for event in here.said if isinstance(event, Refused)]) == 1
    assert here.avoided_seconds(ANN) == pytest.approx(FIRST_BAN_SECONDS, abs=1e-2)


def test_a_revoked_peer_is_never_talked_to_again_and_hung_up_on_once():
    here = Neighbourhood()
    here.bans.revoke(ANN)
    here.bans.revoke(ANN)
    here.now += 1e9
    assert here.bans.objection(ANN) == f"the operator has taken peer {ANN[-8:]} out of the run"
    assert here.left == [ANN]
    assert here.said == [Avoided(ANN, None, "the operator has taken it out of the run")]


def test_a_flood_of_offenders_is_forgotten_from_its_beginning():
    here = Neighbourhood()
    for number in range(OFFENDERS_KEPT + 1):
        here.bans.note(PeerId(str(number)), PeerError("lies"))
    assert len(here.bans.offenders) == OFFENDERS_KEPT
    assert here.bans.objection(PeerId("0")) == ""
    assert here.bans.objection(PeerId("1"))


def test_a_long_reason_is_cut():
    here = Neighbourhood()
    here.bans.note(ANN, PeerError("x" * 10_000))
    assert len(here.bans.objection(ANN)) < 300
