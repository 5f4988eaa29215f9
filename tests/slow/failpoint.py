"""Run the command line so that it dies at a chosen touch of the disk.

    python tests/slow/failpoint.py 12 half ROOT -- run small.toml --out here

kills the command at its 12th touch of a file below ROOT. The product knows nothing of this: the
calls of the operating system are wrapped. Touches are counted in order: making a folder, opening
for writing, every write, cutting, syncing a file or a folder, renaming, removing.

    before  SIGKILL instead of the touch
    half    SIGKILL after half of a write (other touches: before)
    after   SIGKILL just after the touch
    full    the disk is full from this touch on: whatever needs space fails with ENOSPC
    limit   no file may grow beyond so many bytes (RLIMIT_FSIZE): a real failure of the system
    never   only count

Without words it is a nursery: it loads the heavy libraries once, reads such orders from stdin as
lines of JSON, and forks a child for each. So a hundred deaths cost a hundred runs, not imports.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEEDS_SPACE = ("mkdir", "open", "write", "sync", "replace")
HEAVY = (
    "rich.progress",
    "safetensors.torch",
    "rescind.reporting.progress",
    "rescind.cli.run",
    "rescind.data.sources.synthetic",
    "rescind.experiments.learning_run",
    "rescind.methods.baselines.fedavg",
    "rescind.methods.baselines.popularity",
    "rescind.cli.forget",
    "rescind.requests.answer",
)


class Failpoint:
    """Counts touches of files below a folder and strikes at one of them."""

    def __init__(self, at: int, how: str, root: Path, book: Path | None = None) -> None:
        self.at, self.how, self.root, self.book = at, how, os.path.realpath(root), book
        self.count = 0
        self.folders: dict[int, str] = {}

    def touch(
        self,
        kind: str,
        path: Any,
        act: Callable[[], Any],
        half: Callable[[], Any] | None = None,
    ) -> Any:
        """Do the touch, or die, or fail."""
        if not self.mine(path):
            return act()
        self.count += 1
        if self.book is not None:
            with REAL["open"](self.book, "a") as file:
                file.write(f"{kind} {os.path.relpath(os.path.realpath(path), self.root)}\n")
        if self.how == "full" and self.count >= self.at and kind in NEEDS_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if self.count != self.at or self.how in ("full", "limit", "never"):
            return act()
        if self.how == "after":
            act()
        elif self.how == "half" and half is not None:
            half()
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    def mine(self, path: Any) -> bool:
        """Whether a path lies below the folder that is watched."""
        return os.path.realpath(path).startswith(self.root + os.sep)


class Written:
    """A file that is open for writing, with its writes counted."""

    def __init__(self, point: Failpoint, file: Any, path: Any) -> None:
        self._point, self._file, self._path = point, file, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Written:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)

    def write(self, data: Any) -> int:
        """Write; what is buffered is pushed to the system at once, so that death is real."""
        return self._point.touch(
            "write",
            self._path,
            lambda: self._push(data),
            lambda: self._push(data[: len(data) // 2]),
        )

    def truncate(self, size: int | None = None) -> int:
        """Cut the file."""
        return self._point.touch("cut", self._path, lambda: self._file.truncate(size))

    def _push(self, data: Any) -> int:
        wrote = self._file.write(data)
        self._file.flush()
        return wrote


REAL: dict[str, Any] = {
    "open": builtins.open,
    "os.open": os.open,
    "fsync": os.fsync,
    "replace": os.replace,
    "unlink": os.unlink,
    "rmdir": os.rmdir,
    "mkdir": os.mkdir,
}


def arm(point: Failpoint) -> None:
    """Put the failpoint between the program and the system."""

    def opened(path: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if isinstance(path, int) or not set(mode) & set("wax+"):
            return REAL["open"](path, mode, *rest, **more)
        if not point.mine(path):
            outside = REAL["open"](path, mode, *rest, **more)
            point.folders[outside.fileno()] = str(path)  # it may be synced
            return outside
        file = point.touch("open", path, lambda: REAL["open"](path, mode, *rest, **more))
        point.folders[file.fileno()] = str(path)
        return Written(point, file, path)

    def opened_by_number(path: Any, *rest: Any, **more: Any) -> int:
        number: int = REAL["os.open"](path, *rest, **more)
        point.folders[number] = os.fspath(path)
        return number

    def synced(number: Any) -> None:
        number = number if isinstance(number, int) else number.fileno()
        point.touch("sync", point.folders[number], lambda: REAL["fsync"](number))

    builtins.open = io.open = opened  # type: ignore[assignment]
    os.open, os.fsync = opened_by_number, synced  # type: ignore[assignment]
    os.replace = lambda a, b, **k: point.touch("replace", b, lambda: REAL["replace"](a, b, **k))
    for name in ("unlink", "rmdir", "mkdir"):
        setattr(os, name, _counted(point, name))


def _counted(point: Failpoint, name: str) -> Callable[..., Any]:
    return lambda path, *a, **k: point.touch(name, path, lambda: REAL[name](path, *a, **k))


def run(order: dict[str, Any]) -> None:
    """Run the command line under an order; does not come back."""
    from rescind.cli import main

    book = order.get("book")
    point = Failpoint(order["at"], order["how"], Path(order["root"]), Path(book) if book else None)
    if order["how"] == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["at"], order["at"]))
    elif order["how"] != "none":
        arm(point)
    sys.argv = ["rescind", *order["words"]]
    main()
    sys.exit(0)


def nurse() -> None:
    """Fork a child for every order; say its number, wait for it, say how it ended."""
    for name in HEAVY:
        importlib.import_module(name)
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(order)
        print(json.dumps({"pid": child}), flush=True)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


def _become(order: dict[str, Any]) -> None:
    """Be a command of its own: own folder, own stdout and stderr, an exit code."""
    os.chdir(order["here"])
    for number, name in ((0, os.devnull), (1, order["out"]), (2, order["err"])):
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY)
        os.dup2(handle, number)
        os.close(handle)
    code = 1
    try:
        run(order)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if "--" in sys.argv:
        cut = sys.argv.index("--")
        number, how, root = sys.argv[1:cut]
        run({"at": int(number), "how": how, "root": root, "words": sys.argv[cut + 1 :]})
    nurse()
