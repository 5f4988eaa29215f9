"""Read federations that were saved whole, in four files (format 2)."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from rescind.core.labels import Labels
from rescind.core.params import Params
from rescind.core.settings import fields_of
from rescind.errors import DataError
from rescind.storage.packing import Facts, read_packed

FORMAT = 2
FILES = ("devices.safetensors", "past.safetensors", "labels.json")
"""Beside `server.safetensors`. All have the stamp of the save they come from."""


def read(folder: Path, server: Facts) -> tuple[Params, Facts, tuple[Params, Facts] | None, Labels]:
    """Return what devices hold, its facts, the history and the labels.

    server: the facts of the server's file
    """
    devices, facts = read_packed(folder / "devices.safetensors")
    labels = _read_labels(folder / "labels.json")
    if {facts["stamp"], labels.pop("stamp", None)} != {server["stamp"]}:
        raise DataError(
            f"the files in {folder} do not belong together: a save of server, devices and labels "
            f"was interrupted. Rerun, or resume with --resume."
        )
    if server.get("labels", _digest(labels)) != _digest(labels):
        raise DataError(
            f"{folder / 'labels.json'} does not match the digest that was saved with the model: "
            f"its ids were changed, so the wrong user could be erased. Restore it from a copy."
        )
    past = None
    if server.get("past"):
        past = read_packed(folder / "past.safetensors")
        if past[1]["stamp"] != server["stamp"]:
            raise DataError(
                f"{folder / 'past.safetensors'} does not belong to the model next to it: a save "
                f"was interrupted. Rerun, or resume with --resume."
            )
    return devices, facts, past, Labels(**{k: tuple(v) for k, v in labels.items()})


def _digest(labels: Facts) -> str:
    return "sha256:" + sha256(json.dumps(labels, sort_keys=True).encode()).hexdigest()


def _read_labels(path: Path) -> Facts:
    try:
        labels: Facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Restore it from a copy, or rerun."
        ) from None
    lists = [labels.get(k, []) for k in fields_of(Labels)] if isinstance(labels, dict) else [None]
    if not all(isinstance(one, list) and all(isinstance(v, str) for v in one) for one in lists):
        raise DataError(
            f"{path} does not hold lists of ids and titles. Restore it from a copy, or rerun."
        )
    return labels
