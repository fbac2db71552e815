"""The traffic of a month or a day: counted, kept over restarts, warned of and held. The clock is given."""

import asyncio
from datetime import datetime
from pathlib import Path

import pytest

from peer.pausing import Pauses
from peer.traffic import SMALL_BYTES_A_SECOND, USED_FILE, TrafficLimit, TrafficMeter, Used, read_used, write_used
from protocol.errors import ResourceError
from protocol.events.activity import TrafficCounted
from protocol.events.event import Event
from protocol.net.bandwidth import ACKNOWLEDGED, WIRE, Bandwidth, WireTotal

MONTHLY, DAILY = TrafficLimit(1000, "month", "1kB/month"), TrafficLimit(1000, "day", "1kB/day")
NOON = datetime(2026, 11, 29, 12)


class Owner:
    """A peer's owner, who has a clock and a calendar, and reads what is said."""

    def __init__(self, folder: Path, limit: TrafficLimit = MONTHLY) -> None:
        self.said: list[Event] = []
        self.now, self.seconds, self.carried = NOON, 0.0, WireTotal()
        self.meter = TrafficMeter(folder, limit, self.carried, self.said.append, lambda: self.now, lambda: self.seconds)
        self.meter.begin()

    def move(self, count: int, seconds: float = 1.0) -> None:
        self.carried.wire_bytes += count
        self.seconds += seconds
        self.meter.look(is_online=False)

    @property
    def words(self) -> list[str]:
        return [event.words for event in self.said if event.words is not None]


def test_a_month_and_a_day_end_when_those_of_the_calendar_do():
    assert MONTHLY.ends(NOON) == datetime(2026, 12, 1)
    assert MONTHLY.ends(datetime(2026, 12, 31, 23, 59)) == datetime(2027, 1, 1)
    assert MONTHLY.ends(datetime(2028, 1, 31)) == datetime(2028, 2, 1)
    assert DAILY.ends(NOON) == datetime(2026, 11, 30)
    assert (MONTHLY.window(NOON), DAILY.window(NOON)) == ("2026-11", "2026-11-29")


def test_a_new_month_begins_at_zero_and_a_clock_that_goes_back_forgives_nothing():
    used = Used("2026-11", 600)
    assert used.with_more(50, "2026-11") == Used("2026-11", 650)
    assert used.with_more(50, "2026-12") == Used("2026-12", 50)
    assert used.with_more(50, "2026-10") == Used("2026-10", 650)
    assert Used("2099-01", 600).with_more(0, "2026-11").with_more(0, "2026-12") == Used("2026-12", 0)


def test_at_four_fifths_the_owner_is_warned_once_and_at_the_end_the_peer_pauses_until_the_next_month(tmp_path: Path):
    owner = Owner(tmp_path)
    owner.move(799)
    assert owner.words == []
    owner.move(1)
    owner.move(1)
    assert owner.words == [
        "WARNING: 800 B of --max-traffic 1kB/month are used: when all of it is, this peer pauses until 2026-12-01 00:00"
    ]
    assert owner.meter.reason() == ""
    owner.move(179)
    assert owner.meter.reason() == "until 2026-12-01 00:00, for --max-traffic 1kB/month is used up"
    assert Pauses(tmp_path, traffic=owner.meter.reason).reason() == owner.meter.reason()
    assert read_used(tmp_path).wire_bytes == 980  # at once: whoever asks why it pauses reads it there
    owner.now = datetime(2026, 12, 1)
    assert owner.meter.reason() == ""


def test_a_restart_forgets_nothing(tmp_path: Path):
    first = Owner(tmp_path)
    first.move(500)
    first.meter.keep()
    second = Owner(tmp_path)
    assert second.words == ["500 B of --max-traffic 1kB/month are used already"]
    second.move(200)
    assert second.meter.used == Used("2026-11", 700)


def test_the_bytes_are_written_down_now_and_then(tmp_path: Path):
    owner = Owner(tmp_path)
    owner.move(1, seconds=10.0)
    owner.move(5, seconds=9.0)
    assert read_used(tmp_path).wire_bytes == 1
    owner.move(0)
    assert read_used(tmp_path).wire_bytes == 6
    counted = [(event.traffic_used, event.traffic_limit) for event in owner.said if isinstance(event, TrafficCounted)]
    assert counted == [(1, "1kB/month"), (6, "1kB/month")]


def test_a_peer_in_its_run_also_pays_for_small_questions(tmp_path: Path):
    owner = Owner(tmp_path, TrafficLimit(10**9, "day", "1GB/day"))
    for is_online in (True, True, False):
        owner.seconds += 10.0
        owner.meter.look(is_online)
    assert owner.meter.used.wire_bytes == 10 * SMALL_BYTES_A_SECOND


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"window": 1, "bytes": 2}',
        b'{"window": "2026-11", "bytes": -1}',
        b'{"window": "2026-11", "bytes": 1e400}',
        b'{"window": "2026-11", "bytes": 99999999999999999999}',
        b'{"window": "2026-11", "bytes": true}',
        b"[" * 150,
        b'{"window": "2026-11", "bytes": 1}' + b" " * 300,
    ],
)
def test_a_damaged_file_is_said_and_stops_nobody(tmp_path: Path, data: bytes):
    (tmp_path / USED_FILE).write_bytes(data)
    with pytest.raises(ResourceError, match="is damaged"):
        read_used(tmp_path)
    owner = Owner(tmp_path)
    owner.move(10, seconds=60.0)
    assert owner.words == [
        f"WARNING: {tmp_path / USED_FILE} is damaged: the traffic of this month is counted from zero"
    ]
    assert read_used(tmp_path) == Used("2026-11", 10)


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path):
    owner = Owner(tmp_path / "none")
    for _ in range(3):
        owner.move(10, seconds=60.0)
    assert [words[:21] for words in owner.words if words] == ["WARNING: cannot write"]
    assert owner.meter.used.wire_bytes == 30


def test_what_is_written_is_read(tmp_path: Path):
    assert read_used(tmp_path) == Used()
    write_used(tmp_path, Used("2026-11-29", 12))
    assert read_used(tmp_path) == Used("2026-11-29", 12)


def test_both_directions_of_one_connection_after_another_count_with_their_headers():
    carried = WireTotal()

    async def move(line: Bandwidth) -> None:
        await line.send_frame(1000)
        await line.take_frame(1000)
        await line.send(1000)
        await line.take(1000)

    for _ in range(2):
        asyncio.run(move(Bandwidth.of(None, None, carried)))
    assert carried.wire_bytes == pytest.approx(8000 * (WIRE + ACKNOWLEDGED))
