"""One stage in training: its weights, its optimizer, and the microbatches in flight.

The same object serves a volunteer's daemon, a datacenter replica and the lab; only who carries the
payloads differs. Between stages gradients are chained by hand, because the neighbour may be another
machine: what comes back is G, and ∇X = G Uᵀ (paper, section 2.2).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from peer.compute.arithmetic import Arithmetic
from peer.compute.design import Design, Kind, design
from peer.compute.on_demand import OnDemand
from peer.model.stage import Stage
from peer.model.subspace import Boundary, CompiledBoundary, DirectBoundary, nested
from peer.optim import inner
from peer.optim.grid import to_float
from peer.optim.muon import make_optimizer
from protocol.identity import EMBEDDING, Part, stage_part
from protocol.layout import EMBEDDING_TENSOR, Shape
from protocol.manifest import Manifest
from protocol.tensor_formats import UNITS_PER_ONE

NO_BOUNDARY: Boundary = DirectBoundary()
"""Stands where the boundaries of a round are not known yet."""

GridView = Mapping[str, Tensor]
"""Tensor name → int32 values in units of 2⁻²⁶."""


@dataclass(slots=True)
class InFlight:
    """One microbatch between its forward and its backward pass."""

    tokens_BL: Tensor
    entered_BLD: Tensor | None
    left: Tensor
    weights: list[Tensor] | None = None
    """The weights of its forward pass, in the order of the stage's parameters, where a step has been taken since."""


