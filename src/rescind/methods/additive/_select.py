"""The n-th smallest number of many, compiled. Needs numba only."""

from __future__ import annotations

from typing import Any

from rescind.core.fast.kept_code import njit


@njit(nogil=True)
def nth_smallest(values: Any, n: int) -> Any:
    """Return the number that would stand at place n if `values` were sorted (quickselect).

    numba's own np.partition gives the same, and takes ten seconds to compile.
    """
    left = values.copy()
    low, high = 0, len(left) - 1
    while low < high:
        middle = (low + high) // 2
        # The median of three: sorted input then takes no longer than any other.
        if left[middle] < left[low]:
            left[middle], left[low] = left[low], left[middle]
        if left[high] < left[low]:
            left[high], left[low] = left[low], left[high]
        if left[high] < left[middle]:
            left[high], left[middle] = left[middle], left[high]
        pivot, up, down = left[middle], low, high
        while up <= down:
            while left[up] < pivot:
                up += 1
            while left[down] > pivot:
                down -= 1
            if up <= down:
                left[up], left[down] = left[down], left[up]
                up += 1
                down -= 1
        if n <= down:
            high = down
        elif n >= up:
            low = up
        else:
            break
    return left[n]
