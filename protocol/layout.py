"""The cut of the model into parts: which tensors, of which shapes, each part holds. Pure arithmetic, no torch.

A layer's tensors, and the last norm's, are those of the model's architecture. Every model has a token embedding and a
head, and the stages behind the first may have n-gram tables (`peer/model/ngrams.py`).
"""

from protocol.architectures import architecture_of
from protocol.identity import EMBEDDING, Part, stage_part
from protocol.manifest import Manifest
from protocol.model_sizes import Model, NgramTables

Shape = tuple[int, ...]
Layout = dict[str, Shape]
"""Tensor name → shape, in canonical order."""


def layer_layout(model: Model, layer: int) -> Layout:
    """The tensors of one decoder layer."""
    tensors = architecture_of(model).layer_layout(model)
    return {f"{LAYER_PREFIX}{layer}.{name}": shape for name, shape in tensors.items()}


def end_layout(model: Model) -> Layout:
    """The tensors behind the last layer: the norm's, and the head."""
    norm = {f"model.norm.{name}": shape for name, shape in architecture_of(model).norm_layout(model).items()}
    return norm | {HEAD_TENSOR: (model.vocabulary, model.d)}


LAYER_PREFIX = "model.layers."
NGRAM_PREFIX = "model.ngrams."


def ngram_layout(model: Model, ngrams: NgramTables, layer: int) -> Layout:
    """The n-gram tables before a layer; none before most."""
    if layer not in ngrams.layers:
        return {}
    return {
        f"{NGRAM_PREFIX}{layer}.{n}": (ngrams.rows(n, model.vocabulary), ngrams.width)
        for n in range(1, ngrams.most + 1)
    }


def multiplies(tensor: str) -> bool:
    """Whether a tensor takes part in products, and is not only looked up."""
    return tensor != EMBEDDING_TENSOR and not tensor.startswith(NGRAM_PREFIX)


def is_layer_matrix(tensor: str, shape: Shape) -> bool:
    """Whether a tensor is a matrix of a layer, which Muon may move: no norm, head, or token embedding."""
    return tensor.startswith(LAYER_PREFIX) and len(shape) == 2


def writes_residual(model: Model, tensor: str) -> bool:
    """Whether a tensor is a matrix [d, inputs] whose product is added to the residual stream."""
    return tensor.startswith(LAYER_PREFIX) and tensor.endswith(architecture_of(model).residual_writers)


EMBEDDING_TENSOR = "model.embed_tokens.weight"
HEAD_TENSOR = "lm_head.weight"


def part_layout(manifest: Manifest, part: Part) -> Layout:
    """The tensors of one part. Raises KeyError for a part this model does not have."""
    return model_layout(manifest)[part]


def model_layout(manifest: Manifest) -> dict[Part, Layout]:
    """The tensors of every part of the model, the embedding first."""
    model, ngrams = manifest.model, manifest.ngrams
    parts: dict[Part, Layout] = {EMBEDDING: {EMBEDDING_TENSOR: (model.vocabulary, model.d)}}
    for stage, layers in enumerate(manifest.cut):
        layout: Layout = {}
        for layer in layers:
            layout |= ngram_layout(model, ngrams, layer) | layer_layout(model, layer)
        if stage == manifest.replicas.stages - 1:
            layout |= end_layout(model)
        parts[stage_part(stage)] = layout
    return parts


def whole_layout(model: Model, ngrams: NgramTables) -> Layout:
    """Every tensor of the model, however it is cut."""
    layout: Layout = {EMBEDDING_TENSOR: (model.vocabulary, model.d)}
    for layer in range(model.layers):
        layout |= ngram_layout(model, ngrams, layer) | layer_layout(model, layer)
    return layout | end_layout(model)


def elements(layout: Layout) -> int:
    """The number of values in a part."""
    total = 0
    for shape in layout.values():
        size = 1
        for side in shape:
            size *= side
        total += size
    return total


def operations_per_token(manifest: Manifest) -> float:
    """The floating-point operations of forward and backward for one token: 6 for each weight that multiplies, and
    for each multiplication of attention."""
    model, tensors = manifest.model, whole_layout(manifest.model, manifest.ngrams)
    weights = elements({name: shape for name, shape in tensors.items() if multiplies(name)})
    return 6.0 * weights + 6.0 * model.layers * architecture_of(model).layer_costs(model).attention


def parameter_count(manifest: Manifest) -> int:
    """The number of parameters of the whole model."""
    return sum(elements(layout) for layout in model_layout(manifest).values())


def parts_followed(manifest: Manifest, stage: int) -> list[Part]:
    """The parts whose outer state one volunteer holds: its stage, and the embedding where it needs T⊥.

    In an uncompressed group only stage 0 looks tokens up.
    """
    if stage == 0 or manifest.compressed:
        return [EMBEDDING, stage_part(stage)]
    return [stage_part(stage)]


def follows(role: str, stage: int, part: Part, manifest: Manifest) -> bool:
    """Whether a peer of this role and stage holds the outer state of a part."""
    return role != "volunteer" or part in parts_followed(manifest, stage)
