"""Bytes, seconds, rates and counts in words, and strangers' text made safe."""

import time

import pytest

from protocol.wording import (
    abbreviated,
    digits,
    lasting,
    megabytes_above,
    millions,
    minutes_and_seconds,
    moment,
    numbers_named,
    printable,
    rate,
    since,
    size,
    so_many,
    tails,
    wrapped,
)


def test_sizes_are_in_words():
    assert [size(count) for count in (0, 999, 1500, 2_500_000, 3e9)] == ["0 B", "999 B", "1.5 kB", "2.5 MB", "3.0 GB"]


def test_a_limit_of_megabytes_is_never_less_than_the_bytes():
    assert [megabytes_above(count) for count in (1, 10**6, 10**6 + 1)] == ["1MB", "1MB", "2MB"]


def test_numbers_in_a_row_are_named_by_their_ends():
    named = [numbers_named(each) for each in ([3], [1, 2], [0, 1, 2], [0, 2, 3], [1, 4])]
    assert named == ["3", "1 and 2", "0 to 2", "0, 2 and 3", "1 and 4"]


def test_rates_are_in_bits_a_second():
    assert [rate(bits) for bits in (5e5, 2e7, 1.54e9)] == ["0.5 Mb/s", "20 Mb/s", "1.5 Gb/s"]


def test_counts_have_their_plural():
    assert [so_many(count, "peer") for count in (0, 1, 2)] == ["0 peers", "1 peer", "2 peers"]
    assert [millions(345_678), millions(1_234_500_000), millions(345_678, 2)] == ["0.3 M", "1,234.5 M", "0.35 M"]
    assert [millions(99_999), millions(100_000), millions(99_999, 2)] == ["99,999", "0.1 M", "0.10 M"]
    assert [abbreviated(count) for count in (40_960, 3_291_256, 3_830_000_000)] == [
        "40,960",
        "3.3 million",
        "3.83 billion",
    ]


def test_numbers_to_be_typed_have_no_exponent():
    assert [digits(number) for number in (2470.4, 30.0, 0.0, 0.03091, 1.2e-5, 1_234_567)] == [
        *("2470", "30", "0", "0.0309", "0.000012", "1230000")
    ]


def test_times_are_in_words():
    assert [since(each) for each in (0, 61.9, 3600, 90061)] == ["0:00", "1:01", "1:00:00", "25:01:01"]
    assert [minutes_and_seconds(each) for each in (0, 61.9, 5400)] == ["0:00", "1:01", "90:00"]
    times = (0.0035, 0.35014, 1.234, 12.345, 150)
    assert [lasting(each * 3600) for each in (1.9, 2, 2.5, 47.9, 48, 240)] == [
        "114.0 min",
        "2.0 h",
        "2.5 h",
        "47.9 h",
        "2.0 days",
        "10.0 days",
    ]
    assert [lasting(each) for each in times] == ["3.5 ms", "350 ms", "1.2 s", "12 s", "2.5 min"]
    assert [lasting(each, exact=True) for each in times] == ["3.5 ms", "350.1 ms", "1.23 s", "12.35 s", "2.5 min"]


def test_a_moment_is_told_by_the_clock_of_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert moment(1_700_000_000.9) == "2023-11-14 22:13:20"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_of_a_peer_its_end_is_shown():
    assert tails(["QmAbcdefghij", "QmLeaderleader"]) == "cdefghij, erleader"


def test_what_moves_a_cursor_or_turns_the_writing_is_not_shown():
    assert printable("red \x1b[31m, up\r, turned \u202e") == "red �[31m, up�, turned �"
    assert printable("Größe 3 µs") == "Größe 3 µs"


def test_a_long_line_breaks_between_words_and_keeps_its_indent():
    text = "a first line\n  and another that is longer than the first\n\nthe last one"
    assert wrapped(text, 20) == ("a first line\n  and another that\n  is longer than the\n  first\n\nthe last one")
    assert wrapped(text, 80) == text


def test_a_ticket_and_a_command_stay_whole_to_be_copied():
    assert wrapped("the ticket: hetpeer1-aaaaaaaaaaaaaaaa", 16) == "the ticket:\nhetpeer1-aaaaaaaaaaaaaaaa"
    assert wrapped("then say `hetpeer status --watch`, and wait", 26) == (
        "then say\n`hetpeer status --watch`,\nand wait"
    )
    assert wrapped("say `a command that is too long`", 12).split("\n") == ["say `a", "command that", "is too long`"]
