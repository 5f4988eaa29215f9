"""The house: every module has a floor, and imports go down or, without cycles, stay."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "rescind"

# A folder's name stands for everything in it; the longest name that fits decides.
FLOORS: dict[str, int] = {
    **dict.fromkeys(["rescind", "errors", "params", "clock", "jagged", "settings"], 0),
    **dict.fromkeys(["records", "cohort", "world", "holdings", "sharing", "labels"], 1),
    **dict.fromkeys(["plan", "model", "tasks", "data"], 1),
    **dict.fromkeys(["update", "state", "optim", "gate", "guards", "method", "executor"], 2),
    **dict.fromkeys(
        [
            "accountant",
            "past",
            "moments",
            "federation",
            "packing",
            "storage",
            "run_folder",
            "flat",
            "fused",
            "dense",
            "kernels",
            "rowops",
            "beside",
            "linear",
            "linear_kernels",
        ],
        2,
    ),
    **dict.fromkeys(["findings"], 2),
    **dict.fromkeys(["models", "methods", "audits", "two_servers", "shared_sums"], 3),
    **dict.fromkeys(
        [
            "forgetting",
            "purge",
            "requests",
            "withheld",
            "receipt",
            "ledger",
            "recipe",
            "recipe_file",
            "cell",
            "experiment",
            "results",
            "trials",
            "provenance",
            "report",
        ],
        4,
    ),
    **dict.fromkeys(["tables", "pages", "charts", "bench"], 4),
    **dict.fromkeys(["value", "counterfactual", "sweeps", "departures", "significance"], 4),
    **dict.fromkeys(["papers", "exhibits", "figures", "reproduction", "leaderboard"], 4),
    **dict.fromkeys(["keys", "verification", "receipt_page"], 4),
    **dict.fromkeys(["examine", "workers", "flower"], 4),
    **dict.fromkeys(["leaks", "peeled", "claims", "releases"], 4),
    **dict.fromkeys(["streams", "stream_cell", "drift"], 4),
    **dict.fromkeys(["cli", "demo", "demo_page", "service"], 5),
}
LIBRARIES_BELOW_3 = {"torch", "numpy"}
# Compiled code needs a compiler. It is an extra that only a function may ask for.
COMPILED = {
    "rescind.core.fast.ego_kernel",
    "rescind.core.fast.linear_kernel",
    "rescind.core.fast.rowops",
}
COMPILED |= {"rescind.methods._lent_graph.kernels", "rescind.methods.continual._reloop2_kernels"}
COMPILERS = {"numba", "llvmlite"}


def modules(package: Path) -> dict[str, Path]:
    """Every module by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def floor(module: str) -> int | None:
    """The floor of a module, or None where nobody said."""
    name = module.split(".")[1:] or ["rescind"]
    for length in range(len(name), 0, -1):
        if ".".join(name[:length]) in FLOORS:
            return FLOORS[".".join(name[:length])]
    return None


