"""Strangers enter with one file; a line that was changed is found."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rescind.cli.life import _play
from rescind.data.arrays import Ints
from rescind.errors import ConfigError, DataError
from rescind.life import find as finding
from rescind.life import lines
from rescind.life.adapters import Refit
from rescind.life.cells import Job, cells_of, file_of, run_job
from rescind.life.find import file_digest, find
from rescind.life.lines import Cell, run_cell, verify
from rescind.life.run import play, setting_of
from rescind.life.story import Story

MINE = '''
"""How often an item was chosen: a method in one file."""

import numpy as np

from rescind.life import Entry


class Counts(Entry):
    exact = True
    counts = None

    def arrive(self, arrival):
        new = np.bincount(arrival.item, minlength=self.setting.items)
        self.counts = new if self.counts is None else self.counts + new

    def forget(self, asked):
        if asked.kind != "unshare":
            self.counts = self.counts - np.bincount(asked.item, minlength=self.setting.items)

    def scores(self, users, histories):
        return np.tile(self.counts, (len(users), 1))

    def digest(self):
        return str(self.counts.tolist())
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "counts.py"
    path.write_text(MINE, encoding="utf-8")
    return path


@pytest.fixture
def line(mine: Path, story: Story) -> dict[str, Any]:
    return json.loads(json.dumps(run_cell(Cell(str(mine), "synthetic", blocks=4), story)))


def checked(line: dict[str, Any], mine: Path, story: Story) -> list[str]:
    return verify(json.dumps(line), str(mine), story)


def test_a_file_enters_and_its_line_is_verified(
    line: dict[str, Any], mine: Path, story: Story
) -> None:
    assert line["summary"]["equal"] == line["summary"]["steps"]
    assert line["file"] == "counts.py"
    assert checked(line, mine, story) == []


def better(line: dict[str, Any]) -> None:
    line["measured"][1]["new"]["NDCG@20"] += 0.1


def better_and_sealed(line: dict[str, Any]) -> None:
    better(line)
    line["outcome"] = lines.outcome_digest(line["measured"])
    line["summary"] = lines.summary.of(line["measured"])


def better_summary(line: dict[str, Any]) -> None:
    line["summary"]["new"] = 0.9


def other_story(line: dict[str, Any]) -> None:
    line["story"] = "sha256:0"


def other_code(line: dict[str, Any]) -> None:
    line["code"] = "sha256:0"


def other_settings(line: dict[str, Any]) -> None:
    line["settings"]["name"] = "Other"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (better, "outcome"),
        (better_and_sealed, r"measured\[1\].new.NDCG@20"),
        (better_summary, "summary"),
        (other_story, "story"),
        (other_code, "code"),
        (other_settings, "settings"),
    ],
)
def test_a_changed_line_is_found(
    line: dict[str, Any], mine: Path, story: Story, change: Any, found: str
) -> None:
    change(line)
    wrong = checked(line, mine, story)
    assert wrong
    assert re.search(found, wrong[0]), wrong


def test_changed_code_is_found(line: dict[str, Any], mine: Path, story: Story) -> None:
    mine.write_text(MINE.replace("self.counts - np", "self.counts - 0 * np"), encoding="utf-8")
    assert any(said.startswith("code") for said in checked(line, mine, story))


def test_what_is_no_line_is_refused(line: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="not a result line"):
        verify("{")
    del line["story"]
    with pytest.raises(DataError, match="no story"):
        verify(json.dumps(line))


def test_the_file_is_asked_for(line: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--method counts\.py"):
        verify(json.dumps(line))


# -- who can enter -------------------------------------------------------------------------------


def test_unknown_names_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no method 'Gramm'") as refused:
        find("Gramm")
    (tmp_path / "known.py").write_text(str(refused.value).rpartition(": ")[2] + "\n")
    assert find(str(tmp_path / "known.py")).name == "known", "what it says can be done"
    with pytest.raises(ConfigError, match="no file"):
        find(str(tmp_path / "none.py"))
    (tmp_path / "two.py").write_text("class A:\n fit=1\nclass B:\n fit=1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="found A, B"):
        find(str(tmp_path / "two.py"))
    (tmp_path / "bad.py").write_text("import nowhere_at_all", encoding="utf-8")
    with pytest.raises(ConfigError, match="nowhere_at_all"):
        find(str(tmp_path / "bad.py"))


def test_an_installed_package_is_found(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "counts"

        def load(self) -> Any:
            return finding._chosen(finding._module(mine), str(mine))

    monkeypatch.setattr(finding, "entry_points", lambda group: [Point()] * (group == finding.GROUP))
    assert find("counts").name == "counts"
    assert find("counts").code == find(str(mine)).code


def test_a_method_of_rescind_enters_by_retraining(tmp_path: Path, story: Story) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\nimport rescind as rs\n\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(rs.methods.FedAvg):\n    epochs: int = 2\n",
        encoding="utf-8",
    )
    entry = find(str(path)).make(setting_of(story), 0)
    assert entry.settings()["learner"]["epochs"] == 2
    assert entry.exact


@pytest.mark.parametrize(("says", "rounds"), [("enough_rounds = 3", 3), ("pass", 20)])
def test_a_file_says_how_many_rounds_are_enough_and_its_line_and_check_take_no_more(
    tmp_path: Path, story: Story, says: str, rounds: int
) -> None:
    path = tmp_path / f"says_{rounds}.py"
    path.write_text(
        "import rescind as rs\n\n"
        f"class Mine(rs.methods.FedAvg):\n    {says}\n\n"
        "ENTRY = Mine(model=rs.models.MF(dim=2), clients_per_round=16)\n",
        encoding="utf-8",
    )
    assert find(str(path)).make(setting_of(story), 0).settings()["rounds"] == rounds
    if rounds == 20:  # the control: the usual number, which takes long to play
        return
    line = run_cell(Cell(str(path), "synthetic", blocks=4), story)
    assert [block["learn"]["rounds"] for block in line["measured"]] == [3] * 4
    assert line["settings"]["rounds"] == 3
    text = json.dumps(line)
    assert verify(text, str(path), story) == []
    path.write_text(path.read_text().replace("= 3", "= 4"), encoding="utf-8")
    assert verify(text, str(path), story), "other rounds are another file"


class Fake:
    """A model as in implicit: fits a matrix, recommends lists."""

    fitted: ClassVar[list[int]] = []

    def fit(self, user_items: Any) -> None:
        self.counts = np.asarray(user_items.sum(0)).ravel()
        Fake.fitted.append(int(user_items.nnz))

    def recommend(
        self, userid: Ints, user_items: Any, N: int, filter_already_liked_items: bool
    ) -> tuple[Any, Any]:
        order = np.argsort(-self.counts, kind="stable")[:N]
        people = len(userid)
        return np.tile(order, (people, 1)), np.tile(self.counts[order], (people, 1))


def test_any_model_with_fit_and_recommend_enters_and_is_fitted_again(story: Story) -> None:
    Fake.fitted.clear()
    setting = setting_of(story)
    facts = play(story, lambda seed: Refit(setting, seed, Fake), 0)
    assert all(step["equal"] for block in facts for step in block["steps"])
    assert min(np.diff(Fake.fitted)) < 0  # less data after a request


def test_a_model_that_lists_some_items_only_ranks_the_others_last(story: Story) -> None:
    class Few(Fake):
        def recommend(self, *given: Any, **more: Any) -> tuple[Any, Any]:
            items, scores = super().recommend(*given, **more)
            return items[:, :3], scores[:, :3]

    entry = Refit(setting_of(story), 0, Few)
    entry.relive(_first(story))
    none = np.zeros(0, dtype=np.int64)
    scores = entry.scores(np.array([0]), [(none, none)])[0]
    assert (np.sort(scores)[:-3] < np.sort(scores)[-3:].min()).all()


def _first(story: Story) -> Sequence[Any]:
    from rescind.life.ledger import Ledger

    ledger = Ledger()
    for step in story.of_block(0)[0]:
        for event in step.events:
            ledger.apply(event)
    return ledger.blocks()


# -- many cells ----------------------------------------------------------------------------------


def test_a_finished_cell_is_not_played_again(
    mine: Path, story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "story_of", lambda *_: story)
    (cell,) = cells_of(["synthetic"], [0], 4, [str(mine)])
    job = Job(cell, tmp_path / "out")
    run_job(job)
    written = file_of(job).read_bytes()
    mine.unlink()  # it could not be played again
    run_job(job)
    assert file_of(job).read_bytes() == written


def test_a_cell_is_played_again_after_its_file_was_edited(
    mine: Path, story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(lines, "story_of", lambda *_: story)
    (cell,) = cells_of(["synthetic"], [0], 4, [str(mine)])
    job = Job(cell, tmp_path / "out")

    def code_after_playing() -> tuple[str, bool]:
        _play([job])
        line = lines.read_line(file_of(job).read_text(encoding="utf-8"))
        return line["code"], "seed 0: finished before" in capsys.readouterr().err

    first, said = code_after_playing()
    assert not said
    assert code_after_playing() == (first, True), "the control: the same text"
    mine.write_text(mine.read_text() + "# edited\n")
    assert code_after_playing() == (file_digest(mine), False)
    assert file_digest(mine) != first
