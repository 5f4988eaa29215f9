"""List, describe and load datasets by name."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from rescind.data import obtain, variants
from rescind.data.assemble import check_digest
from rescind.data.blocklist import Blocklist
from rescind.data.blocks import arrange
from rescind.data.catalogue import ENTRIES, Entry, entry, expected_digests
from rescind.data.dataset import Dataset, GraphDataset
from rescind.data.importing import about_imported, imported_names, load_imported
from rescind.data.obtain import Say
from rescind.errors import ConfigError, suggest


def names() -> list[str]:
    """Return the names that `load` accepts."""
    return list(ENTRIES) + imported_names()


def check_name(name: str) -> None:
    """Raise an error with all names, imports included, if there is no dataset of this one."""
    if name not in ENTRIES and name not in imported_names():
        raise ConfigError(
            f"unknown dataset '{name}'; {suggest(name, names())} Own data: rescind data import"
        )


def _known(name: str) -> Entry:
    check_name(name)
    return entry(name)


def describe(name: str) -> dict[str, Any]:
    """Return the metadata of a dataset, without reading its data."""
    digest = expected_digests().get(name)
    if name not in ENTRIES and name in imported_names():
        stored = about_imported(name)
        digest, title = stored["digest"], f"imported from {stored['file']}"
        about = Entry(name, title, "imported", stored["size"], stored["terms"])
    else:
        about = _known(name)
    return {
        "name": about.name,
        "title": about.title,
        "kind": about.kind,
        **about.size,
        "terms": about.terms,
        "publisher": list(about.urls),
        "wheel": about.wheel,
        "variants": about.variants,
        **({"times": "none"} if about.timeless else {}),
        "digest": digest,
        "notes": about.notes,
    }


def load(
    name: str,
    *,
    say: Say = lambda _: None,
    given: Path | None = None,
    erased_too: bool = False,
    **arguments: Any,
) -> Dataset | GraphDataset:
    """Load a dataset by name; download it first if necessary.

    Rows that were erased are left out. erased_too: for code that leaves them out itself

    `variant="blocks"` gives the form a paper uses (see `describe`). The synthetic dataset
    takes users, items, interactions, topics, drift and seed. `say` is a progress callback;
    `given` is a publisher's archive or folder on disk.
    """
    if name not in ENTRIES and name in imported_names():
        _check_arguments(name, arguments, {"variant"})
        if arguments.get("variant", "blocks") != "blocks":
            variant = arguments["variant"]
            raise ConfigError(f"dataset '{name}' has no variant '{variant}'. Allowed: blocks.")
        imported = load_imported(name)
        data = arrange(imported) if arguments else imported
        return data if erased_too else Blocklist.of_dataset(name).left_of(data)
    about = _known(name)
    if name == "synthetic":
        from rescind.data.sources.synthetic import synthetic

        _check_arguments(name, arguments, set(inspect.signature(synthetic).parameters))
        return synthetic(**arguments)
    _check_arguments(name, arguments, {"variant"})
    variant = arguments.get("variant")
    if variant is not None and variant not in about.variants:
        raise ConfigError(
            f"dataset '{name}' has no variant '{variant}'; {suggest(str(variant), about.variants)}"
        )
    found = obtain.find(about, say, given)
    if isinstance(found.data, GraphDataset):
        return found.data
    data = found.data
    if variant is not None:
        data = variants.in_blocks(about, variant, data, found.folder)
        check_digest(data, f"{name}/{variant}", str(found.folder))
    return data if erased_too else Blocklist.of_dataset(name).left_of(data)


def _check_arguments(name: str, given: dict[str, Any], allowed: set[str]) -> None:
    for argument in given:
        if argument not in allowed:
            raise ConfigError(
                f"dataset '{name}' has no argument '{argument}'; {suggest(argument, allowed)}"
            )
