"""How loops of additive learners are compiled. Needs numba only.

Without reference counts and a callback for C, a first call takes half as long. So memory is made by
the caller, and rows are walked by their numbers: numba takes seconds for each slice that it assigns
to, and for np.sort, np.cumsum and sums of arrays.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from rescind.core.fast.kept_code import njit

compiled: Any = partial(njit, nogil=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)
