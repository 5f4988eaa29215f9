"""Write what is known of `rescind.methods` and `rescind.models`, whose classes are found by name.

    python -m rescind_papers.stubs

With the type stubs an editor lists the methods, and a setting that does not exist fails type
checks. With the description of all settings `rescind table` needs no torch.
"""

from __future__ import annotations

import json
from pathlib import Path

import rescind
from rescind import methods, models
from rescind.core.files import write_atomically
from rescind.experiments.described import FILE, describe

HOME = Path(rescind.__file__).parent
HEAD = "# Written by python -m rescind_papers.stubs: one line for each class that is found.\n"


def stubs() -> dict[Path, str]:
    """Return the text of each file."""
    learners = "def all_methods() -> dict[str, type[Method]]: ...\n"
    learners += "def all_unlearners() -> dict[str, type[Unlearner]]: ...\n"
    backbones = "def all_models() -> dict[str, type[Model]]: ...\n"
    return {
        HOME / "methods" / "__init__.pyi": HEAD
        + "from rescind.core.method import Method, Unlearner\n"
        + _lines(methods.all_unlearners())
        + "\n"
        + learners,
        HOME / "models" / "__init__.pyi": HEAD
        + "from rescind.core.model import Model\n"
        + _lines(models.all_models())
        + "\n"
        + backbones,
        HOME.joinpath(*FILE): _settings(),
    }


def _settings() -> str:
    known = sorted({**methods.all_unlearners(), **models.all_models()}.items())
    lines = [f"{json.dumps(name)}: {json.dumps(describe(cls))}" for name, cls in known]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(classes: dict[str, type]) -> str:
    found: dict[str, list[str]] = {}
    for name, cls in classes.items():
        found.setdefault(cls.__module__, []).append(name)
    lines = [(module, f"{name} as {name}") for module in sorted(found) for name in found[module]]
    return "".join(f"from {module} import {name}\n" for module, name in lines)


def main() -> None:
    """Write all files."""
    for path, text in stubs().items():
        write_atomically(path, text.encode())
        print(f"written: {path}")


if __name__ == "__main__":
    main()
