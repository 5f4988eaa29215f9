"""How often the words occur: each printed number counts once, where it is printed first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rescind.experiments.table_forms import rows_as_markdown
from rescind_papers import verdicts
from rescind_papers.exhibits import rows
from rescind_papers.index import Exhibit, Shelf, finding
from rescind_papers.judging import Row

KINDS = (
    verdicts.REPRODUCED,
    verdicts.BETTER,
    verdicts.WORSE,
    verdicts.BOTH_WORSE,
    verdicts.NOT_COMPARABLE,
    verdicts.UNJUDGED,
    verdicts.LATER,
)
UNKNOWN = "do not know"
"""What a reason says if there is none."""


def kind(row: Row) -> str:
    """Return the word of a row without the reason behind it."""
    word = row.verdict.partition(":")[0]
    return verdicts.UNJUDGED if word == verdicts.ONE_RUN else word


def distinct(every: Sequence[Exhibit], shelf: Shelf) -> dict[str, list[Row]]:
    """Return the rows with a printed number by table or figure, each number once.

    A figure whose numbers follow from those of a table prints none of its own.
    """
    seen: set[str] = set()
    out: dict[str, list[Row]] = {}
    for exhibit in every:
        out[exhibit.place] = []
        for row in rows(exhibit, shelf):
            if row.number and row.number not in seen:
                seen.add(row.number)
                out[exhibit.place].append(row)
    return out


def table(every: Sequence[Exhibit], shelf: Shelf) -> str:
    """Return the count of each word by table and figure, as Markdown."""
    out = [["table or figure", "numbers", *KINDS]]
    found = distinct(every, shelf)
    for exhibit in every:
        mine = Counter(map(kind, found[exhibit.place]))
        page = f"[{exhibit.paper} {exhibit.title.split(':')[0]}]({exhibit.paper}.md#{exhibit.name})"
        if mine:
            out.append([page, str(mine.total()), *(str(mine[one] or "") for one in KINDS)])
    totals = [sum(int(row[n] or 0) for row in out[1:]) for n in range(1, len(out[0]))]
    return rows_as_markdown([*out, ["all", *map(str, totals)]])


def five_lines(every: Sequence[Exhibit], shelf: Shelf) -> str:
    """Return what a reader needs, in five lines."""
    found = [row for mine in distinct(every, shelf).values() for row in mine]
    return "\n".join([
        _judged(found),
        _apart(found),
        _worse(found),
        _again(finding(shelf.folder, "reruns")),
        "5. **Rule.** A printed number is one run. It is reproduced if it lies in the 95 % "
        "prediction interval of our runs, which a true reproduction leaves one time in twenty. "
        "[Findings](../findings.md): what the measures cannot show.",
    ])  # fmt: skip


def _judged(found: Sequence[Row]) -> str:
    count = Counter(map(kind, found))
    worse, both = count[verdicts.WORSE] + count[verdicts.BOTH_WORSE], count[verdicts.BOTH_WORSE]
    theirs = f" (in {both} of these the authors' method is worse here, too)" if both else ""
    judged = count[verdicts.REPRODUCED] + count[verdicts.BETTER] + worse
    return (
        f"1. **Judged.** The three papers print {len(found)} different numbers. {judged} can be "
        f"judged: {count[verdicts.REPRODUCED]} are reproduced, ours is better in "
        f"{count[verdicts.BETTER]} and worse in {worse}{theirs}."
    )


def _apart(found: Sequence[Row]) -> str:
    count, whole = Counter(row.verdict for row in found), Counter(map(kind, found))
    later = f" {whole[verdicts.LATER]} are not run yet." if whole[verdicts.LATER] else ""
    return (
        f"2. **Not judged.** {whole[verdicts.NOT_COMPARABLE]} are not comparable: "
        f"{count[verdicts.TRIVIAL]} lie below a predictor without learning (such as popularity), "
        f"{count[verdicts.EXCLUSIVE]} exclude each other (no ranking has both), "
        f"the data of {count[verdicts.ABSENT]} cannot be had, "
        f"{sum(count[one] for one in verdicts.OTHER)} are of other data or methods. "
        f"{whole[verdicts.UNJUDGED]} are rates of an attack whose threshold is fixed.{later}"
    )


def _worse(found: Sequence[Row]) -> str:
    worse = [row for row in found if kind(row) in (verdicts.WORSE, verdicts.BOTH_WORSE)]
    unknown = [row for row in worse if row.reason is None or UNKNOWN in row.reason[1]]
    return (
        f"3. **Worse.** Below each table stands why. We have a reason for "
        f"{len(worse) - len(unknown)} of {len(worse)}; for {len(unknown)} we do not know."
    )


def _again(lines: Sequence[Mapping[str, Any]]) -> str:
    headline, whole = (sum(row[k] for row in lines) for k in ("headline digits", "every number"))
    moved = sum(row["made on"] != row["run again on"] for row in lines)
    other = sum(row["made with torch"] != row["run again with"] for row in lines)
    return (
        f"4. **Run again.** Of {len(lines)} committed result lines drawn at random, {headline} are "
        f"equal in every headline digit and {whole} in every number when run again; {moved} of "
        f"them had been made on another kind of processor, {other} with another version of torch."
    )