class StageTrainer:
    """A stage of a replica group (`kind = "group"`) or of a datacenter replica, in training."""

    def __init__(
        self,
        manifest: Manifest,
        stage: int,
        kind: Kind,
        basis_DD: Tensor | None,
        device: torch.device,
        own_design: Design | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        """`basis_DD` [d, d] is the run's basis; a datacenter and an uncompressed group need none. `own_design` is the
        lab's, where it is not the protocol's."""
        self.manifest = manifest
        self.index = stage
        self.kind = kind
        self.basis_DD = basis_DD
        self.compression = manifest.compressions[0]
        self.device = device
        self.arithmetic = arithmetic or Arithmetic()
        self.first = stage == 0
        self.last = stage == manifest.replicas.stages - 1
        self.design = own_design or design(manifest, kind, basis_DD, device)
        self.stage = Stage(manifest, stage).to(device)
        self.stage.recompute = self.arithmetic.recompute
        if self.arithmetic.precision == "fp16":
            self.stage.scale_gradients()
        self.embedding = self.design.embedding() if self.first else None
        self.parameters = list(self.stage.parameters())
        if self.embedding is not None:
            self.parameters += list(self.embedding.parameters())
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer = self.new_optimizer()
        self.start: dict[Part, GridView] = {}
        self.in_flight: dict[int, InFlight] = {}
        if self._compiles_whole:
            self.stage.compile()
        elif self.arithmetic.compiled:
            self.stage.compile_layers()

    @property
    def _compiles_whole(self) -> bool:
        """Whether a pass is compiled as one piece, with the boundaries: a card waits for orders, while a CPU gains
        nothing by it and compiles for longer."""
        return self.arithmetic.compiled and self.device.type == "cuda"

    def new_optimizer(self) -> inner.AdamW:
        """The manifest's optimizer of what this stage trains, before its first step."""
        embedding = [] if self.embedding is None else [EMBEDDING_TENSOR]
        return make_optimizer(
            self.parameters, [*self.stage.tensors(), *embedding], self.manifest, self._basis_of_steps()
        )

    def _basis_of_steps(self) -> Tensor | None:
        """U, if what this stage adds to the residual stream is to stay in Col(U): a boundary is behind it."""
        if self.manifest.inner.subspace_steps and self.kind == "group" and self.manifest.compressed and not self.last:
            assert self.basis_DD is not None
            return nested(self.basis_DD, self.manifest.k).to(self.device)
        return None

    def load(self, grids: Mapping[Part, GridView], ahead: Mapping[Part, GridView] | None = None) -> None:
        """Start a round from the outer state: copy weights in, split the token embedding again.

        `ahead`: the parts of which this replica starts from something else. T⊥ is the outer state's all the same,
        because all stages of a group must have one. The optimizer's moments stay (paper: they live with the replica
        across rounds).
        """
        starts = {**grids, **(ahead or {})}
        own_part = dict(starts[stage_part(self.index)])
        load_stage(self.stage, own_part)
        self.start = {stage_part(self.index): own_part}
        te_VD = start_VD = None
        if self.embedding is not None or self.design.anchored:
            te_VD = to_float(grids[EMBEDDING][EMBEDDING_TENSOR].to(self.device))
        if self.embedding is not None:
            self.start = {EMBEDDING: dict(starts[EMBEDDING])} | self.start
            start_VD = te_VD
            if EMBEDDING in (ahead or {}):
                start_VD = to_float(starts[EMBEDDING][EMBEDDING_TENSOR].to(self.device))
        self._begin(te_VD, start_VD)

    def compress(self, compression: int, grids: Mapping[Part, GridView]) -> None:
        """Send k = d / `compression` numbers a token from now on, in a run that leaves k to its groups. `grids` are
        those of the round that is loaded, if one is.

        The optimizer's moments of the coordinates that stay in the token embedding, stay; those of new ones begin at
        zero. Stage 0 changes k only where it loads a round next: within one it trains what `compression` lets through.
        """
        if compression == self.compression:
            return
        self.compression = compression
        self.design = design(self.manifest.at(compression), self.kind, self.basis_DD, self.device)
        if self._trains_factor:
            self.embedding = self.design.embedding()
            (self.parameters[-1],) = self.embedding.parameters()  # the optimizer's list, too
            self.parameters[-1].grad = torch.zeros_like(self.parameters[-1])
            self.optimizer.resize(-1, self.manifest.at(compression).k)
        elif EMBEDDING in grids:
            self._meet_neighbours(to_float(grids[EMBEDDING][EMBEDDING_TENSOR].to(self.device)))

    def start_from(self, own: Mapping[str, Tensor], te_VD: Tensor | None) -> None:
        """Start from weights that no outer state has: those of the stage, and TE, where it has a say. How far they move
        is not asked."""
        self.stage.load(own)
        self.start = {}
        self._begin(None if te_VD is None else te_VD.clone(), te_VD)

    def _begin(self, te_VD: Tensor | None, start_VD: Tensor | None) -> None:
        """Begin an inner loop whose token embedding starts from `start_VD`, and whose boundaries are those of TE, which
        is used up."""
        if self.embedding is not None:
            assert te_VD is not None and start_VD is not None
            basis_dk = self.design.basis_dk
            if basis_dk is not None and start_VD is not te_VD:
                start_VD = te_VD + (start_VD - te_VD) @ basis_dk @ basis_dk.T
            self.embedding.load(start_VD)
        self._meet_neighbours(te_VD)

    def _meet_neighbours(self, te_VD: Tensor | None) -> None:
        """Take the boundaries that follow from TE, which is used up. The old ones go first, with their T⊥."""
        self.before = self.behind = NO_BOUNDARY
        boundaries = self.design.boundaries(te_VD)
        self.before, self.behind = boundaries(self.index - 1), boundaries(self.index)
        if self._compiles_whole and self.kind == "group":
            self.before, self.behind = CompiledBoundary(self.before), CompiledBoundary(self.behind)

    def forward(self, microbatch: int, tokens_BM: Tensor, payload: Tensor | None) -> Tensor:
        """Run one microbatch forward.

        `tokens_BM` [b, L + 1] holds inputs and, shifted by one, targets; `payload` is what the stage
        before sent (None at the first). Returns the payload for the stage behind, or the loss (a
        scalar, nats per token) at the last.
        """
        tokens_BM = tokens_BM.to(self.device)
        tokens_BL = tokens_BM[:, :-1]
        if self.embedding is not None:
            entered, x_BLD = None, self.embedding(tokens_BL)
        else:
            assert payload is not None
            entered = x_BLD = self.before.decode(payload, tokens_BL).requires_grad_()
        with self.arithmetic(self.device, self.manifest.model.context):
            out = self.stage(x_BLD, tokens_BL)
            if self.last:
                out = self.stage.lm_head(out, tokens_BM[:, 1:])
        self.in_flight[microbatch] = InFlight(tokens_BL, entered, out)
        return out.detach() if self.last else self.behind.encode(out.detach(), tokens_BL)

    def backward(self, microbatch: int, payload: Tensor | None) -> Tensor | None:
        """Run one microbatch backward, by the weights of its forward pass; gradients add up until `update`.

        `payload` is what the stage behind sent (None at the last). Returns the payload for the stage
        before; None at the first.
        """
        flight = self.in_flight.pop(microbatch)
        received = None if payload is None else self.behind.decode_gradient(payload)
        then = nullcontext() if flight.weights is None else in_place_of(self.parameters, flight.weights)
        with then, self.arithmetic.backward(self.device, self.manifest.model.context):
            if self.last:
                (flight.left / self.manifest.inner.microbatches).backward()
            else:
                assert received is not None
                flight.left.backward(received)
        if flight.entered_BLD is None:
            return None
        gradient = flight.entered_BLD.grad
        assert gradient is not None
        return self.before.encode_gradient(gradient)

    def squared_norm(self) -> float:
        """Σ g² of this stage in this inner step."""
        return inner.squared_norm(self.parameters)

    def update(self, clip_factor: float, step: float) -> None:
        """Take the optimizer's step number `step` (from 0 over the whole run; the lab has steps between two).

        Microbatches in flight keep the weights of their forward pass: a copy, as long as there are any.
        """
        flights = [flight for flight in self.in_flight.values() if flight.weights is None]
        if flights:
            values = [parameter.data for parameter in self.parameters]
            for flight in flights:
                flight.weights = values
            for parameter in self.parameters:
                parameter.data = parameter.data.clone()  # graphs have views of the weights: those may not change
        self.optimizer.update(clip_factor, inner.learning_rate(self.manifest, step))

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state, to be written or copied before the next step, as these are the tensors that it
        changes; of a token embedding whose k may change, with the most columns that it may have."""
        tensors = self.optimizer.tensors()
        for name in self._moments_of_embedding if tensors else ():
            tensors[name] = inner.resized(tensors[name], self.manifest.k)
        return {f"{self.index}.{name}": tensor for name, tensor in tensors.items()}

    def load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up the optimizer's state where `optimizer_tensors` left it."""
        prefix, moments, columns = f"{self.index}.", self._moments_of_embedding, self.manifest.at(self.compression).k

        def read(name: str) -> Tensor:
            tensor = tensors[prefix + name]
            return inner.resized(tensor, columns) if name in moments else tensor

        own = [name.removeprefix(prefix) for name in tensors if name.startswith(prefix)]
        self.optimizer.load(OnDemand({name: partial(read, name) for name in own}))

    @property
    def optimizer_shapes(self) -> dict[str, Shape]:
        """Name → shape of what `optimizer_tensors` returns after a step."""
        shapes = {f"{self.index}.{name}": shape for name, shape in self.optimizer.shapes.items()}
        wide = self.manifest.model.vocabulary, self.manifest.k
        return shapes | {f"{self.index}.{name}": wide for name in self._moments_of_embedding}

    @property
    def _moments_of_embedding(self) -> list[str]:
        """The optimizer's names of those whose columns follow k."""
        if not self._trains_factor or len(self.manifest.compressions) == 1:
            return []
        return [f"{len(self.parameters) - 1}.{name}" for name in inner.MOMENTS]

    @property
    def _trains_factor(self) -> bool:
        """Whether it trains a token embedding by its factor Z [V, k]."""
        return self.embedding is not None and self.design.basis_dk is not None

    @property
    def warmed_up(self) -> bool:
        """Whether the optimizer has taken as many steps as AdamW's second moment remembers, 1 / (1 − β₂)."""
        return self.optimizer.steps * (1 - self.manifest.inner.betas[1]) >= 1

    def abandon(self) -> None:
        """Forget the inner step in flight: microbatches and gradients. Weights and moments are as before it."""
        self.in_flight.clear()
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()

    def moved(self) -> Mapping[Part, Mapping[str, Tensor]]:
        """Δ = θ_start − θ_end of every part this stage authors (paper, equation 1): float32, on the CPU, where the
        outer state lives. Each tensor is made when it is asked for, from the weights as they are then.

        Raises:
            RuntimeError: no inner loop has begun, or its start has been forgotten.
        """
        if not self.start:
            raise RuntimeError("an inner loop whose start is not known has no Δ")
        return {
            part: OnDemand({name: partial(self._delta, part, name, start) for name, start in tensors.items()})
            for part, tensors in self.start.items()
        }

    @torch.no_grad()
    def _delta(self, part: Part, name: str, start: Tensor) -> Tensor:
        """Return Δ of one tensor since `start`: float32, on the CPU."""
        began = to_float(start.to(self.device))
        if part == EMBEDDING:
            assert self.embedding is not None
            return self.embedding.moved(began).cpu()
        return began.sub_(self.stage.get_parameter(name)).cpu()

    def forget_start(self) -> None:
        """The inner loop is over, and its Δ is where it belongs: keep no longer the θ that it started from."""
        self.start = {}


@contextmanager
def in_place_of(parameters: list[nn.Parameter], values: list[Tensor]) -> Iterator[None]:
    """Give parameters these values within the block, and their own tensors behind it."""
    tensors = [parameter.data for parameter in parameters]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        for parameter, tensor in zip(parameters, tensors, strict=True):
            parameter.data = tensor
        torch.clear_autocast_cache()


def load_stage(stage: Stage, grid: GridView) -> None:
    """Load a stage from the outer state, tensor by tensor: integers become floats in the weights' own memory."""
    stage.load(grid)
    with torch.no_grad():
        for parameter in stage.parameters():
            parameter.div_(UNITS_PER_ONE)
