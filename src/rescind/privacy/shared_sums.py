"""Runs whose sums pass through two servers, so that no single one sees what devices send."""

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
    """`InProcess`, but what many devices send is added up by two processes and opened once.

    A device splits its own numbers. A simulation first adds up the `chunk` devices it plays
    together and splits their sum: the same total, in less time; `chunk = 1` is the real thing.
    A device that answers an event alone sends its items in the clear, as ever.
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
        """As `InProcess`; sums over several devices come out of two servers, who touched what not.

        Single updates must not leave, and numbers must be whole: real ones cannot be split exactly.
        """
        if method.individual:
            raise ConfigError(f"{type(method).__name__} sends single updates, not sums.")
        sums: dict[str, Sum] = {}
        sizes: dict[str, list[tuple[str, torch.Size]]] = {}
        with ExitStack() as stack:
            servers: dict[str, TwoServers] = {}
            for chunk in torch.split(ids, self.together):
                part, vault = super().train(method, public, mail, vault, chunk, roles, clock)
                for role, total in part.items():
                    if role != "train":  # one device, which answers alone
                        sums[role] = total
                        continue
                    for name, value in sorted(total.totals.items()):
                        if value.is_floating_point():
                            raise ConfigError(
                                f"two servers add whole numbers, but '{name}' of "
                                f"{type(method).__name__} is {value.dtype}."
                            )
                        one = f"{role}:{name}"
                        if one not in servers:
                            servers[one] = stack.enter_context(TwoServers(value.numel()))
                            sizes.setdefault(role, []).append((name, value.shape))
                        servers[one].add(value.flatten().long())
                    blank = replace(total, totals={}, touched={})
                    sums[role] = sums[role] + blank if role in sums else blank
            for role, names in sizes.items():
                found = {n: servers[f"{role}:{n}"].open().view(shape) for n, shape in names}
                totals = {n: value.to(ids.device) for n, value in found.items()}
                sums[role] = replace(sums[role], totals=totals)
        return sums, vault


def executor_for(executor: Executor) -> Executor:
    """The same executor with its sums over two servers."""
    if isinstance(executor, SharedSums):
        return executor
    if type(executor) is not InProcess:
        raise ConfigError(
            f"two servers work with InProcess, not with {type(executor).__name__}. Leave the "
            f"executor out, or servers = 1."
        )
    if executor.guards:
        raise ConfigError("guards work on real numbers; two servers add whole ones. Leave one out.")
    return SharedSums(**{f.name: getattr(executor, f.name) for f in fields(executor)})
