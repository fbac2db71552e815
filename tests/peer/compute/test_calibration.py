"""A stage tries itself before it trains, and is as it was."""

import pytest
import torch

from peer.compute.calibration import tokens_per_second, told
from peer.compute.trainer import StageTrainer
from tests.peer.compute.test_replica import genesis, manifest
from tests.reference.boundary import orthonormal


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("wire", ["bf16", "int4"])
def test_a_stage_that_tried_itself_has_a_speed_and_trains_as_if_it_had_not(stage: int, wire: str):
    run = manifest(stages=2, compression=4, wire=wire)
    trainer = StageTrainer(run, stage, "group", orthonormal(32), torch.device("cpu"))
    trainer.load(genesis(run))
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    assert tokens_per_second(trainer) > 0
    assert not trainer.in_flight
    assert all(map(torch.equal, before, trainer.parameters))
    assert not any(parameter.grad.any() for parameter in trainer.parameters)


def test_a_speed_is_told_in_two_digits_and_never_beyond_what_a_record_may_say():
    assert [told(speed) for speed in (1234.5, 0.0678, 3e12)] == [1200.0, 0.068, 1e9]
