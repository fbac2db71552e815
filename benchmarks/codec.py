"""What a contribution costs: bits for each kept value, and seconds to write and read them.

One matrix of Gaussian values, of which the largest of every chunk are kept. Beside our codecs stands what the
field ships (SparseLoCo's published code): 12-bit indices packed in pairs, and each value's bin of a statistical
quantizer in a byte of its own. Choosing the values is not part of any of the times; one thread throughout.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np
import torch
from options.small import sized_arguments
from torch import Tensor

from peer.optim.outer import top_k
from protocol.codec import rice
from protocol.codec.bitstream import Int32Array
from protocol.codec.chunks import ChunkGrid, Offsets, chunk_grid
from protocol.codec.quantize import dequantize, quantize
from protocol.tensor_formats import Codec

CHUNK_SIDE, TOP_K = 64, 32
BINS, SIGMAS = 4, 6.0
"""The field's quantizer: 4 bins of 1.5 standard deviations."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Row:
    """One codec. Megabytes are 10⁶ bytes of the whole tensor in float32; the error is Σ(v̂ − v)² / Σv²."""

    codec: str
    bits_per_value: float
    bits_per_index: float
    relative_squared_error: float
    encode_mvalues_per_s: float
    decode_mvalues_per_s: float
    both_dense_mb_per_s: float


def best_of(runs: int, work: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds of the quickest run, and what it returned."""
    seconds = math.inf
    for _ in range(runs):
        start = time.perf_counter()
        result = work()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, result


def row(
    name: str,
    grid: ChunkGrid,
    values: Int32Array,
    sizes: tuple[int, int],
    seconds: tuple[float, float],
    decoded: Int32Array,
) -> Row:
    """`sizes`: bytes of indices and of values; `seconds`: of encoding and of decoding."""
    error = ((decoded - values).astype(float) ** 2).sum() / (values.astype(float) ** 2).sum()
    return Row(
        codec=name,
        bits_per_value=8 * sum(sizes) / grid.kept,
        bits_per_index=8 * sizes[0] / grid.kept,
        relative_squared_error=float(error),
        encode_mvalues_per_s=grid.kept / seconds[0] / 1e6,
        decode_mvalues_per_s=grid.kept / seconds[1] / 1e6,
        both_dense_mb_per_s=4 * grid.elements / sum(seconds) / 1e6,
    )


def ours(codec: Codec, grid: ChunkGrid, offsets: Offsets, values: Int32Array, runs: int) -> Row:
    """Golomb–Rice offsets with `codec` values."""
    encoding, ((unary, rests), (payload, _)) = best_of(
        runs, lambda: (rice.encode_offsets(offsets, grid), quantize(values, codec))
    )
    decoding, (places, decoded) = best_of(
        runs, lambda: (rice.decode_offsets(unary, rests, grid), dequantize(payload, grid.kept, codec))
    )
    assert (places == offsets).all()
    sizes = len(unary) + len(rests), len(payload)
    return row(f"rice + {codec}", grid, values, sizes, (encoding, decoding), decoded)


def fields(grid: ChunkGrid, offsets: Offsets, values: Int32Array, runs: int) -> Row:
    """The field's alternative, in torch operations."""
    indices, floats = torch.from_numpy(offsets).to(torch.int64), torch.from_numpy(values).to(torch.float32)
    encoding, (packed, (bins, lookup, mean)) = best_of(runs, lambda: (pack_12(indices), into_bins(floats)))
    decoding, (places, decoded) = best_of(runs, lambda: (unpack_12(packed), lookup[bins.to(torch.int64)] + mean))
    assert torch.equal(places, indices)
    sizes = packed.numel(), bins.numel() + 4 * (BINS + 1)
    return row("12 bits + byte", grid, values, sizes, (encoding, decoding), decoded.to(torch.int64).numpy())


def pack_12(indices: Tensor) -> Tensor:
    """Pairs of indices below 4096, an even number of them → three bytes a pair."""
    first, second = indices.view(-1, 2).unbind(1)
    bytes_of_pairs = (first & 255, (first >> 8) | ((second & 15) << 4), second >> 4)
    return torch.stack(bytes_of_pairs, dim=1).to(torch.uint8).flatten()


def unpack_12(packed: Tensor) -> Tensor:
    """What `pack_12` packed."""
    low, middle, high = packed.view(-1, 3).to(torch.int64).unbind(1)
    return torch.stack((low | ((middle & 15) << 8), (middle >> 4) | (high << 4)), dim=1).flatten()


def into_bins(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(bin of each value, mean of each bin, mean of all): bins of SIGMAS / BINS standard deviations."""
    mean = values.mean()
    centred = values - mean
    bins = (centred / (SIGMAS * centred.std() / BINS) + BINS // 2).round().clamp(0, BINS - 1).to(torch.int64)
    sums = torch.zeros(BINS).index_add_(0, bins, centred)
    return bins.to(torch.uint8), sums / torch.bincount(bins, minlength=BINS).clamp(min=1), mean


def measure(side: int, runs: int) -> list[Row]:
    """Every codec on one random matrix [side, side]."""
    grid = chunk_grid((side, side), CHUNK_SIDE, TOP_K)
    dense = np.random.default_rng(0).normal(scale=1e-3 * 2**26, size=(side, side)).astype(np.int32)
    kept = top_k(torch.from_numpy(dense), grid)
    return [
        ours("2bit", grid, kept.offsets, kept.values, runs),
        ours("bf16", grid, kept.offsets, kept.values, runs),
        fields(grid, kept.offsets, kept.values, runs),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Bits and speed of a contribution's codecs.")
    parser.add_argument("--side", type=int, default=4096, help="of the matrix; a multiple of 64")
    parser.add_argument("--runs", type=int, default=50, help="the quickest counts")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = sized_arguments(parser, side=256, runs=1)
    if options.side < CHUNK_SIDE or options.side % CHUNK_SIDE or options.runs < 1:
        parser.error(f"--side is a multiple of {CHUNK_SIDE}, --runs at least 1")
    torch.set_num_threads(1)
    torch.empty(30 << 20, dtype=torch.uint8)  # freed: from now on the allocator keeps such blocks, for every codec
    rows = measure(options.side, options.runs)
    ratio = rows[0].both_dense_mb_per_s / rows[-1].both_dense_mb_per_s
    bound = math.log2(math.comb(CHUNK_SIDE**2, TOP_K)) / TOP_K
    if options.json:
        summary = {"codec_ratio": ratio, "bits_per_value": rows[0].bits_per_value, "index_bound": bound}
        print(json.dumps(summary | {"side": options.side, "codecs": [asdict(each) for each in rows]}))
        return
    print(f"[{options.side}, {options.side}], {TOP_K} of {CHUNK_SIDE**2} kept; at least {bound:.3f} bits an index")
    print(f"{'codec':15} {'bits/value':>10} {'bits/index':>10} {'error':>8} {'Mvalues/s':>17} {'dense MB/s':>10}")
    print(f"{'':15} {'':>10} {'':>10} {'':>8} {'encode':>8} {'decode':>8} {'both':>10}")
    for each in rows:
        print(
            f"{each.codec:15} {each.bits_per_value:10.3f} {each.bits_per_index:10.3f} "
            f"{each.relative_squared_error:8.2%} {each.encode_mvalues_per_s:8.1f} {each.decode_mvalues_per_s:8.1f} "
            f"{each.both_dense_mb_per_s:10.0f}"
        )
    print(f"2bit, encoding and decoding: {ratio:.2f} times the throughput of 12 bits + byte")


if __name__ == "__main__":
    main()
