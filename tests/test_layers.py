"""Packages import one way: only from packages listed before their own, types counted."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# From the ground up. Packages of one line do not know each other.
LAYERS = (
    {"errors"},
    {"core"},
    {"reporting", "privacy", "proof"},
    {"home"},
    {"data", "models"},
    {"audits"},
    {"methods"},
    {"storage"},
    {"receipts"},
    {"forgetting"},
    {"experiments", "life"},
    {"requests"},
    {"estimators"},
    {"flower", "demo", "ledger"},
    {"service"},
    {"rescind_papers"},
    {"cli"},
)
APART = (("rescind.flower.server", "rescind.flower.silo"),)
IN_A_CIRCLE = {f"rescind.core.{name}" for name in ("method", "executor", "run_state", "federation")}
"""A method's `unlearn` takes a federation, which has a method: for types only."""
LIGHT = {"torch", "numpy"}
"""What `core` may need at import; a GPU machine has nothing else."""
COMPILERS = {"numba", "llvmlite", "triton"}
KERNELS = {
    "best_items",
    "compiling",
    "kept_code",
    "ego_kernel",
    "ego_triton",
    "linear_kernel",
    "rowops",
    "sigmoids",
}


@lru_cache
def modules(src: Path) -> dict[str, ast.Module]:
    """Every module below a folder, by its dotted name."""
    found = {}
    for path in sorted(src.rglob("*.py")):
        name = ".".join(path.relative_to(src).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported(tree: ast.AST) -> list[str]:
    """What a source imports, anywhere in it: `from a import b` is a.b."""
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute here"
            out += [f"{node.module}.{alias.name}" for alias in node.names]
    return out


@lru_cache
def graph(src: Path) -> dict[str, set[str]]:
    """Which module imports which other one of the same sources."""
    known = modules(src)

    def home(name: str) -> str:
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name

    edges = {name: {home(target) for target in imported(tree)} for name, tree in known.items()}
    return {name: targets - {"", "rescind", name} for name, targets in edges.items()}


def layer(module: str) -> int:
    """The line of a module's package; the package itself stands above everything."""
    parts = module.split(".")
    package = parts[0] if parts[0] != "rescind" else parts[1] if len(parts) > 1 else ""
    places = [place for place, names in enumerate(LAYERS) if package in names]
    return places[0] if places else len(LAYERS)


def upward(edges: dict[str, set[str]]) -> list[str]:
    """Imports that do not go down, and imports between packages that must not meet."""
    wrong = []
    for one, targets in edges.items():
        for other in sorted(targets):
            same = one.split(".")[:2] == other.split(".")[:2]
            papers = one.startswith("rescind_papers") and other.startswith("rescind_papers")
            if not (same or papers) and layer(other) >= layer(one):
                wrong.append(f"{one} imports {other}")
            for pair in APART:
                if sorted(pair) == sorted(p for p in pair for m in (one, other) if m.startswith(p)):
                    wrong.append(f"{one} imports {other}: these never meet")
    return wrong


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other, in as many steps as it takes."""
    reach = {name: set(targets) for name, targets in edges.items()}
    growing = True
    while growing:
        growing = False
        for name, targets in reach.items():
            more = set().union(*(reach.get(t, set()) for t in targets)) - targets
            growing |= bool(more)
            reach[name] = targets | more
    groups = {frozenset(m for m in reach[name] if name in reach.get(m, ())) for name in reach}
    return [set(group) for group in groups if group]


def at_the_top(tree: ast.Module) -> set[str]:
    """Libraries that are imported when the module is, types left out."""
    plain = [n for n in tree.body if not (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n))]
    top = [n for n in plain if isinstance(n, ast.Import | ast.ImportFrom)]
    return {name.split(".")[0] for node in top for name in imported(node)}


def test_imports_go_down() -> None:
    assert upward(graph(SRC)) == []


def test_nothing_goes_in_circles_but_the_core_for_types() -> None:
    assert [group for group in circles(graph(SRC)) if not group <= IN_A_CIRCLE] == []


def test_the_top_level_holds_two_modules_at_most() -> None:
    assert len(list((SRC / "rescind").glob("*.py"))) <= 2


def test_every_package_has_its_layer() -> None:
    inside = {path.parent.name for path in (SRC / "rescind").glob("*/__init__.py")}
    assert inside <= set().union(*LAYERS)


def test_the_core_needs_torch_and_numpy_alone() -> None:
    from sys import stdlib_module_names

    for name, tree in modules(SRC).items():
        if not name.startswith("rescind.core"):
            continue
        needs = at_the_top(tree) - set(stdlib_module_names) - {"rescind"} - LIGHT
        kernel = name.rsplit(".", 1)[-1] in KERNELS
        assert needs <= (COMPILERS if kernel else set()), name


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        (
            {"core/a.py": "from rescind.data import b", "data/b.py": ""},
            "core.a imports rescind.data.b",
        ),
        (
            {"core/a.py": "def f():\n    import rescind.cli.b", "cli/b.py": ""},
            "imports rescind.cli.b",
        ),
        (
            {"data/a.py": "from rescind.models.b import C", "models/b.py": ""},
            "imports rescind.models.b",
        ),
        (
            {
                "flower/server/a.py": "import rescind.flower.silo.b",
                "flower/silo/b.py": "",
            },
            "never meet",
        ),
    ],
)
def test_an_import_that_goes_up_is_told(tmp_path: Path, sources: dict[str, str], told: str) -> None:
    written(tmp_path, sources)
    assert any(told in line for line in upward(graph(tmp_path)))


def test_a_circle_for_types_is_told(tmp_path: Path) -> None:
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rescind.core.{}"
    written(tmp_path, {"core/a.py": types.format("b"), "core/b.py": "import rescind.core.a"})
    assert circles(graph(tmp_path)) == [{"rescind.core.a", "rescind.core.b"}]


def written(src: Path, sources: dict[str, str]) -> None:
    for name, text in sources.items():
        path = src / "rescind" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
