"""When a peer pauses: by command, and at its owner's hours. The clock is given, so nothing waits for the night."""

import asyncio
import stat
from datetime import datetime
from pathlib import Path

import pytest

from peer import pausing
from peer.pausing import BY_COMMAND, MARKER, Pauses, QuietHours
from protocol.errors import ResourceError, UserError


def at(hour: str, folder: Path, ranges: str) -> str:
    now = datetime.fromisoformat(f"2026-11-22 {hour}")
    return Pauses(folder, QuietHours.parse(ranges), lambda: now).reason()


@pytest.mark.parametrize(
    ("hour", "until"),
    [
        ("21:59:59", None),
        ("22:00", "07:00"),
        ("23:59", "07:00"),
        ("00:00", "07:00"),
        ("06:59:59.999", "07:00"),
        ("07:00", None),
        ("12:30", "13:15"),
        ("13:15", None),
    ],
)
def test_quiet_hours_go_over_midnight_and_end_on_the_minute(tmp_path: Path, hour: str, until: str | None):
    reason = at(hour, tmp_path, "22:00-07:00, 12:00-13:15")
    assert reason == (f"until {until}, for these are quiet hours" if until else "")


@pytest.mark.parametrize("text", ["", "22:00", "22-7:00", "22:00-22:00", "22:00-25:00", "at night", "1:00-2:00-3:00"])
def test_what_is_no_range_of_hours_is_refused_with_an_example(text: str):
    with pytest.raises(UserError, match="such as 22:00-07:00"):
        QuietHours.parse(text)


def test_a_peer_is_told_by_a_file_that_its_user_alone_can_read(tmp_path: Path):
    pauses = Pauses(tmp_path)
    assert not pauses.reason()
    assert pausing.request_pause(tmp_path)
    assert not pausing.request_pause(tmp_path)
    assert pauses.reason() == BY_COMMAND
    assert stat.S_IMODE((tmp_path / MARKER).stat().st_mode) == 0o600
    assert pausing.end_pause(tmp_path)
    assert not pausing.end_pause(tmp_path)
    assert not pauses.reason()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(ResourceError, match="cannot write in"):
        pausing.request_pause(tmp_path / "none")


def test_waiting_ends_when_the_reason_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pausing, "PAUSE_POLL_SECONDS", 0.001)
    hours = iter(["21:58", "21:59", "22:00", "06:59", "07:00"])
    pauses = Pauses(
        tmp_path, QuietHours.parse("22:00-07:00"), lambda: datetime.fromisoformat(f"2026-11-22 {next(hours)}")
    )

    async def scene() -> None:
        assert await pauses.wait_until_due() == "until 07:00, for these are quiet hours"
        await pauses.wait_until_over()
        assert next(hours, None) is None

    asyncio.run(scene())
