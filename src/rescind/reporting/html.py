"""Reports in one HTML file: no scripts, no network, printable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; color: #1a1a1a; background: #fff; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .8rem; text-align: left; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; }
.note { color: #555; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; }
"""


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
        """Add a paragraph."""
        mark = ' class="note"' if note else ""
        self.parts.append(f"<p{mark}>{escape(text)}</p>")
        return self

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Page:
        """Add a table; numbers are right-aligned."""
        cells = "".join(f"<th>{escape(name)}</th>" for name in head)
        body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
        self.parts.append(f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>")
        return self

    def facts(self, values: Mapping[str, object]) -> Page:
        """Add a table of names and values."""
        return self.table(["", ""], [[name, value] for name, value in values.items()])

    def chart(self, svg: str, caption: str) -> Page:
        """Add a chart with a caption."""
        text = escape(caption)
        self.parts.append(
            f'<figure role="img" aria-label="{text}">{svg}'
            f'<figcaption class="note">{text}</figcaption></figure>'
        )
        return self

    def code(self, text: str) -> Page:
        """Add commands to copy."""
        self.parts.append(f"<pre>{escape(text)}</pre>")
        return self

    def html(self) -> str:
        """Return the whole page."""
        body = "\n".join(self.parts)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head>"
            f"<body><h1>{escape(self.title)}</h1>\n{body}\n</body></html>\n"
        )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td class="number">{value:.4f}</td>'
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape(str(value))}</td>"
