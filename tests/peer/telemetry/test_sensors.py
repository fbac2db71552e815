"""The sensors of a machine, read from a folder like Linux's."""

from pathlib import Path

import pytest

from peer.telemetry.sensors import device_readings
from protocol.events.activity import DeviceReadings


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_the_hottest_part_and_the_battery_are_shown(tmp_path: Path):
    for zone, text in enumerate(("41500\n", "62250\n", "0\n", "300000\n", "nothing\n")):
        write(tmp_path, f"thermal/thermal_zone{zone}/temp", text)
    write(tmp_path, "power_supply/AC/online", "1\n")
    write(tmp_path, "power_supply/BAT0/capacity", "80\n")
    assert device_readings(tmp_path) == DeviceReadings(62.25, 80)


@pytest.mark.parametrize("capacity", ["", "101", "-1"])
def test_what_is_no_reading_is_not_known(tmp_path: Path, capacity: str):
    assert device_readings(tmp_path) == DeviceReadings(None, None)
    write(tmp_path, "power_supply/BAT0/capacity", capacity)
    (tmp_path / "thermal/thermal_zone0/temp").mkdir(parents=True)
    assert device_readings(tmp_path) == DeviceReadings(None, None)
