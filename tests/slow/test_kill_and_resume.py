"""kill -9 at twenty moments and at every touch of the disk: the same bits come out."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from killing import (
    PATIENCE,
    RECIPE,
    TWO_CELLS,
    Nursery,
    Yardstick,
    command,
    die_and_resume,
    lines,
    nursery,
    strike,
    touches,
)

pytestmark = pytest.mark.slow

# The run stops no sooner than round 14, since it has a patience of 12 rounds.
SIGNS = [
    *["begin 0"] * 4,
    *[f"line {n}" for n in (2, 4, 6, 8, 10, 12)],
    *[f"line {n}" for n in (2, 4, 6, 8, 10, 12)],
    *[f"file {n}" for n in (3, 6, 9, 12)],
]
# A little after each sign; multiples of the golden ratio spread evenly without a generator.
MOMENTS = [(sign, round(n * 0.6180339887 % 1 * 0.04, 4)) for n, sign in enumerate(SIGNS, 1)]


@pytest.fixture(scope="module")
def nurse(tmp_path_factory) -> Iterator[Nursery]:
    with nursery(tmp_path_factory.mktemp("here")) as it:
        (it.here / "long.toml").write_text(RECIPE)
        (it.here / "two.toml").write_text(TWO_CELLS)
        yield it


@pytest.fixture(scope="module")
def whole(nurse: Nursery) -> Yardstick:
    assert nurse.run("run", "long.toml", "--record", "--out", "whole").code == 0
    facts = json.loads((nurse.here / "whole" / "run.json").read_text())
    assert (
        facts["round"] < facts["rounds"] < 200
    )  # it stopped early, at a later round than its best
    return Yardstick(nurse.here / "whole", (".",))


@pytest.fixture(scope="module")
def book(nurse: Nursery) -> list[tuple[str, str]]:
    return touches(nurse, ["run", "two.toml", "--record"], "pair")


@pytest.fixture(scope="module")
def pair(nurse: Nursery, book: list[tuple[str, str]]) -> Yardstick:
    return Yardstick(nurse.here / "pair", ("two/seed-0", "two/seed-1"))


def killed(here: Path, words: list[str], sign: str, offset: float) -> bool:
    """Start the command and kill it; False if it was faster than the kill."""
    process = command(here, *words)
    strike(here, process.pid, sign, offset, lambda: process.poll() is None)
    return process.wait(timeout=PATIENCE) == -signal.SIGKILL


@pytest.mark.parametrize(("sign", "offset"), MOMENTS)
def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(whole, tmp_path, sign, offset):
    (tmp_path / "long.toml").write_text(RECIPE)
    words = ["run", "long.toml", "--record", "--out", "cut"]
    assert killed(tmp_path, words, sign, offset)
    if sign in ("line 4", "line 8"):  # and once more, in the second life
        again = f"line {int(sign.split()[1]) + 2}"
        assert killed(tmp_path, [*words, "--resume"], again, offset / 2)
    last = command(tmp_path, *words, "--resume")
    assert last.wait(timeout=PATIENCE) == 0
    whole.same(tmp_path / "cut")
    assert lines(tmp_path / "long.toml") == [("long", 0)]


def test_a_run_killed_at_every_touch_of_the_disk_resumes_to_the_same_bits(nurse, pair, book):
    recipe = nurse.here / "two.toml"
    deaths = [(n, "before") for n in range(1, len(book) + 1)]
    deaths += [(n, "half") for n, (kind, _) in enumerate(book, 1) if kind == "write"]
    deaths += [(len(book), "after")]
    for at, how in deaths:
        struck, _ = die_and_resume(nurse, pair, recipe, at, how)
        assert struck.code == -signal.SIGKILL, (at, how, book[at - 1])
    beyond, _ = die_and_resume(nurse, pair, recipe, len(book) + 1, "before")
    assert beyond.code == 0
    print(f"{len(deaths)} deaths at {len(book)} touches")


@pytest.mark.parametrize("second", [5, 13, 21, 29])
def test_a_run_killed_twice_at_touches_of_the_disk_resumes_to_the_same_bits(
    nurse, pair, book, second
):
    recipe = nurse.here / "two.toml"
    words = ["run", recipe.name, "--record", "--out", "twice"]
    for first in range(3, len(book) // 2, 6):
        shutil.rmtree(nurse.here / "twice", ignore_errors=True)
        recipe.with_suffix(".jsonl").unlink(missing_ok=True)
        assert nurse.run(*words, at=first, how="before").code == -signal.SIGKILL
        nurse.run(*words, "--resume", at=second, how="half")
        assert nurse.run(*words, "--resume").code == 0
        pair.same(nurse.here / "twice")
        assert lines(recipe) == [("two", 0), ("two", 1)]


def test_a_full_disk_at_every_touch_is_a_clear_error_and_the_run_resumes(nurse, pair, book):
    recipe = nurse.here / "two.toml"
    tried = 0
    for at, (kind, path) in enumerate(book, 1):
        if kind not in ("mkdir", "open", "write", "sync", "replace"):
            continue
        struck, _ = die_and_resume(nurse, pair, recipe, at, "full")
        assert struck.code == 2, (at, kind, path, struck.said)
        assert "No space left on device" in struck.err
        assert "Traceback" not in struck.said
        tried += 1
    print(f"{tried} touches met a full disk")
