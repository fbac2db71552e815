"""The sensors of the machine that a peer runs on, as Linux shows them. Elsewhere, and where there are none, all is
unknown."""

from collections.abc import Iterator
from pathlib import Path

from protocol.events.activity import DeviceReadings

SENSORS = Path("/sys/class")

PLAUSIBLE = 1.0, 125.0
"""The temperatures in degrees Celsius that are believed: sensors without a reading show 0, or less."""


def device_readings(sensors: Path = SENSORS) -> DeviceReadings:
    """The temperature of the hottest part, and the charge of the battery. Blocks on the sensors, for milliseconds."""
    degrees = (reading / 1000 for reading in _numbers(sensors, "thermal/thermal_zone*/temp"))
    charges = (charge for charge in _numbers(sensors, "power_supply/BAT*/capacity") if 0 <= charge <= 100)
    believed = (degree for degree in degrees if PLAUSIBLE[0] <= degree <= PLAUSIBLE[1])
    return DeviceReadings(max(believed, default=None), next(charges, None))


def _numbers(folder: Path, pattern: str) -> Iterator[int]:
    """The numbers in the files of a pattern; a sensor that cannot be read is passed over."""
    for path in sorted(folder.glob(pattern)):
        try:
            yield int(path.read_text())
        except (OSError, ValueError):
            continue
