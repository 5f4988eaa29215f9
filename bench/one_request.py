"""Count what answers one withdrawal: modules of rescind, functions and files, by each way to ask.

    python bench/one_request.py [--json] [--modules WAY]

A small shop is imported and learnt, and the first of its twelve people withdraws: keys and logs are
there. Then a second one does, without an audit, and is counted; each way is a process of its own.
A module is entered if one of its functions is called. Commands start with nothing loaded, as they
do in a shell. Threads that began before are counted, too: the profile is set at the start.
`--modules` lists the modules that one way enters.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

import rescind  # noqa: E402

PACKAGE = str(Path(rescind.__file__).parent) + os.sep
WHO = "c3"


class Calls:
    """Functions of rescind that are called while it is on, in each thread."""

    def __init__(self) -> None:
        self.on = False
        self.seen: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not self.on or not code.co_filename.startswith(PACKAGE):
            return
        module = code.co_filename[len(PACKAGE) :]
        if not code.co_name.startswith("<"):  # modules that are loaded, and parts of a function
            self.seen.add((module, code.co_qualname))

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count while the block lasts."""
        self.on = True
        try:
            yield
        finally:
            self.on = False

    @property
    def modules(self) -> list[str]:
        """Return the modules of which a function was called."""
        return sorted({module for module, _ in self.seen})


def command(*words: object) -> None:
    """Give a command as the program does, without what it prints."""
    from rescind.cli import main

    sys.argv = ["rescind", *map(str, words)]
    told, code = io.StringIO(), None
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    if code:
        raise SystemExit(f"exit code {code}: {told.getvalue()}")


def by_queue(_: Any) -> Callable[[], Any]:
    """A file in a folder of requests, which a command took before; counted is the answer."""
    Path("requests").mkdir(exist_ok=True)
    Path("requests/one.json").write_text(json.dumps({"leave": WHO}))
    words = [sys.executable, "-m", "rescind.cli", "request", "add", "--folder", "requests"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return lambda: command("request", "answer")


def by_forget(_: Any) -> Callable[[], Any]:
    """One command, with the papers for who asked."""
    return lambda: command("forget", "--user", WHO)


def by_service(mouth: Any) -> Callable[[], Any]:
    """A request over HTTP, and the release that makes its receipt."""
    from tests.golden.cases import LEAVE

    return lambda: mouth.ask(LEAVE)


def over_silos(mouth: Any) -> Callable[[], Any]:
    """A command of the server of three silos."""
    from tests.golden.cases import LEAVE

    return lambda: mouth.ask(LEAVE)


def by_estimator(mouth: Any) -> Callable[[], Any]:
    """One call in Python."""
    return lambda: mouth.model.forget(users=[WHO])


WAYS: dict[str, tuple[str, Callable[[Any], Callable[[], Any]]]] = {
    "queue": ("queue", by_queue),
    "rescind forget": ("forget", by_forget),
    "service": ("service", by_service),
    "Flower, 3 silos": ("silos", over_silos),
    "estimator": ("estimator", by_estimator),
}
"""By name: the mouth of tests/golden that makes the shop, and how one withdraws."""


COMMANDS = ("queue", "forget")
"""Ways that begin with a process of their own."""


def files_below(folder: Path) -> dict[str, tuple[int, int]]:
    """Return when each file was written last, and how long it is."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def prepared(name: str, folder: Path) -> Any:
    """Make a shop in a folder, of which one person has withdrawn."""
    from tests.golden.matrix import OTHER, Ask, first_items
    from tests.golden.mouths import MOUTHS

    mouth = MOUTHS[name](folder)
    mouth.start(lending=False)
    mouth.ask(Ask("leave", (OTHER,), {OTHER: first_items(OTHER)}))
    return mouth


def count(way: str) -> dict[str, Any]:
    """Count one way, in this process; a command finds a shop that another process made."""
    logging.disable(logging.CRITICAL)
    calls = Calls()
    threading.setprofile(calls)
    name, begin = WAYS[way]
    with tempfile.TemporaryDirectory() as text, contextlib.ExitStack() as stack:
        folder, mouth = Path(text), None
        if name in COMMANDS:
            os.environ |= {"RESCIND_CACHE": f"{folder}/cache", "RESCIND_HOME": f"{folder}/home"}
            made = [sys.executable, __file__, "--prepare", name, text]
            subprocess.run(made, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.enter_context(contextlib.chdir(folder))
        else:
            mouth = prepared(name, folder)
            stack.callback(mouth.close)
        ask, before = begin(mouth), files_below(folder)
        sys.setprofile(calls)
        with calls.counting():
            ask()
        sys.setprofile(None)
        after = files_below(folder)
    return {
        "modules": len(calls.modules),
        "functions": len(calls.seen),
        "written": sum(before.get(path) != state for path, state in after.items()),
        "deleted": sum(path not in after for path in before),
        "names": calls.modules,
    }  # fmt: skip


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the table of all ways."""
    head = ["", *found]
    rows = [head, ["---"] * len(head)]
    for label, key in (
        ("modules entered", "modules"),
        ("distinct functions", "functions"),
        ("files written", "written"), ("files deleted", "deleted"),
    ):  # fmt: skip
        rows.append([label, *(f"{one[key]:,}" for one in found.values())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Count each way in a process of its own, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--modules", choices=WAYS, help="list what one way enters")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.prepare:
        prepared(given.prepare[0], Path(given.prepare[1])).close()
        return
    if given.one:
        print(json.dumps(count(given.one)))
        return
    found = {}
    for way in [given.modules] if given.modules else WAYS:
        words = [sys.executable, __file__, "--one", way]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        found[way] = json.loads(done.stdout.splitlines()[-1])
    if given.json:
        print(json.dumps(found, indent=1))
    elif given.modules:
        print("\n".join(found[given.modules]["names"]))
    else:
        print(table(found))


if __name__ == "__main__":
    main()
