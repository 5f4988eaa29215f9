"""Write the type stubs of `rescind.methods` and `rescind.models`, whose classes are found by name.

    python -m rescind_papers.stubs

With them an editor lists the methods, and a setting that does not exist fails type checks.
"""

from __future__ import annotations

from pathlib import Path

import rescind
from rescind import methods, models
from rescind.core.files import write_atomically

HOME = Path(rescind.__file__).parent
HEAD = "# Written by python -m rescind_papers.stubs: one line for each class that is found.\n"


def stubs() -> dict[Path, str]:
    """Return the text of each stub file."""
    learners = "def all_methods() -> dict[str, type[Method]]: ...\n"
    learners += "def all_unlearners() -> dict[str, type[Unlearner]]: ...\n"
    learners += "def found() -> dict[str, type[Unlearner]]: ...\n"
    backbones = "def all_models() -> dict[str, type[Model]]: ...\n"
    backbones += "def found() -> dict[str, type[Model]]: ...\n"
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
    }


def _lines(classes: dict[str, type]) -> str:
    found: dict[str, list[str]] = {}
    for name, cls in classes.items():
        found.setdefault(cls.__module__, []).append(name)
    lines = [(module, f"{name} as {name}") for module in sorted(found) for name in found[module]]
    return "".join(f"from {module} import {name}\n" for module, name in lines)


def main() -> None:
    """Write both files."""
    for path, text in stubs().items():
        write_atomically(path, text.encode())
        print(f"written: {path}")


if __name__ == "__main__":
    main()
