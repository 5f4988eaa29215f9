"""A witness: signs that a log it knows has only grown. Remembers what it signed in one small file.

Speaks C2SP tlog-witness: the log sends its new checkpoint and a proof that it begins with the one
signed last. The file is written, and synced, before the answer is sent. So a log that shows
another history, a shorter one or an old one is refused, also after a restart.
"""

from __future__ import annotations

import json
import re
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from rescind.core.files import write_atomically
from rescind.errors import DataError
from rescind.proof.notes import (
    HASH,
    LARGEST,
    WITNESS,
    Checkpoint,
    Key,
    in_base64,
    opened,
    signature_line,
)
from rescind.proof.tlog import Tree, extends

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEEN = "seen.json"
SIZE_TYPE = "text/x.tlog.size"
_REQUEST = re.compile(rf"old (\d{{1,18}})\n((?:{HASH}\n){{0,63}})\n(.*)", re.DOTALL)


@dataclass(frozen=True)
class Reply:
    """An answer over HTTP."""

    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"
    told: str = ""
    """What whoever runs the witness should know of it. It is not sent."""


class Refused(Exception):
    """Carries the reply to a checkpoint that is not signed."""

    def __init__(
        self, status: int, body: str, content_type: str = Reply.content_type, told: str = ""
    ) -> None:
        super().__init__(body)
        self.reply = Reply(status, body, content_type, told)


class Witness:
    """Cosigns the checkpoints of some logs."""

    def __init__(
        self,
        folder: Path,
        name: str,
        private: Ed25519PrivateKey,
        logs: Sequence[Key],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """folder: has the state; it must be there (`start`)"""
        self.key = Key(name, private.public_key().public_bytes_raw(), WITNESS)
        self._file, self._private, self._clock, self._lock = folder / SEEN, private, clock, Lock()
        self._logs = {log.name: log for log in logs}
        self._seen = _read(self._file)

    @staticmethod
    def start(folder: Path) -> None:
        """Begin with no log seen. Done once: a witness that lost its state must not begin again."""
        if not (folder / SEEN).exists():
            write_atomically(folder / SEEN, b"{}\n")

    def seen(self, origin: str) -> Checkpoint:
        """Return what was signed last of a log; the empty log if nothing was."""
        return self._seen.get(origin) or Checkpoint(origin, 0, Tree().root())

    def add_checkpoint(self, body: bytes) -> Reply:
        """Answer a request `add-checkpoint`: sign, or say why not."""
        try:
            old, path, note = _request(body)
            unsigned = Checkpoint.parse(note.rpartition("\n\n")[0] + "\n")
            log = self._logs.get(unsigned.origin)
            if log is None:
                raise Refused(404, f"this witness does not know the log {unsigned.origin}\n")
            try:
                point, found = opened(note, [log])
            except DataError as error:
                raise Refused(403, f"{error}\n") from None
            if log not in found:
                raise Refused(403, f"the checkpoint is not signed by {log.name}\n")
            if old > point.size:
                raise Refused(400, f"the old size {old} is above the new one, {point.size}\n")
            with self._lock:  # checked and written as one step
                self._remember(point, old, path)
            return Reply(200, self._line(str(point)))
        except Refused as refused:
            return refused.reply
        except (DataError, UnicodeDecodeError) as error:
            return Reply(400, f"{error}\n")

    def _remember(self, point: Checkpoint, old: int, path: list[bytes]) -> None:
        last = self.seen(point.origin)
        if old != last.size:
            raise Refused(409, f"{last.size}\n", SIZE_TYPE)
        told = (
            f"refused: {point.origin} signed {point.size:,} entries that were not shown to "
            f"continue the {last.size:,} signed here"
        )
        if old == point.size and point.root != last.root:
            raise Refused(409, f"{last.size}\n", SIZE_TYPE, told)
        if not extends(old, last.root, point.size, point.root, path):
            why = "the proof does not lead from the checkpoint signed last to this\n"
            raise Refused(422, why, told=told)
        now = {**self._seen, point.origin: point}
        table = {name: (one.size, in_base64(one.root)) for name, one in now.items()}
        write_atomically(self._file, f"{json.dumps(table, indent=1)}\n".encode())
        self._seen = now

    def signed(self, text: str) -> str:
        """Return a note with this text. Never a checkpoint's: those are checked first."""
        return f"{text}\n{self._line(text)}"

    def _line(self, text: str) -> str:
        at = int(self._clock())
        return signature_line(text, self.key.name, self._private, WITNESS, at)


def bare(note: str) -> str:
    """Return a checkpoint with the log's own signature only: what a witness is sent."""
    text, _, below = note.rpartition("\n\n")
    own = f"\u2014 {text.partition(chr(10))[0]} "
    lines = below.splitlines(keepends=True)
    return f"{text}\n\n" + "".join(line for line in lines if line.startswith(own))


def request_body(old: int, path: Sequence[bytes], note: str) -> bytes:
    proof = "".join(f"{in_base64(one)}\n" for one in path)
    return f"old {old}\n{proof}\n{note}".encode()


def _request(body: bytes) -> tuple[int, list[bytes], str]:
    if len(body) > LARGEST:
        raise DataError(f"{len(body)} bytes are too many: at most {LARGEST} are read.")
    if given := _REQUEST.fullmatch(body.decode()):
        old, path = int(given[1]), [b64decode(line) for line in given[2].split()]
        if request_body(old, path, given[3]) == body:
            return old, path, given[3]
    raise DataError("expected 'old SIZE', at most 63 hashes, an empty line and a checkpoint.")


def _read(path: Path) -> dict[str, Checkpoint]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        lines = {name: f"{name}\n{int(size)}\n{root}\n" for name, (size, root) in table.items()}
        found = {name: Checkpoint.parse(text) for name, text in lines.items()}
    except FileNotFoundError:
        raise DataError(f"{path} is gone: it says what this witness signed. Restore it.") from None
    except (OSError, ValueError, TypeError, AttributeError, DataError) as error:
        raise DataError(f"{path} cannot be read ({error}).") from None
    return found
