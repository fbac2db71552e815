"""Loops as machine code: numba compiles a function when it is first called, and keeps the result on disk.

What is compiled is integer arithmetic and comparisons, and where there are floats, single IEEE operations in a
fixed order (numba contracts and reorders none unless asked): every machine gets the same bits.

numba imports scipy in whichever thread compiles first, while another may import it for hivemind. Python then finds each
waiting for the other, and gives up: so it is imported here, before there are threads.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import scipy.linalg.cython_blas  # noqa: F401

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """`function` on numpy arrays, compiled and free of the interpreter's lock while it runs."""
    return cast(Function, numba.njit(cache=True, nogil=True)(function))


def compiled_folder(function: Callable[..., object]) -> Path:
    """The folder in which what has been compiled of a function is kept."""
    return Path(cast(Any, function).stats.cache_path)
