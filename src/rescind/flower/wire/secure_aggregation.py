"""Secure aggregation: silos mask their sums, so that the server can read the total and no other.

Flower's SecAgg+ (Bell et al., CCS 2020), of which this module drives both halves: silos exchange
keys through the server, add masks that cancel in the total, and give shares of the masks of those
who vanished. It takes four exchanges a round instead of one.

Unlike where Flower runs it, an entry above the range is an error and not clipped, since a clipped
sum would be a wrong model that nobody notices; and a silo's weight is inside its masked vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import (
    SecAggPlusState,
    _collect_masked_vectors,
    _setup,
    _share_keys,
    _unmask,
    check_configs,
    check_stage,
)
from flwr.common import Code, FitIns, FitRes, Status
from flwr.common import ndarrays_to_parameters as packed
from flwr.common import parameters_to_ndarrays as unpacked
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common import recorddict_compat as legacy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as Place
from numpy.typing import NDArray
from torch import Tensor

from rescind.core.params import Params
from rescind.core.update import Sum
from rescind.errors import ConfigError, DataError
from rescind.flower.server.transport import Line
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.serde import read, written
from rescind.storage.packing import Facts

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


@dataclass
class _Stages:
    """Flower's workflow sends its stages through this as letters of ours."""

    line: Line
    letters: Mapping[int, Letter]
    """The round's own, which go out with the stage that asks for masked sums."""
    between: Letter
    """What the other stages are written on."""
    replies: dict[int, Letter] = field(default_factory=dict)
    why: dict[int, str] = field(default_factory=dict)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None) -> list[Any]:
        asked, sums = {}, False
        for message in messages:
            silo = message.metadata.dst_node_id - 1
            configs = message.content.config_records[RECORD_KEY_CONFIGS]
            sums = configs[Key.STAGE] == Stage.COLLECT_MASKED_VECTORS
            base = self.letters[silo] if sums else self.between
            carried = {SECURE: as_tensor(written(message.content))}
            asked[silo] = Letter({**base.facts, "masked": True}, {**base.tensors, **carried})
        replies, why = self.line.ask(asked)
        self.why |= why
        if sums:
            self.replies = replies
        return [
            SimpleNamespace(
                content=read(told.tensors[SECURE].numpy().tobytes()),
                metadata=SimpleNamespace(src_node_id=silo + 1),
                has_error=lambda: False,
            )
            for silo, told in replies.items()
        ]


def exchanged(
    line: Line,
    letters: Mapping[int, Letter],
    between: Letter,
    how: Masked | None,
    roles: Mapping[int, str] | None = None,
) -> tuple[dict[int, Letter], dict[int, str], Sum | None]:
    """A round's replies, who is missing and why, and the total where sums are masked.

    between: a letter for the stages that carry keys    how: None if sums are not masked
    """
    if how is None:
        return *line.ask(letters), None
    if roles:
        raise ConfigError(
            "a round in which people have different roles has several sums; masked sums are one. "
            "Forget with another unlearner, or run without --secure."
        )
    if not FEWEST <= len(letters) < MOST:
        return {}, dict.fromkeys(letters, TOO_FEW), None
    stages, found = _Stages(line, letters, between), list[Vector]()
    chosen = [(SimpleNamespace(node_id=silo + 1), FitIns(packed([]), {})) for silo in letters]

    def keep(_: int, results: list[Any], __: list[Any]) -> tuple[None, Facts]:
        found.extend(unpacked(results[0][1].parameters))
        return None, {}

    context = LegacyContext(
        Context(0, 0, {}, RecordDict(), {}),
        strategy=SimpleNamespace(configure_fit=lambda *_: chosen, aggregate_fit=keep),  # type: ignore[arg-type]
        client_manager=SimpleNamespace(num_available=lambda: len(letters)),  # type: ignore[arg-type]
    )
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord(
        {Place.CURRENT_ROUND: int(between.facts["round"])}
    )
    nothing = legacy.parameters_to_arrayrecord(packed([]), True)
    context.state.array_records[MAIN_PARAMS_RECORD] = nothing
    flow = SecAggPlusWorkflow(1.0, 0.5, max_weight=1.0, clipping_range=how.range)
    flow(stages, context)  # type: ignore[arg-type]
    why = {silo: stages.why.get(silo, TOO_FEW) for silo in letters if silo not in stages.replies}
    if not found or not stages.replies:
        return {}, dict.fromkeys(letters, TOO_FEW) | why, None
    specs = [told.facts["spec"] for told in stages.replies.values()]
    if any(spec != specs[0] for spec in specs):
        raise DataError("silos masked sums of different shapes; they run different versions.")
    many, replies = len(stages.replies), list(stages.replies.values())
    total = unflat([vector * many for vector in found], specs[0])
    rest = [Sum({}, 0.0, 0, refused=told.facts["refused"]) for told in replies]
    who = torch.cat([told.tensors["who"] for told in replies])
    sent = {name: sum(int(told.facts[name]) for told in replies) for name in ("up", "down")}
    refused = sum(rest, Sum({}, 0.0, 0)).refused
    total = replace(total, who=who, refused=refused, up=sent["up"], down=sent["down"])
    return stages.replies, why, total


def as_tensor(data: bytes) -> Tensor:
    """Bytes as a letter carries them. [n] uint8"""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
