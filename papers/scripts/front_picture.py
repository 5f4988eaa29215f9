"""Draw the picture of the first page: what a user is recommended before and after taking back.

    python papers/scripts/front_picture.py        writes docs/images/take-back.svg

It plays the ten lines of README.md on ML-100K. Every word in the picture that could be wrong is
taken from that run: titles, counts, the level and the verdict of the receipt, and whether its
signature is valid.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

import rescind as rs

PICTURE = Path("docs/images/take-back.svg")
USER = 450
WIDE, HIGH, EDGE = 720, 686, 16
INK, QUIET, BLUE, GREEN, ORANGE = "#1c2226", "#545d66", "#0a5a9c", "#00694c", "#9c3000"
FONT = "system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, sans-serif"


@dataclass(frozen=True)
class Told:
    """What the run said."""

    lent: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    level: str
    verdict: str
    valid: bool
    same: bool
    """Whether the sum is that of a federation in which the records never were."""


def played() -> Told:
    """Lend, learn, take back, verify."""
    from rescind.receipts import receipt
    from rescind.receipts.claims import sum_digest

    start = rs.simulate_lending(rs.Federation.start(rs.load("ml-100k"), rs.methods.Gram(), seed=0))
    fed = start.run(rounds=1)
    request = rs.Erase(fed.lent(user=USER))
    gone, evidence = rs.forget(fed, request, audits="none")
    never = start.apply(request).run(rounds=1)
    signed = receipt.canonical(evidence.receipt)
    checked = rs.verify(signed, {evidence.receipt.public_key: "the operator"})
    return Told(
        len(fed.lent(user=USER)),
        _titles(fed),
        _titles(gone),
        evidence.receipt.done.level,
        evidence.receipt.verdict,
        checked.valid,
        sum_digest(gone.now.state.own) == sum_digest(never.now.state.own),
    )


def _titles(fed: rs.Federation) -> tuple[str, ...]:
    return tuple(readable(one.title or one.item) for one in fed.recommend(user=USER, k=5))


def readable(title: str) -> str:
    """Return a title without its year, with the article in front: The Sound of Music."""
    name = title.partition(" (")[0]
    first, found, article = name.rpartition(", ")
    return f"{article} {first}" if found and article in ("The", "A", "An") else name


def drawn(told: Told) -> str:
    """Return the picture as SVG. Letters stay legible at the width of a phone."""
    half = (WIDE - 3 * EDGE) // 2
    gone = [ORANGE if title not in told.after else INK for title in told.before]
    new = [GREEN if title not in told.before else INK for title in told.after]
    parts = [
        _card(EDGE, EDGE, half, 318, BLUE),
        *_list(EDGE, f"Lends {told.lent} films", f"User {USER} is recommended:", told.before, gone),
        _card(2 * EDGE + half, EDGE, half, 318, GREEN),
        *_list(2 * EDGE + half, "Takes them back", f"User {USER} is recommended:", told.after, new),
        _card(EDGE, 350, WIDE - 2 * EDGE, 320, INK),
        *_receipt(told),
    ]
    said = f"Before and after user {USER} takes {told.lent} films back, and the receipt"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'aria-label="{said}" font-family="{FONT}">\n'
        f'<rect width="{WIDE}" height="{HIGH}" fill="#faf9f7"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _card(x: int, y: int, wide: int, high: int, colour: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="8" fill="#fff" '
        f'stroke="#d9d6d0"/><rect x="{x}" y="{y}" width="{wide}" height="5" fill="{colour}"/>'
    )


def _list(x: int, head: str, below: str, titles: tuple[str, ...], colours: list[str]) -> list[str]:
    lines = [_text(x + 16, 62, head, 24, weight=600), _text(x + 16, 98, below, 19, QUIET)]
    for n, (title, colour) in enumerate(zip(titles, colours, strict=True)):
        lines.append(_text(x + 16, 140 + 42 * n, title, 18, colour, 500))
    return lines


def _receipt(told: Told) -> list[str]:
    meaning = {"L3": "the influence is removed exactly"}[told.level]
    measured = {"UNAUDITED": "nothing"}[told.verdict]
    never = "the same digest as if never lent" if told.same else "not the digest as if never lent"
    rows = [
        ("asked", f"erase {told.lent} records of one user"),
        ("stated", f"{told.level}: {meaning}"),
        ("measured", f"{measured} ({told.verdict})"),
        ("this run", never),
        ("signature", "anyone can check it, offline"),
    ]
    valid = "VALID" if told.valid else "NOT VALID"
    out = [
        _text(36, 398, "The receipt", 24, weight=600),
        _text(WIDE - 36, 398, f"signature {valid}", 24, INK, 600, "end"),
    ]
    for n, (name, value) in enumerate(rows):
        out += [_text(36, 446 + 46 * n, name, 22, QUIET), _text(166, 446 + 46 * n, value, 22)]
    return out


def _text(
    x: int, y: int, text: str, size: int, colour: str = INK, weight: int = 400, at: str = "start"
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" font-weight="{weight}" '
        f'text-anchor="{at}">{escape(text)}</text>'
    )


def main() -> int:
    """Play and draw."""
    if not PICTURE.parent.is_dir():
        print(f"error: there is no {PICTURE.parent}. Run it in a checkout.", file=sys.stderr)
        return 2
    PICTURE.write_text(drawn(played()), encoding="utf-8")
    print(f"written: {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
