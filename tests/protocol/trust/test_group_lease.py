"""The lease: whose group a volunteer is in."""

from protocol.identity import ReplicaId
from protocol.limits import LEASE_SECONDS
from protocol.trust.group_lease import Lease, LeaseEvent, LeaseState

A, B = ReplicaId("a"), ReplicaId("b")


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
