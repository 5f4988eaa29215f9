"""Forget shared records with no client online: the server reruns its own steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.ranges import must_lie
from rescind.core.request import Request
from rescind.errors import ConfigError
from rescind.methods.sharing._server_rerun import USUAL_PULL, moved, one_story, sums_of, targets
from rescind.methods.sharing.fedshare import fedshare_of
from rescind.methods.unlearning.purge_only import cleared, without_restore_points


@dataclass(frozen=True, kw_only=True)
class ServerReplay(Unlearner):
    """Reruns the server's steps of FedShare from the initial table.

    The devices' stored sums are used again, corrected for the distance between the new table and
    the one they trained on (`_server_rerun.paths`). The server stores one table per round, 4 I d
    bytes (71 MB for 150 rounds of ML-1M), without user ids; initial values come from the seed.

    Records that a device trained on cannot be removed from its sums: such requests are retrained.
    """

    paper: ClassVar[str] = "ours"
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "ServerReplay"

    sums: Literal["kept", "none"] = "kept"
    """"none": as if devices had sent nothing. Needs no stored sums."""
    damping: float = USUAL_PULL
    """How strongly devices would have pulled back: `FedShareUnlearn.damping`. 0 uses their sums
    unchanged."""

    def __post_init__(self) -> None:
        must_lie(self, "[0, 1]", "damping")

    def forget(self, fed: Federation, request: Request) -> Federation:
        method, round_ = fedshare_of(fed.method, "ServerReplay"), fed.now.state.round
        if self.sums == "kept" and not method.keep_sums:
            raise ConfigError(
                "this federation did not store sums. Train it with keep_sums = true, "
                "set sums = 'none', or forget with Retrain."
            )
        sums = sums_of(fed.now.state.memory, round_)
        if self.sums == "none":
            sums = [{n: v.new_zeros(()).expand_as(v) for n, v in fed.now.state.public.items()}]
            sums = sums * round_
        if not sums or not one_story(fed) or len(targets(fed, request, method)):
            return fed.retrained(request.event)
        after = cleared(fed, request)
        memory = replace(after.now.state, memory=fed.now.state.memory)
        state = moved(memory, method, fed, after, request, sums, self.damping)
        return without_restore_points(after.with_(state=state), request)
