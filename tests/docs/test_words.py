"""One word for each thing (docs/glossary.md): in help texts and in error messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

import rescind
from rescind.cli import app
from rescind.cli.help_text import flow

PACKAGE = Path(rescind.__file__).parent
SERVICE = ("serve", "tokens", "backup", "restore", "scan")
"""Commands of the service, and where its pages and records are: there, users are people."""
THEIRS = ("service", "ledger")

SAY = {
    r"loans?": "lent records",
    r"(?:takes?|taken|took|taking)\s(?:\w+\s)?back": "unshare, erase or withdraw",
    r"persons?|people|somebody's": "user",
}
"""Words of the pages for people, and what command line and Python say instead."""
CODE = re.compile("[a-z]+(-[a-z]+)+")  # of a refusal, for programs
MOTTO = "Federated learning on data that people lend and can take back."


def wrong(text: str) -> list[str]:
    """Return what a text should say otherwise."""
    plain = " ".join(text.split()).replace(MOTTO, "")
    found = ((word, m.group()) for word in SAY for m in re.finditer(rf"(?i)\b(?:{word})\b", plain))
    return [f"'{text}': say '{SAY[word]}'" for word, text in found]


def commands(command: click.Command, path: str = "rescind") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


def helped() -> dict[str, str]:
    """Return the help of each command, with that of its options."""
    found = {}
    for path, command in commands(flow(typer.main.get_command(app))):
        if any(word in SERVICE for word in path.split()):
            continue
        texts = [command.help or ""]
        texts += [getattr(p, "help", "") or "" for p in command.params if not _hidden(p)]
        found[path] = " | ".join(texts)
    return found


def _hidden(param: click.Parameter) -> bool:
    return getattr(param, "hidden", False)


def raised(code: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each message that is raised in a file."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            parts = (p.value for p in ast.walk(node.exc) if isinstance(p, ast.Constant))
            words = (p for p in parts if isinstance(p, str) and not CODE.fullmatch(p))
            yield node.lineno, "".join(words)


def ours() -> list[Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [f for f in files if f.relative_to(PACKAGE).parts[0] not in THEIRS]


@pytest.mark.parametrize(("path", "text"), helped().items(), ids=lambda value: value[:30])
def test_help_names_each_thing_by_its_one_word(path, text):
    assert not wrong(text), path


def test_error_messages_name_each_thing_by_its_one_word():
    found = [
        f"{file.relative_to(PACKAGE)}:{line}: {told}"
        for file in ours()
        for line, text in raised(file.read_text(encoding="utf-8"))
        if not (file.parent.name == "cli" and file.stem in SERVICE)
        for told in wrong(text)
    ]
    assert not found, "\n".join(found)


def test_the_words_of_the_other_audience_are_noticed():
    for text in ("12 loans", "takes them back", "People who lend"):
        assert wrong(text), text
    for text in (MOTTO, "Leave this column out.", "a user who withdraws", "files that are left"):
        assert not wrong(text), text
    code = 'def f(x):\n    raise ValueError(f"the person {x} "\n        "took it back")\n'
    assert [(line, len(wrong(text))) for line, text in raised(code)] == [(2, 2)]
    assert len(ours()) > 200
