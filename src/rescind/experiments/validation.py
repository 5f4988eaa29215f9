"""What validation rows decide: the round that counts. Without any, it is the last one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rescind.core.federation import Federation
from rescind.core.holdings import VALID
from rescind.core.run_state import EarlyStop
from rescind.errors import ConfigError
from rescind.experiments.results import only_numbers

if TYPE_CHECKING:
    from rescind.experiments.cell import Cell

log = logging.getLogger(__name__)
_TOLD: set[str] = set()
"""Datasets without validation rows that this process has spoken of."""

HOW_TO_HAVE = (
    "give some rows of its split column the value valid and import it again with --replace, or "
    "have all rows divided at random (--set data.split=random)"
)
"""What to do about data whose own split has no validation rows."""


def has_validation(fed: Federation) -> bool:
    """Return whether any client has a validation row now."""
    return bool(len(fed.now.vault.holdings.holders("valid")))


def stopping(cell: Cell, fed: Federation) -> EarlyStop | None:
    """Return the early stopping rule: the best round on validation, by the recipe's metric.

    None without validation rows: the last round counts.
    """
    if not has_validation(fed):
        count_last_round(cell)
        return None
    run, metric = cell.run, cell.method.metric("valid", cell.run.k)
    every, users = run.evaluate_every, run.valid_users
    return EarlyStop(metric, run.measure, every, run.patience, run.restore, users)


def check_stream(cell: Cell, splits: Iterable[Tensor]) -> None:
    """Refuse or tell of a stream without any validation row. splits: of each block, [rows] each"""
    if not any(bool(torch.any(split == VALID)) for split in splits):
        count_last_round(cell)


def count_last_round(cell: Cell) -> None:
    """Say once that the last round counts; raise an error if a run is to stop by validation."""
    name, patience = cell.data.name, cell.run.patience
    if patience is not None:
        raise ConfigError(
            f"run.patience = {patience} needs validation, and '{name}' has no validation rows. "
            f"Leave run.patience out; or {HOW_TO_HAVE}."
        )
    if name not in _TOLD:
        _TOLD.add(name)
        log.warning("'%s' has no validation rows: no round is chosen, the last one counts", name)


def quality(
    fed: Federation, k: tuple[int, ...], clients: Tensor | None = None
) -> dict[str, dict[str, float]]:
    """Return the metrics on validation, if it has rows, and on test, for run.json."""
    valid = fed.evaluate("valid", k, clients) if has_validation(fed) else {}
    return {"valid": only_numbers(valid), "test": fed.evaluate("test", k, clients)}


def measured_users(fed: Federation) -> dict[str, Any]:
    """Return over how many users the metrics of a ranking are means: those with a held-out item."""
    holdings = fed.now.vault.holdings
    if holdings.task == "nodes":
        return {}
    return {"measured_users": {split: len(holdings.holders(split)) for split in ("valid", "test")}}
