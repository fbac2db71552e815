"""The measurements before anybody waits for this machine: it compiles, and measures how fast it computes a stage."""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from peer.compute.trainer import StageTrainer
from peer.model.number_format import from_bytes, number_format, to_bytes
from peer.model.subspace import Formats
from peer.optim.kernels import decay_and_add_kernel
from peer.optim.outer import OuterState
from protocol.codec.compiled import compiled_folder
from protocol.codec.contribution import decode
from protocol.codec.frames import FrameRules
from protocol.identity import EMBEDDING, PeerId, RunId
from protocol.layout import part_layout
from protocol.manifest import Manifest, check_manifest
from protocol.trust.records import MOST_TOKENS_PER_SECOND

RUN = RunId("00" * 32)
"""A run that there is not, for what is computed without one."""

COMPILING_SECONDS = 30.0
"""The seconds that a process waits for another that compiles: it takes 7 s of a core."""

PASSES, SECONDS = 3, 5.0
"""The number of microbatches that are tried, and the seconds after which no more are; the first is slower than the
others."""


def tokens_per_second(trainer: StageTrainer) -> float:
    """Measure the tokens a second of a microbatch forward and back, without its neighbours, so that peers of like speed
    go together from the start. The trainer has loaded a round, and is as before; torch compiles at its first use."""
    passes = a_microbatch(trainer)
    if trainer.arithmetic.compiled:
        passes()
    tried, started = list[float](), time.monotonic()
    while len(tried) < PASSES and time.monotonic() < started + SECONDS:
        at = time.monotonic()
        passes()
        tried.append(time.monotonic() - at)
    trainer.abandon()
    manifest = trainer.manifest
    return manifest.inner.microbatch * manifest.model.context / min(tried)


def rounded_speed(speed: float) -> float:
    """A speed as a peer's record has it: two digits, and a number of the record's."""
    return min(float(f"{speed:.2g}"), MOST_TOKENS_PER_SECOND)


def a_microbatch(trainer: StageTrainer) -> Callable[[], None]:
    """Return a function that runs one microbatch forward and back, with random tokens, activations and gradients, as a
    volunteer's torch thread does: bytes in, bytes out. Gradients add up."""
    manifest, device, rules = trainer.manifest, trainer.device, FrameRules.of(trainer.manifest)
    tokens_BM = torch.randint(manifest.model.vocabulary, (rules.sequences, rules.context + 1))
    formats = Formats(*(number_format(wire, manifest.k) for wire in manifest.replicas.wires))
    sent_BLk = torch.randn(rules.sequences, rules.context, manifest.k)
    activations = None if trainer.first else to_bytes(formats.activations.pack(sent_BLk))
    gradients = None if trainer.last else to_bytes(formats.gradients.pack(sent_BLk * 1e-3))

    def passes() -> None:
        entered = None if activations is None else from_bytes(activations, rules.activations, device)
        leaving = trainer.forward(0, tokens_BM, entered)
        _ = leaving.item() if trainer.last else to_bytes(leaving)
        gradient_BLd = None if gradients is None else from_bytes(gradients, rules.gradients, device)
        back = trainer.backward(0, gradient_BLd)
        if back is not None:
            to_bytes(back)
        else:
            wait_for(trainer.parameters[0])

    return passes


def wait_for(result: Tensor) -> None:
    """Wait until a device has computed a tensor."""
    if result.device.type != "cpu":
        result.flatten()[0].item()


def warm_up() -> None:
    """Compile what is compiled at its first use, where it would stop everybody for seconds: one outer round of a tiny
    model in each number format. What is compiled is kept on disk for the next time, and for the other processes of this
    machine that begin now: one of them compiles. The others wait for it, and then load what there is, all at once."""
    lock = FileLock(compiled_folder(decay_and_add_kernel) / "compiling.lock")
    with ExitStack() as first:
        try:
            first.enter_context(lock.acquire(timeout=0))
        except Timeout:
            with suppress(Timeout), lock.acquire(timeout=COMPILING_SECONDS):
                pass
        except OSError:
            pass  # numba keeps nothing where nothing can be written: then each compiles
        compile_kernels()


def compile_kernels() -> None:
    """Use each kernel once."""
    sizes = {"layers": 1, "d": 16, "heads": 1, "kv_heads": 1, "ffn": 16, "context": 8, "vocabulary": 258}
    for values in ("bf16", "2bit"):
        for aggregate, clip in (("all", "none"), ("senders", "median")):
            outer = {"values": values, "aggregate": aggregate, "clip": clip}
            _round(
                check_manifest(
                    {"model": sizes, "replicas": {"stages": 1, "compression": 1}, "outer": outer}, "the warm-up"
                )
            )


def _round(manifest: Manifest) -> None:
    layout = part_layout(manifest, EMBEDDING)
    genesis = {name: torch.zeros(shape, dtype=torch.int32) for name, shape in layout.items()}
    state = OuterState.begin(manifest, EMBEDDING, genesis, author=True)
    delta = {name: torch.linspace(-1e-3, 1e-3, tensor.numel()).view_as(tensor) for name, tensor in genesis.items()}
    blob, sent = state.contribute(RUN, 1, PeerId("QmMe"), 1, delta)
    state.replace([], [decode(blob, manifest), sent])
    state.closed([[sent]])
    state.put_back(sent)
