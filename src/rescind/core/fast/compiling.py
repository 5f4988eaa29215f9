"""How loops are compiled: numba, without what plain loops over flat arrays do not need.

A first call compiles, so its time is that of the compiler. Without reference counts and a callback
for C it takes two thirds. So memory is made by the caller, and rows are walked by their numbers:
numba takes seconds for each slice that is assigned to, and for np.sort, np.cumsum and sums of
arrays.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from rescind.core.fast.kept_code import njit

compiled: Any = partial(njit, nogil=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)
inner: Any = partial(compiled, no_cpython_wrapper=True)
"""For functions that only compiled ones call: what Python needs to call them is not made."""
