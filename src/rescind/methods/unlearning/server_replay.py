"""Forgetting loans with nobody online: the server goes through its own steps again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from rescind.core.method import Unlearner
from rescind.core.request import Request
from rescind.errors import ConfigError
from rescind.methods.sharing._server_rerun import USUAL_PULL, moved, one_story, sums_of, targets
from rescind.methods.sharing.fedshare import fedshare_of
from rescind.methods.unlearning.purge_only import cleared, without_restore_points

if TYPE_CHECKING:
    from rescind.core.federation import Federation


@dataclass(frozen=True, kw_only=True)
class ServerReplay(Unlearner):
    """Forget by the server's own steps from the first table, for FedShare.

    What devices sent is taken as they sent it, corrected for how far the new table went from the
    one they were given (`server_path.paths`). What has to be kept: one table per round, 4 I d bytes
    (71 MB for 150 rounds of ML-1M), which names nobody; first values are made anew from the seed.

    Records that a device trained on are in its sums and cannot be taken out of them: it trains
    again instead.
    """

    paper: ClassVar[str] = "ours"
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "ServerReplay"

    sums: Literal["kept", "none"] = "kept"
    """"none": as if devices had sent nothing. Needs nothing kept, serves any FedShare."""
    damping: float = USUAL_PULL
    """How strongly devices would have pulled back: `FedShareUnlearn.damping`. 0 takes their sums
    as recorded."""

    def __post_init__(self) -> None:
        if not 0 <= self.damping <= 1:
            raise ConfigError(f"ServerReplay.damping is 0 to 1, got {self.damping}.")

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Move the table by as much as the two runs of the server are apart; no round is run."""
        method, round_ = fedshare_of(fed.method, "ServerReplay"), fed.now.state.round
        if self.sums == "kept" and not method.keep_sums:
            raise ConfigError(
                "ServerReplay needs what devices sent, and this federation kept none of it. Train "
                "it with keep_sums = true, let it do without (sums = 'none'), or forget by Retrain."
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
