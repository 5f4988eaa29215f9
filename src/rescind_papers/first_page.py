"""The first page: four tasks, who does best at each, and what it costs to forget one contributor.

recipes/first_page.toml names the committed results that are compared. `bench/forgetting.py --first`
measures what forgetting costs.
"""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.errors import ConfigError
from rescind.experiments.recipe import Column
from rescind.experiments.table_forms import rows_as_markdown
from rescind.reporting import charts
from rescind_papers import costs, leaderboard
from rescind_papers.index import Shelf, finding, looked_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = "first_page.toml"
PICTURE = Path("docs/images/first-page.svg")
PAPERS, CENTRAL, OURS = "best of the papers", "centralised", "ours"
BARS = {PAPERS: ("papers", charts.ORANGE), CENTRAL: ("central", charts.GREY),
        OURS: ("ours", charts.BLUE)}  # fmt: skip
"""Name and colour in the picture."""


@dataclass(frozen=True)
class Shown:
    """One learner on one task."""

    label: str
    value: float
    spread: str = ""
    """Such as " ± 0.0012"; empty for one run."""
    place: str = ""
    """ "recipe: cell"; empty for a finding."""
    cost: costs.Cost = field(default_factory=lambda: costs.Cost(""))
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What the benchmark of forgetting measured."""

    @property
    def words(self) -> str:
        return f"{self.value:.4f}{self.spread} ({self.label})"


@dataclass(frozen=True)
class Task:
    """One task of the first page."""

    name: str
    data: str
    contributor: str
    measure: str
    by: Mapping[str, Shown]
    """The learners, by PAPERS, CENTRAL and OURS."""
    no_papers: str = ""
    """Why no method of the papers is shown."""
    reads: str = ""
    """What ours reads and the centralised learner does not."""
    plain: Shown | None = None
    """One of ours that reads what the centralised learner reads."""
    published: Sequence[Mapping[str, Any]] = ()


def tasks(shelf: Shelf) -> list[Task]:
    """Return the tasks with their numbers."""
    table = tomllib.loads((shelf.folder / FILE).read_text(encoding="utf-8"))
    ran = {f"{recipe}: {cell.name}": (cell, lines)
           for recipe, cell, lines in leaderboard.with_results(shelf)}  # fmt: skip
    known = costs.measured(shelf.folder)

    def best(patterns: Sequence[str], measure: str) -> Shown | None:
        wanted = dict.fromkeys(patterns, "")
        fit = [place for place in ran if looked_up(wanted, place)]
        found = [_shown(place, *ran[place], measure, known) for place in fit]
        return max(found, key=lambda shown: shown.value, default=None)

    out = []
    for one in table["task"]:
        by = {PAPERS: best(one.get("papers", ()), one["measure"]),
              CENTRAL: best(one.get("central", ()), one["measure"]),
              OURS: best([one["ours"]], one["measure"])}  # fmt: skip
        if "finding" in one:
            by[CENTRAL] = _found(shelf.folder, one["finding"], one["measure"])
        if by[OURS] is None:
            raise ConfigError(f"{FILE}: '{one['ours']}' has no results; run it, or name another.")
        said = [p for p in table["published"] if p["task"] == one["name"]]
        words = {k: one[k] for k in ("name", "data", "contributor", "measure")}
        words |= {k: one[k] for k in ("no_papers", "reads") if k in one}
        mine = {who: shown for who, shown in by.items() if shown is not None}
        plain = best([one["plain"]], one["measure"]) if "plain" in one else None
        out.append(Task(**words, by=mine, plain=plain, published=said))
    return out


def _shown(
    place: str, cell: Any, lines: Sequence[dict[str, Any]], measure: str, known: costs.Measured
) -> Shown:
    values = [v for v in map(Column(measure).of, lines) if isinstance(v, float | int)]
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    label = leaderboard.label(cell)
    shown = Shown(label, statistics.fmean(values), spread, place)
    cost = costs.cost_of(cell, lines, known)
    return replace(shown, cost=cost, measured=known.get(cell.digest, {}))


def _found(folder: Path, where: Mapping[str, Any], measure: str) -> Shown:
    """Return a row of a finding: the first that fits. A value may be text with its spread."""
    wanted = where.get("row", {}).items()
    row = next(r for r in finding(folder, where["name"]) if wanted <= r.items())
    mean, _, spread = str(row[measure]).partition(" ± ")
    return Shown(where["label"], float(mean), f" ± {spread}" if spread else "")


def places(shelf: Shelf) -> set[str]:
    """Return the "recipe: cell" of the papers' methods and of ours."""
    return {t.by[who].place for t in tasks(shelf) for who in (PAPERS, OURS) if who in t.by}


def markdown(shelf: Shelf) -> str:
    """Return the table, and the published numbers with their sources."""
    every = tasks(shelf)
    head = ["task", PAPERS, "best centralised", OURS]
    head += ["forget one: CPU ms", "devices online", "MB moved", "digest as never there"]
    rows = [[
        f"{t.name}: {t.data}, {t.measure}",
        *(t.by[who].words if who in t.by else "" for who in (PAPERS, CENTRAL)),
        t.by[OURS].words,
        *(_beside(t, n) for n in (1, 2, 3)),
        {True: "yes", False: "no", None: ""}[t.by[OURS].measured.get("as never there")],
    ] for t in every]  # fmt: skip
    notes = [
        "Costs: ours, and the papers' method in brackets. CPU ms: median of one thread until the "
        f"model can be asked again, solved anew (quartiles: {_spread(every)}).",
        "Graph: ours and the papers' after one of ten clients left; centralised: all edges in one "
        "place, nobody left.",
        *_other_inputs(every),
        f"Published for centralised learners: {_published(every)}.",
        *(f"Empty: {t.name}, {PAPERS}: {t.no_papers}." for t in every if t.no_papers),
    ]
    return "\n\n".join([rows_as_markdown([head, *rows]), " ".join(notes)])


