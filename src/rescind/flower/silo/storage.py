"""A silo's files: holdings and private values, each under the id of a moment (wire/steps.py).

A silo keeps every state that the server may return to (the best round, a checkpoint, the state
before a withdrawal) until the server names those that are still needed. Files are safetensors with
a digest, written atomically.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rescind.core import files, params
from rescind.core.executor import Vault
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.saved import Schema, Values, fitting, reading, table_in
from rescind.core.settings import to_table
from rescind.errors import DataError
from rescind.flower.silo.names import Numbering
from rescind.flower.wire.steps import HELD, PRIVATE
from rescind.storage.packing import Facts, pack_holdings, pack_vault, unpack_holdings, unpack_vault

FILE = "silo.json"
NUMBERING = "numbering"
NUMBERS: Schema = {name: Values(torch.uint8, (name, 16)) for name in ("users", "items")}
MINE: Schema = {"mine": Values(torch.bool, ("clients",))}
"""The folder of numberings (`names.py`), and the note of holdings that says which is theirs."""


@dataclass(frozen=True)
class Store:
    """The folder of one silo."""

    folder: Path

    def has(self, kind: str, moment: int) -> bool:
        """Return whether this moment is saved."""
        return self._path(kind, moment).is_file()

    def moments(self, kind: str) -> list[int]:
        """Return all saved moments of a kind."""
        return sorted(int(path.stem, 16) for path in (self.folder / kind).glob("*.safetensors"))

    def save_held(self, moment: int, holdings: Holdings, numbering: str) -> None:
        """Write the holdings of the silo's clients. numbering: the name of a saved one"""
        tensors, facts = pack_holdings(holdings)
        notes = {"facts": json.dumps(facts), NUMBERING: numbering}
        params.save(self._path(HELD, moment), tensors, notes)

    def held(self, moment: int) -> Holdings:
        """Read the holdings of a moment."""
        tensors, facts = self._load(HELD, moment)
        with reading(self._path(HELD, moment)):
            return unpack_holdings(tensors, facts)

    def numbering_of(self, moment: int) -> str:
        """Return the name of the numbering of saved holdings."""
        path = self._path(HELD, moment)
        self._check_there(path)
        with reading(path):
            return params.load(path)[1][NUMBERING]

    def save_numbering(self, numbering: Numbering) -> str:
        """Write a numbering, unless it is there. Return its name."""
        path = self._numbering(numbering.digest)
        if not path.is_file():
            keys = {"users": numbering.users, "items": numbering.items}
            params.save(path, {n: as_bytes(column) for n, column in keys.items()})
        return numbering.digest

    def numbering(self, name: str) -> Numbering:
        """Read a numbering."""
        path = self._numbering(name)
        tensors, _ = params.load(path)
        with reading(path):
            keys = fitting(tensors, NUMBERS)
            return Numbering(as_keys(keys["users"]), as_keys(keys["items"]))

    def save_private(self, moment: int, vault: Vault, mine: Tensor) -> None:
        """Write the private values of the silo's clients. mine: [clients] bool"""
        tensors, facts = pack_vault(vault)
        start = "private|"
        rows = {n: v[mine] if n.startswith(start) else v for n, v in tensors.items()}
        rows["mine"] = mine
        params.save(self._path(PRIVATE, moment), rows, {"facts": json.dumps(facts)})

    def vault(self, held: int, private: int) -> Vault:
        """Read the vault of two moments. Rows of other silos' clients are zeros."""
        holdings = self.held(held)
        tensors, facts = self._load(PRIVATE, private)
        with reading(self._path(PRIVATE, private)):
            mine, start = tensors.pop("mine"), "private|"
            fitting({"mine": mine}, MINE, {"clients": holdings.clients})
            wide = {n: _spread(v, mine) if n.startswith(start) else v for n, v in tensors.items()}
            return unpack_vault(wide, facts, holdings, "cpu")

    def keep_only(self, kind: str, moments: Collection[int]) -> int:
        """Remove all other moments. Return how many were removed."""
        kept = {self._path(kind, moment).name for moment in moments}
        removed = [p for p in (self.folder / kind).glob("*.safetensors") if p.name not in kept]
        for path in removed:
            path.unlink(missing_ok=True)
        files.sweep(self.folder / kind)
        if kind == HELD and removed:
            self._remove_numberings()
        return len(removed)

    def _remove_numberings(self) -> None:
        """Remove numberings that no saved holdings go by."""
        used = {self._numbering(self.numbering_of(moment)) for moment in self.moments(HELD)}
        for path in (self.folder / NUMBERING).glob("*.safetensors"):
            if path not in used:
                path.unlink(missing_ok=True)

    # -- notes -------------------------------------------------------------------------------------

    def note(self, **facts: int | str | list[str]) -> None:
        """Add facts to silo.json."""
        data = json.dumps({**self.notes, **facts}, indent=2).encode()
        files.write_atomically(self.folder / FILE, data)

    @property
    def notes(self) -> Facts:
        """Return the facts in silo.json; none if there is no such file."""
        path = self.folder / FILE
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} cannot be read ({error}). Remove the folder to start the silo again."
            ) from None

    def save_model(self, method: Method, public: Params, held: int, private: int) -> None:
        """Write the model that the silo recommends with."""
        facts = {"method": to_table(method), "held": held, "private": private}
        params.save(self.folder / "model.safetensors", dict(public), {"facts": json.dumps(facts)})

    def model(self) -> tuple[Facts, dict[str, Tensor]]:
        """Return (facts with its moments, tensors) of the last model that the silo received."""
        path = self.folder / "model.safetensors"
        if not path.is_file():
            raise DataError(
                f"{self.folder} has no model yet. Let the silo join and take part in a round first."
            )
        tensors, notes = params.load(path)
        with reading(path):
            return table_in(notes), tensors

    def _path(self, kind: str, moment: int) -> Path:
        return self.folder / kind / f"{moment:016x}.safetensors"

    def _numbering(self, name: str) -> Path:
        return self.folder / NUMBERING / f"{name}.safetensors"

    def _check_there(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(
                f"the silo has no {path.parent.name} moment {path.stem}: it was removed, or "
                f"{self.folder} is a new folder. Start the run again from the beginning."
            )

    def _load(self, kind: str, moment: int) -> tuple[dict[str, Tensor], Facts]:
        path = self._path(kind, moment)
        self._check_there(path)
        tensors, notes = params.load(path)
        with reading(path):
            return tensors, table_in(notes)


def as_bytes(keys: Sequence[str]) -> Tensor:
    """Return keys as rows of bytes. [n, 16]"""
    return torch.tensor(list(bytes.fromhex("".join(keys))), dtype=torch.uint8).reshape(-1, 16)


def as_keys(rows: Tensor) -> tuple[str, ...]:
    """Return the keys in rows of bytes."""
    return tuple(row.tobytes().hex() for row in rows.numpy())


def _spread(rows: Tensor, mine: Tensor) -> Tensor:
    """Put rows of the silo's clients at their global numbers. [clients, ...]"""
    wide = torch.zeros((len(mine), *rows.shape[1:]), dtype=rows.dtype)
    wide[mine] = rows
    return wide
