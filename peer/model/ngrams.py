"""N-gram tables: what the stages behind the first look up by the last tokens (docs/design/models.md).

Both ends of a boundary know the token ids, so a stage may add any causal function of them to what it receives, for no
byte (MAPL, arXiv 2606.05484). Before a stage's layers its tables add rows to the residual stream, and behind them the
same rows are taken out again. A boundary would drop most of them; and without boundaries no later stage finds them
there either, so that one model serves both kinds of replicas.

Letters of shapes: B sequences, L tokens of a sequence, D width of the residual stream, r width of a row.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from protocol.model_sizes import NgramTables

MULTIPLIER = 1_000_003
"""The multiplier of the hash of several tokens: a prime. Three tokens of a vocabulary of 2¹⁸ stay below 2⁵⁹."""


def ngram_rows(tokens_BL: Tensor, n: int, rows: int) -> Tensor:
    """The row [B, L], of so many rows, that each token and the n − 1 tokens before it choose. Before a text's first
    token there is none, which counts as a token, too."""
    chosen_BL = tokens_BL.long()
    for back in range(1, n):
        before_BL = F.pad(tokens_BL.long() + 1, (back, 0))[:, : tokens_BL.shape[1]]
        chosen_BL = chosen_BL * MULTIPLIER + before_BL
    return chosen_BL % rows


class Ngrams(nn.Module):
    """The tables before one layer, parameters by the name `str(n)`: that for the last n tokens, [rows, r]. Empty until
    they are loaded."""

    def __init__(self, vocabulary: int, ngrams: NgramTables) -> None:
        super().__init__()
        for n in range(1, ngrams.most + 1):
            self.register_parameter(str(n), nn.Parameter(torch.empty(ngrams.rows(n, vocabulary), ngrams.width)))

    def forward(self, tokens_BL: Tensor, width: int) -> Tensor:
        """Return what the last tokens add to a residual stream of `width` numbers, [B, L, D]: the sum of their rows in
        its first r coordinates, and zeros in the others."""
        found = [self.look_up(table_nr, tokens_BL, int(n)) for n, table_nr in self.named_parameters(recurse=False)]
        total_BLr = sum(found[1:], found[0])
        return F.pad(total_BLr, (0, width - total_BLr.shape[-1]))

    def look_up(self, table_nr: Tensor, tokens_BL: Tensor, n: int) -> Tensor:
        """The rows [B, L, r] that the last n tokens choose."""
        return F.embedding(ngram_rows(tokens_BL, n, len(table_nr)), table_nr)
