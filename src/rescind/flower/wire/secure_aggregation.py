"""Secure aggregation: silos mask their sums, so that the server can read the total and no other.

Flower's SecAgg+ (Bell et al., CCS 2020), of which this module drives both halves: silos exchange
keys through the server, add masks that cancel in the total, and give shares of the masks of those
who vanished. It takes four exchanges a round instead of one.

Unlike where Flower runs it, an entry above the range is an error and not clipped, since a clipped
sum would be a wrong model that nobody notices; and a silo's weight is inside its masked vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import (
    SecAggPlusState,
    _collect_masked_vectors,
    _setup,
    _share_keys,
    _unmask,
    check_configs,
    check_stage,
)
from flwr.common import Code, FitRes, Status
from flwr.common import ndarrays_to_parameters as packed
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common import recorddict_compat as legacy
from numpy.typing import NDArray
from torch import Tensor

from rescind.core.params import Params
from rescind.core.update import Sum
from rescind.errors import ConfigError, DataError
from rescind.flower.wire.serde import read, written

FEWEST = 3
"""With two silos, each could read the other's sum out of the total."""
TOO_FEW = "too few silos to mask"
MOST = 1000
"""Silos: beyond, totals would leave the 32 bits that masks are drawn from."""
SECURE = "secure"
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Masked:
    """How sums are masked."""

    range: float = 1024.0
    """No entry of a silo's sum may be larger. Entries travel in steps of range / 2**21."""

    def __post_init__(self) -> None:
        if not 0 < self.range < 2.0**31:
            raise ConfigError(f"a range of masked sums is above 0 and finite; got {self.range}.")


def check_silos(silos: int) -> None:
    """Refuse numbers of silos that cannot be masked."""
    if not FEWEST <= silos < MOST:
        raise ConfigError(
            f"masked sums take {FEWEST} to {MOST - 1} silos; got {silos}. With fewer, a silo could "
            f"read the others' sum out of the total. Run without --secure."
        )


# -- sums as vectors ---------------------------------------------------------------------------


def flat(total: Sum) -> tuple[list[Vector], list[Any]]:
    """Everything in a sum that can be added, as vectors; and what they are."""
    if total.parts:
        raise ConfigError("single updates cannot be masked: choose a method that sends sums.")
    tables = [("totals", total.totals), ("touched", total.touched)]
    parts = [(kind, name, value) for kind, table in tables for name, value in table.items()]
    spec = [[k, n, [*v.shape], str(v.dtype).removeprefix("torch.")] for k, n, v in parts]
    vectors = [value.detach().cpu().double().numpy().reshape(-1) for _, _, value in parts]
    for vector, (kind, name, *_) in zip(vectors, spec, strict=True):
        if kind == "touched" and not bool((vector == vector.round()).all()):
            raise ConfigError(
                f"the weights of '{name}' are no whole numbers, which masking would blur. Choose "
                f"a method that counts people or records."
            )
    return [*vectors, np.array([total.weight, float(total.clients)])], spec


def unflat(vectors: Sequence[Vector], spec: list[Any]) -> Sum:
    """The sum that vectors and what they are make; whole numbers are whole again.

    Weights are whole, too: a row that nobody touched must not have touched it a little.
    """
    tables: dict[str, dict[str, Tensor]] = {"totals": {}, "touched": {}}
    for vector, (kind, name, shape, dtype) in zip(vectors[:-1], spec, strict=True):
        kept = getattr(torch, dtype)
        value = torch.from_numpy(vector).reshape(shape)
        whole = kind == "touched" or not kept.is_floating_point
        tables[kind][name] = (value.round() if whole else value).to(kept)
    weight, clients = vectors[-1].round()
    return Sum(tables["totals"], float(weight), int(clients), tables["touched"])


# -- on a silo -----------------------------------------------------------------------------------


@dataclass
class Masks:
    """A silo's half: its keys of this round, in memory only."""

    state: SecAggPlusState = field(default_factory=SecAggPlusState)

    def stage(self, silo: int, asked: Params, vectors: Sequence[Vector] = ()) -> dict[str, Tensor]:
        """The reply to one stage. vectors: this silo's sum, for the stage that sends it masked"""
        content = read(asked[SECURE].numpy().tobytes())
        configs, out = content.config_records[RECORD_KEY_CONFIGS], RecordDict()
        try:
            check_stage(self.state.current_stage, configs)
            stage = self.state.current_stage = str(configs.pop(Key.STAGE))
            check_configs(stage, configs)
            if stage == Stage.SETUP:
                self.state.nid = silo + 1
                said = _setup(self.state, configs)
            elif stage == Stage.SHARE_KEYS:
                said = _share_keys(self.state, configs)
            elif stage == Stage.COLLECT_MASKED_VECTORS:
                said = self._hidden(configs, vectors)
                done = FitRes(Status(Code.OK, ""), packed([]), 1, {})
                out = legacy.fitres_to_recorddict(done, False)
            else:
                said = _unmask(self.state, configs)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"masking failed ({error}). The next round begins anew.") from None
        out.config_records[RECORD_KEY_CONFIGS] = ConfigRecord(said, False)
        return {SECURE: as_tensor(written(out))}

    def _hidden(self, configs: ConfigRecord, vectors: Sequence[Vector]) -> dict[str, Any]:
        largest = max((float(np.abs(v).max()) for v in vectors if v.size), default=0.0)
        if not largest <= self.state.clipping_range:
            raise DataError(
                f"an entry of a silo's sum is larger than the range of masked sums, "
                f"{self.state.clipping_range:g}. Run with a larger --secure-range."
            )
        given = packed([*vectors])
        return dict(_collect_masked_vectors(self.state, configs, 1, given))


# -- on the server ---------------------------------------------------------------------------------


def as_tensor(data: bytes) -> Tensor:
    """Bytes as a letter carries them. [n] uint8"""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
