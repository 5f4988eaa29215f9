"""Progress bars, with a known total and without one."""

from __future__ import annotations

import math
import sys
from time import monotonic
from types import SimpleNamespace

import pytest

import rescind as rs
from rescind.cli import progress
from rescind.core import doing
from rescind.core.words import count_of
from rescind.demo import story
from rescind.reporting.progress import RoundBar
from rescind.storage.federations import save_federation


def result(round_: int) -> SimpleNamespace:
    return SimpleNamespace(now=SimpleNamespace(state=SimpleNamespace(round=round_)), until=None)


def test_a_run_that_resumes_tells_no_measurement_that_was_told_before(capsys):
    seen = [(10, {"NDCG@20": 0.1}), (20, {"NDCG@20": 0.2})]
    with RoundBar("learning", 1) as bar:
        for round_ in (11, 12, 20, 21):
            measured = SimpleNamespace(history=tuple(each for each in seen if each[0] <= round_))
            bar(SimpleNamespace(now=result(round_).now, until=measured))
    told = capsys.readouterr().err.splitlines()
    assert told == ["learning: 1 round", "  round 20: valid NDCG@20 0.2000"]


def test_a_measurement_that_is_not_a_number_is_not_shown(capsys):
    with RoundBar("learning", 2) as bar:
        for round_, value in ((1, math.nan), (2, 0.2)):
            measured = SimpleNamespace(history=((round_, {"NDCG@20": value}),))
            bar(SimpleNamespace(now=result(round_).now, until=measured))
    told = capsys.readouterr().err.splitlines()
    assert told == ["learning: 2 rounds", "  round 2: valid NDCG@20 0.2000"]


def test_one_is_singular():
    numbers = (0, 1, 1500, "10-100")
    assert [count_of(n, "line") for n in numbers] == [
        "0 lines", "1 line", "1,500 lines", "10-100 lines",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rounds", "text", "done"),
    [(152, "forgetting: 152 rounds", 152), (None, "forgetting", 2)],
)
def test_a_bar_shows_the_round_or_counts_calls(capsys, rounds, text, done):
    """An unlearner continues from round 150, with or without a known total."""
    with RoundBar("forgetting", rounds) as bar:
        for round_ in (151, 152):
            bar(result(round_))
    (task,) = bar.bar.tasks
    assert (task.completed, task.total) == (done, rounds)
    assert capsys.readouterr().err.strip() == text


def test_without_a_terminal_a_line_tells_what_goes_on_and_how_long_it_takes(capsys):
    with RoundBar("learning", 10) as bar:
        bar.begun = 100.0
        assert bar.told(112.0) == "the first round, which also compiles: 12 s so far"
        bar.calls, bar.at = 1, 1
        bar.pace.reached(1, 115.0)
        assert bar.told(120.0) == "round 1 of 10", "the first round compiles: no estimate yet"
        bar.calls, bar.at = 3, 3
        bar.pace.reached(3, 125.0)
        assert bar.told(125.0) == "round 3 of 10, about 35 s left"  # 2 rounds took 10 s
        bar.calls, bar.at, bar.latest = 10, 10, 150.0
        assert bar.told(160.0) == "evaluating and saving: 10 s so far", "not since the start"
        bar.calls, bar.at = 12, 12  # rounds that are made again, to forget
        assert bar.told(170.0) == "round 12: 70 s so far", "of no number: there are more"


def test_an_estimate_is_of_recent_units_and_never_grows_while_one_goes_on():
    pace = doing.Pace()
    assert pace.left(100, 0.0) is None
    pace.reached(1, 60.0)  # it also compiled
    assert pace.left(100, 61.0) is None
    pace.reached(2, 62.0)
    assert pace.left(100, 62.0) == 98 * 2.0, "the first minute does not count"
    told = [pace.left(100, 62.0 + passed) for passed in (0, 1, 2, 30)]
    assert told == [196.0, 195.0, 194.0, 194.0], "a slow unit lets it stand still"
    for done in range(3, 40):
        pace.reached(done, 62.0 + 5.0 * done)
    assert pace.left(100, 62.0 + 5.0 * 39) == 61 * 5.0, "only the last twenty count"
    pace.reached(100, 600.0)
    assert pace.left(100, 601.0) is None, "nothing is left"


