"""What passes by pipes between a service and its worker processes; and the one that reads files.

    python -m rescind.ledger.worker_io < names > contents

Facts and arrays pass without pickle. Files of a state folder are read in a process of its own:
whoever closes any descriptor of a file loses all locks that the process has on it (POSIX), also
those of SQLite on `ledger.db`. Another process would then take itself for the last one that uses
the ledger and remove its write-ahead log, and what is acknowledged afterwards is on no disk.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rescind.errors import DataError

Items = NDArray[np.int32]
Read = Callable[[Path], bytes]


def command(module: str) -> dict[str, Any]:
    """Return how `subprocess` runs a worker: one core, and nothing imported from here."""
    return {
        "args": [sys.executable, "-P", "-m", module],
        "env": {**os.environ, "OMP_NUM_THREADS": "1"},
    }


def written(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    np.savez(out, facts=text, **arrays)
    return out.getvalue()


def read(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(arrays.pop("facts").tobytes()), arrays


def joined(name: str, parts: Sequence[Items]) -> dict[str, Any]:
    counts = np.array([len(part) for part in parts], np.int64)
    return {
        f"{name}_count": counts,
        f"{name}_item": np.concatenate([np.empty(0, np.int32), *parts]),
    }


def parts_of(arrays: Mapping[str, Any], name: str) -> tuple[Items, ...]:
    ends = np.cumsum(arrays[f"{name}_count"])
    return tuple(np.split(arrays[f"{name}_item"], ends[:-1])) if len(ends) else ()


@contextmanager
def read_apart() -> Iterator[Read]:
    """Give a function that returns the bytes of a file, and raises `DataError` if it cannot."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "rescind.ledger.worker_io"],
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
