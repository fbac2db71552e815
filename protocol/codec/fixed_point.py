"""The unit of the outer state: weights and pseudo-gradients are integers in units of 2⁻²⁶."""

import numpy as np
from numpy.typing import NDArray

UNITS_PER_ONE = 2**26
"""The number of units in 1.0. An int32 then holds ±32, far beyond any weight, in steps of 1.5e-8: finer than float32
from 0.25 on."""


def to_units(values: NDArray[np.floating]) -> NDArray[np.int32]:
    """Convert a float array of any shape to int32 units of the same shape, rounded half to even.

    Raises:
        OverflowError: a value is outside ±32, or is not a number.
    """
    scaled = values.astype(np.result_type(values, np.float32)) * UNITS_PER_ONE
    np.rint(scaled, out=scaled)
    if scaled.size and not (scaled.min() > -(2**31) and scaled.max() < 2**31):
        raise OverflowError("a weight is outside ±32, or is not a number")
    return scaled.astype(np.int32)
