"""Result lines: what was run, with digests of code, data, story and settings, and what came out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from rescind.data import Dataset
from rescind.errors import ConfigError, DataError
from rescind.life import summary
from rescind.life.authors import write_story
from rescind.life.entry import Entry
from rescind.life.find import Found, find
from rescind.life.nodes_story import write_node_story
from rescind.life.run import Facts, Progress, play, setting_of
from rescind.life.story import Story
from rescind.storage.provenance import versions

FIELDS = ("row", "dataset", "task", "seed", "blocks", "story", "data", "code", "settings",
          "outcome", "measured", "summary")  # fmt: skip
SAME = 0.005
"""Metrics and shares may differ by this much between two kinds of processor, where the last bits of
a sum differ. On one kind they are equal."""
CHANGES = ("cpu",)
"""Names of what differs between two runs on the same machine."""


@dataclass(frozen=True)
class Cell:
    """One row of the table with one seed."""

    row: str
    """The name of a row, of an installed method, or a Python file."""
    dataset: str = "ml-100k"
    task: str = "ranking"
    seed: int = 0
    blocks: int = 12

    @property
    def name(self) -> str:
        task = "" if self.task == "ranking" else f" {self.task}"
        return f"{self.dataset}{task}/{self.row}"


@lru_cache(maxsize=8)
def story_of(dataset: str, task: str, seed: int, blocks: int) -> Story:
    """Return the story of a dataset; made once in a process."""
    from rescind.data import load

    data = load(dataset)
    if not isinstance(data, Dataset):
        if task != "nodes":
            raise DataError(f"'{dataset}' is a graph, whose task is 'nodes'; got '{task}'.")
        return write_node_story(data, seed, blocks)
    return write_story(data, seed, blocks, task)


def run_cell(cell: Cell, story: Story | None = None, progress: Progress = lambda *_: None) -> Facts:
    """Play one cell and return its result line."""
    found = find(cell.row, cell.task)
    story = story or story_of(cell.dataset, cell.task, cell.seed, cell.blocks)
    setting = setting_of(story)
    spare = found.spare
    measured = play(
        story,
        lambda seed: found.make(setting, seed),
        cell.seed,
        progress,
        None if spare is None else lambda seed: spare(setting, seed),
    )
    return line_of(cell, story, found, found.make(setting, cell.seed), measured)


def line_of(
    cell: Cell, story: Story, found: Found, entry: Entry, measured: Sequence[Facts]
) -> Facts:
    """Return the result line of a cell."""
    return {
        "row": found.name,
        "dataset": cell.dataset,
        "task": cell.task,
        "seed": cell.seed,
        "blocks": cell.blocks,
        "story": story.digest,
        "data": story.about["data"],
        "code": found.code,
        **({"file": found.file.name} if found.file else {}),
        "settings": entry.settings(),
        "exact": entry.exact,
        "outcome": outcome_digest(measured),
        "measured": list(measured),
        "summary": summary.of(measured),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def outcome_digest(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return a digest of what was measured, without times."""
    text = json.dumps(_timeless(measured), sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(n): _timeless(v) for n, v in value.items() if n not in CHANGES}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_timeless(v) for v in value]
    return value


def read_line(text: str) -> Facts:
    """Return a result line; raise `DataError` if it is none."""
    try:
        line = json.loads(text)
        missing = [name for name in FIELDS if name not in line]
    except (ValueError, TypeError) as error:
        raise DataError(f"not a result line ({error}). Give one line of JSON.") from None
    if missing:
        raise DataError(
            f"not a result line: it has no {', '.join(missing)}. Give one that rescind life wrote."
        )
    return line


def verify(text: str, file: str | None = None, story: Story | None = None) -> list[str]:
    """Run a result line again. Return what is wrong with it; nothing if all is right.

    First the line itself is checked: its digest and summary must follow from what it says was
    measured. Then the cell runs again, and everything but times is compared.

    file: the Python file of the method, if it is a stranger's    story: default: made from the seed
    """
    line = read_line(text)
    wrong = list(_inside(line))
    about = {name: line[name] for name in ("dataset", "task", "seed", "blocks")}
    cell = Cell(_named(line, file), **about)
    found = find(cell.row, cell.task)
    story = story or story_of(cell.dataset, cell.task, cell.seed, cell.blocks)
    for name, mine in {"story": story.digest, "data": story.about["data"]}.items():
        if line[name] != mine:
            wrong.append(f"{name}: the line says {line[name]}, here it is {mine}")
    if line["code"] != found.code and not found.ours:
        wrong.append(f"code: the line says {line['code']}, the file has {found.code}")
    settings = found.make(setting_of(story), cell.seed).settings()
    if json.loads(json.dumps(settings)) != line["settings"]:
        wrong.append(f"settings: the line says {line['settings']}, here they are {settings}")
    if wrong:  # a run could not be compared
        return wrong
    again = run_cell(cell, story)
    return list(differences(_timeless(line["measured"]), _timeless(again["measured"])))


def _named(line: Facts, file: str | None) -> str:
    """Return what to run: a name, or the file of a stranger's method."""
    needed = line.get("file")
    if needed and file is None:
        raise ConfigError(f"this line is of the file {needed}. Give it, too: --method {needed}")
    return str(file or line["row"])


def _inside(line: Facts) -> Iterator[str]:
    if outcome_digest(line["measured"]) != line["outcome"]:
        yield "outcome: the digest does not fit what was measured; the line was changed"
    stated = json.loads(json.dumps(summary.of(line["measured"])))
    for name, value in _timeless(stated).items():
        if _timeless(line["summary"]).get(name) != value:
            yield f"summary: {name} is {line['summary'].get(name)}, from the blocks it is {value}"


def differences(one: Any, two: Any, where: str = "measured") -> Iterator[str]:
    """Yield where two results differ by more than the last bits."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for name in sorted({*one, *two}):
            yield from differences(one.get(name), two.get(name), f"{where}.{name}")
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for number, (a, b) in enumerate(zip(one, two, strict=True)):
            yield from differences(a, b, f"{where}[{number}]")
    elif isinstance(one, float) and isinstance(two, float | int):
        if not math.isclose(one, two, rel_tol=SAME, abs_tol=SAME):
            yield f"{where}: the line says {one}, the run gave {two}"
    elif one != two:
        yield f"{where}: the line says {one}, the run gave {two}"
