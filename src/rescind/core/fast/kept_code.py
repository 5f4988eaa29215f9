"""Where compiled loops are kept: beside the package, in the user's cache, or where a command says.

numba refuses to compile for keeping where it may write to none of these, as in a service that
systemd lets write to its state folder only. Then loops are compiled for this process alone.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

import numba
from numba.core import config

F = TypeVar("F", bound=Callable[..., Any])
NOWHERE = "no locator available"
"""What numba says where it finds no folder to write to."""


@overload
def njit(function: F, **options: Any) -> F: ...
@overload
def njit(function: None = None, **options: Any) -> Callable[[F], F]: ...
def njit(function: Any = None, **options: Any) -> Any:
    """Compile as `numba.njit` does, and keep the code if there is a folder for it."""
    if function is None:
        return partial(njit, **options)
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError as error:
        if NOWHERE not in str(error):
            raise
    warnings.warn(
        "compiled code cannot be kept, so every start compiles. Name a folder that can be written "
        "to in NUMBA_CACHE_DIR.",
        stacklevel=1,  # one place, so that it is told once
    )
    return numba.njit(function, **options)


def keep_in(folder: Path) -> None:
    """Keep compiled code in this folder if it can be kept nowhere else, also of child processes."""
    try:
        numba.njit(_tried, cache=True)
    except RuntimeError as error:
        if NOWHERE not in str(error):
            raise
        os.environ["NUMBA_CACHE_DIR"] = str(folder.resolve())
        config.reload_config()


def _tried() -> None:
    """Compiled by nobody: it asks where code would be kept."""
