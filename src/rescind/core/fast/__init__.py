"""Compiled and GPU forms of a round; tests compare them with the plain PyTorch form."""

from functools import lru_cache
from importlib.util import find_spec


@lru_cache(maxsize=1)
def compiled() -> bool:
    """Return whether numba is installed; without it the plain PyTorch form is used."""
    return find_spec("numba") is not None
