"""Install the wheel as anybody would, with the newest versions it allows, and use it.

    make test-wheel

An empty environment, no constraints.txt: what the tests ran with is not what people get. Run it
before a release, on what is committed. It needs a package index, and takes some minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[2]
(TORCH,) = re.findall(r'^  "(torch==.*)",$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
OURS = ("PYTHONPATH", "PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "RESCIND_DATA")
"""Variables that would bring in this checkout, its versions or its data."""


def main(folder: Path) -> None:
    """Build, install and use the wheel in an empty folder."""
    env = {name: value for name, value in os.environ.items() if name not in OURS}
    env |= {"RESCIND_HOME": str(folder / "home"), "RESCIND_CACHE": str(folder / "cache")}

    def run(*words: str | Path) -> None:
        print("$", *words, flush=True)
        subprocess.run([str(word) for word in words], cwd=folder, env=env, check=True)

    run(sys.executable, "-m", "venv", "env")
    pip, rescind = folder / "env" / "bin" / "pip", folder / "env" / "bin" / "rescind"
    run("git", "clone", "--quiet", ROOT, "tree")  # what is committed, and nothing built before
    run(pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, folder / "tree")
    (wheel,) = folder.glob("rescind-*.whl")
    run(pip, "install", "--quiet", TORCH, wheel)
    run(pip, "list")
    run(rescind, "--version")
    run(rescind, "demo", "--synthetic", "--rounds", "10")
    run(rescind, "table", "fedshare/table3")
    run(rescind, "verify", "runs/demo/receipt.json")
    run(rescind, "verify", "runs/demo/additive/receipt.json", "--data", "runs/demo/additive")
    run(pip, "install", "--quiet", f"{wheel}[service]")
    run(pip, "check")
    run(rescind, "serve", "--help")
    (folder / "films.csv").write_text("id,title\na,A\nb,B\n")
    serves = [rescind, "serve", "--state", "state", "--items", "films.csv", "--port", "8791"]
    service = subprocess.Popen(serves, cwd=folder, env=env)
    try:
        print(ready("http://localhost:8791/readyz", service))
    finally:
        service.terminate()
        service.wait()
    print("the wheel runs with the newest versions")


def ready(address: str, service: subprocess.Popen[bytes]) -> str:
    """Return the first answer of a service that starts. It compiles before it listens."""
    while service.poll() is None:
        try:
            with urlopen(address, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            time.sleep(1)
    raise SystemExit(f"the service ended with exit code {service.returncode}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="rescind-wheel-") as made:
        main(Path(made))
