"""What a peer takes of memory: the terms of the model, against the tensors that there really are."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from peer.compute.arithmetic import Arithmetic
from peer.compute.trainer import StageTrainer
from peer.model.head import SLICE_TOKENS as TOKENS_OF_THE_HEAD
from peer.optim.inner import MOMENTS
from peer.optim.muon import orthogonal
from peer.optim.outer import OuterState
from peer.planning.memory import (
    AUTHORED_BYTES,
    FOLLOWED_BYTES,
    PROCESS_BYTES,
    SLICE_TOKENS,
    Duty,
    in_flight,
    memory_of,
    microbatch_bytes,
    muon_step_bytes,
    muon_values,
    parts_of,
    trained_values,
)
from protocol.architectures.llama.layer import Layer, rotary_tables
from protocol.architectures.llama.sizes import llama_costs
from protocol.layout import elements, part_layout
from protocol.manifest import Manifest, check_manifest

CPU = torch.device("cpu")
GB = 10**9

SIZES = {"layers": 5, "d": 48, "heads": 6, "kv_heads": 2, "ffn": 80, "context": 24, "vocabulary": 300}


def run(compression: int = 4, inner: Mapping[str, object] = MappingProxyType({}), **replicas: object) -> Manifest:
    said = {"stages": 3, "compression": compression, "layers": [1, 3, 1], **replicas}
    inner = {"microbatch": 2, "sequences": 8, **inner}
    return check_manifest({"model": SIZES, "replicas": said, "inner": inner})


def trainer(manifest: Manifest, stage: int, recompute: bool = False) -> StageTrainer:
    basis_DD, arithmetic = torch.eye(48) if manifest.compressed else None, Arithmetic(recompute=recompute)
    made = StageTrainer(manifest, stage, "group", basis_DD, CPU, arithmetic=arithmetic)
    authored, followed = parts_of(manifest, Duty("volunteer", stage))
    layouts = {part: part_layout(manifest, part) for part in (*authored, *followed)}
    made.load({part: {name: random(shape) for name, shape in layout.items()} for part, layout in layouts.items()})
    return made


def random(shape: tuple[int, ...]) -> Tensor:
    return torch.randint(-(2**20), 2**20, shape, dtype=torch.int32)


class Kept:
    """The memory of what autograd keeps within a block, in fp32 values, but for that of `others`."""

    def __init__(self, *others: Tensor) -> None:
        self.others = {each.untyped_storage().data_ptr() for each in others}
        self.values: dict[int, int] = {}
        self.alive: list[Tensor] = []
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        self.alive.append(tensor)  # or another would get its memory
        if (where := tensor.untyped_storage().data_ptr()) not in self.others:
            self.values[where] = tensor.untyped_storage().nbytes() // 4
        return tensor

    @property
    def total(self) -> int:
        return sum(self.values.values())


@pytest.mark.parametrize(("heads", "kv_heads", "ffn"), [(6, 6, 80), (6, 2, 80), (3, 1, 200)])
def test_a_layer_keeps_as_many_values_of_a_token_as_autograd_does(heads: int, kv_heads: int, ffn: int):
    sizes = {**SIZES, "heads": heads, "kv_heads": kv_heads, "ffn": ffn}
    manifest = check_manifest({"model": sizes, "replicas": {"stages": 1, "compression": 1}})
    layer, tables = Layer(manifest.model), rotary_tables(24, 48 // heads, manifest.model.rope_theta, CPU)
    x_BLD = torch.randn(2, 24, 48).requires_grad_()
    kept = Kept(*layer.parameters(), *tables)
    with kept.hooks:
        layer(x_BLD, *tables)
    assert kept.total == 2 * 24 * llama_costs(manifest.model).kept


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("stage", "ngrams"), [(0, 0), (1, 0), (1, 3)])
def test_a_microbatch_in_flight_keeps_what_the_model_says(stage: int, ngrams: int, recompute: bool):
    manifest = run(ngrams=ngrams)
    stage_trainer = trainer(manifest, stage, recompute)
    tables = rotary_tables(24, 8, manifest.model.rope_theta, CPU)
    kept = Kept(*stage_trainer.stage.parameters(), *tables)
    payload = None if stage == 0 else torch.zeros(2, 24, manifest.k, dtype=torch.bfloat16)
    with kept.hooks:
        stage_trainer.forward(0, torch.zeros(2, 25, dtype=torch.int64), payload)
    left = stage_trainer.in_flight[0].left.numel()
    looked_up = 2 * 24 * (2 + manifest.k) if stage == 0 else 2 * 24 * 2 * ngrams  # token ids and rows of Z; which rows
    said = microbatch_bytes(manifest, stage, recompute)
    assert said <= 4 * (kept.total + left) <= said + 4 * looked_up + 64


@pytest.mark.parametrize(
    ("compression", "anchor", "ngrams"),
    [(1, "complement", 0), (4, "complement", 0), (4, "embedding", 0), (4, "complement", 3)],
)
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_what_a_volunteer_trains_and_what_its_outer_state_takes(stage: int, compression: int, anchor: str, ngrams: int):
    manifest, duty = run(compression, anchor=anchor, ngrams=ngrams), Duty("volunteer", stage)
    assert trained_values(manifest, duty) == sum(each.numel() for each in trainer(manifest, stage).parameters)
    authored, followed = parts_of(manifest, duty)
    for parts, author, each in ((authored, True, AUTHORED_BYTES), (followed, False, FOLLOWED_BYTES)):
        for part in parts:
            layout = part_layout(manifest, part)
            first = {name: torch.zeros(shape, dtype=torch.int32) for name, shape in layout.items()}
            state = OuterState.begin(manifest, part, first, author)
            held = [*state.grid.values(), *state.error_feedback.values()]
            assert sum(tensor.nbytes for tensor in held) == each * elements(layout)


@pytest.mark.parametrize("stage", range(3))
def test_muon_keeps_a_moment_less_of_what_it_moves(stage: int):
    adamw, muon = run(), run(inner={"optimizer": "muon"})
    kept = []
    for each in (adamw, muon):
        own = trainer(each, stage).optimizer
        own.begin()
        kept.append(sum(tensor.nbytes for name in MOMENTS for tensor in own.state[name]))
    assert kept[0] - kept[1] == 4 * muon_values(muon, Duty("volunteer", stage)) > 0
    assert muon_values(adamw, Duty("volunteer", stage)) == 0
    held = [memory_of(each, Duty("volunteer", stage)).device_held for each in (adamw, muon)]
    assert held[0] - held[1] == pytest.approx(1.02 * (kept[0] - kept[1]), abs=1)


@pytest.mark.parametrize("stage", range(3))
def test_where_steps_overlap_a_stage_keeps_the_weights_of_what_is_in_flight_and_the_last_has_none(stage: int):
    manifest, alone = run(inner={"overlap": 2}), run()
    assert [in_flight(manifest, each) for each in range(3)] == [5, 3, 1]
    own = trainer(manifest, stage)
    payload = None if stage == 0 else torch.zeros(2, 24, manifest.k, dtype=torch.bfloat16)
    for number in range(manifest.late(stage)):
        own.forward(number, torch.zeros(2, 25, dtype=torch.int64), payload)
    own.update(1.0, 0)
    stores = {tensor.untyped_storage().data_ptr() for each in own.in_flight.values() for tensor in each.weights or ()}
    stores -= {parameter.untyped_storage().data_ptr() for parameter in own.parameters}
    kept = 4 * trained_values(manifest, Duty("volunteer", stage)) if stage < 2 else 0
    assert len(stores) == (len(own.parameters) if stage < 2 else 0)
    held = [memory_of(each, Duty("volunteer", stage)).device_held for each in (manifest, alone)]
    assert held[0] - held[1] == pytest.approx(1.02 * kept, abs=1)


def test_muons_step_takes_no_more_than_is_counted():
    wide = check_manifest({"model": SIZES | {"d": 480, "ffn": 1920}, "inner": {"optimizer": "muon"}})
    matrix = torch.randn(1920, 480)
    with torch.profiler.profile(profile_memory=True) as profile:
        orthogonal(matrix)
    now = most = 0
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    assert 0.5 * muon_step_bytes(wide) < most <= muon_step_bytes(wide)


def test_the_heads_slices_are_those_that_are_counted():
    assert SLICE_TOKENS == TOKENS_OF_THE_HEAD


def test_an_earlier_stage_has_more_in_flight_and_no_more_than_a_step_has():
    manifest = run()
    assert [in_flight(manifest, stage) for stage in range(3)] == [3, 2, 1]
    two = check_manifest({"model": SIZES, "replicas": {"stages": 4}, "inner": {"microbatch": 2, "sequences": 4}})
    assert [in_flight(two, stage) for stage in range(4)] == [2, 2, 2, 1]


@pytest.mark.parametrize(("role", "most"), [("datacenter", 41), ("observer", 11)])
def test_who_has_the_whole_model_takes_it_once(role: str, most: int):
    """Of the model that is mostly weights: so many bytes a parameter at most, activations aside."""
    manifest = check_manifest({"model": {"preset": "512m", "context": 64}, "inner": {"microbatch": 1}})
    memory = memory_of(manifest, Duty(role, recompute=True))  # type: ignore[arg-type]
    assert memory.total - PROCESS_BYTES < most * 512_398_848
    holder = memory_of(manifest, Duty("observer", holds=True))
    assert (holder.device, holder.total) == (0, holder.host)
    assert holder.total < memory.total


def test_who_does_spot_checks_takes_no_more_than_a_stage_that_trains_keeps_beside_the_whole_model():
    manifest = check_manifest({"model": {"preset": "178m"}, "replicas": {"stages": 4}, "inner": {"microbatch": 4}})
    evaluates, checks = (memory_of(manifest, Duty("observer", audits=each)) for each in (False, True))
    trains = memory_of(manifest, Duty("volunteer", 0, recompute=True))
    assert evaluates.total < checks.total < evaluates.total + trains.device_passing


def test_more_stages_take_less_each():
    def largest(stages: int) -> int:
        manifest = check_manifest({"model": {"preset": "512m"}, "replicas": {"stages": stages}})
        return max(memory_of(manifest, Duty("volunteer", stage)).total for stage in range(stages))

    assert largest(6) < largest(4) < largest(2) < largest(1)


@pytest.mark.parametrize(("preset", "most"), [("512m", 6 * GB), ("1b", 8 * GB)])
def test_a_stage_of_four_fits_a_small_machine_at_microbatch_one(preset: str, most: int):
    manifest = check_manifest(
        {"model": {"preset": preset}, "replicas": {"stages": 4, "compression": 8}, "inner": {"microbatch": 1}}
    )
    for stage in range(4):
        assert memory_of(manifest, Duty("volunteer", stage, recompute=True)).device < most


def test_recomputing_takes_less_and_keeping_more_with_every_microbatch():
    manifest = check_manifest({"model": {"preset": "178m"}, "replicas": {"stages": 4}})
    for stage in range(4):
        kept, again = (memory_of(manifest, Duty("volunteer", stage, recompute=each)) for each in (False, True))
        assert again.device < kept.device
        assert again.host == kept.host
    one = check_manifest({"model": {"preset": "178m"}, "replicas": {"stages": 4}, "inner": {"microbatch": 1}})
    duty = Duty("volunteer", 1)
    assert memory_of(one, duty).device < memory_of(manifest, duty).device
    assert memory_of(one, replace(duty, stage=2)).device < memory_of(one, duty).device
