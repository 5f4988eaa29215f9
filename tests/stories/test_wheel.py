"""An installed wheel is whole: it runs in an empty folder and writes nothing into the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Ended = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Build the wheel from a copy of the sources and install it into a folder."""
    pytest.importorskip("setuptools", minversion="77", reason="builds the wheel; in .[dev]")
    tree, target = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("site")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("src", "recipes"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tree / name, ignore=ignore)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "wheel", *alone, "--wheel-dir", target, tree], check=True)
    (wheel,) = target.glob("*.whl")
    site = target / "site"
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", site, wheel], check=True
    )
    return site


@pytest.fixture
def rescind(installed, tmp_path) -> Callable[..., Ended]:
    """Run a command of the installed package in an empty folder."""
    here = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    here["NUMBA_CACHE_DIR"] = str(tmp_path.with_name("numba"))

    def call(*words: str, module: str = "rescind.cli") -> Ended:
        command = [sys.executable, "-m", module, *words]
        return subprocess.run(
            command, cwd=tmp_path, env=here, capture_output=True, text=True, check=False
        )

    return call


def digests(site: Path) -> dict[str, str]:
    packages = (site / "rescind", site / "rescind_papers")
    files = [p for package in packages for p in package.rglob("*") if p.is_file()]
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_wheel_has_every_file_of_both_packages_and_every_recipe(installed):
    def files(folder: Path) -> set[Path]:
        found = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
        return {p for p in found if "__pycache__" not in p.parts}

    recipes = files(installed / "rescind" / "recipes")
    assert recipes == files(ROOT / "recipes")
    for package in ("rescind", "rescind_papers"):
        there = {p for p in files(installed / package) if p.parts[0] != "recipes"}
        assert there == files(ROOT / "src" / package)


@pytest.mark.slow
def test_commands_work_in_an_empty_folder_and_change_nothing_in_the_package(
    rescind, installed, tmp_path
):
    before = digests(installed)
    table = rescind("table", "basics/floor")
    assert "ml-100k/FedAvg" in table.stdout, table.stderr
    assert "±" in table.stdout, "the recorded results come with the recipe"
    listed = rescind("reproduce", "--list")
    assert "fedshare/table3" in listed.stdout, listed.stderr
    assert rescind("verify", "--help").returncode == 0
    data = ("data.name=synthetic", "data.users=40", "data.items=30", "data.interactions=600")
    small = [word for text in (*data, "run.rounds=2", "seed=0") for word in ("--set", text)]
    ran = rescind("run", "fedshare/table3", "--cell", "ml-1m/FedShare", *small)
    assert ran.returncode == 0, ran.stderr
    assert "Not recorded" in ran.stdout
    plain = ("run", "basics/floor", "--cell", "ml-100k/Popularity", "--set", "seed=0")
    refused = rescind(*plain, "--record")
    assert refused.returncode == 2
    assert "part of the installed package" in refused.stderr
    demo = rescind("demo", "--synthetic", "--rounds", "10")
    assert demo.returncode == 0, demo.stderr
    assert rescind("verify", "runs/demo/receipt.json").stdout.startswith("VALID")
    pages = rescind("--all", module="rescind_papers.pages")
    assert pages.returncode == 2
    assert "checkout" in pages.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert digests(installed) == before


def test_help_names_and_receipts_need_no_torch_in_the_package(rescind, installed, tmp_path):
    look = tmp_path / "look.py"
    look.write_text(
        "import sys, rescind\n"
        "from pathlib import Path\n"
        "from typer.testing import CliRunner\n"
        "from rescind.cli import app\n"
        "Path('receipt.json').write_text('{}')\n"
        "for words in (['--help'], ['verify', 'receipt.json'], ['run', 'basics/flor']):\n"
        "    CliRunner().invoke(app, words)\n"
        "    assert 'torch' not in sys.modules, words\n"
        "print(rescind.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, look], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed))
