"""Sums over two servers, so that no single server sees what devices send."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Mail
from rescind.core.executor import Executor, InProcess, Vault
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.update import Sum
from rescind.errors import ConfigError
from rescind.privacy.two_servers import TwoServers


@dataclass(frozen=True)
class SharedSums(InProcess):
    """An `InProcess` executor with sums that are added by two processes and opened once.

    A device splits its own numbers. The simulation adds up the devices of one `chunk` first and
    splits their sum: the same total, in less time; `chunk = 1` is what real devices do.
    A device that answers an event alone sends its items unprotected, as in `InProcess`.
    """

    def train(
        self,
        method: Method,
        public: Params,
        mail: Mail | None,
        vault: Vault,
        ids: Tensor,
        roles: Mapping[int, str] | None,
        clock: Clock,
    ) -> tuple[dict[str, Sum], Vault]:
        """Run like `InProcess.train`, but sums over several devices are opened by two servers.

        Row-touch counts are not available. Only sums of integers: floats have no exact split.
        """
        if method.individual:
            raise ConfigError(f"{type(method).__name__} sends single updates; use one server.")
        sums: dict[str, Sum] = {}
        sizes: dict[str, list[tuple[str, torch.Size]]] = {}
        sent: set[str] = set()
        with ExitStack() as stack:
            servers: dict[str, TwoServers] = {}
            for number, chunk in enumerate(torch.split(ids, self.together)):
                part, vault = super().train(method, public, mail, vault, chunk, roles, clock)
                for role, summed in part.items():
                    if role != "train":  # a single device that answers an event
                        sums[role] = summed
                        continue
                    for name, value in sorted(summed.totals.items()):
                        if value.is_floating_point():
                            given = f"'{name}' of {type(method).__name__} is {value.dtype}"
                            raise ConfigError(f"two servers add only whole numbers, but {given}.")
                        key = f"{role}:{name}"
                        if key not in servers:
                            servers[key] = stack.enter_context(TwoServers(value.numel()))
                            sizes.setdefault(role, []).append((name, value.shape))
                        if bool(value.any()):  # zeros are sent by nobody
                            servers[key].add(value.flatten().long(), device=number)
                            sent.add(key)
                    rest = replace(summed, totals={}, touched={})
                    sums[role] = sums[role] + rest if role in sums else rest
            for role, names in sizes.items():
                totals = {}
                for name, shape in names:
                    key, total = f"{role}:{name}", torch.zeros(shape, dtype=torch.int64)
                    if key in sent:
                        total = servers[key].open().view(shape)
                    totals[name] = total.to(ids.device)
                sums[role] = replace(sums[role], totals=totals)
        return sums, vault


def executor_for(executor: Executor) -> Executor:
    if isinstance(executor, SharedSums):
        return executor
    if type(executor) is not InProcess:
        given = type(executor).__name__
        raise ConfigError(f"two servers need InProcess, not {given}. Use it, or servers = 1.")
    if executor.guards:
        raise ConfigError("guards need floats, two servers integers. Use only one of them.")
    return SharedSums(**{f.name: getattr(executor, f.name) for f in fields(executor)})
