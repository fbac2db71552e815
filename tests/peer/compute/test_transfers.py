"""Payloads between the bytes of frames and a device."""

import pytest
import torch

from peer.compute.transfers import DirectTransfers, OnHost, PassOutcome, transfers_of
from protocol.codec.frames import Payload

PAYLOAD = Payload("fp32", 2, 3, 4)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")),
]


def on_host(outcome: PassOutcome) -> OnHost:
    return outcome if isinstance(outcome, OnHost) else outcome.wait()


@pytest.mark.parametrize("device", DEVICES)
def test_what_arrives_and_leaves_keeps_its_bytes_and_a_loss_is_a_number(device: str):
    transfers = transfers_of(torch.device(device))
    assert isinstance(transfers, DirectTransfers) == (device == "cpu")
    sent = [torch.randn(PAYLOAD.shape).numpy().tobytes() for _ in range(8)]
    outcomes = []
    for data in sent:  # all are ordered before the first is waited for
        begun = transfers.begin_pass()
        outcomes.append(transfers.leave(transfers.arrive(data, PAYLOAD) * 2, begun))
    for data, outcome in zip(sent, outcomes, strict=True):
        doubled = on_host(outcome).data
        assert isinstance(doubled, bytes)
        assert torch.equal(torch.frombuffer(bytearray(doubled), dtype=torch.float32) / 2, floats(data))
    loss = on_host(transfers.leave(torch.tensor(2.5, device=device), transfers.begin_pass()))
    assert loss.data == 2.5
    nothing = on_host(transfers.leave(None, transfers.begin_pass()))
    assert nothing.data is None
    assert (nothing.seconds is None) == (device == "cpu")


def floats(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.float32)
