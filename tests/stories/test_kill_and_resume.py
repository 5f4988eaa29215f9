"""A run is killed, a disk fills up, a file is torn: what a person finds afterwards."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from killing import (
    PATIENCE,
    RECIPE,
    SHORT,
    TWO_CELLS,
    Nursery,
    Yardstick,
    command,
    die_and_resume,
    files,
    lines,
    nursery,
    outcome,
    saved,
    strike,
    touches,
)
from rescind.core import params
from rescind.errors import DataError
from rescind.experiments.learning_run import append_facts
from rescind.experiments.recipe import read
from rescind.storage.checkpoints import Checkpoints, resume
from rescind.storage.learning import settle
from rescind.storage.run_folder import check_finished


@pytest.fixture(scope="module")
def nurse(tmp_path_factory) -> Iterator[Nursery]:
    with nursery(tmp_path_factory.mktemp("here")) as it:
        for name, text in (("long", RECIPE), ("short", SHORT), ("two", TWO_CELLS)):
            (it.here / f"{name}.toml").write_text(text)
        yield it


@pytest.fixture(scope="module")
def long(nurse: Nursery) -> Yardstick:
    assert nurse.run("run", "long.toml", "--record", "--out", "whole-long").code == 0
    facts = json.loads((nurse.here / "whole-long" / "run.json").read_text())
    assert (
        facts["round"] < facts["rounds"] < 200
    )  # it stopped early, at a later round than its best
    return Yardstick(nurse.here / "whole-long", (".",))


@pytest.fixture(scope="module")
def book(nurse: Nursery) -> list[tuple[str, str]]:
    return touches(nurse, ["run", "short.toml", "--record"], "whole")


@pytest.fixture(scope="module")
def whole(nurse: Nursery, book: list[tuple[str, str]]) -> Yardstick:
    return Yardstick(nurse.here / "whole", (".",))


@pytest.fixture
def cut(nurse: Nursery) -> Path:
    """An empty place for a run that will be cut off."""
    shutil.rmtree(nurse.here / "cut", ignore_errors=True)
    (nurse.here / "short.jsonl").unlink(missing_ok=True)
    return nurse.here / "cut"


def place(book: list[tuple[str, str]], kind: str, part: str, which: int = 0) -> int:
    """The number of a touch of this kind, of a path with this part."""
    found = [n for n, (k, path) in enumerate(book, 1) if k == kind and part in path]
    return found[which]


WORDS = ("run", "short.toml", "--record", "--out", "cut")


# -- killed ---------------------------------------------------------------------------------------


def test_the_command_killed_in_a_round_resumes_to_the_same_bits(long, tmp_path):
    (tmp_path / "long.toml").write_text(RECIPE)
    words = ["run", "long.toml", "--record", "--out", "cut"]
    process = command(tmp_path, *words)
    strike(tmp_path, process.pid, "line 8", 0.02, lambda: process.poll() is None)
    assert process.wait(timeout=PATIENCE) == -signal.SIGKILL
    assert command(tmp_path, *words, "--resume").wait(timeout=PATIENCE) == 0
    assert "going on after round" in (tmp_path / "stderr").read_text()
    long.same(tmp_path / "cut")
    assert lines(tmp_path / "long.toml") == [("long", 0)]


@pytest.mark.parametrize(("sign", "offset"), [("begin 0", 0.03), ("file 9", 0.01)])
def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(nurse, long, sign, offset):
    words = ["run", "long.toml", "--record", "--out", "cut-long"]
    shutil.rmtree(nurse.here / "cut-long", ignore_errors=True)
    strike(nurse.here / "cut-long", nurse.order(words), sign, offset, said=nurse.here / "stderr")
    assert nurse.wait().code == -signal.SIGKILL
    assert nurse.run(*words, "--resume").code == 0
    long.same(nurse.here / "cut-long")


SLOW = pytest.mark.slow  # a neighbour of a place that is always tried
DEATHS = [
    ("write", "checkpoints/", 0, "half"),
    ("replace", "checkpoints/", 1, "before"),
    pytest.param("replace", "model/devices/", 0, "before", marks=SLOW),
    ("replace", "server.safetensors", 0, "before"),
    ("write", ".learnt.json", 0, "half"),
    pytest.param("replace", "run.json", 0, "before", marks=SLOW),
    ("replace", "whole/model", 0, "before"),
    pytest.param("rmdir", "checkpoints", 0, "before", marks=SLOW),
    ("rmdir", ".learning", 0, "before"),
    pytest.param("open", ".jsonl", 0, "before", marks=SLOW),
    ("write", ".jsonl", 0, "half"),
]


@pytest.mark.parametrize(("kind", "part", "which", "how"), DEATHS)
def test_a_run_killed_at_a_touch_of_the_disk_resumes_to_the_same_bits(
    nurse, whole, book, kind, part, which, how
):
    at = place(book, kind, part, which)
    struck, _ = die_and_resume(nurse, whole, nurse.here / "short.toml", at, how)
    assert struck.code == -signal.SIGKILL


def test_a_table_killed_in_its_second_cell_goes_on_there_and_doubles_no_line(nurse):
    words = ["run", "two.toml", "--record", "--out", "pair"]
    book = touches(nurse, ["run", "two.toml", "--record"], "whole-pair")
    yard = Yardstick(nurse.here / "whole-pair", ("two/seed-0", "two/seed-1"))
    (nurse.here / "two.jsonl").unlink()
    middle = place(book, "replace", "seed-1/checkpoints/", 0)
    assert nurse.run(*words, at=middle, how="after").code == -signal.SIGKILL
    assert lines(nurse.here / "two.toml") == [("two", 0)]
    ended = nurse.run(*words, "--resume")
    assert "[1/2] two seed 0: finished before" in ended.err
    assert "going on after round 3" in ended.err
    assert nurse.run(*words, "--resume").err.count("finished before") == 2
    yard.same(nurse.here / "pair")
    assert lines(nurse.here / "two.toml") == [("two", 0), ("two", 1)]


# -- torn -----------------------------------------------------------------------------------------


def tear(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "zeroed":
        path.write_bytes(bytes(len(data)))
    elif how == "a value flipped":
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 16]) + data[-8:])
    else:  # a digit of a fact in the header, such as the bytes sent so far
        at = data.index(b'\\"up\\": ') + 8
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def two_checkpoints(nurse: Nursery, book: list[tuple[str, str]], cut: Path) -> list[Path]:
    """Kill a run after its second checkpoint."""
    at = place(book, "replace", "checkpoints/", 1)
    assert nurse.run(*WORDS, at=at, how="after").code == -signal.SIGKILL
    found = sorted((cut / "checkpoints").glob("round-*.safetensors"))
    assert len(found) == 2
    return found


@pytest.mark.parametrize("how", ["truncated", "zeroed", "a value flipped", "a fact flipped"])
def test_a_torn_checkpoint_is_named_and_the_one_before_is_used(nurse, whole, book, cut, how):
    older, newest = two_checkpoints(nurse, book, cut)
    tear(newest, how)
    ended = nurse.run(*WORDS, "--resume")
    assert ended.code == 0
    assert f"skipped a checkpoint: cut/checkpoints/{newest.name}" in ended.err
    assert f"going on after round {int(older.stem[-8:])}" in ended.err
    whole.same(cut)


def test_with_all_checkpoints_torn_a_run_starts_anew_and_says_so(nurse, whole, book, cut):
    for path in two_checkpoints(nurse, book, cut):
        tear(path, "truncated")
    ended = nurse.run(*WORDS, "--resume")
    assert ended.code == 0
    assert ended.err.count("skipped") == 2
    assert "starting from the beginning" in ended.err
    whole.same(cut)


def test_a_checkpoint_of_other_settings_is_refused_and_kept(nurse, whole, book, cut):
    two_checkpoints(nurse, book, cut)
    before = files(cut)
    other = [word for word in WORDS if word != "--record"]
    ended = nurse.run(*other, "--resume", "--set", "method.negatives=2")
    assert ended.code == 2
    assert "another run" in ended.err
    assert "Give the command without --resume" in ended.err
    assert "Traceback" not in ended.said
    assert files(cut) == before
    assert nurse.run(*WORDS, "--resume").code == 0
    whole.same(cut)


def test_any_flipped_byte_of_a_checkpoint_is_seen_or_harmless(tiny_fed, tmp_path):
    path = Checkpoints(tmp_path, every=1, key="run").write(tiny_fed.now, None)
    data = path.read_bytes()
    first = params.load(path)
    length = int.from_bytes(data[:8], "little") + 8
    seen = 0
    for at in [*range(0, length), *range(length, len(data), 101)]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            tensors, notes = params.load(path)
        except DataError:
            seen += 1
        else:  # such as a blank that became another: nothing that is read has changed
            assert (params.digest(tensors), notes) == (params.digest(first[0]), first[1])
    assert seen > 0.9 * length


def test_torn_checkpoints_of_later_rounds_do_not_crowd_out_whole_ones(tiny_fed, tmp_path):
    keep = Checkpoints(tmp_path, every=1, key="run")
    at = [replace(tiny_fed.now, state=replace(tiny_fed.now.state, round=n)) for n in range(8)]
    for number in (2, 7):
        keep.write(at[number], None)
    tear(tmp_path / "round-00000007.safetensors", "truncated")
    for number in (3, 4):
        keep.write(at[number], None)
    tear(tmp_path / "round-00000004.safetensors", "truncated")
    found = resume(tmp_path, "run", tiny_fed)
    assert found is not None
    assert found.now.state.round == 3


# -- never mixed ----------------------------------------------------------------------------------


OTHER = [*WORDS[:2], "--set", "method.temperature=0.3"]  # so another model


@pytest.fixture(scope="module")
def other(nurse: Nursery, whole: Yardstick) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """What a run of other settings touches in the folder of an older run, and its model."""
    shutil.copytree(whole.folder, nurse.here / "other")
    book = touches(nurse, OTHER, "other")
    return book, outcome(nurse.here / "other")["facts"]["model"]


NEW_FROM = "learnt.json"  # before it is written, the old run stands; then the new one


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param("replace", "checkpoints/", marks=SLOW),
        pytest.param("replace", "model/devices/", marks=SLOW),
        ("replace", "server.safetensors"),
        ("replace", NEW_FROM),
        pytest.param("unlink", "other/run.json", marks=SLOW),
        ("replace", "other/model"),
        ("replace", "other/run.json"),
    ],
)
def test_a_new_run_over_an_old_one_leaves_the_old_or_the_new(
    nurse, whole, other, cut, kind, name, how
):
    shutil.copytree(whole.folder, cut)
    book, model = other
    old = saved(cut)
    assert old not in (None, model)
    at = place(book, kind, name)
    assert nurse.run(*OTHER, "--out", "cut", at=at, how=how).code == -signal.SIGKILL
    settle(cut)  # as every command on a run does first
    new = at + (how == "after") > place(book, "replace", NEW_FROM)
    assert saved(cut) == (model if new else old)
    assert json.loads((cut / "run.json").read_text())["model"] == (model if new else old)
    check_finished(cut)
    assert nurse.run(*OTHER, "--out", "cut", "--resume").code == 0
    assert saved(cut) == model, "what is to be replaced is not taken for what was asked for"
    assert files(cut) == files(nurse.here / "other")


# -- no space -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "part"), [("write", "checkpoints/"), ("write", ".jsonl")])
def test_a_full_disk_is_a_clear_error_and_the_run_resumes(nurse, whole, book, kind, part):
    at = place(book, kind, part, -1)
    struck, _ = die_and_resume(nurse, whole, nurse.here / "short.toml", at, "full")
    assert struck.code == 2
    assert "No space left on device" in struck.err
    assert "Traceback" not in struck.said


def test_a_file_that_may_not_grow_leaves_the_old_checkpoint_as_it_was(nurse, whole, book, cut):
    at = place(book, "replace", "checkpoints/", 0)
    assert nurse.run(*WORDS, at=at, how="after").code == -signal.SIGKILL
    (old,) = (cut / "checkpoints").glob("round-*.safetensors")
    before = old.read_bytes()
    ended = nurse.run(*WORDS, "--resume", at=1000, how="limit")  # a checkpoint has some 20 kB
    assert ended.code == 2
    assert "File too large" in ended.err
    assert "Traceback" not in ended.said
    assert old.read_bytes() == before
    assert files(cut / "checkpoints") == [old.name]
    assert nurse.run(*WORDS, "--resume").code == 0
    whole.same(cut)


# -- lines of results -----------------------------------------------------------------------------


def test_a_line_is_added_once_and_a_torn_one_before_it_is_cleared_away(nurse, whole):
    recipe = read(nurse.here / "short.toml")
    facts = json.loads((whole.folder / "run.json").read_text())
    recipe.results.unlink(missing_ok=True)
    append_facts(recipe, facts)
    append_facts(recipe, facts)
    append_facts(recipe, {**facts, "seed": 1})
    text = recipe.results.read_text()
    recipe.results.write_text(text[:-40])  # the second line lost its end
    append_facts(recipe, {**facts, "seed": 1})
    assert recipe.results.read_text() == text
    recipe.results.write_text(text[:-1])  # only the end of the line is missing
    append_facts(recipe, {**facts, "seed": 1})
    assert recipe.results.read_text() == text
    edited = {**facts["versions"], "Mine": "mine.py sha256:0123"}
    append_facts(recipe, {**facts, "versions": edited})  # in the same second, by edited code
    assert len(recipe.results.read_text().splitlines()) == 3
