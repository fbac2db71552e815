"""The sensors of an NVIDIA card, by NVIDIA's own library (`pip install 'hetpeer[gpu]'`, which is nvidia-ml-py)."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class CardReadings:
    """The readings of a card by its driver: degrees Celsius, watts, and the processes that compute on it. None: the
    driver does not say."""

    celsius: float | None
    watts: float | None
    processes: tuple[int, ...] = ()


def card_readings(index: int = 0) -> CardReadings | None:
    """Read the sensors of the card that PyTorch calls cuda:`index`, for milliseconds. None: there is no such card, no
    driver, or no library to ask it."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        return None
    except Exception:  # whatever the driver's library raises, it says nothing of a card
        return None
    try:
        card = nvml.nvmlDeviceGetHandleByIndex(index)
        celsius = _asked(nvml, lambda: float(nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)))
        watts = _asked(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1000)
        running = _asked(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(card)) or []
        return CardReadings(celsius, watts, tuple(process.pid for process in running))
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _asked(nvml: Any, question: Any) -> Any:
    """The driver's answer; None: this card has no such sensor."""
    try:
        return question()
    except nvml.NVMLError:
        return None
