"""Options that take one value are given once: of two, click takes the last and drops the first."""

from __future__ import annotations

from itertools import takewhile
from typing import Any


def once(command: Any) -> Any:
    """Let a command, and all below it, refuse an option that is given twice and means one."""
    for below in getattr(command, "commands", {}).values():
        once(below)
    parse = command.parse_args

    def parse_args(ctx: Any, args: list[str]) -> list[str]:
        given = [word.partition("=")[0] for word in takewhile(lambda word: word != "--", args)]
        for param in () if hasattr(command, "commands") else command.params:
            if param.param_type_name == "option" and not (param.multiple or param.is_flag):
                found = [word for word in given if word in param.opts]
                if len(found) > 1:
                    ctx.fail(
                        f"{found[0]} was given {len(found)} times and takes one value. Give the "
                        f"command once for each."
                    )
        return parse(ctx, args)

    command.parse_args = parse_args
    return command
