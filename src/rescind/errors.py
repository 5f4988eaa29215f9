"""Exceptions, grouped by who has to act.

    RescindError
      ConfigError      the experimenter: a setting is unknown or out of range
      DataError        the data owner: a file or record is not as described
      ConsentError     the requester: the record of events does not allow this
      BoundaryError    the method's author: server code tried to read client data

A message states what was given, what is allowed, and what to do next. The command line prints it
without a traceback and exits with code 2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches


class RescindError(Exception):
    """Base class of all errors that a user can fix."""


class ConfigError(RescindError):
    """A setting is unknown or out of range."""


class DataError(RescindError):
    """A file or a record is not as described."""


class ConsentError(RescindError):
    """The request does not fit what was lent. `client` and `item` are indices, if known."""

    def __init__(self, text: str, client: int | None = None, item: int | None = None) -> None:
        super().__init__(text)
        self.client, self.item = client, item


class BoundaryError(RescindError):
    """Server code tried to read client data, or a method was given the wrong task."""


def how_to_install(extra: str) -> str:
    """Return the command that adds an extra, with the versions of constraints.txt.

    No index has rescind, so it is given in a clone. A clone that is used in place stays so.
    """
    from importlib import metadata

    stated = None
    with suppress(metadata.PackageNotFoundError):
        stated = metadata.distribution("rescind").read_text("direct_url.json")
    editable = json.loads(stated or "{}").get("dir_info", {}).get("editable", False)
    words = f"{'--editable ' if editable else ''}'.[{extra}]'"
    return f"in your clone of rescind, {sys.executable} install.py {words}"


def suggest(given: str, allowed: Iterable[str]) -> str:
    """Return a hint: the allowed name closest to the given one, and all allowed names."""
    names = sorted(set(allowed))
    near = get_close_matches(given.lower(), [name.lower() for name in names], n=1, cutoff=0.6)
    meant = [name for name in names if near and name.lower() == near[0]]
    hint = f"did you mean '{meant[0]}'? " if meant else ""
    shown = [f"'{name}'" if "," in name else name for name in names]
    return f"{hint}Allowed: {', '.join(shown) or 'nothing'}."
