"""The design of a replica of the lab: the protocol's, or what the switches make of it.

Letters of shapes: V vocabulary, d = D width of the residual stream, k dimensions of the subspace.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peer.compute.design import Design, Kind, design
from peer.lab.boundaries import GroupBoundaries
from peer.lab.switches import Switches
from peer.model.embedding import DenseEmbedding, Embedding, FactoredEmbedding, require_shape, split_embedding
from protocol.manifest import Manifest

KINDS: tuple[Kind, ...] = ("group", "datacenter")


class SubspaceTable(Embedding):
    """T⊥[x] + T_S[x] with a dense T_S [V, d] to train, which begins every inner loop in the subspace."""

    basis_dk: Tensor
    anchor_Vd: Tensor
    start_Vd: Tensor

    def __init__(self, vocabulary: int, basis_dk: Tensor) -> None:
        super().__init__()
        empty_Vd = torch.empty(vocabulary, len(basis_dk), device=basis_dk.device)
        self.ts_Vd = nn.Parameter(empty_Vd)
        self.register_buffer("basis_dk", basis_dk, persistent=False)
        self.register_buffer("anchor_Vd", empty_Vd.clone(), persistent=False)
        self.register_buffer("start_Vd", empty_Vd.clone(), persistent=False)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        return F.embedding(tokens_BL, self.anchor_Vd) + F.embedding(tokens_BL, self.ts_Vd)

    @torch.no_grad()
    def load(self, te_Vd: Tensor) -> None:
        require_shape(te_Vd, self.anchor_Vd)
        anchor_Vd = split_embedding(te_Vd, self.basis_dk)[1]
        self.anchor_Vd.copy_(anchor_Vd)
        self.ts_Vd.copy_(te_Vd - anchor_Vd)
        self.start_Vd.copy_(self.ts_Vd)

    @torch.no_grad()
    def moved(self, start_Vd: Tensor) -> Tensor:
        return self.start_Vd - self.ts_Vd

    @torch.no_grad()
    def project(self) -> None:
        """T_S ← T_S U Uᵀ."""
        self.ts_Vd.copy_(self.ts_Vd @ self.basis_dk @ self.basis_dk.T)


def design_of(
    kind: Kind,
    manifest: Manifest,
    switches: Switches,
    basis_DD: Tensor,
    device: torch.device,
    group: GroupBoundaries | None,
) -> Design:
    """The design of a replica of a kind under these switches; `group` are the lab's own boundaries, if it has any."""
    if kind == "group" and group is not None:
        return group_design(manifest, switches, group)
    return design(manifest, kind, basis_DD, device)


def group_design(manifest: Manifest, switches: Switches, group: GroupBoundaries) -> Design:
    """A group's token embedding and boundaries under these switches."""
    vocabulary, basis_dk = manifest.model.vocabulary, group.basis_dk
    factored = manifest.replicas.factored

    def embedding() -> Embedding:
        if not factored:
            return DenseEmbedding(vocabulary, manifest.model.d).to(basis_dk.device)
        return (FactoredEmbedding if switches.embedding == "factor" else SubspaceTable)(vocabulary, basis_dk)

    return Design(embedding, group.boundaries, True, basis_dk if factored else None)
