"""The message that names other runs which still have what a request was about."""

from __future__ import annotations

from pathlib import Path

from rescind.experiments.other_runs import others_told


def test_many_other_runs_are_folded_by_folder_and_none_is_left_out() -> None:
    grid = [Path(f"grid/Gram/seed-{n}") for n in range(20)]
    grid += [Path(f"grid/EASE/seed-{n}") for n in range(12)]
    first, *lines = others_told([*grid, Path("runs/alone")]).splitlines()
    assert first.startswith("33 other runs on this data still have some of it. Answer there, too")
    seeds = [", ".join(f"seed-{n}" for n in range(count)) for count in (20, 12)]
    assert lines == [
        f"  20 in grid/Gram: {seeds[0]}",
        f"  12 in grid/EASE: {seeds[1]}",
        "  runs/alone",
    ]


def test_a_few_other_runs_have_a_line_each() -> None:
    few = [Path(f"runs/{n}") for n in range(10)]
    assert others_told(few).splitlines()[1:] == [f"  {run}" for run in few]
    assert others_told(few[:1]).endswith("Answer there, too, or delete it: runs/0")
