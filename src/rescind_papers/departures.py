"""The page "Departures from the papers", generated from marks in docstrings.

    python -m rescind_papers.departures docs/departures.md

A mark is a paragraph of a docstring: DEPARTS, the place in the paper, a colon, then what the code
does instead and why. Sources are read, not imported.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import rescind
from rescind.core.files import write_atomically

PACKAGE = Path(rescind.__file__).resolve().parent
MARK = re.compile(r"DEPARTS (?P<place>.+?): (?P<text>.+)")
ELSEWHERE = "Everything else"
PAPERS = {
    "F3CRec": "Lim et al., CIKM 2025",
    "FedGCV": "arXiv 2605.02297",
    "IMIA": "Yuan et al., WWW 2023",
}
"""Papers that docstrings name without a method. A method's own `paper` comes first."""

INTRO = """# Departures from the papers

Where the code does something else than a paper says, its docstring marks it with `DEPARTS`: the
place in the paper, what we do instead, and the reason, with a measurement if there is one. This
page is generated from the marks by `python -m rescind_papers.departures docs/departures.md`; a test
fails if it is out of date.
"""


@dataclass(frozen=True)
class Departure:
    """One mark in a docstring."""

    paper: str
    owner: str
    """The class, function or setting that departs."""
    source: str
    """Its file, relative to the package."""
    place: str
    """Place in the paper."""
    text: str


@dataclass(frozen=True)
class _Docstring:
    """A docstring and the names around it, innermost last."""

    owner: tuple[str, ...]
    around: tuple[str, ...]
    """The docstrings around it, its own last."""
    paper: str | None
    """The `paper` of the class around it."""


def departures(package: Path = PACKAGE) -> tuple[Departure, ...]:
    """Return every mark in the package, in the order of its files."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}
    named = dict(PAPERS)
    for tree in trees.values():
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        named |= {node.name: paper for node in classes if (paper := _paper(node)) is not None}
    out = []
    for path, tree in trees.items():
        source = path.relative_to(package).as_posix()
        for found in _docstrings(tree, _Docstring((), (), None)):
            for paragraph in found.around[-1].split("\n\n"):
                mark = MARK.fullmatch(" ".join(paragraph.split()))
                if mark is None:
                    continue
                paper = found.paper or _mentioned((paragraph, *reversed(found.around)), named)
                owner = ".".join(found.owner) or source
                out.append(Departure(paper, owner, source, mark["place"], mark["text"]))
    return tuple(out)


def page(found: tuple[Departure, ...]) -> str:
    """Return the page in Markdown, by paper and by owner."""
    lines = [INTRO]
    papers = sorted({d.paper for d in found}, key=lambda name: (name == ELSEWHERE, name))
    for paper in papers:
        lines += [f"## {paper}", ""]
        mine = [d for d in found if d.paper == paper]
        for owner, source in dict.fromkeys((d.owner, d.source) for d in mine):
            lines += [f"`{owner}` in `src/rescind/{source}`", ""]
            here = [d for d in mine if (d.owner, d.source) == (owner, source)]
            lines += [f"- **{d.place}:** {d.text}" for d in here]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _paper(node: ast.ClassDef) -> str | None:
    """Return the value of a class's field `paper`."""
    for part in node.body:
        value = part.value if isinstance(part, ast.AnnAssign) else None
        if isinstance(value, ast.Constant) and _assigned(part) == "paper":
            return str(value.value)
    return None


def _docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, outer: _Docstring
) -> Iterator[_Docstring]:
    """Yield the docstrings of a module, its classes, functions and assignments."""
    name = () if isinstance(node, ast.Module) else (node.name,)
    paper = _paper(node) if isinstance(node, ast.ClassDef) else None
    own = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
    me = _Docstring((*outer.owner, *name), (*outer.around, own), paper or outer.paper)
    yield me
    before: ast.stmt | None = None
    for part in node.body:
        if isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(part, me)
        assigned = _assigned(before)
        if assigned and isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
            text = inspect.cleandoc(str(part.value.value))
            yield _Docstring((*me.owner, assigned), (*me.around, text), me.paper)
        before = part


def _assigned(node: ast.stmt | None) -> str | None:
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else None


def _mentioned(texts: tuple[str, ...], named: dict[str, str]) -> str:
    """Return the paper that is named nearest to a mark. The longest name that fits wins."""
    for text in texts:
        there = [name for name in named if re.search(rf"\b{name}\b", text)]
        if there:
            return named[max(there, key=len)]
    return ELSEWHERE


def main(arguments: list[str]) -> None:
    """Print the page, or write it to the file given as first argument."""
    text = page(departures())
    if not arguments:
        print(text, end="")
        return
    path = Path(arguments[0])
    write_atomically(path, text.encode())
    print(f"written: {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
