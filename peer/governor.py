"""The limits of heat and power that a peer's owner sets: where a sensor shows more, the peer computes for a smaller
share of the time, and for a larger one again once it shows less. It stays in its group, as a slower member."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from peer.telemetry.cards import CardReadings, card_readings
from peer.telemetry.sensors import device_readings
from peer.torch_thread import Throttle
from protocol.errors import ResourceError
from protocol.events.activity import Progress
from protocol.events.event import Listener

GOVERNOR_SECONDS = 5.0
"""The interval at which the sensors are read, in seconds. Cards follow within seconds."""

LEAST_DUTY = 0.1
"""The smallest share of the time that a peer computes: with less, nobody would wait for it."""

SLOWER, FASTER = 0.8, 1.1
"""The factors of that share where a sensor shows more than its limit, and where all show less than `FREE` of it."""

FREE = 0.95
"""The share of a limit below which the peer computes more again."""


@dataclass(frozen=True, slots=True)
class SensorLimits:
    """The most that a sensor may show, in degrees Celsius and in watts; None: no limit."""

    celsius: float | None = None
    watts: float | None = None

    def pressure(self, readings: CardReadings) -> float:
        """Return the largest of the readings as shares of their limits; 0: there is none."""
        pairs = ((readings.celsius, self.celsius), (readings.watts, self.watts))
        return max((shown / most for shown, most in pairs if shown is not None and most), default=0.0)


def next_duty(duty: float, pressure: float) -> float:
    """Return the share of the time to compute from now on, where it was `duty` until now."""
    if pressure > 1:
        return max(LEAST_DUTY, duty * SLOWER)
    return min(1.0, duty * FASTER) if pressure < FREE else duty


def readings_on(device: str) -> CardReadings:
    """Read the sensors where a peer computes: those of its card, or of this machine."""
    if device == "cuda":
        return card_readings() or CardReadings(None, None)
    return CardReadings(device_readings().temperature, None)


def require_sensors(limits: SensorLimits, readings: CardReadings) -> None:
    """Check that each limit can be held here.

    Raises:
        ResourceError: no sensor shows what it limits.
    """
    for option, limit, shown in (
        ("--max-temperature", limits.celsius, readings.celsius),
        ("--max-power", limits.watts, readings.watts),
    ):
        if limit is not None and shown is None:
            raise ResourceError(
                f"{option} cannot be held here, as no sensor shows it: leave it out. (The sensors of an NVIDIA card "
                "need its driver, and `pip install 'hetpeer[gpu]'`.)"
            )


async def govern(limits: SensorLimits, throttle: Throttle, read: Callable[[], CardReadings], emit: Listener) -> None:
    """Keep a peer within its limits for as long as it lives, and say when it begins and ends to hold back."""
    while limits != SensorLimits():
        readings = await asyncio.to_thread(read)
        before, duty = throttle.duty, next_duty(throttle.duty, limits.pressure(readings))
        throttle.duty = duty
        if (before < 1) != (duty < 1):
            emit(Progress(_words(limits, readings) if duty < 1 else "within its owner's limits: computes all the time"))
        await asyncio.sleep(GOVERNOR_SECONDS)


def _words(limits: SensorLimits, readings: CardReadings) -> str:
    shown = []
    if limits.celsius is not None and readings.celsius is not None:
        shown.append(f"{readings.celsius:.0f} °C of --max-temperature {limits.celsius:g}")
    if limits.watts is not None and readings.watts is not None:
        shown.append(f"{readings.watts:.0f} W of --max-power {limits.watts:g}")
    return f"holds back, as its owner says: {', '.join(shown)}; steps take longer until it is within them"
