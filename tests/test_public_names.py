"""What users import: one list, another for authors of methods, and stubs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rescind as rs
from rescind import core
from rescind_papers.stubs import stubs

ROOT = Path(__file__).parents[1]
NAMED_IN_THE_PLAN = {
    "audit", "verify", "Report", "Stream", "run_stream", "Clip", "Gaussian", "Laplace", "Dataset",
    "import_file", "simulate_lending", "forget", "load", "Federation", "methods",
}  # fmt: skip


@pytest.mark.parametrize("module", [rs, core], ids=["rescind", "rescind.core"])
def test_every_public_name_is_there_and_listed(module):
    assert sorted(module.__all__) == dir(module)
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_what_the_pages_use_is_public():
    assert set(rs.__all__) >= NAMED_IN_THE_PLAN
    used = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("notebooks/*")]:
        used |= set(re.findall(r"\brs\.([A-Za-z_]\w+)", page.read_text("utf-8")))
    assert used <= set(rs.__all__)


def test_notebooks_import_the_public_names_alone():
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
        imported = {n.module for n in ast.walk(ast.parse(code)) if isinstance(n, ast.ImportFrom)}
        assert {m for m in imported if m and m.startswith("rescind")} <= {"rescind", "rescind.core"}


def test_methods_list_themselves():
    assert {"FedShare", "Gram", "Retrain", "FedGCV", "F3CRec"} <= set(dir(rs.methods))
    assert {"MF", "LightGCN", "GCN"} <= set(dir(rs.models))
    with pytest.raises(AttributeError, match="there is no method 'FedShar'"):
        _ = rs.methods.FedShar


def test_stubs_are_those_of_today():
    for path, text in stubs().items():
        assert path.read_text("utf-8") == text, "stale; run: python -m rescind_papers.stubs"


@pytest.mark.slow
def test_a_setting_that_does_not_exist_fails_type_checks(tmp_path):
    script = tmp_path / "use.py"
    script.write_text(
        "import rescind as rs\nrs.methods.FedShare(rate=1.0)\nrs.methods.FedShare(nonsense=3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "--config-file", "", script],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if line.startswith(("use.py", str(script)))]
    assert len(errors) == 1
    assert 'Unexpected keyword argument "nonsense"' in errors[0]
