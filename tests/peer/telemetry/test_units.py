"""Bytes, seconds and counts in words."""

from peer.telemetry.units import clock, since, size, so_many, tails


def test_sizes_are_in_words():
    assert [size(count) for count in (0, 999, 1500, 2_500_000, 3e9)] == ["0 B", "999 B", "1.5 kB", "2.5 MB", "3.0 GB"]


def test_counts_have_their_plural():
    assert [so_many(count, "peer") for count in (0, 1, 2)] == ["0 peers", "1 peer", "2 peers"]


def test_times_are_in_words():
    assert [since(each) for each in (0, 61.9, 3600, 90061)] == ["0:00", "1:01", "1:00:00", "25:01:01"]
    assert [clock(each) for each in (0, 61.9, 5400)] == ["0:00", "1:01", "90:00"]


def test_of_a_peer_its_end_is_shown():
    assert tails(["QmAbcdefghij", "QmLeaderleader"]) == "cdefghij, erleader"
