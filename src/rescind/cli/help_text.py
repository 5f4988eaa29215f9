"""How help is shown: groups of commands, flowing paragraphs, help of arguments."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument

TRY, LEARN = "Try", "Learn"
FORGET, DEPLOY, REPRODUCE = "Forget and check", "Deploy and operate", "Reproduce"


def keep_argument_help() -> None:
    """Let arguments keep their help: click 8.5 clears what typer 0.20 sets before it."""
    original = TyperArgument.__init__
    if getattr(original, "keeps_help", False):
        return

    def init(self: Any, *words: Any, help: str | None = None, **more: Any) -> None:  # noqa: A002
        original(self, *words, help=help, **more)
        self.help = help

    init.keeps_help = True  # type: ignore[attr-defined]
    TyperArgument.__init__ = init  # type: ignore[method-assign]


def flow(command: Any) -> Any:
    """Join the lines of each paragraph of help: a terminal breaks them at its own width."""
    if command.help:
        paragraphs = command.help.split("\n\n")
        joined = [p if "\b" in p else " ".join(p.split()) for p in paragraphs]
        command.help = "\n\n".join(joined)
    for below in getattr(command, "commands", {}).values():
        flow(below)
    return command
