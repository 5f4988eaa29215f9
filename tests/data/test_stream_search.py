"""The search over many settings at once trains as a run does."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from rescind.core.federation import Federation
from rescind.data import load
from rescind.data.blocks import arrange
from rescind.experiments.streams import Stream
from rescind.methods.continual.finetune import FineTune

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("stream_search", BENCH / "stream_search.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "stream_search", module)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def stream() -> Stream:
    # More than 102 positives of one person are several mini-batches.
    return Stream.of(arrange(load("synthetic", users=15, items=500, interactions=3500)), 0)


def test_rounds_of_the_first_block_are_those_of_a_run(search: ModuleType) -> None:
    whole = stream()
    assert int(whole.first.lot("own")[1].max()) > 102
    settings = [{"rate": 0.5, "prate": 2.0}, {"rate": 0.1, "prate": 0.5, "beta": 0.9}]
    found = search.Search(whole, 3, settings, "cpu")
    block, now, _ = found.begin(found.blocks[0])
    for turn in range(3):
        moved, people = found.local(block, now, found.clock.at(turn + 1))
        now = search.Model(found.blended(block, now.items + moved), people)
    ids = block.cohort.ids
    for number, one in enumerate(settings):
        method = FineTune(rate=one["rate"], private_rate=one["prate"])
        fed = Federation.start(whole.first, method, 3).run(3)
        assert_close(now.items[number], fed.now.state.public["item"], rtol=1e-4, atol=1e-6)
        assert_close(now.people[number], fed.now.vault.private["user"][ids], rtol=1e-4, atol=1e-6)


def test_every_knob_changes_what_a_later_block_learns(search: ModuleType) -> None:
    whole = stream()
    base = {"rate": 0.5, "prate": 2.0}
    knobs = [{**base, name: values[0]} for name, values in search.TRIED.items()]
    found = search.Search(whole, 3, [base, *knobs, {**base, "kd": 0.03, "kdown": 1.0}], "cpu")
    halves = found.run(rounds=3)
    assert [len(values) for values in halves] == [len(knobs) + 2] * 4
    for number, knob in enumerate(search.TRIED, 1):
        assert not torch.equal(found.items[0], found.items[number]), knob
    assert len(search.trials()) == 30 + 3 * (sum(map(len, search.TRIED.values())) + 4)


def test_the_page_says_what_the_search_found() -> None:
    path = BENCH.parent / "recipes" / "f3crec" / "search.jsonl"
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    page = (BENCH.parent / "docs" / "f3crec.md").read_text(encoding="utf-8")
    assert f"search over {len(found)} settings" in page

    def new(line: dict[str, Any]) -> float:
        return sum(line["halves"][1:]) / 3

    plain = max(new(line) for line in found if set(line["knobs"]) == {"rate", "prate"})
    assert "by more than three percent" in page
    assert plain < max(map(new, found)) < 1.03 * plain
    strong = [line for line in found if line["knobs"].get("kd") == 1]
    assert "strong\ndistillation was clearly worse" in page
    assert max(map(new, strong)) < 0.9 * plain
