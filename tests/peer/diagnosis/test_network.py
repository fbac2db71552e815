"""What is said of ways, clocks, peers and reach, from values as they are measured."""

from pathlib import Path

import pytest

from peer.diagnosis.machine import begins_slowly
from peer.diagnosis.network import clocks, link_of, node_findings, peers_finding, reachable, slow_start, unknown_peers
from peer.network.reach.probing import Handshake, MeasuredWay, NoWay
from peer.network.reach.reach import Reach

LOST = NoWay("lost.example:7700", "no answer from lost.example:7700 (refused)")


def way(trip: float = 0.05, up: float = 20e6, down: float = 100e6, ahead: float = 0.0) -> MeasuredWay:
    return MeasuredWay("node.example:7700", trip, up, down, ahead, trip / 2, 3, 33.0)


def test_each_node_has_a_verdict_of_its_own():
    lost, found = node_findings([LOST, way()])
    assert lost.outcome == "warning"
    assert "TCP port 7700" in lost.advice
    assert found.value == "50 ms there and back; 20 Mb/s up, 100 Mb/s down"
    assert found.numbers == {"round_trip": 0.05, "up": 20e6, "down": 100e6}


def test_it_is_a_failure_if_no_node_answers():
    assert [each.outcome for each in node_findings([LOST, LOST])] == ["failure", "failure"]
    assert clocks([LOST]) is None
    assert link_of([LOST], []) is None


def test_a_node_that_wants_one_to_wait_is_no_failure():
    (busy,) = node_findings([NoWay("node.example:7700", "node.example:7700 refused: try again in 7 s", answers=True)])
    assert (busy.outcome, busy.advice) == ("warning", "Others measure as well: run this again in two minutes")


@pytest.mark.parametrize(
    ("ahead", "outcome"), [(0.5, "ok"), (-1.9, "ok"), (5.0, "warning"), (-20.0, "warning"), (45.0, "failure")]
)
def test_a_clock_is_judged_by_the_nearest_node(ahead: float, outcome: str):
    far = way(trip=3.0, ahead=ahead + 1.0)
    found = clocks([far, way(ahead=ahead)])
    assert found is not None
    assert found.outcome == outcome
    assert ("ahead of" if ahead > 0 else "behind") in found.value
    assert found.numbers["ahead"] == ahead


def test_what_may_be_the_networks_fault_is_not_held_against_the_clock():
    found = clocks([way(trip=8.0, ahead=5.0)])
    assert found is not None
    assert found.outcome == "ok"


def test_a_tcp_that_forgets_its_speed_is_worth_a_warning_where_round_trips_are_long(tmp_path: Path):
    setting = tmp_path / "tcp_slow_start_after_idle"
    assert slow_start([way()], begins_slowly(setting)) is None  # not Linux
    setting.write_text("1\n")
    found = slow_start([LOST, way()], begins_slowly(setting))
    assert found is not None
    assert (found.outcome, "sysctl -w net.ipv4.tcp_slow_start_after_idle=0" in found.advice) == ("warning", True)
    assert slow_start([way(trip=0.001)], begins_slowly(setting)) is None
    assert slow_start([LOST], begins_slowly(setting)) is None
    setting.write_text("0\n")
    found = slow_start([way()], begins_slowly(setting))
    assert found is not None
    assert found.outcome == "ok"


def test_peers_are_counted_and_the_way_to_them_is_told():
    shaken = [Handshake("a:1", 0.01, 0.02), Handshake("b:1", 0.03, 0.05), LOST]
    assert peers_finding(shaken, 9).value.startswith("2 of 3 asked answer, of 9 in all: 10 ms to 30 ms there and back")
    assert peers_finding([], 0).outcome == "ok"
    assert "firewall" in peers_finding([LOST], 4).advice
    assert "libp2p" in unknown_peers("no bootstrap node answered").advice


def test_reach_is_told_with_what_mends_it():
    assert reachable(Reach("10.0.0.2", 1, ("10.0.0.2", None))).outcome == "ok"
    found = reachable(Reach("10.0.0.2", 1, ("10.0.0.2", None), objection="Forward TCP port 7 on the router"))
    assert (found.outcome, found.advice) == ("warning", "Forward TCP port 7 on the router")
    assert reachable(Reach("10.0.0.2", 1, ("10.0.0.2", None), doubt="cannot tell")).outcome == "warning"


def test_the_link_is_the_best_way_and_the_distance_that_to_peers():
    on = link_of([way(), way(up=30e6, down=50e6), LOST], [Handshake("a:1", 0.02, 0.02)])
    assert on is not None
    assert (on.operations, on.up, on.down, on.latency) == (1.0, 30e6, 100e6, 0.01)
    alone = link_of([way()], [LOST])
    assert alone is not None
    assert alone.latency == 0.025
