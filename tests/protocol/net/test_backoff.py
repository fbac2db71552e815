from protocol.net.backoff import pause_after


def test_each_failure_doubles_the_pause_up_to_the_most():
    assert [pause_after(failures, 1.0, 10.0) for failures in range(7)] == [0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_failure_forgiven_in_part_counts_for_less():
    assert pause_after(1.0, 4.0, 60.0) < pause_after(1.75, 4.0, 60.0) < pause_after(2.0, 4.0, 60.0)


def test_any_number_of_failures_has_a_pause():
    assert pause_after(10**9, 0.25, 3600.0) == 3600.0
