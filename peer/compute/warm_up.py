"""Compile what is compiled at its first use, before others wait for this peer: it would stop everything for seconds."""

import torch

from peer.optim.outer import OuterState
from protocol.codec.contribution import decode
from protocol.identity import EMBEDDING, PeerId, RunId
from protocol.layout import part_layout
from protocol.manifest import Manifest, check

RUN = RunId("00" * 32)


def warm_up() -> None:
    """One outer round of a tiny model in each number format. What is compiled is kept on disk for the next time."""
    for values in ("bf16", "2bit"):
        for aggregate, clip in (("all", "none"), ("senders", "median")):
            _round(_tiny(values, aggregate, clip))


def _tiny(values: str, aggregate: str, clip: str) -> Manifest:
    sizes = {"layers": 1, "d": 16, "heads": 1, "kv_heads": 1, "ffn": 16, "context": 8, "vocabulary": 258}
    outer = {"values": values, "aggregate": aggregate, "clip": clip}
    return check({"model": sizes, "replicas": {"stages": 1, "compression": 1}, "outer": outer}, "the warm-up")


def _round(manifest: Manifest) -> None:
    layout = part_layout(manifest, EMBEDDING)
    genesis = {name: torch.zeros(shape, dtype=torch.int32) for name, shape in layout.items()}
    state = OuterState.begin(manifest, EMBEDDING, genesis, author=True)
    delta = {name: torch.linspace(-1e-3, 1e-3, tensor.numel()).view_as(tensor) for name, tensor in genesis.items()}
    blob, sent = state.contribute(RUN, 1, PeerId("QmMe"), 1, delta)
    state.replace([], [decode(blob, manifest), sent])
    state.fold([sent])
    state.put_back(sent)
