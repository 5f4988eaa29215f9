"""A small shop's table, imported: 12 users with 5 of 10 items each."""

from __future__ import annotations

from pathlib import Path

import pytest

from rescind.data.importing import import_file


def import_shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import it as `shop`, into a cache of its own."""
    monkeypatch.setenv("RESCIND_CACHE", str(folder / "cache"))
    rows = [f"c{user},p{(3 * user + k) % 10}" for user in range(12) for k in range(5)]
    (folder / "shop.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    import_file(folder / "shop.csv", "shop")
