"""Install packages into the Python that runs this: with uv where that is possible, else with pip.

    python install.py --editable '.[dev]'

The packages and versions are the same, constraints.txt names them all, but uv is quicker. It reads
none of pip's settings, so they are handed over; where one has no equal in uv, pip installs.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib import metadata

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
# Versions are looked for in all places, as pip does it.
UV = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--index-strategy=unsafe-best-match"]
EXACT = "constraints.txt"
PLACES = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
}
"""Settings of pip that say where packages are, and the options of uv that mean the same."""
HARMLESS = {
    "cache-dir", "cert", "default-timeout", "disable-pip-version-check", "no-cache-dir", "no-color",
    "no-input", "progress-bar", "quiet", "retries", "root-user-action", "timeout", "verbose",
    "break-system-packages", "constraint", "build-constraint",
}  # fmt: skip
"""Settings of pip that change nothing in what is installed, or that are given below."""


def handed_over(said: str) -> list[str] | None:
    """Return the settings that `pip config list` says as options of uv; None if uv has no equal.

    A variable of the environment takes the place of the same setting in a file.
    """
    files: dict[str, str] = {}
    variables: dict[str, str] = {}
    for line in said.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section not in ("global", "install", ":env:"):
            continue
        if key in PLACES:
            (variables if section == ":env:" else files)[key] = ast.literal_eval(value)
        elif key not in HARMLESS:
            return None
    found = files | variables
    return [f"{PLACES[key]}={place}" for key, places in found.items() for place in places.split()]


def kept_in_place(words: list[str]) -> list[str]:
    """Return the words with --editable where this Python uses a clone in place: it stays so."""
    stated = None
    with suppress(metadata.PackageNotFoundError):
        stated = metadata.distribution("rescind").read_text("direct_url.json")
    in_place = json.loads(stated or "{}").get("dir_info", {}).get("editable", False)
    here = len(words) == 1 and words[0].startswith(".")
    return ["--editable", *words] if in_place and here else words


def with_uv(words: list[str]) -> bool:
    """Install with uv; return whether that was possible."""
    asked = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False)
    places = None if asked.returncode else handed_over(asked.stdout)
    if places is None:
        return False
    got = [*PIP, "install", "--quiet", "--no-compile", "--constraint", EXACT, "uv"]
    if subprocess.run(got, capture_output=True, check=False).returncode:
        return False
    exact = ["--constraints", EXACT, "--build-constraints", EXACT]
    here = ["--python", sys.executable]
    return not subprocess.run([*UV, *here, *places, *exact, *words], check=False).returncode


def with_pip(words: list[str]) -> int:
    """Install with pip; return its exit code."""
    # As variables, not options, so that packages which are built here see them, too: Flower needs
    # one that does not build with newer setuptools. Older pip reads the first, 25.3 the second.
    exact = {"PIP_CONSTRAINT": EXACT, "PIP_BUILD_CONSTRAINT": EXACT}
    # Files are compiled when they are first imported: compiling all 16,000 takes over a minute.
    command = [*PIP, "install", "--quiet", "--no-compile", *words]
    return subprocess.run(command, env=os.environ | exact, check=False).returncode


if __name__ == "__main__":
    wanted = kept_in_place(sys.argv[1:])
    if not with_uv(wanted):
        print("uv cannot install it here: pip does, which takes minutes", flush=True)
        sys.exit(with_pip(wanted))
