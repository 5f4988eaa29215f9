"""A real `rescind serve` in a process of its own, and how a script calls it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from rescind.ledger.failpoints import VARIABLE


class Process:
    """A service on a folder; `token` has the scopes that were asked for."""

    def __init__(
        self, state: Path, *more: str, scopes: str = "read", failpoint: str | None = None
    ) -> None:
        env = os.environ | {"OMP_NUM_THREADS": "1"} | ({VARIABLE: failpoint} if failpoint else {})
        words = ["serve", "--state", str(state), "--port", "0", "--make-token", scopes]
        command = [sys.executable, "-u", "-m", "rescind.cli", *words, *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        self.base = self.token = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "serves at" in line:
                self.base = line.split()[3]
            if line.startswith("token for"):
                self.token = line.split()[-1]
                break

    def call(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """Send one request; return its JSON."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        headers["Idempotency-Key"] = secrets.token_hex(16)
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.base + path, data, headers, method=method)
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def end(self) -> None:
        """Kill it and wait until it is gone."""
        self.process.kill()
        self.process.wait()
