"""The parts of a stage's trainer where the paper has a choice: its token embedding, and its boundaries.

The swarm knows one design, which follows from the manifest; the lab may give another (`peer/lab/`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from peer.model.embedding import DenseEmbedding, Embedding, FactoredEmbedding, anchor_of
from peer.model.number_format import number_format
from peer.model.subspace import Boundary, DirectBoundary, Formats, SubspaceBoundary, WholeBoundary, nested
from protocol.manifest import Manifest

Kind = Literal["group", "datacenter"]

Boundaries = Callable[[int], Boundary]
"""The boundary behind each stage, by the stage's index."""


@dataclass(frozen=True, slots=True)
class Design:
    """`embedding` makes a token embedding; `boundaries` the boundaries of an inner loop that starts from TE [V, d],
    which it needs if the design is `anchored`, and may use up: the anchor takes its memory.

    `basis_dk` is U if the token embedding must not leave its subspace in an inner loop; None if all of TE is trained.
    """

    embedding: Callable[[], Embedding]
    boundaries: Callable[[Tensor | None], Boundaries]
    anchored: bool = False
    basis_dk: Tensor | None = None


def design(manifest: Manifest, kind: Kind, basis_DD: Tensor | None, device: torch.device) -> Design:
    """The protocol's. `basis_DD` [d, d] is the run's basis; a datacenter and an uncompressed group need none."""
    if kind == "group" and manifest.compressed and basis_DD is not None:
        return _compressed(manifest, nested(basis_DD, manifest.k).to(device))
    model = manifest.model
    whole: Boundary = DirectBoundary() if kind == "datacenter" else WholeBoundary(formats_of(manifest))
    return Design(lambda: DenseEmbedding(model.vocabulary, model.d).to(device), lambda te_VD: lambda stage: whole)


def _compressed(manifest: Manifest, basis_dk: Tensor) -> Design:
    factored = manifest.replicas.factored
    vocabulary, d = manifest.model.vocabulary, manifest.model.d

    def boundaries(te_VD: Tensor | None) -> Boundaries:
        assert te_VD is not None
        boundary = SubspaceBoundary(basis_dk, anchor_of(te_VD, basis_dk) if factored else te_VD, formats_of(manifest))
        return lambda stage: boundary

    if factored:
        return Design(lambda: FactoredEmbedding(vocabulary, basis_dk), boundaries, True, basis_dk)
    return Design(lambda: DenseEmbedding(vocabulary, d).to(basis_dk.device), boundaries, True)


def formats_of(manifest: Manifest) -> Formats:
    """The number formats that a boundary of this run has on the wire."""
    return Formats(*(number_format(wire, manifest.k) for wire in manifest.replicas.wires))
