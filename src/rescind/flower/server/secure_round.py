"""Drive one secure aggregation from the server's side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns
from flwr.common import ndarrays_to_parameters as packed
from flwr.common import parameters_to_ndarrays as unpacked
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common import recorddict_compat as legacy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as Place

from rescind.core.update import Sum
from rescind.errors import ConfigError, DataError
from rescind.flower.server.transport import Transport
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.secure_aggregation import (
    FEWEST,
    MOST,
    SECURE,
    TOO_FEW,
    Masked,
    Vector,
    as_tensor,
    unflat,
)
from rescind.flower.wire.serde import read, written
from rescind.storage.packing import Facts


def exchanged(
    line: Transport,
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


@dataclass
class _Stages:
    """Flower's workflow sends its stages through this as letters of ours."""

    line: Transport
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
