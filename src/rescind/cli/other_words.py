"""Answer a word that there is not with what does it here: people try their own words."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

FORGET = "'rescind forget'"
OURS = {
    **dict.fromkeys(("erase", "delete", "remove", "unlearn"), FORGET),
    **dict.fromkeys(("train", "fit"), "'rescind run'"),
    **dict.fromkeys(("evaluate", "results"), "'rescind run' or 'rescind table'"),
    **dict.fromkeys(("import", "load"), "'rescind data import'"),
}
"""Words of other projects, and the commands that do it here: click would name a similar word."""


class Commands(TyperGroup):
    """All commands. A word of another project is answered with those that do what it says."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if self.get_command(ctx, args[0]) is None and (ours := OURS.get(args[0].lower())):
            ctx.fail(f"No such command '{args[0]}'. Use {ours}.")
        return super().resolve_command(ctx, args)


class Verify(TyperCommand):
    """The command `verify`. It takes one receipt or one folder, and says how to check several."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        super().parse_args(ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            ctx.fail(
                f"verify takes one receipt or one folder; '{ctx.args[0]}' is one more. "
                f"To check several receipts, put them into one folder."
            )
        return ctx.args
