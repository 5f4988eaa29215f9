"""Reports in one HTML file: no scripts, no network, light and dark, for phones and for paper."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from pathlib import Path
from urllib.parse import quote

LOOK = Path(__file__).with_name("look.css")
"""The stylesheet of everything that people read; the service serves the same file."""
TONES = {
    "PASS": "good",
    "FAIL": "bad",
    "VOID": "bad",
    "INCONCLUSIVE": "open",
    "UNAUDITED": "open",
}
"""How a verdict is tinted. The word itself is always written, too."""
NOT_JUDGED = {"SHOWN": "not judged"}
"""What people read instead of a verdict whose word would read as `proved`; files have the word."""

NUMERIC = re.compile(r"–|[\d.]+ to [\d.]+")
"""Texts that stand where a number would: none, and an interval."""


def word_of(verdict: str) -> str:
    """Return what people read as a verdict."""
    return NOT_JUDGED.get(verdict, verdict)


@dataclass(frozen=True)
class Badge:
    """A word in a box: in a summary, or as a cell of a table."""

    word: str
    tone: str = ""
    """good, bad, open, or '' for a word that judges nothing."""

    @classmethod
    def of(cls, verdict: str) -> Badge:
        """Return the badge of a verdict."""
        return cls(word_of(verdict), TONES.get(verdict, ""))

    @property
    def html(self) -> str:
        return f'<span class="{_classes("badge", self.tone)}">{escape(self.word)}</span>'


@dataclass
class Page:
    """An HTML page that is built part by part."""

    title: str
    parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> Page:
        """Add a section heading."""
        self.parts.append(f"<h2>{escape(text)}</h2>")
        return self

    def text(self, text: str, note: bool = False) -> Page:
        """Add a paragraph; what stands between `backticks` is code."""
        mark = ' class="note"' if note else ""
        self.parts.append(f"<p{mark}>{_marked(text)}</p>")
        return self

    def link(self, text: str, to: str) -> Page:
        """Add a line that leads to another page. to: its path, relative to this one"""
        self.parts.append(f'<p><a href="{escape(quote(to))}">{escape(text)}</a></p>')
        return self

    def summary(
        self, sentences: Sequence[str], badges: Sequence[Badge], tone: str = "", note: str = ""
    ) -> Page:
        """Add the box that comes first: badges, a few sentences in large letters, and a note."""
        marks = " ".join(badge.html for badge in badges)
        small = f'<p class="note">{escape(note)}</p>' if note else ""
        self.parts.append(
            f'<div class="{_classes("summary", tone)}"><p>{marks}</p>'
            f'<p class="lead">{escape(" ".join(sentences))}</p>{small}</div>'
        )
        return self

    def warning(self, text: str) -> Page:
        """Add a box that must be read before anything else."""
        self.parts.append(
            f'<div class="summary bad" role="note"><p class="lead"><strong>{escape(text)}</strong>'
            f"</p></div>"
        )
        return self

    def listing(self, sentences: Sequence[str], ordered: bool = False) -> Page:
        """Add a list of sentences."""
        tag = "ol" if ordered else "ul"
        items = "".join(f"<li>{_marked(sentence)}</li>" for sentence in sentences)
        self.parts.append(f"<{tag}>{items}</{tag}>")
        return self

    def table(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[object]],
        label: str = "table",
        stacked: bool = False,
    ) -> Page:
        """Add a table; numbers are right-aligned. A wide one scrolls inside itself.

        label: what the table is, for people who hear the page
        stacked: on a phone, each row is a list of names and values; for rows to read one by one
        """
        numeric = [_is_number(value) for value in rows[0]] if rows else []
        numeric += [False] * (len(head) - len(numeric))
        cells = "".join(
            f'<th scope="col"{_class("number" if right else "")}>{escape(name)}</th>'
            for name, right in zip(head, numeric, strict=True)
        )
        names = [f' data-name="{escape(name)}"' if stacked else "" for name in head]
        body = "".join(
            "<tr>" + "".join(_cell(*pair) for pair in zip(row, names, strict=True)) + "</tr>"
            for row in rows
        )
        # A box that scrolls must be reached by the keyboard.
        self.parts.append(
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
            f"<table{_class('stacked' if stacked else '')}><thead><tr>{cells}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>"
        )
        return self

    def facts(self, values: Mapping[str, object]) -> Page:
        """Add names and values: beside each other, or under each other on a phone."""
        pairs = "".join(
            f"<dt>{escape(name)}</dt><dd>{escape(_text(value))}</dd>"
            for name, value in values.items()
        )
        self.parts.append(f'<dl class="facts">{pairs}</dl>')
        return self

    def chart(self, svg: str, caption: str) -> Page:
        """Add a chart with a caption."""
        text = escape(caption)
        self.parts.append(
            f'<figure><div class="chart" role="img" aria-label="{text}" tabindex="0">{svg}</div>'
            f"<figcaption>{text}</figcaption></figure>"
        )
        return self

    def charts(self, drawn: Mapping[str, str]) -> Page:
        """Add charts by caption, as many beside each other as there is room for."""
        self.parts.append('<div class="cards">')
        for caption, svg in drawn.items():
            self.chart(svg, caption)
        self.parts.append("</div>")
        return self

    def code(self, text: str) -> Page:
        """Add commands to copy."""
        self.parts.append(f'<pre tabindex="0"><code>{escape(text)}</code></pre>')
        return self

    @contextmanager
    def folded(self, title: str, note: str = "") -> Iterator[Page]:
        """Fold what is added inside; paper shows it unfolded."""
        small = f' <span class="note">{escape(note)}</span>' if note else ""
        self.parts.append(f"<details><summary>{escape(title)}{small}</summary>")
        yield self
        self.parts.append("</details>")

    def html(self) -> str:
        """Return the whole page."""
        body = "\n".join(self.parts)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{look()}</style></head>"
            f"<body><main><h1>{escape(self.title)}</h1>\n{body}\n</main></body></html>\n"
        )


@lru_cache(maxsize=1)
def look() -> str:
    """Return the stylesheet."""
    return LOOK.read_text(encoding="utf-8")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _cell(value: object, name: str = "") -> str:
    """Return a cell. name: an attribute with the name of its column, or nothing"""
    if isinstance(value, Badge):
        return f"<td{name}>{value.html}</td>"
    if _is_number(value) or NUMERIC.fullmatch(str(value)):
        return f'<td class="number"{name}>{_text(value)}</td>'
    text = escape(str(value))
    return f"<td{_class('sentence' if len(text) > 40 else '')}{name}>{text}</td>"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _marked(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _classes(*names: str) -> str:
    return " ".join(name for name in names if name)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
