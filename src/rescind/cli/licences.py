"""The licences of the packages that rescind needs, from what is installed."""

from __future__ import annotations

import re
from importlib import metadata
from typing import NamedTuple

OPEN = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|Zlib|CC0|HPND|"
    r"Public Domain|Unlicense|BSL|Boost)\b",
    re.IGNORECASE,
)
"""Licences under which rescind may be passed on together with a package."""
CLOSED = re.compile(r"\b([AL]?GPL|SSPL|BUSL|Commons Clause|Proprietary)", re.IGNORECASE)
"""Licences that would bind whoever passes rescind on."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Licence(NamedTuple):
    """The licence of an installed package."""

    package: str
    version: str
    licence: str

    @property
    def allowed(self) -> bool:
        """Return whether it is a known open licence and no other."""
        return bool(OPEN.search(self.licence)) and not CLOSED.search(self.licence)


def licences(root: str = "rescind") -> list[Licence]:
    """Return the licence of every package that `root` needs, directly or not, by name."""
    found: dict[str, Licence] = {}
    waiting = _needs(root)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:  # needed on another system only
            continue
        found[name] = Licence(name, about["Version"], _stated(about))
        waiting += _needs(name)
    return [found[name] for name in sorted(found)]


def _needs(package: str) -> list[str]:
    """Return the names of the packages that one needs, without its extras."""
    stated = metadata.requires(package) or []
    plain = [text for text in stated if "extra ==" not in text.partition(";")[2]]
    names = [match.group() for text in plain if (match := _NAME.match(text))]
    return [re.sub(r"[-_.]+", "-", name).lower() for name in names]


def _stated(about: metadata.PackageMetadata) -> str:
    """Return the licence that a package states: an expression, a classifier, or a short text."""
    classifiers = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    names = " AND ".join(c.rpartition(" :: ")[2] for c in classifiers)
    given = about.get_all("License-Expression") or about.get_all("License") or [""]
    text = str(given[0]).strip()
    is_name = 0 < len(text) <= 300 and "\n" not in text and text != "UNKNOWN"
    return text if is_name else names
