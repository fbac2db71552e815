"""A peer within its owner's limits of heat and power, by readings that the tests make."""

import asyncio
import itertools
import sys
from types import SimpleNamespace

import pytest

from peer import governor
from peer.governor import FREE, LEAST_DUTY, SensorLimits, govern, next_duty, require_sensors
from peer.telemetry.cards import CardReadings, card_readings
from peer.torch_thread import MOST_REST_SECONDS, Throttle
from protocol.errors import ResourceError
from protocol.events.activity import Progress
from protocol.events.event import Event


def test_the_hardest_pressed_limit_counts_and_what_no_sensor_shows_does_not():
    readings = CardReadings(80.0, 150.0)
    assert SensorLimits(80, 100).pressure(readings) == 1.5
    assert SensorLimits(100, 300).pressure(readings) == 0.8
    assert SensorLimits(None, 300).pressure(readings) == 0.5
    assert SensorLimits(40, 300).pressure(CardReadings(None, 150.0)) == 0.5
    assert SensorLimits(40, 40).pressure(CardReadings(None, None)) == 0.0


def test_a_peer_above_its_limit_computes_less_and_below_it_more_and_between_it_stays():
    hot = [1.0]
    for _ in range(20):
        hot.append(next_duty(hot[-1], 1.01))
    assert all(later < earlier for earlier, later in itertools.pairwise(hot) if earlier > LEAST_DUTY)
    assert hot[-1] == LEAST_DUTY
    assert next_duty(0.5, 0.99) == next_duty(0.5, 1.0) == 0.5
    cool = [LEAST_DUTY]
    for _ in range(40):
        cool.append(next_duty(cool[-1], FREE - 0.01))
    assert cool[-1] == 1.0


def test_a_machine_whose_heat_follows_its_work_comes_to_its_limit_and_stays_there():
    duty, celsius, shown = 1.0, 40.0, []
    for _ in range(200):  # 30 degrees at rest, 100 at full work
        celsius += 0.2 * (30 + 70 * duty - celsius)
        duty = next_duty(duty, SensorLimits(75).pressure(CardReadings(celsius, None)))
        shown.append(celsius)
    assert 68 < sum(shown[-50:]) / 50 <= 75
    assert max(shown[-50:]) < 79


def test_a_limit_that_no_sensor_shows_is_refused_with_a_cure():
    for limits, readings in (
        (SensorLimits(celsius=80), CardReadings(None, 5.0)),
        (SensorLimits(watts=9), CardReadings(5.0, None)),
    ):
        with pytest.raises(
            ResourceError,
            match=r"cannot be held here, as no sensor shows it: leave it out.*pip install 'hetpeer\[gpu\]'",
        ):
            require_sensors(limits, readings)
    require_sensors(SensorLimits(80, 9), CardReadings(50.0, 5.0))
    require_sensors(SensorLimits(), CardReadings(None, None))


def test_it_is_said_once_when_a_peer_begins_to_hold_back_and_once_when_it_no_longer_does(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(governor, "GOVERNOR_SECONDS", 0)
    readings = [70.0, 90.0, 91.0, *[60.0] * 8]
    throttle, events, duties = Throttle(), list[Event](), list[float]()

    def read() -> CardReadings:
        duties.append(throttle.duty)
        return CardReadings(readings.pop(0), None)

    with pytest.raises(IndexError):  # the readings end, and with them the peer's life
        asyncio.run(asyncio.wait_for(govern(SensorLimits(80), throttle, read, events.append), 10))
    assert min(duties) < 0.7
    assert throttle.duty == 1.0
    first, last = (event.doing for event in events if isinstance(event, Progress))
    assert first == (
        "holds back, as its owner says: 90 °C of --max-temperature 80; steps take longer until it is within them"
    )
    assert last == "within its owner's limits: computes all the time"
    asyncio.run(asyncio.wait_for(govern(SensorLimits(), throttle, read, events.append), 10))  # nothing to hold


def test_a_rest_is_what_the_share_asks_and_bounded():
    assert Throttle(0.5).seconds_of_rest(3.0) == 3.0
    assert Throttle(0.25).seconds_of_rest(1.0) == 3.0
    assert Throttle(1.0).seconds_of_rest(3.0) == 0.0
    assert Throttle(0.1).seconds_of_rest(100.0) == MOST_REST_SECONDS


class FakeNvml(SimpleNamespace):
    """NVIDIA's library on a machine with one card, whose sensor of power is missing if `powerless`."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU = 0
    powerless = False

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index:
            raise self.NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetTemperature(self, card: int, sensor: int) -> int:
        return 64

    def nvmlDeviceGetPowerUsage(self, card: int) -> int:
        if self.powerless:
            raise self.NVMLError("Not Supported")
        return 123_400

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=7, usedGpuMemory=1)]


def test_a_card_is_read_by_its_drivers_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert card_readings() == CardReadings(64.0, 123.4, (7,))
    assert card_readings(1) is None
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(powerless=True))
    assert card_readings() == CardReadings(64.0, None, (7,))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert card_readings() is None