def small(shelf: Shelf) -> str:
    """Return the table of README.md: few digits and few columns, so that it fits a phone."""
    every = tasks(shelf)
    head = ["task", "papers", "central", OURS, "forget one"]
    rows = [[
        f"{t.name}: {t.data}, {t.measure}",
        *(_digits(t, who) for who in (PAPERS, CENTRAL)),
        f"{_digits(t, OURS)} {t.by[OURS].label.partition(',')[0]}",
        _times_of(t),
    ] for t in every]  # fmt: skip
    notes = [
        "Papers, central: the best method of three papers, and the best that was run here with "
        "all data in one place.",
        *_other_inputs(every),
        "Forget one: CPU time until the model can be asked again (in brackets: of the papers' "
        "method).",
    ]
    if all(t.by[OURS].measured.get("as never there") for t in every):
        notes.append("Afterwards, our sum has the digest of one that never had the records.")
    return "\n\n".join([rows_as_markdown([head, *rows]), " ".join(notes)])


def _other_inputs(every: Sequence[Task]) -> list[str]:
    """Say where ours reads more than the centralised learner, and what it reaches without."""
    return [
        f"{t.name.capitalize()}: ours also reads {t.reads}; without, {t.plain.label} has "
        f"{t.plain.value:.4f}."
        for t in every
        if t.plain is not None
    ]


def _times_of(task: Task) -> str:
    """Return the time to forget of ours, and that of the papers' method in brackets."""
    theirs = task.by[PAPERS].cost.ms if PAPERS in task.by else None
    return _seconds(task.by[OURS].cost.ms) + (f" ({_seconds(theirs)})" if theirs else "")


def _digits(task: Task, who: str) -> str:
    return f"{task.by[who].value:.4f}" if who in task.by else "-"


def _seconds(ms: float | None) -> str:
    if ms is None:
        return "-"
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:.0f} ms"


def _spread(every: Sequence[Task]) -> str:
    """Return the quartiles of the time to forget, and how many contributors left."""
    found = [(t.name, t.by[OURS].measured) for t in every if t.by[OURS].measured]
    return "; ".join(
        f"{name} {' to '.join(map(costs.number, m['CPU ms, quartiles']))} "
        f"of {m['contributors']} leavers"
        for name, m in found
    )


def _published(every: Sequence[Task]) -> str:
    return "; ".join(
        f"{p['name']} {p['value']} ({p['source']}; {p.get('other') or 'the same protocol'})"
        for t in every
        for p in t.published
    )


def _beside(task: Task, n: int) -> str:
    """Return one cost of ours, and that of the papers' method in brackets."""
    ours = task.by[OURS].cost.shown[n]
    theirs = task.by[PAPERS].cost.shown[n] if PAPERS in task.by else ""
    return f"{ours} ({theirs})" if theirs else ours


# -- the picture ----------------------------------------------------------------------------------


def about(shelf: Shelf) -> str:
    """Return the note stored in the picture: a digest of its numbers, to detect old pictures."""
    shown = [(t.name, who, s.value, s.cost.ms) for t in tasks(shelf) for who, s in t.by.items()]
    return f"first page sha256:{sha256(repr(shown).encode()).hexdigest()}"


def draw(shelf: Shelf, path: Path) -> None:
    """Draw a panel of qualities for each task, and one of the time to forget."""
    every = tasks(shelf)
    made, axes = charts.figure(len(every) + 1, width=2.6, height=2.9, across=2)
    for ax, task in zip(axes, every, strict=False):
        values = {BARS[who][0]: shown.value for who, shown in task.by.items()}
        charts.bars(ax, values, task.measure, [BARS[who][1] for who in task.by])
        ax.set_title(f"{task.name}\n{task.data}", fontsize=10)
    _times(axes[-1], every)
    charts.write(made, path, about(shelf))


def _times(ax: Axes, every: Sequence[Task]) -> None:
    """Draw the time to forget one contributor, in the colours of the bars."""
    for who, mark, above in ((PAPERS, "D", 7), (OURS, "o", -15)):
        points = [(n, t.by[who].cost.ms) for n, t in enumerate(every) if who in t.by]
        known = [(n, ms) for n, ms in points if ms is not None]
        for n, ms in known:
            ax.annotate(f"{ms:,.0f}" if ms >= 10 else f"{ms:.2g}", (n, ms), fontsize=9,
                        textcoords="offset points", xytext=(0, above), ha="center")  # fmt: skip
        ax.scatter(*zip(*known, strict=True), color=BARS[who][1], marker=mark)
    ax.set_yscale("log")
    ax.margins(x=0.2, y=0.3)
    ax.set_xticks(range(len(every)), [t.name for t in every], fontsize=9, rotation=30)
    ax.set_title("CPU ms to forget\none contributor", fontsize=10)
