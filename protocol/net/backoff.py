"""Pauses that grow: the more failures in a row, the longer, up to a maximum. Pure."""

import math

MOST_DOUBLINGS = 64
"""Beyond these any pause has reached its maximum, and a power of two would be too large for a float."""


def pause_after(failures: float, first: float, most: float) -> float:
    """How long to pause after so many failures in a row, in the unit of `first` and `most`: not at all after none,
    `first` after one, then twice as long each time, `most` at most. A failure that was forgiven in part counts as a
    fraction."""
    if failures <= 0:
        return 0.0
    return min(most, first * math.pow(2.0, min(failures - 1, MOST_DOUBLINGS)))
