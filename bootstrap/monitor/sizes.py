"""What a run's bytes would be without any compression: frames of full width, and all of Δ, in bf16."""

from functools import cache

from protocol.codec.contribution import expected_bytes
from protocol.codec.payloads import Payload
from protocol.layout import elements, model_layout
from protocol.manifest import Manifest

VALUE_BYTES = 2
"""Of bf16, which a run would use if it had the links for it."""

TOKEN_BYTES = 4
"""A token id, which goes along with activations either way."""


@cache
def pipeline_ratio(manifest: Manifest, compression: int) -> float:
    """How many times more bytes the frames of a group would have that sends `compression`-th parts of d."""
    inner, model = manifest.inner, manifest.model
    ids = TOKEN_BYTES * inner.microbatch * (model.context + 1)
    k = model.d // compression
    sent = sum(Payload(wire, inner.microbatch, model.context, k).size for wire in manifest.replicas.wires)
    whole = 2 * Payload("bf16", inner.microbatch, model.context, model.d).size
    return (whole + ids) / (sent + ids)


@cache
def outer_ratio(manifest: Manifest) -> float:
    """How many times more bytes contributions would have."""
    layout = model_layout(manifest)
    whole = VALUE_BYTES * sum(elements(part) for part in layout.values())
    return whole / sum(expected_bytes(manifest, part) for part in layout)
