"""Provenance of a result: versions, machine and commit."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from rescind.methods._own_file import code_of


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter, the machine and the commit.

    They are looked up once in a process: git and the list of packages take milliseconds, and a
    service issues many receipts.
    """
    return dict(_versions())


def version_of(*methods: object) -> dict[str, str]:
    """Return the file and the digest of each method outside rescind, by the name of its class."""
    found = {type(method).__name__: code_of(type(method)) for method in methods}
    return {name: code for name, code in found.items() if code}


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    out = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("rescind", "torch", "numpy"):
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            out[package] = "not installed"
    out["commit"] = commit()
    return out


def commit() -> str:
    """Return the commit of the checkout, marked -dirty if files changed; '' where there is none.

    A copy without git history takes it from RESCIND_COMMIT and adds "(told)". An installed package
    is not a checkout, even if its environment lies in the repository of something else.
    """
    if given := os.environ.get("RESCIND_COMMIT"):
        return f"{given} (told)"
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return ""
    ask = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
