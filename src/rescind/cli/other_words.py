"""Answer a word that there is not with what does it here: people try their own words."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

_FORGET = ("forget",)
_MEASURE = ("run", "table")
OURS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("erase", "delete", "remove"), _FORGET),
    **dict.fromkeys(("unlearn", "unshare", "withdraw"), ("forget",)),
    **dict.fromkeys(("train", "fit", "learn"), ("run",)),
    **dict.fromkeys(("predict", "rank"), ("recommend",)),
    **dict.fromkeys(("evaluate", "eval", "score", "metrics"), _MEASURE),
    **dict.fromkeys(("compare", "results"), ("table",)),
    **dict.fromkeys(("check", "validate"), ("verify", "audit")),
    **dict.fromkeys(("load", "add"), ("data import", "data append")),
    **dict.fromkeys(("download", "fetch"), ("data get",)),
    **dict.fromkeys(("start", "server"), ("serve",)),
}
"""Words of other projects, and the commands that do it here."""


class Commands(TyperGroup):
    """All commands. One that there is not is answered with those that do what its name says."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if self.get_command(ctx, args[0]) is None and (found := self._doing(args[0])):
            told = " or ".join(f"'rescind {one}'" for one in found)
            ctx.fail(f"No such command '{args[0]}'. Use {told}; --help tells how.")
        return super().resolve_command(ctx, args)

    def _doing(self, word: str) -> tuple[str, ...]:
        """Return the commands for a word: by the list, or those of a group that are called so."""
        below = (
            f"{name} {word}"
            for name, group in self.commands.items()
            if word in getattr(group, "commands", {})
        )
        return OURS.get(word.lower()) or tuple(below)


class Run(TyperCommand):
    """The command `run`. For one seed there is no `--seed`, and `--seeds 3` would be three runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(word.partition("=")[0] == "--seed" for word in args):
            ctx.fail("No such option '--seed'. One seed: --set seed=3. Seeds 0, 1, 2: --seeds 3.")
        return super().parse_args(ctx, args)


class Verify(TyperCommand):
    """The command `verify`. It takes one receipt or one folder, and says how to check several."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        super().parse_args(ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            ctx.fail(
                f"verify takes one receipt or one folder; '{ctx.args[0]}' is one more. To check "
                f"several receipts, put them into one folder (under different names) and give it: "
                f"they are compared, too. What came with a receipt has its option: --proof, "
                f"--event, --event-key, --part, --chain."
            )
        return ctx.args
