"""What crosses the wire: facts as JSON and named tensors, in Flower's records. Never a pickle."""

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
from rescind.storage.federations import METHODS, MODELS, UNLEARNERS
from rescind.storage.packing import Facts, drawer, under

METRICS = {kind.__name__: kind for kind in (Ranking, Owners, Classes)}
ERRORS = {kind.__name__: kind for kind in (ConfigError, DataError, ConsentError, BoundaryError)}


@dataclass(frozen=True)
class Letter:
    """One request or reply: what it says, and the tensors that go with it."""

    facts: Facts
    tensors: Params

    @property
    def digest(self) -> str:
        """Of everything in it, so that a reply can name the request it answers."""
        text = json.dumps([self.facts, params.digest(self.tensors)], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def to_records(self) -> RecordDict:
        """As Flower carries it."""
        arrays = {n: Array(v.detach().cpu().contiguous().numpy()) for n, v in self.tensors.items()}
        facts = ConfigRecord({"json": json.dumps(self.facts)})
        return RecordDict({"facts": facts, "tensors": ArrayRecord(arrays)})

    @classmethod
    def from_records(cls, content: RecordDict) -> Letter:
        """What `to_records` wrote; a `DataError` if it cannot be read."""
        try:
            facts = json.loads(cast(str, content["facts"]["json"]))
            arrays = cast(ArrayRecord, content["tensors"])
            tensors = {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"a message cannot be read ({error}); its sender is broken.") from None
        if not isinstance(facts, dict):
            raise DataError("a message says nothing about itself; its sender is broken.")
        return cls(facts, tensors)


# -- methods and metrics ---------------------------------------------------------------------------


def method_of(table: Mapping[str, Any]) -> Method:
    """The method that a table describes: found by name among ours, no code travels."""
    cls = find(*METHODS, str(table["name"]))
    return cast(Method, from_table(cls, table, {"model": MODELS, "unlearner": UNLEARNERS}))


def metric_table(metric: Metric) -> Facts:
    """A metric as a table."""
    if type(metric).__name__ not in METRICS:
        raise ConfigError(
            f"{type(metric).__name__} cannot be measured on nodes; use one of {', '.join(METRICS)}."
        )
    return to_table(metric)


def metric_of(table: Mapping[str, Any]) -> Metric:
    """The metric that a table describes."""
    cls = METRICS.get(str(table["name"]))
    if cls is None:
        raise ConfigError(f"there is no metric '{table['name']}': use {', '.join(METRICS)}.")
    return cast(Metric, from_table(cls, table, {}))


# -- sums ------------------------------------------------------------------------------------------


def pack_sum(total: Sum) -> tuple[Facts, dict[str, Tensor]]:
    """A sum as facts and tensors; single updates only where it carries any."""
    tensors = under("totals", total.totals) | under("touched", total.touched)
    tensors["who"] = total.who
    tensors["weight"] = torch.tensor(total.weight, dtype=torch.float64)  # not one bit lost in text
    parts = []
    for number, (ids, update) in enumerate(total.parts):
        told: Facts = {"clients": update.clients, "rows": {}, "dense": []}
        tensors[f"part{number}|ids"] = ids
        for name, entry in update.entries.items():
            if isinstance(entry, Rows):
                told["rows"][name] = entry.size
                columns = {"owner": entry.owner, "index": entry.index, "value": entry.value}
                tensors |= under(f"part{number}|{name}", columns)
            else:
                told["dense"].append(name)
                tensors[f"part{number}|{name}"] = entry
        parts.append(told)
    facts: Facts = {"clients": total.clients, "up": total.up, "down": total.down}
    return {**facts, "refused": dict(total.refused), "parts": parts}, tensors


def unpack_sum(facts: Facts, tensors: Params) -> Sum:
    """What `pack_sum` packed; a `DataError` if it is not a sum."""
    try:
        parts = tuple(
            _unpack_part(told, drawer(f"part{number}", tensors))
            for number, told in enumerate(facts["parts"])
        )
        return Sum(
            totals=drawer("totals", tensors),
            weight=float(tensors["weight"]),
            clients=int(facts["clients"]),
            touched=drawer("touched", tensors),
            who=tensors["who"],
            parts=parts,
            refused={str(reason): int(many) for reason, many in facts["refused"].items()},
            up=int(facts["up"]),
            down=int(facts["down"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DataError(f"a reply is not a sum ({error}); its sender is broken.") from None


def _unpack_part(told: Facts, tensors: Params) -> tuple[Tensor, Update]:
    entries: dict[str, Rows | Tensor] = {name: tensors[name] for name in told["dense"]}
    for name, size in told["rows"].items():
        entries[name] = Rows(**drawer(name, tensors), size=size)
    return tensors["ids"], Update(told["clients"], entries)


# -- errors ----------------------------------------------------------------------------------------


def pack_error(error: RescindError) -> Facts:
    """An error as facts, to be raised where the request came from."""
    about = {k: v for k, v in vars(error).items() if k in ("client", "item") and v is not None}
    return {"error": type(error).__name__, "why": str(error), "about": about}


def unpack_error(facts: Facts) -> RescindError:
    """The error that a node met."""
    kind = ERRORS.get(str(facts["error"]), DataError)
    about = facts.get("about", {}) if kind is ConsentError else {}
    return kind(str(facts["why"]), **about)
