"""Messages as facts (JSON) and named tensors, in Flower's records. Never a pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from rescind.core import params
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.settings import find, from_table, to_table
from rescind.core.tasks import Metric
from rescind.core.tasks.metrics import Owners, Ranking
from rescind.core.tasks.nodes import Classes
from rescind.core.update import Rows, Sum, Update
from rescind.errors import BoundaryError, ConfigError, ConsentError, DataError, RescindError
from rescind.storage.kinds import METHODS, MODELS, UNLEARNERS
from rescind.storage.packing import Facts, drawer, under

METRICS = {kind.__name__: kind for kind in (Ranking, Owners, Classes)}
SENDER = "Use the same version of rescind on the server and on every silo."
ABOUT = ("client", "item")
LONGEST_WHY = 2000
"""Longest text of an error that is taken over from a silo."""
ERRORS = {kind.__name__: kind for kind in (ConfigError, DataError, ConsentError, BoundaryError)}


@dataclass(frozen=True)
class Letter:
    """One request or reply: facts, and the tensors that go with them."""

    facts: Facts
    tensors: Params

    @property
    def digest(self) -> str:
        """Return a digest of the content, so that a reply can name its request."""
        text = json.dumps([self.facts, params.digest(self.tensors)], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def to_records(self) -> RecordDict:
        """Convert to Flower's records."""
        arrays = {n: Array(v.detach().cpu().contiguous().numpy()) for n, v in self.tensors.items()}
        facts = ConfigRecord({"json": json.dumps(self.facts)})
        return RecordDict({"facts": facts, "tensors": ArrayRecord(arrays)})

    @classmethod
    def from_records(cls, content: RecordDict) -> Letter:
        """Read what `to_records` wrote. Raises `DataError` if it is invalid."""
        try:
            facts = json.loads(cast(str, content["facts"]["json"]))
            arrays = cast(ArrayRecord, content["tensors"])
            tensors = {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}
        except Exception as error:  # numpy, JSON and Flower raise many kinds for bad bytes
            raise DataError(f"a message cannot be read ({error}). {SENDER}") from None
        if not isinstance(facts, dict):
            raise DataError(f"the facts of a message are not a table. {SENDER}")
        return cls(facts, tensors)


# -- methods and metrics ---------------------------------------------------------------------------


def method_of(table: Mapping[str, Any]) -> Method:
    """Build the method that a table describes. It is found by name: no code is sent."""
    cls = find(*METHODS, str(table["name"]))
    return cast(Method, from_table(cls, table, {"model": MODELS, "unlearner": UNLEARNERS}))


def metric_table(metric: Metric) -> Facts:
    """Describe a metric as a table."""
    if type(metric).__name__ not in METRICS:
        raise ConfigError(
            f"{type(metric).__name__} cannot be measured on silos. Use one of {', '.join(METRICS)}."
        )
    return to_table(metric)


def metric_of(table: Mapping[str, Any]) -> Metric:
    """Build the metric that a table describes."""
    cls = METRICS.get(str(table["name"]))
    if cls is None:
        raise ConfigError(f"unknown metric '{table['name']}'. Use one of {', '.join(METRICS)}.")
    return cast(Metric, from_table(cls, table, {}))


# -- sums ------------------------------------------------------------------------------------------


def pack_sum(total: Sum) -> tuple[Facts, dict[str, Tensor]]:
    """Convert a sum to facts and tensors, with its single updates if it has any."""
    tensors = under("totals", total.totals) | under("touched", total.touched)
    tensors["who"] = total.who
    tensors["weight"] = torch.tensor(total.weight, dtype=torch.float64)  # exact
    parts = []
    for number, (ids, update) in enumerate(total.parts):
        layout: Facts = {"clients": update.clients, "rows": {}, "dense": []}
        tensors[f"part{number}|ids"] = ids
        for name, entry in update.entries.items():
            if isinstance(entry, Rows):
                layout["rows"][name] = entry.size
                columns = {"owner": entry.owner, "index": entry.index, "value": entry.value}
                tensors |= under(f"part{number}|{name}", columns)
            else:
                layout["dense"].append(name)
                tensors[f"part{number}|{name}"] = entry
        parts.append(layout)
    facts: Facts = {"clients": total.clients, "up": total.up, "down": total.down}
    return {**facts, "refused": dict(total.refused), "parts": parts}, tensors


def unpack_sum(facts: Facts, tensors: Params) -> Sum:
    """Read what `pack_sum` packed. Raises `DataError` if it is not a sum."""
    try:
        parts = tuple(
            _unpack_part(layout, drawer(f"part{number}", tensors))
            for number, layout in enumerate(facts["parts"])
        )
        return Sum(
            totals=drawer("totals", tensors),
            weight=float(tensors["weight"]),
            clients=int(facts["clients"]),
            touched=drawer("touched", tensors),
            who=tensors["who"],
            parts=parts,
            refused={str(reason): int(count) for reason, count in facts["refused"].items()},
            up=int(facts["up"]),
            down=int(facts["down"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DataError(f"a reply is not a sum ({error}). {SENDER}") from None


def _unpack_part(layout: Facts, tensors: Params) -> tuple[Tensor, Update]:
    entries: dict[str, Rows | Tensor] = {name: tensors[name] for name in layout["dense"]}
    for name, size in layout["rows"].items():
        entries[name] = Rows(**drawer(name, tensors), size=size)
    return tensors["ids"], Update(layout["clients"], entries)


# -- errors ----------------------------------------------------------------------------------------


def pack_error(error: RescindError) -> Facts:
    """Convert an error to facts, so that it can be raised on the server."""
    about = {k: v for k, v in vars(error).items() if k in ABOUT and v is not None}
    return {"error": type(error).__name__, "why": str(error), "about": about}


def unpack_error(facts: Facts) -> RescindError:
    """Build the error that a silo reported."""
    kind = ERRORS.get(str(facts["error"]), DataError)
    given = facts.get("about") if kind is ConsentError else {}
    about = {n: v for n, v in dict(given or {}).items() if n in ABOUT and type(v) is int}
    return kind(str(facts["why"])[:LONGEST_WHY], **about)
