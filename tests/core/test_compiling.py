"""Settings of the compiler are compared fast, and as numba compares them."""

from __future__ import annotations

import numpy as np
from numba.core.compiler import Flags

from rescind.core.fast import compiling


def test_settings_are_the_same_if_numba_says_so() -> None:
    plain, other = Flags(), Flags()
    plain.nrt = other.nrt = True
    plain.error_model = other.error_model = "numpy"
    same, again = compiling._Same(plain), compiling._Same(other)
    assert same == again == same.copy()
    assert hash(same) == hash(again)
    assert same == plain
    other.boundscheck = True
    assert same != compiling._Same(other)
    assert same != "settings"
    again.no_rewrites = again.no_rewrites  # set to what it is by itself
    assert same == again


def test_what_is_compiled_is_what_is_written() -> None:
    @compiling.compiled()
    def total(values):
        found = 0.0
        for row in range(len(values)):
            found += values[row] / 2
        return found

    assert total(np.arange(5.0)) == 5
    assert total(np.arange(5)) == 5
