"""Open a finished run as it was trained: its federation, its guards, its device."""

from __future__ import annotations

from pathlib import Path

from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.settings import from_table
from rescind.errors import ConfigError
from rescind.experiments.cell import GuardSettings
from rescind.receipts.of_run import Found, check_fit
from rescind.storage.federations import load_federation
from rescind.storage.run_folder import check_finished, read_facts


def open_run(folder: Path, repeatable: bool = True, fitting: bool = True) -> Federation:
    """Load the federation of a finished run, with its guards and on its device.

    repeatable: refuse a run with noise, because no seed repeats it
    fitting: refuse a model that is not the one of its last receipt
    """
    check_finished(folder)
    facts = read_facts(folder) or {}
    settings = facts["configuration"]
    guards = from_table(GuardSettings, settings.get("guards", {}), {})
    if repeatable and (guards.gaussian is not None or guards.laplace is not None):
        raise ConfigError(
            f"{folder} was trained with noise, which no seed repeats. Run the recipe without "
            f"guards.gaussian and guards.laplace."
        )
    device = settings.get("run", {}).get("device", "cpu")
    fed = load_federation(folder / "model", InProcess(device=device, guards=guards.guards))
    if fitting:
        check_fit(folder, Found.of(fed))
    return fed