class Imports(ast.NodeVisitor):
    """The modules a source imports when it runs; what only type checkers read is left out."""

    def __init__(self, module: str, is_package: bool) -> None:
        self.here = module.split(".") if is_package else module.split(".")[:-1]
        self.inside = 0
        self.found: list[tuple[str, list[str], bool]] = []

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for part in node.orelse:
                self.visit(part)
        else:
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.inside += 1
        self.generic_visit(node)
        self.inside -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [(name.name, [], self.inside == 0) for name in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        start = self.here[: len(self.here) - node.level + 1] if node.level else []
        base = ".".join([*start, *([node.module] if node.module else [])])
        self.found.append((base, [name.name for name in node.names], self.inside == 0))


def imports(package: Path) -> dict[str, list[tuple[str, bool]]]:
    """By module: (imported module, whether at the top level)."""
    known, result = modules(package), {}
    for module, path in known.items():
        reader = Imports(module, path.name == "__init__.py")
        reader.visit(ast.parse(path.read_text(encoding="utf-8")))
        targets = []
        for base, names, top in reader.found:
            # `from rescind import params` is about rescind.core.params, not about the package.
            inner = [f"{base}.{name}" for name in names if f"{base}.{name}" in known]
            targets += [(target, top) for target in inner]
            if len(inner) < max(len(names), 1):
                targets.append((base, top))
        result[module] = targets
    return result


def violations(package: Path) -> list[str]:
    """Everything that breaks a law of the house, in words."""
    known, said = modules(package), []
    said += [f"{m} is on no floor: add it to FLOORS" for m in known if floor(m) is None]
    graph: dict[str, set[str]] = {}
    for module, targets in imports(package).items():
        mine = floor(module)
        for target, top in targets:
            library = target.split(".")[0]
            if library != package.name:
                allowed = LIBRARIES_BELOW_3 | (COMPILERS if module in COMPILED else set())
                foreign = library not in sys.stdlib_module_names | allowed
                if top and foreign and mine is not None and mine < 3:
                    said.append(f"{module} (floor {mine}) needs {library} at import")
                continue
            theirs = floor(target)
            if mine is not None and theirs is not None and theirs > mine:
                said.append(f"{module} (floor {mine}) imports {target} (floor {theirs})")
            if top and target in COMPILED and module not in COMPILED:
                said.append(f"{module} imports {target}, which is compiled, at the top")
            graph.setdefault(module, set()).add(target)
    return said + [f"a cycle: {' -> '.join(cycle)}" for cycle in cycles(graph)]


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """One cycle for each module that closes one, found by walking down."""
    done: set[str] = set()
    found: list[list[str]] = []

    def walk(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
            return
        if module in done:
            return
        for target in sorted(graph.get(module, ())):
            walk(target, [*path, module])
        done.add(module)

    for module in sorted(graph):
        walk(module, [])
    return found


def test_imports_go_down_the_house_only():
    assert violations(PACKAGE) == []


def test_no_floor_is_kept_for_a_module_that_left():
    # Names of the plan that are not written yet.
    planned = {"audits", "forgetting", "receipt", "ledger", "flower", "service"}
    planned |= {"fused", "kernels", "rowops", "gate", "guards"}
    there = {".".join(m.split(".")[1:]) or "rescind" for m in modules(PACKAGE)}
    assert set(FLOORS) - there <= planned


def house(folder: Path, **sources: str) -> Path:
    """A small package with these modules; `a__b` is module b of folder a."""
    package = folder / "rescind"
    for name, source in {"__init__": "", **sources}.items():
        path = package / Path(*name.split("__")) if name != "__init__" else package / name
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return package


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"clock": "from rescind.core.world import World", "world": ""},
         "rescind.core.clock (floor 0) imports rescind.core.world (floor 1)"),
        ({"clock": "from rescind import world", "world": ""},
         "rescind.core.clock (floor 0) imports rescind.core.world (floor 1)"),
        ({"clock": "import rescind.core.world as w", "world": ""},
         "rescind.core.clock (floor 0) imports rescind.core.world (floor 1)"),
        ({"clock": "from .world import World", "world": ""},
         "rescind.core.clock (floor 0) imports rescind.core.world (floor 1)"),
        ({"clock": "def f():\n    from rescind.core.world import World", "world": ""},
         "rescind.core.clock (floor 0) imports rescind.core.world (floor 1)"),
        ({"method": "from rescind.methods.baselines.fedavg import FedAvg", "methods__fedavg": ""},
         "rescind.core.method (floor 2) imports rescind.methods.baselines.fedavg (floor 3)"),
        ({"novelty": ""}, "rescind.novelty is on no floor: add it to FLOORS"),
        ({"state": "import pandas"}, "rescind.core.state (floor 2) needs pandas at import"),
        ({"tasks__nodes": "from scipy.sparse import csr_matrix"},
         "rescind.core.tasks.nodes (floor 1) needs scipy at import"),
        ({"state": "import numba"}, "rescind.core.state (floor 2) needs numba at import"),
        ({"fused": "from rescind import kernels", "kernels": "import numba"},
         "rescind.core.fast.dispatch imports rescind.core.fast.ego_kernel, which is compiled, at the top"),
        ({"plan": "import rescind.core.model", "model": "def f():\n    import rescind.core.plan"},
         "a cycle: rescind.core.model -> rescind.core.plan -> rescind.core.model"),
    ],
)  # fmt: skip
def test_a_planted_violation_is_found(tmp_path, sources, expected):
    assert violations(house(tmp_path, **sources)) == [expected]


@pytest.mark.parametrize(
    "sources",
    [
        {"clock": "if TYPE_CHECKING:\n    from rescind.core.world import World", "world": ""},
        {"clock": "if typing.TYPE_CHECKING:\n    import rescind.core.world", "world": ""},
        {"world": "from rescind.core.clock import Clock", "clock": ""},
        {
            "world": "import rescind.core.holdings",
            "holdings": "import rescind.core.records",
            "records": "",
        },
        {"state": "def f():\n    import pandas"},
        {"fused": "def f():\n    from rescind import kernels", "kernels": "import numba"},
        {"state": "import torch, numpy, json\nfrom torch import Tensor"},
        {"models__mf": "import scipy"},
        {"data__a": "from rescind.data import b", "data__b": "", "data____init__": ""},
    ],
)
def test_what_is_allowed_is_not_reported(tmp_path, sources):
    assert violations(house(tmp_path, **sources)) == []


def test_the_else_of_a_type_check_is_read(tmp_path):
    source = "if TYPE_CHECKING:\n    pass\nelse:\n    import rescind.core.world"
    assert len(violations(house(tmp_path, clock=source, world=""))) == 1
