"""What a silo keeps, on its own disk: holdings and private state, each under the name of a moment.

A federation is a value on the server, so a silo keeps every moment the server may come back to
(the best round, a checkpoint, the devices before a withdrawal) until it is told which ones still
matter. Files are safetensors with a digest inside, written whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rescind.core import files, params
from rescind.core.executor import Vault
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.settings import to_table
from rescind.errors import DataError
from rescind.flower.wire.steps import HELD, PRIVATE
from rescind.storage.packing import Facts, pack_holdings, pack_vault, unpack_holdings, unpack_vault


@dataclass(frozen=True)
class Store:
    """A folder of one silo."""

    folder: Path

    def knows(self, kind: str, moment: int) -> bool:
        """Whether something is kept under this moment."""
        return self._path(kind, moment).is_file()

    def save_held(self, moment: int, holdings: Holdings) -> None:
        """Keep what the clients here hold."""
        tensors, facts = pack_holdings(holdings)
        params.save(self._path(HELD, moment), tensors, {"facts": json.dumps(facts)})

    def held(self, moment: int) -> Holdings:
        """What the clients here held at a moment."""
        tensors, facts = self._load(HELD, moment)
        return unpack_holdings(tensors, facts)

    def save_private(self, moment: int, vault: Vault, mine: Tensor) -> None:
        """Keep the private state of the clients here. mine: [clients] bool"""
        tensors, facts = pack_vault(vault)
        start = "private|"
        rows = {n: v[mine] if n.startswith(start) else v for n, v in tensors.items()}
        rows["mine"] = mine
        params.save(self._path(PRIVATE, moment), rows, {"facts": json.dumps(facts)})

    def vault(self, held: int, private: int) -> Vault:
        """The vault of two moments; rows of clients that live elsewhere are zeros."""
        holdings = self.held(held)
        tensors, facts = self._load(PRIVATE, private)
        mine = tensors.pop("mine")
        wide = {n: _spread(v, mine) if n.startswith("private|") else v for n, v in tensors.items()}
        return unpack_vault(wide, facts, holdings, "cpu")

    def keep_only(self, kind: str, moments: Collection[int]) -> int:
        """Remove every other moment; how many were removed."""
        wanted = {self._path(kind, moment).name for moment in moments}
        gone = [p for p in (self.folder / kind).glob("*.safetensors") if p.name not in wanted]
        for path in gone:
            path.unlink(missing_ok=True)
        files.sweep(self.folder / kind)
        return len(gone)

    # -- notes -------------------------------------------------------------------------------------

    def note(self, **facts: int | str) -> None:
        """Write some facts down, beside those that are there."""
        data = json.dumps({**self.notes, **facts}, indent=2).encode()
        files.write_atomically(self.folder / "silo.json", data)

    @property
    def notes(self) -> Facts:
        """What was noted."""
        path = self.folder / "silo.json"
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} cannot be read ({error}). Remove the folder; the silo then begins anew."
            ) from None

    def save_model(self, method: Method, public: Params, held: int, private: int) -> None:
        """Keep what recommendations are made from, on this silo and without the server."""
        facts = {"method": to_table(method), "held": held, "private": private}
        params.save(self.folder / "model.safetensors", dict(public), {"facts": json.dumps(facts)})

    def model(self) -> tuple[Facts, dict[str, Tensor]]:
        """The last model that was sent here, and which moments go with it."""
        path = self.folder / "model.safetensors"
        if not path.is_file():
            raise DataError(
                f"{self.folder} holds no model yet: nobody has trained here. Let the silo join "
                f"and take part in a round first."
            )
        tensors, notes = params.load(path)
        return json.loads(notes["facts"]), tensors

    def _path(self, kind: str, moment: int) -> Path:
        return self.folder / kind / f"{moment:016x}.safetensors"

    def _load(self, kind: str, moment: int) -> tuple[dict[str, Tensor], Facts]:
        path = self._path(kind, moment)
        if not path.is_file():
            raise DataError(
                f"the silo has no {kind} moment {moment:016x}: it was removed, or the store in "
                f"{self.folder} is a new one. Start the run anew."
            )
        tensors, notes = params.load(path)
        return tensors, json.loads(notes["facts"])


def _spread(rows: Tensor, mine: Tensor) -> Tensor:
    """Rows of the clients here, at their global numbers. [clients, ...]"""
    wide = torch.zeros((len(mine), *rows.shape[1:]), dtype=rows.dtype)
    wide[mine] = rows
    return wide