def test_a_bar_names_the_step_that_is_going_on(capsys):
    with RoundBar("learning", 1) as bar:
        assert bar.told(bar.begun).startswith("the first round"), "the control"
        with doing.step("solving 12,517 x 12,517", seconds=59) as solving:
            told = bar.told(solving.begun + 20)
            assert told == "solving 12,517 x 12,517: 20 s so far, about 59 CPU s in all"
            with doing.step("training models for the audit", 5, "models", done=1) as audit:
                assert bar.told(audit.begun + 4).endswith("1 of 5 models, 4 s so far")
                audit.reach(3, audit.begun + 20)
                told = bar.told(audit.begun + 20)
                assert told == "training models for the audit: 3 of 5 models, about 20 s left"
            assert doing.now() is solving
        assert doing.now() is None


def test_long_steps_say_what_they_are(monkeypatch, tmp_path, tiny):
    said: list[doing.Step] = []
    real = doing.Step.__init__

    def noted(self, *given, **named):
        real(self, *given, **named)
        said.append(self)

    monkeypatch.setattr(doing.Step, "__init__", noted)
    fed = rs.Federation.start(tiny, rs.methods.Gram()).run(1)
    fed.evaluate("test")
    save_federation(fed, tmp_path / "model")
    rs.Federation.start(tiny, rs.methods.LocalGram()).run(1)
    told = [one.what for one in said]
    items = fed.world.sizes.items
    assert f"solving {items} x {items}" in told
    assert "saving the model (0 MB)" in told
    assert told.count("adding what users have to the sum, and solving") == 2, "Gram and LocalGram"
    near = next(one for one in said if one.what == "solving for the neighbours of each item")
    assert near.done == near.total > 0
    users = next(one for one in said if one.what == "evaluating on test")
    assert users.done == users.total == int(fed.world.members.sum())


def heard(capsys, words: str) -> str:
    """Return what was said on stderr until these words were there, or for a minute."""
    said, until = "", monotonic() + 60
    while words not in said and monotonic() < until:
        said += capsys.readouterr().err
    return said


def test_a_step_of_unknown_length_is_told_again_and_again(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.001)
    with progress.working("reading") as say:
        say("still reading")
        assert "still reading: " in heard(capsys, "still reading: ")


@pytest.mark.parametrize("terminal", [True, False])
def test_work_that_counts_its_parts_is_told_with_a_fraction_and_an_estimate(
    capsys, monkeypatch, terminal
):
    for name in ("EVERY", "EACH"):
        monkeypatch.setattr(progress, name, 0.001)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with progress.working("audit"), doing.step("asking", 40, "answers") as asking:
        asking.reach(10)
        words = "audit: asking: 10 of 40 answers, about 0 s left"
        assert words in heard(capsys, words)
        asking.reach(40)
        assert "40 of 40 answers" in heard(capsys, "40 of 40 answers")


def test_the_demo_calls_its_audit_by_name(monkeypatch, tmp_path):
    told: list[str] = []

    def bar(*_, after="evaluating and saving"):
        told.append(after)
        raise KeyboardInterrupt  # before anything is trained again

    data = rs.load("synthetic", users=60, items=50, interactions=1200)
    learnt = [
        rs.simulate_lending(rs.Federation.start(data, method)).run(1)
        for method in (rs.methods.FedShare(model=rs.models.MF(dim=2)), rs.methods.Gram())
    ]
    monkeypatch.setattr(story, "RoundBar", bar)
    with pytest.raises(KeyboardInterrupt):
        story.take_back(*learnt, data.digest, tmp_path)
    assert told == ["auditing (trains models to compare)"]
