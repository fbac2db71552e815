"""The way of payloads between the bytes of frames and the device that computes.

A CUDA device copies by pinned memory, on streams of their own: the torch thread never waits for a copy, and orders the
next pass while the bytes of the last one are on their way. Pinned memory is torch's own pool, which gives no block out
again before its copy is done. Everywhere else a copy is done when it returns.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from peer.model.number_format import from_bytes, to_bytes
from protocol.codec.frames import Payload


@dataclass(frozen=True, slots=True)
class OnHost:
    """The outcome of a pass where the host can read it: a payload's bytes; of the last stage's pass forward, the loss;
    None where nothing leaves. `seconds`: those that the device computed; None: as long as the call took."""

    data: bytes | float | None
    seconds: float | None = None


class OnItsWay(Protocol):
    """The outcome of a pass that a device has been ordered to compute, and to copy."""

    def wait(self) -> OnHost:
        """Block until it is on the host."""


PassOutcome = OnHost | OnItsWay


class Transfers(Protocol):
    """The copies of one device. All but `OnItsWay.wait` is called on the torch thread."""

    def arrive(self, data: bytes, payload: Payload) -> Tensor:
        """Bring the bytes of a frame, whose size has been checked, to the device."""

    def begin_pass(self) -> Any:
        """Note that a pass begins. Returns the note, for `leave`."""

    def leave(self, out: Tensor | None, begun: Any) -> PassOutcome:
        """Send the outcome of a pass to the host: a payload, a loss (a scalar), or nothing."""


@dataclass(frozen=True, slots=True)
class DirectTransfers:
    """The copies of a device that computes, or waits, where the host's memory is: done when they return."""

    device: torch.device

    def arrive(self, data: bytes, payload: Payload) -> Tensor:
        return from_bytes(data, payload, self.device)

    def begin_pass(self) -> None:
        return None

    def leave(self, out: Tensor | None, begun: None) -> OnHost:
        return OnHost(read(out))


def read(out: Tensor | None) -> bytes | float | None:
    """Read an outcome that is on the host: a loss is a scalar, a payload has more dimensions."""
    if out is None:
        return None
    return to_bytes(out) if out.dim() else float(out.item())


@dataclass(frozen=True, slots=True, eq=False)
class CopiedFromCuda:
    """An outcome on its way to pinned memory."""

    host: Tensor | None
    begun: Any
    computed: Any
    copied: Any

    def wait(self) -> OnHost:
        self.copied.synchronize()
        return OnHost(read(self.host), self.begun.elapsed_time(self.computed) / 1000)


class CudaTransfers:
    """The copies of a CUDA device, on a stream for each direction: a pass waits for its own payload, and not until that
    of the pass before has left."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.coming, self.going = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def arrive(self, data: bytes, payload: Payload) -> Tensor:
        pageable = from_bytes(data, payload, torch.device("cpu"))
        pinned = torch.empty_like(pageable, pin_memory=True)
        pinned.copy_(pageable)
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.coming):
            arrived = pinned.to(self.device, non_blocking=True)
        computing.wait_stream(self.coming)
        arrived.record_stream(computing)  # or its memory might be given out while the pass reads it
        return arrived

    def begin_pass(self) -> Any:
        return self._event(torch.cuda.current_stream(self.device))

    def leave(self, out: Tensor | None, begun: Any) -> CopiedFromCuda:
        computed = self._event(torch.cuda.current_stream(self.device))
        if out is None:
            return CopiedFromCuda(None, begun, computed, computed)
        out = out.detach().contiguous()
        host = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
        self.going.wait_event(computed)
        with torch.cuda.stream(self.going):
            host.copy_(out, non_blocking=True)
        out.record_stream(self.going)
        return CopiedFromCuda(host, begun, computed, self._event(self.going))

    def _event(self, stream: Any) -> Any:
        """An event in a stream, for which a thread waits without spinning."""
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(stream)
        return event


def transfers_of(device: torch.device) -> Transfers:
    """The copies of a device."""
    return CudaTransfers(device) if device.type == "cuda" else DirectTransfers(device)
