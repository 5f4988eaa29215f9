"""The server's side of secure aggregation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow

from rescind.core.update import Sum
from rescind.errors import ConfigError, DataError
from rescind.flower.server.transport import Transport
from rescind.flower.wire import flwr_private
from rescind.flower.wire.flwr_private import RECORD_KEY_CONFIGS, Key, Stage
from rescind.flower.wire.messages import SENDER, Letter
from rescind.flower.wire.secure_aggregation import (
    MAX_SILOS,
    MIN_SILOS,
    SECURE,
    TOO_FEW,
    Masked,
    Vector,
    as_tensor,
    unflatten_sum,
)
from rescind.flower.wire.serde import read, written
from rescind.storage.packing import Facts


def exchange_round(
    transport: Transport,
    requests: Mapping[int, Letter],
    key_request: Letter,
    masked: Masked | None,
    roles: Mapping[int, str] | None = None,
) -> tuple[dict[int, Letter], dict[int, str], Sum | None]:
    """Return (replies, reasons of missing replies, the total if sums are masked) of a round.

    requests: by silo    key_request: for the stages that exchange keys
    """
    if masked is None:
        return *transport.ask(requests), None
    if roles:
        raise ConfigError(
            "a round in which clients have different roles has several sums, but only one sum can "
            "be masked. Use another unlearner, or run without --secure."
        )
    if not MIN_SILOS <= len(requests) <= MAX_SILOS:
        return {}, dict.fromkeys(requests, TOO_FEW), None
    stages = _Stages(transport, requests, key_request)
    mean = _run_workflow(stages, int(key_request.facts["round"]), masked)
    why = {silo: stages.why.get(silo, TOO_FEW) for silo in requests if silo not in stages.replies}
    if not mean or not stages.replies:
        return {}, dict.fromkeys(requests, TOO_FEW) | why, None
    replies = list(stages.replies.values())
    specs = [reply.facts["spec"] for reply in replies]
    if any(spec != specs[0] for spec in specs):
        raise DataError(f"silos masked sums of different shapes. {SENDER}")
    total = unflatten_sum([vector * len(replies) for vector in mean], specs[0])
    rest = [Sum({}, 0.0, 0, refused=reply.facts["refused"]) for reply in replies]
    who = torch.cat([reply.tensors["who"] for reply in replies])
    sent = {name: sum(int(reply.facts[name]) for reply in replies) for name in ("up", "down")}
    refused = sum(rest, Sum({}, 0.0, 0)).refused
    total = replace(total, who=who, refused=refused, up=sent["up"], down=sent["down"])
    return stages.replies, why, total


def _run_workflow(stages: _Stages, number: int, masked: Masked) -> list[Vector]:
    """Run Flower's SecAgg+ for one round. Return the mean of the silos' vectors, or nothing."""
    mean: list[Vector] = []
    silos = len(stages.requests)
    empty = ndarrays_to_parameters([])
    chosen = [(SimpleNamespace(node_id=silo + 1), FitIns(empty, {})) for silo in stages.requests]

    def keep_mean(_: int, results: list[Any], __: list[Any]) -> tuple[None, Facts]:
        mean.extend(parameters_to_ndarrays(results[0][1].parameters))
        return None, {}

    context = LegacyContext(
        Context(0, 0, {}, RecordDict(), {}),
        strategy=SimpleNamespace(configure_fit=lambda *_: chosen, aggregate_fit=keep_mean),  # type: ignore[arg-type]
        client_manager=SimpleNamespace(num_available=lambda: silos),  # type: ignore[arg-type]
    )
    records = context.state
    records.config_records[flwr_private.MAIN_CONFIGS_RECORD] = ConfigRecord(
        {flwr_private.WorkflowKey.CURRENT_ROUND: number}
    )
    nothing = flwr_private.parameters_to_arrayrecord(empty, True)
    records.array_records[flwr_private.MAIN_PARAMS_RECORD] = nothing
    workflow = SecAggPlusWorkflow(1.0, 0.5, max_weight=1.0, clipping_range=masked.range)
    workflow(stages, context)  # type: ignore[arg-type]
    return mean


@dataclass
class _Stages:
    """A grid for Flower's workflow: it sends each stage as one of our messages."""

    transport: Transport
    requests: Mapping[int, Letter]
    """The requests of the round, sent with the stage that collects masked sums."""
    key_request: Letter
    """Sent with the other stages."""
    replies: dict[int, Letter] = field(default_factory=dict)
    why: dict[int, str] = field(default_factory=dict)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None) -> list[Any]:
        requests, sums = {}, False
        for message in messages:
            silo = message.metadata.dst_node_id - 1
            configs = message.content.config_records[RECORD_KEY_CONFIGS]
            sums = configs[Key.STAGE] == Stage.COLLECT_MASKED_VECTORS
            base = self.requests[silo] if sums else self.key_request
            tensors = {**base.tensors, SECURE: as_tensor(written(message.content))}
            requests[silo] = Letter({**base.facts, "masked": True}, tensors)
        replies, why = self.transport.ask(requests)
        self.why |= why
        if sums:
            self.replies = replies
        return [
            SimpleNamespace(
                content=read(reply.tensors[SECURE].numpy().tobytes()),
                metadata=SimpleNamespace(src_node_id=silo + 1),
                has_error=lambda: False,
            )
            for silo, reply in replies.items()
        ]
