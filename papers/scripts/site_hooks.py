"""What stands in two pages of the reference: every method, and every command.

mkdocs.yml names this file under `hooks`. A page holds a marker, such as `<!-- every method -->`;
the text is made from the code each time the pages are built, so it cannot be out of date.

The commands and the fields of the core also stand in the repository, for readers without the site:

    python papers/scripts/site_hooks.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src" / "rescind"
FOUND = re.compile(r"^from (rescind\.\S+) import (\w+) as \2$", re.M)
SPREAD = re.compile(r"(?<=\d) ± (?=\d)")
SETTINGS = "    options:\n      show_root_full_path: false\n      inherited_members: false\n"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill the markers of a page, and keep a number and its spread on one line.

    MkDocs calls this for every page.
    """
    for marker, made in MARKERS.items():
        sign = f"<!-- {marker} -->"
        if sign in markdown:
            markdown = markdown.replace(sign, made())
    return SPREAD.sub("\u00a0±\u00a0", markdown)


def classes(package: str) -> list[tuple[str, str]]:
    """Return (module, name) of each class of a package, as its stub lists them."""
    return FOUND.findall((SOURCE / package / "__init__.pyi").read_text(encoding="utf-8"))


def shown(package: str) -> str:
    """Return the directives that show every class of a package, under the folder of its module."""
    lines, shelf = [], ""
    for module, name in classes(package):
        path = module.split(".")[2:]
        if len(path) > 1 and path[0] != shelf:
            shelf = path[0]
            lines.append(f"## rs.{package}, {shelf}\n")
        lines.append(f"::: {module}.{name}\n{SETTINGS}")
    return "\n".join(lines)


def commands() -> str:
    """Return every command with its arguments and options."""
    from typer.main import get_command

    from rescind.cli import app

    return "\n\n".join(_described(words, one) for words, one in _walk("rescind", get_command(app)))


def _walk(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield each command that does something, with the words that call it."""
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield words, command
    for name, one in below.items():
        if not one.hidden:
            yield from _walk(f"{words} {name}", one)


def _described(words: str, command: Any) -> str:
    given = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    said = [f"## `{words}`", inspect.cleandoc(command.help or "").replace("\f", "")]
    rows = [(f"`{_name(p)}`", _cell(getattr(p, "help", None) or ""), _default(p)) for p in given]
    if rows:
        table = [("argument or option", "meaning", "default"), ("---",) * 3, *rows]
        said.append("\n".join(f"| {' | '.join(row)} |" for row in table))
    return "\n\n".join(said)


def _name(given: Any) -> str:
    """Return how a parameter is written: RUN, or --user TEXT."""
    if given.param_type_name == "argument":
        return str(given.human_readable_name.upper())
    takes = "" if given.is_flag else f" {given.metavar or given.type.name.upper()}"
    return ", ".join([*given.opts, *given.secondary_opts]) + takes


def _default(given: Any) -> str:
    if given.required:
        return "required"
    plain = isinstance(given.default, str | int | float | Path)
    return f"`{given.default}`" if plain and not isinstance(given.default, bool) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


MARKERS = {
    "every method": lambda: shown("methods"),
    "every model": lambda: shown("models"),
}


def fields_of_the_core() -> str:
    """Return the fields of the dataclasses that the author of a method meets."""
    from dataclasses import fields, is_dataclass

    from rescind import core

    said = []
    for name in core.__all__:
        cls = getattr(core, name)
        if not (isinstance(cls, type) and is_dataclass(cls)) or issubclass(cls, core.Unlearner):
            continue
        notes = _notes(cls)
        rows = [
            (f"`{f.name}`", f"`{_cell(str(f.type))}`", _cell(notes.get(f.name, "")))
            for f in fields(cls)
            if not f.name.startswith("_")
        ]
        rows += _computed(cls)
        first = inspect.cleandoc(cls.__doc__ or "").split("\n\n", maxsplit=1)[0]
        said.append(f"## {name}\n\n{first}")
        if rows:
            table = [("field", "type", "meaning"), ("---",) * 3, *rows]
            said.append("\n".join(f"| {' | '.join(row)} |" for row in table))
    return "\n\n".join(said)


def _computed(cls: type) -> list[tuple[str, str, str]]:
    """Return what a class computes from its fields and shows as one: its properties."""
    from functools import cached_property

    found = []
    for name, value in vars(cls).items():
        get = getattr(value, "func", None) or getattr(value, "fget", None)
        if isinstance(value, property | cached_property) and get.__doc__ and name[0] != "_":
            kind = get.__annotations__.get("return", "")
            says = _cell(get.__doc__.split("\n\n")[0]).removeprefix("Return ")
            found.append((f"`{name}`", f"`{_cell(str(kind))}`", says[0].upper() + says[1:]))
    return found


def _notes(cls: type) -> dict[str, str]:
    """Return the text under each field of a class."""
    import ast
    from textwrap import dedent

    (tree,) = ast.parse(dedent(inspect.getsource(cls))).body
    found, last = {}, ""
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
            continue
        text = getattr(node, "value", None)
        if last and isinstance(text, ast.Constant) and isinstance(text.value, str):
            found[last] = inspect.cleandoc(text.value)
        last = ""
    return found


WRITTEN = {"reference-cli.md": commands, "reference-fields.md": fields_of_the_core}
"""Pages of docs/ whose text after the mark is made here and stands in the repository."""
MARK = "<!-- written by python papers/scripts/site_hooks.py -->"


def written(page: str, text: str) -> str:
    """Return the text of a page with what is made for it."""
    head, mark, _ = text.partition(MARK)
    if not mark:
        raise ValueError(f"{page} has no line {MARK}")
    return f"{head}{MARK}\n\n{WRITTEN[page]()}\n"


if __name__ == "__main__":
    for page in WRITTEN:
        path = SOURCE.parents[1] / "docs" / page
        path.write_text(written(page, path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"written: docs/{page}")
