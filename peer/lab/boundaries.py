"""The boundaries of the lab's groups where the paper's ablations change them: an anchor that is not split again after
each round, and a basis that follows the gradients (HET, Table 5).

Letters of shapes: D width of the residual stream, k coordinates, B sequences, L tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from peer.compute.design import Boundaries, formats_of
from peer.lab.switches import Switches
from peer.model.embedding import split_embedding
from peer.model.subspace import SubspaceBoundary, nested
from protocol.manifest import Manifest


@dataclass(slots=True)
class GradientMoment:
    """The second moment of the gradients that cross a boundary, of every `EVERY`-th microbatch."""

    moment_DD: Tensor
    count: int = 0
    seen: int = 0

    EVERY = 4

    @torch.no_grad()
    def watch(self, g_BLD: Tensor) -> None:
        """Add a microbatch's gradient; in fp32 also where the model is computed in bf16, whose rounding would drown the
        weak directions."""
        if self.seen % self.EVERY == 0:
            g_nD = g_BLD.flatten(0, -2).float()
            with torch.autocast(g_nD.device.type, enabled=False):
                self.moment_DD += g_nD.T @ g_nD
            self.count += len(g_nD)
        self.seen += 1

    def clear(self) -> None:
        """Forget all microbatches that were seen."""
        self.moment_DD.zero_()
        self.count = self.seen = 0


@dataclass(frozen=True, slots=True, eq=False)
class WatchedBoundary(SubspaceBoundary):
    """A boundary whose gradients are added to a moment before they are projected."""

    moment: GradientMoment

    @torch.no_grad()
    def encode_gradient(self, g_BLD: Tensor) -> Tensor:
        self.moment.watch(g_BLD)
        return SubspaceBoundary.encode_gradient(self, g_BLD)


@dataclass(slots=True)
class GroupBoundaries:
    """All boundaries of a group. All groups share them, as they share their weights at each round's start."""

    manifest: Manifest
    switches: Switches
    basis_dk: Tensor
    """U. Changed in place, so that what was made of it follows."""
    moments: list[GradientMoment]
    """One for each boundary where U moves; none where it stays."""
    genesis_VD: Tensor
    steps: int = 0

    @staticmethod
    def begin(manifest: Manifest, switches: Switches, basis_DD: Tensor, genesis_VD: Tensor) -> "GroupBoundaries":
        """The boundaries before round 1, of which TE is `genesis_VD`."""
        d, boundaries = manifest.model.d, max(1, manifest.replicas.stages - 1)  # a model of one stage asks for one, too
        moments = [GradientMoment(torch.zeros(d, d, device=basis_DD.device)) for _ in range(boundaries)]
        return GroupBoundaries(
            manifest, switches, nested(basis_DD, manifest.k), moments if switches.grassmann else [], genesis_VD
        )

    def boundaries(self, te_VD: Tensor | None, watched: bool = True) -> Boundaries:
        """The boundaries of an inner loop that starts from TE, or, if their gradients are not watched, of an
        evaluation."""
        assert te_VD is not None
        anchor_VD = te_VD
        if self.manifest.replicas.factored:
            anchor_VD = split_embedding(te_VD if self.switches.adaptation else self.genesis_VD, self.basis_dk)[1]
        plain = SubspaceBoundary(self.basis_dk, anchor_VD, formats_of(self.manifest))
        if not watched or not self.moments:
            return lambda stage: plain
        boundaries = [WatchedBoundary(plain.basis_dk, anchor_VD, plain.formats, moment) for moment in self.moments]
        return lambda stage: boundaries[min(max(stage, 0), len(boundaries) - 1)]

    def end_round(self, steps: int) -> None:
        """Count `steps` more inner steps, and move U if it is time to."""
        self.steps += steps
        if self.switches.grassmann and self.steps >= self.switches.grassmann:
            self.steps = 0
            self.basis_dk.copy_(_towards_gradients(self.basis_dk, self.moments))
            for moment in self.moments:
                moment.clear()


def _towards_gradients(basis_dk: Tensor, moments: list[GradientMoment]) -> Tensor:
    """One step on the Grassmann manifold that lowers Σ ‖G − G U Uᵀ‖² (Subspace Networks, arXiv 2506.01260).

    The Euclidean gradient is −2 M U with the moment M = GᵀG; its tangent part is taken, at the length at which the
    largest direction would turn by some 6°, and QR leads back.
    """
    moment_DD = torch.stack(
        [moments_of_one.moment_DD / max(1, moments_of_one.count) for moments_of_one in moments]
    ).mean(0)
    tangent_dk = moment_DD @ basis_dk
    tangent_dk = tangent_dk - basis_dk @ (basis_dk.T @ tangent_dk)
    length = torch.linalg.matrix_norm(tangent_dk, 2).clamp_min(1e-30)
    turned_dk, triangle_kk = torch.linalg.qr(basis_dk + 0.1 * tangent_dk / length)
    upright_dk: Tensor = turned_dk * triangle_kk.diagonal().sign()
    return upright_dk
