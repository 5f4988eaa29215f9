"""Reads files in a process of its own: a ledger may be open in this one.

    python -m rescind.ledger.file_worker < names > contents

Whoever closes any descriptor of a file loses all locks that the process has on it (POSIX), also
those of SQLite on `ledger.db`. Another process would then take itself for the last one that uses
the ledger and remove its write-ahead log, and what is acknowledged afterwards is on no disk. So
nothing that reads a state folder as plain files opens them in the process of a service.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rescind.errors import DataError

Read = Callable[[Path], bytes]


@contextmanager
def read_apart() -> Iterator[Read]:
    """Give a function that returns the bytes of a file, and raises `DataError` if it cannot."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "rescind.ledger.file_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process, which ends that one
    ) as process:
        asking, answering = process.stdin, process.stdout
        assert asking is not None
        assert answering is not None

        def read(path: Path) -> bytes:
            asking.write(json.dumps(str(path.absolute())).encode() + b"\n")
            asking.flush()
            return _answer(path, answering)

        yield read


def _answer(path: Path, answering: IO[bytes]) -> bytes:
    said = json.loads(answering.readline() or "{}")
    data = answering.read(said.get("size", 0))
    if len(data) != said.get("size"):
        why = said.get("why", "the process that reads files has ended")
        raise DataError(f"cannot read {path}: {why}. Check the file and free memory, then repeat.")
    return data


def main() -> int:
    """Write the size and the bytes of every file that is named, or why it cannot be read."""
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        try:
            data = Path(json.loads(line)).read_bytes()
            out.write(json.dumps({"size": len(data)}).encode() + b"\n" + data)
        except OSError as error:
            out.write(json.dumps({"why": error.strerror or str(error)}).encode() + b"\n")
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
