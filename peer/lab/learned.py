"""What a stage may learn at its boundaries, beside the manifest's: anchors, which cost no bytes there, and codecs.

Both ends of a boundary know the token ids, so a stage may add any causal function of them to what it receives. A
learned anchor looks rows up in tables of the stage's own (MAPL, arXiv 2606.05484): of the token, of pairs or triples of
tokens by a hash, or of the last tokens together. Its rows lie outside Col(U), where the boundary lets nothing pass, so
the sender need not know them. A learned codec projects by U + C in place of U, and rebuilds by Uᵀ + D (ResBM, arXiv
2604.11947).

They are part of the model: uncompressed replicas have them, too, and so θ stays one. All begin at zero, so that a model
begins as it would without. A boundary drops a stage's anchor, and a model without boundaries hands it on to all later
stages. What came of it are the protocol's n-gram tables, which leave again (`peer/model/ngrams.py`).

Letters of shapes: M replicas, B sequences, L tokens of a sequence, D = d width of the residual stream, k dimensions of
the subspace, V vocabulary, r width of a row.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peer.compute.design import Design
from peer.lab.switches import Switches
from peer.model.ngrams import ngram_rows
from peer.model.stage import Stage
from peer.model.subspace import nested
from protocol.manifest import Manifest
from protocol.model_sizes import ROWS_OF_SEVERAL

TAPS = 4
"""The tokens of which the rows are added up in a convolution."""

ORDERS: Mapping[str, tuple[int, ...]] = {"tokens": (1,), "convolution": (1,), "bigrams": (1, 2), "trigrams": (1, 2, 3)}
"""How many tokens choose a row, of each table of an anchor."""


class Anchor(nn.Module):
    """A learned anchor: Σ over its tables, E[rows], by the columns `basis_dr` of an orthonormal basis."""

    basis_dr: Tensor

    def __init__(self, kind: str, vocabulary: int, basis_dr: Tensor) -> None:
        super().__init__()
        width = basis_dr.shape[1]
        sizes = {order: vocabulary if order == 1 else ROWS_OF_SEVERAL * vocabulary for order in ORDERS[kind]}
        self.tables = nn.ParameterDict({str(order): torch.zeros(rows, width) for order, rows in sizes.items()})
        self.taps = nn.Parameter(torch.zeros(TAPS, width)) if kind == "convolution" else None
        self.register_buffer("basis_dr", basis_dr, persistent=False)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Token ids [B, L] → what is added to the residual stream [B, L, D]."""
        found_BLr = torch.zeros((), device=self.basis_dr.device)
        for order, table in self.tables.items():
            rows, width = table.shape[-2:]
            found_BLr = found_BLr + self.look_up(table.view(-1, width), ngram_rows(tokens_BL, int(order), rows), rows)
        if self.taps is not None:
            found_BLr = self.convolved(found_BLr, self.taps)
        return found_BLr @ self.basis_dr.T

    def look_up(self, table: Tensor, rows_BL: Tensor, rows: int) -> Tensor:
        """The chosen rows [B, L, r]."""
        return F.embedding(rows_BL, table)

    def convolved(self, found_BLr: Tensor, taps: Tensor) -> Tensor:
        """Each token's row, and what the rows of the last `TAPS` tokens add to it by their weights [TAPS, r]."""
        length = found_BLr.shape[1]
        return found_BLr + sum(F.pad(found_BLr, (0, 0, back, 0))[:, :length] * taps[back] for back in range(TAPS))


class LearnedMatrix(nn.Module):
    """A matrix beside U at one end of a boundary."""

    basis_dk: Tensor

    def __init__(self, basis_dk: Tensor, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns))
        self.register_buffer("basis_dk", basis_dk, persistent=False)

    def times(self, x: Tensor) -> Tensor:
        """x times the matrix."""
        return x @ self.weight


class LearnedProjection(LearnedMatrix):
    """x + x C Uᵀ, behind a stage: the boundary then sends x (U + C), in place of x U."""

    def forward(self, x_BLD: Tensor) -> Tensor:
        return x_BLD + self.times(x_BLD) @ self.basis_dk.T


class LearnedReconstruction(LearnedMatrix):
    """x + x U D, before a stage: what the boundary has sent as coordinates is rebuilt by Uᵀ + D."""

    def forward(self, x_BLD: Tensor) -> Tensor:
        return x_BLD + self.times(x_BLD @ self.basis_dk)


class LearningStage(Stage):
    """A stage with what it learns at its boundaries: before it, but at the first; and behind it, but at the last."""

    def __init__(self, manifest: Manifest, stage: int, switches: Switches, basis_DD: Tensor) -> None:
        super().__init__(manifest, stage)
        model, k = manifest.model, manifest.k
        self.anchor: Anchor | None = None
        self.decoder: LearnedReconstruction | None = None
        self.encoder: LearnedProjection | None = None
        if stage and switches.anchors != "none":
            width = switches.anchor_width or model.d - k
            self.anchor = Anchor(switches.anchors, model.vocabulary, basis_DD[:, k : k + width].contiguous())
        if switches.codec == "learned":
            basis_dk = nested(basis_DD, k)
            self.decoder = LearnedReconstruction(basis_dk, k, model.d) if stage else None
            self.encoder = None if self.last else LearnedProjection(basis_dk, model.d, k)

    def forward(self, x_BLD: Tensor, tokens_BL: Tensor) -> Tensor:
        if self.decoder is not None:
            x_BLD = self.decoder(x_BLD)
        if self.anchor is not None:
            x_BLD = x_BLD + self.anchor(tokens_BL)
        x_BLD = super().forward(x_BLD, tokens_BL)
        return x_BLD if self.encoder is None else self.encoder(x_BLD)


def with_learning(design: Design, switches: Switches, basis_DD: Tensor) -> Design:
    """A design whose stages learn what the switches say."""
    if not switches.learns:
        return design
    return replace(design, stage=lambda manifest, stage: LearningStage(manifest, stage, switches, basis_DD))
