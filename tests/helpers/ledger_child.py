"""A ledger in a process of its own, for tests that kill it.

    python ledger_child.py STATE SOCKET [--without-sweep] [--database URL]

Reads lines from its standard input. `start` forks a process that opens the ledger, listens on the
socket and says `ready PID` (or `refused ...`); so a restart takes milliseconds. Requests are lines
of JSON; see `answer`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import alembic.command  # noqa: F401  loaded once, before any fork
import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401

from ledgers import WAIT, difference, opened
from rescind.errors import RescindError
from rescind.ledger.batch import Once
from rescind.ledger.book import Ledger
from rescind.ledger.lending import Join, Lend, TakeBack
from rescind.ledger.options import Options
from rescind.ledger.scanner import Canary, scan

STATUS = {"DiskFull": 507, "Busy": 503, "Closing": 503, "StillRunning": 409}


def answer(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request: join, lend, contribute, unshare, erase, leave, loans, scan."""
    verb, person = asked["do"], bytes.fromhex(asked.get("person", ""))
    if verb == "scan":
        looked = scan([ledger.state], [Canary("some text", b"some text of nobody")])
        return {"status": 200, "body": {"found": len(looked.found)}}
    if verb == "loans":
        version, items = ledger.reading.versioned_loans(person)
        return {"status": 200, "body": {"version": version, "items": items.tolist()}}
    items = tuple(asked.get("items", ())) or None
    if verb == "join":
        operation: Any = Join()
    elif verb == "lend":
        operation = Lend(person, items or ())
    elif verb == "contribute":
        operation = difference(person, asked["old"], items or ())
    else:
        operation = TakeBack(person, verb, items)
    once = Once(asked["key"], json.dumps(asked, sort_keys=True).encode())
    found = ledger.submit(operation, once).result(WAIT)
    return {"status": found.status, "body": dict(found.body), "replayed": found.replayed}


def serve(ledger: Ledger, place: str) -> None:
    """Answer on a socket until a line says stop."""
    Path(place).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen(64)
    print(f"ready {os.getpid()}", flush=True)
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=talk, args=(ledger, connection), daemon=True).start()


def talk(ledger: Ledger, connection: socket.socket) -> None:
    with connection, connection.makefile("rwb") as file:
        for line in file:
            asked = json.loads(line)
            if asked["do"] == "stop":
                ledger.close()
                os._exit(0)
            try:
                said = answer(ledger, asked)
            except RescindError as error:
                kind = type(error).__name__
                said = {"status": STATUS.get(kind, 400), "error": kind, "detail": str(error)}
            file.write(json.dumps(said).encode() + b"\n")
            file.flush()


def main() -> None:
    """Fork a ledger for every line `start`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("state", type=Path)
    parser.add_argument("socket")
    parser.add_argument("--without-sweep", action="store_true")
    parser.add_argument("--database")
    given = parser.parse_args()
    for line in sys.stdin:
        if line.startswith("name "):  # a failpoint
            os.environ["RESCIND_FAILPOINT"] = line[5:].strip()
            continue
        child = os.fork()
        if child == 0:
            try:
                options = Options(sweep=not given.without_sweep)
                ledger = opened(given.state, options=options, database=given.database)
                serve(ledger, given.socket)
            except RescindError as error:
                print(f"refused {error}", flush=True)
            os._exit(2)
        os.environ.pop("RESCIND_FAILPOINT", None)
        _, status = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
