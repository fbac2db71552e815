"""Values on the wire: integers before and after."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec.quantize import LARGEST_UNITS, absolute, dequantize, fit_levels, payload_bytes, quantize
from protocol.errors import FormatError

values_lists = st.lists(st.integers(-LARGEST_UNITS, LARGEST_UNITS), min_size=1, max_size=40)
codecs = st.sampled_from(["bf16", "2bit"])


@given(values_lists, codecs)
def test_the_author_knows_exactly_what_the_others_will_read(values: list[int], codec):
    payload, sent = quantize(np.array(values, np.int32), codec)
    assert len(payload) == payload_bytes(len(values), codec)
    assert (dequantize(payload, len(values), codec) == sent).all()
    assert np.abs(sent).max() <= LARGEST_UNITS


@given(values_lists, codecs)
def test_quantizing_again_changes_nothing(values: list[int], codec):
    payload, sent = quantize(np.array(values, np.int32), codec)
    if codec == "bf16" or len(set(np.abs(sent).tolist())) == 2:
        assert quantize(sent, codec)[0] == payload


@given(values_lists)
def test_bf16_keeps_eight_significant_bits_half_to_even(values: list[int]):
    _, sent = quantize(np.array(values, np.int32), "bf16")
    for value, kept in zip(values, sent.tolist(), strict=True):
        shift = max(0, abs(value).bit_length() - 8)
        nearest = round(abs(value) / 2**shift) * 2**shift  # Python rounds half to even; exact below 2⁵³
        assert abs(kept) == (nearest if nearest <= LARGEST_UNITS else (abs(value) >> shift) << shift)
        assert kept * value >= 0


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=9))
def test_the_two_levels_are_those_of_least_squared_error(magnitudes: list[int]):
    def error(levels: tuple[float, float]) -> float:
        return sum(min((each - level) ** 2 for level in levels) for each in magnitudes)

    ordered = sorted(magnitudes)
    splits = [(ordered[:i], ordered[i:]) for i in range(1, len(ordered))] or [(ordered, ordered)]
    best = min(error((np.mean(low), np.mean(high))) for low, high in splits)
    rounding = len(magnitudes) * 0.25 + 1e-6  # the levels are integers, each off by a half at most
    assert error(fit_levels(*absolute(np.array(magnitudes, np.int32)))) <= best + rounding


@given(st.sampled_from([0, 2**26, 2**30, LARGEST_UNITS - 50]), st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_magnitudes_far_from_zero_and_close_together_are_split_as_well(base: int, spread: list[int]):
    """Squares near 2⁶² have no room left in a float for differences of one."""
    magnitudes = np.array(spread, np.int64) + base
    ordered = [Fraction(each) for each in sorted(spread)]
    splits = [(ordered[:i], ordered[i:]) for i in range(1, len(ordered))] or [(ordered, ordered[:0])]

    def error(split: tuple[list[Fraction], list[Fraction]]) -> Fraction:
        return sum(((each - sum(half) / len(half)) ** 2 for half in split for each in half), Fraction())

    payload, sent = quantize(magnitudes, "2bit")
    assert (dequantize(payload, len(magnitudes), "2bit") == sent).all()
    assert int(((sent - magnitudes) ** 2).sum()) <= min(map(error, splits)) + Fraction(len(spread), 4)


def test_the_two_levels_beat_one_on_what_top_k_leaves():
    random = np.random.default_rng(0)
    values = random.normal(size=100_000) * 1e6
    values = values[np.abs(values) > 2.4e6].astype(np.int64)
    _, sent = quantize(values, "2bit")
    relative = ((sent - values) ** 2).sum() / (values**2).sum()
    assert relative < 0.005


@pytest.mark.parametrize(
    "pattern",
    [0x7F80, 0x7FC0, 0xFF80, 0x8000, 0x3F00, 0x4F00, 0x0001],
    ids=["inf", "nan", "-inf", "-0", "half", "2^31", "tiny"],
)
def test_a_pattern_that_is_no_integer_of_the_grid_is_refused(pattern: int):
    with pytest.raises(FormatError, match="not an integer of the grid"):
        dequantize(pattern.to_bytes(2, "little"), 1, "bf16")


@pytest.mark.parametrize(
    ("low", "high", "codes"),
    [(5, 4, 0), (0, 2**31, 0), (4, 4, 0b01), (4, 5, 0), (0, 0, 0b10), (4, 4, 0b010000)],
    ids=["swapped", "too large", "two codes for one value", "a level unused", "minus zero", "bits behind the last"],
)
def test_a_second_way_to_say_the_same_is_refused(low: int, high: int, codes: int):
    payload = low.to_bytes(4, "little") + high.to_bytes(4, "little") + bytes([codes])
    with pytest.raises(FormatError):
        dequantize(payload, 1, "2bit")


@pytest.mark.parametrize(("codec", "extra"), itertools.product(["bf16", "2bit"], [-1, 1]))
def test_a_wrong_length_is_refused(codec, extra: int):
    with pytest.raises(FormatError, match="bytes for 5 values"):
        dequantize(bytes(payload_bytes(5, codec) + extra), 5, codec)


def by_sorting(magnitudes: np.ndarray) -> tuple[int, int]:
    """Every split of the sorted magnitudes between different values, without buckets."""
    ordered = np.sort(magnitudes.astype(np.int64))
    below = np.flatnonzero(np.diff(ordered)) + 1
    if not len(below):
        return int(ordered[0]), int(ordered[0])
    sums, above = np.cumsum(ordered - ordered[0]), len(ordered) - below
    low, high = sums[below - 1] / below, (sums[-1] - sums[below - 1]) / above
    best = int(np.argmax(below * above * (high - low) ** 2))
    return int(ordered[0]) + round(float(low[best])), int(ordered[0]) + round(float(high[best]))


@pytest.mark.parametrize(
    "distribution", ["uniform", "few values", "heavy tail", "normal", "near the largest", "one outlier", "log-normal"]
)
@pytest.mark.parametrize("seed", range(20))
def test_buckets_find_the_split_that_sorting_finds(distribution: str, seed: int):
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 3000))
    drawn = {
        "uniform": random.integers(0, LARGEST_UNITS, count),
        "few values": random.integers(0, 10, count),
        "heavy tail": np.abs(random.standard_cauchy(count)) * 1e4,
        "normal": np.abs(random.normal(size=count)) * 1e6,
        "near the largest": LARGEST_UNITS - random.integers(0, 60, count),
        "one outlier": np.append(random.integers(0, 5000, count), LARGEST_UNITS),
        "log-normal": np.exp(random.normal(size=count) * 5),
    }[distribution]
    values = np.clip(drawn, 0, LARGEST_UNITS).astype(np.int32)
    assert fit_levels(*absolute(values)) == by_sorting(values)
