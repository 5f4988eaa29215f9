"""Secure aggregation: silos mask their sums, so the server can read only the total.

Flower's SecAgg+ (Bell et al., CCS 2020): silos exchange keys through the server, add masks that
cancel in the total, and send key shares to remove the masks of silos that dropped out. A round
takes four exchanges instead of one. This module has the silo's half, `secure_round.py` the other.

Two differences to SecAgg+ as Flower runs it. An entry above the range is an error instead of being
clipped, because a clipped sum gives a wrong model without warning. The weight of a silo is inside
its masked vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from numpy.typing import NDArray
from torch import Tensor

from rescind.core.params import Params
from rescind.core.update import Sum
from rescind.errors import ConfigError, DataError
from rescind.flower.wire import flwr_private
from rescind.flower.wire.flwr_private import RECORD_KEY_CONFIGS, Key, SecAggPlusState, Stage
from rescind.flower.wire.serde import read, written

MIN_SILOS = 3
"""With two silos, each could compute the other's sum from the total."""
TOO_FEW = "too few silos to mask"
MAX_SILOS = 999
"""With more, totals would not fit into the 32 bits of a mask."""
SECURE = "secure"
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Masked:
    """Settings of masked sums."""

    range: float = 1024.0
    """The largest entry that a silo's sum may have. Entries are sent in steps of range / 2**21."""

    def __post_init__(self) -> None:
        if not 0 < self.range < 2.0**31:
            raise ConfigError(
                f"the range of masked sums must be above 0 and below 2**31; got {self.range}."
            )


def check_silos(silos: int) -> None:
    """Check that sums of this number of silos can be masked."""
    if not MIN_SILOS <= silos <= MAX_SILOS:
        raise ConfigError(
            f"masked sums need {MIN_SILOS} to {MAX_SILOS} silos; got {silos}. With fewer, a silo "
            f"could compute another silo's sum from the total. Run without --secure."
        )


# -- sums as vectors ---------------------------------------------------------------------------


def flatten_sum(total: Sum) -> tuple[list[Vector], list[Any]]:
    """Return the parts of a sum that can be added as vectors, and a description of each."""
    if total.parts:
        raise ConfigError("single updates cannot be masked. Choose a method that sends sums.")
    tables = [("totals", total.totals), ("touched", total.touched)]
    parts = [(kind, name, value) for kind, table in tables for name, value in table.items()]
    spec = [[k, n, [*v.shape], str(v.dtype).removeprefix("torch.")] for k, n, v in parts]
    vectors = [value.detach().cpu().double().numpy().reshape(-1) for _, _, value in parts]
    for vector, (kind, name, *_) in zip(vectors, spec, strict=True):
        if kind == "touched" and not bool((vector == vector.round()).all()):
            raise ConfigError(
                f"the weights of '{name}' are not whole numbers, and masking would change them. "
                f"Choose a method that counts clients or records."
            )
    return [*vectors, np.array([total.weight, float(total.clients)])], spec


def unflatten_sum(vectors: Sequence[Vector], spec: list[Any]) -> Sum:
    """Build a sum from the output of `flatten_sum`.

    Integers are rounded. So are row weights: a row that no client touched must have weight 0.
    """
    tables: dict[str, dict[str, Tensor]] = {"totals": {}, "touched": {}}
    for vector, (kind, name, shape, dtype) in zip(vectors[:-1], spec, strict=True):
        kept = getattr(torch, dtype)
        value = torch.from_numpy(vector).reshape(shape)
        whole = kind == "touched" or not kept.is_floating_point
        tables[kind][name] = (value.round() if whole else value).to(kept)
    weight, clients = vectors[-1].round()
    return Sum(tables["totals"], float(weight), int(clients), tables["touched"])


def as_tensor(data: bytes) -> Tensor:
    """Return bytes as a tensor that a message can carry. [n] uint8"""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


# -- on a silo -----------------------------------------------------------------------------------


@dataclass
class Masks:
    """The silo's side of SecAgg+. Keys of the current round are in memory only."""

    state: SecAggPlusState = field(default_factory=SecAggPlusState)

    def stage(
        self, silo: int, request: Params, vectors: Sequence[Vector] = ()
    ) -> dict[str, Tensor]:
        """Return the reply to one stage. vectors: the silo's sum, for the stage that masks it"""
        content = read(request[SECURE].numpy().tobytes())
        configs, out = content.config_records[RECORD_KEY_CONFIGS], RecordDict()
        try:
            flwr_private.check_stage(self.state.current_stage, configs)
            stage = self.state.current_stage = str(configs.pop(Key.STAGE))
            flwr_private.check_configs(stage, configs)
            if stage == Stage.SETUP:
                self.state.nid = silo + 1
                reply = flwr_private.setup(self.state, configs)
            elif stage == Stage.SHARE_KEYS:
                reply = flwr_private.share_keys(self.state, configs)
            elif stage == Stage.COLLECT_MASKED_VECTORS:
                reply = self._mask(configs, vectors)
                done = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([]), 1, {})
                out = flwr_private.fitres_to_recorddict(done, False)
            else:
                reply = flwr_private.unmask(self.state, configs)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"masking failed ({error}). The next round starts with new keys."
            ) from None
        out.config_records[RECORD_KEY_CONFIGS] = ConfigRecord(reply, False)
        return {SECURE: as_tensor(written(out))}

    def _mask(self, configs: ConfigRecord, vectors: Sequence[Vector]) -> dict[str, Any]:
        largest = max((float(np.abs(v).max()) for v in vectors if v.size), default=0.0)
        if not largest <= self.state.clipping_range:
            raise DataError(
                f"an entry of a silo's sum is larger than the range of masked sums, "
                f"{self.state.clipping_range:g}. Run with a larger --secure-range."
            )
        parameters = ndarrays_to_parameters([*vectors])
        return dict(flwr_private.collect_masked_vectors(self.state, configs, 1, parameters))
