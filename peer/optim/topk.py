"""The largest magnitudes of every chunk (SparseLoCo, arXiv 2508.15706). Ties go to the lowest offset."""

import torch
from torch import Tensor

from peer.optim import kernels
from protocol.codec.chunks import ChunkGrid
from protocol.codec.contribution import SparseTensor


def top_k(values: Tensor, grid: ChunkGrid) -> SparseTensor:
    """TopK(e): from int32 `values` of the grid's shape, each chunk's k largest by magnitude.

    In canonical order: by chunk, then by rising offset. The torch operations serve other devices, and say what the
    CPU's kernel does.
    """
    if values.is_cpu and values.is_contiguous():
        return SparseTensor(*kernels.largest(values.view(-1).numpy(), grid))
    chunks, tail = as_chunks(values, grid)
    offsets, kept = _largest(chunks, grid.k)
    if grid.tail:
        tail_offsets, tail_kept = _largest(tail[None], grid.tail_k)
        offsets, kept = torch.cat((offsets, tail_offsets)), torch.cat((kept, tail_kept))
    return SparseTensor(offsets.to(torch.int16).cpu().numpy(), kept.cpu().numpy())


def as_chunks(values: Tensor, grid: ChunkGrid) -> tuple[Tensor, Tensor]:
    """A tensor as [full chunks, chunk size], and what is left for the short chunk."""
    if values.dim() == 1:
        cut = grid.full * grid.size
        return values[:cut].view(grid.full, grid.size), values[cut:]
    height, width = grid.shape
    blocks = values.view(height // grid.rows, grid.rows, width // grid.columns, grid.columns)
    return blocks.transpose(1, 2).reshape(grid.full, grid.size), values.new_empty(0)


def _largest(chunks: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Offsets and values, both flat, of the k largest magnitudes in each row.

    torch.topk leaves ties open, so the offset is made part of the key: |v| · size + (size − 1 − offset)
    has no ties. It stays below 2³¹ · 2¹².
    """
    size = chunks.shape[1]
    magnitudes = chunks.to(torch.int64).abs_()
    keys = magnitudes.mul_(size).add_(torch.arange(size - 1, -1, -1, device=chunks.device))
    offsets = keys.topk(k, dim=1, sorted=False).indices.sort(dim=1).values
    return offsets.flatten(), chunks.gather(1, offsets).flatten()
