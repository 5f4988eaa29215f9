"""Play a page of the documentation: write its files, run its Python and its commands, in order.

A block with a title is a file of that name, or a process of a terminal (`terminal 1: ...`). Python
without a title is run; names stay. In `bash`, `rescind` runs in this process; a comment `exit code
N` says how a command ends (0 without). Blocks of other languages are for the eye.
"""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from command_line import rescind

FENCE = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.M | re.S
)
ENDS = re.compile(r"#.*exit code (\d+)")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    title: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The lines of a shell, with those that end in a backslash joined."""
        joined = self.text.replace("\\\n", " ")
        return [line for line in joined.splitlines() if line.strip() and line.strip()[0] != "#"]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, named from the root of the repository."""
    text = (ROOT / page).read_text("utf-8")
    return [Block(m["language"], m["title"] or "", m["text"]) for m in FENCE.finditer(text)]


@dataclass
class Played:
    """What a page leaves behind."""

    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    said: list[tuple[str, str]] = field(default_factory=list)
    """Each command, and what it printed."""

    def of(self, command: str) -> str:
        """Return what the commands that begin like this printed."""
        return "".join(text for line, text in self.said if line.startswith(command))


def play(pages: Iterable[str], folder: Path, patch: pytest.MonkeyPatch) -> Played:
    """Play pages in a folder, one after another."""
    patch.chdir(folder)
    patch.syspath_prepend(str(folder))
    patch.setenv("RESCIND_CACHE", str(folder / "cache"))
    patch.setenv("RESCIND_HOME", str(folder))
    played = Played()
    for page in pages:
        for number, block in enumerate(blocks(page), 1):
            where = f"{page}, block {number}"
            if block.title:
                (folder / block.title).write_text(block.text, "utf-8")
            elif block.language == "python":
                exec(compile(block.text, where, "exec", dont_inherit=True), played.names)
            elif block.language == "bash":
                played.said.extend(_typed(block, where))
    return played


def _typed(block: Block, where: str) -> Iterator[tuple[str, str]]:
    for line in block.commands:
        words = shlex.split(line, comments=True)
        ends = ENDS.search(line)
        if words[0] == "rescind":
            code, said = rescind(*words[1:])
        elif words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
            code, said = 0, ""
        else:
            done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
            code, said = done.returncode, done.stdout + done.stderr
        assert code == int(ends[1] if ends else 0), f"{where}: {line}\n{said}"
        yield line, said
