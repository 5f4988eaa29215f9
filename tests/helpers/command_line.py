"""Commands, given as a person gives them."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from rescind.cli import main


def rescind(*words: object) -> tuple[int, str]:
    """Give a command; return its exit code and all that it said."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
        patch.setattr(sys, "argv", ["rescind", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return code, said.getvalue()
