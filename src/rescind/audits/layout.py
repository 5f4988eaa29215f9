"""The layout of a federation's state: what is kept, by name, type and shape, without the values.

A server that hoards records or an old model under another name passes every attack, because no
attack looks there. A retrained server has no place for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rescind.audits.finding import Finding
from rescind.core.federation import Federation
from rescind.core.params import Params


def layout(fed: Federation) -> Counter[str]:
    """Count the values on server and devices, by place, name, type and shape."""
    state, vault = fed.now.state, fed.now.vault
    found = Counter(_named("public", state.public) + _named("server", state.own))
    found.update(_named("devices", vault.private))
    for one in fed.now.hosted:
        found.update(_named("hosted", one.private))
    for snapshot in state.memory:
        found.update(_named(f"snapshot {snapshot.name}", snapshot.values))
    return found


def _named(place: str, values: Params) -> list[str]:
    return [f"{place} '{n}' {str(v.dtype)[6:]} {list(v.shape)}" for n, v in values.items()]


def surplus(fed: Federation, retrained: Federation) -> list[str]:
    """Return what a federation keeps that a retrained one does not; sorted."""
    return sorted((layout(fed) - layout(retrained)).elements())


def compared(fed: Federation, retrains: Sequence[Federation]) -> Finding:
    """Judge the layout: FAIL if there is a value that no retrained federation has."""
    extra = surplus(fed, retrains[0])
    note = f"Not in a retrained federation: {', '.join(extra)}." if extra else ""
    return Finding("state", "FAIL" if extra else "SHOWN", len(extra), note=note)
