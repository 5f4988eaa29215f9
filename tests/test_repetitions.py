"""The list of tests that run by hand only names tests that are there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TESTS = Path(__file__).parent


def repetitions() -> tuple[str, ...]:
    """Return the list of conftest.py, which pytest does not let a test import."""
    spec = importlib.util.spec_from_file_location("list_of_repetitions", TESTS / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.REPETITIONS


def unknown(names: tuple[str, ...]) -> list[str]:
    """Return names whose file or test does not exist: renamed, they would run every time again."""
    files = {path.as_posix(): path.read_text() for path in TESTS.rglob("test_*.py")}
    found = []
    for name in names:
        file, _, test = name.rpartition("::")
        texts = [text for path, text in files.items() if path.endswith(f"/{file}" if file else "")]
        if not any(f"def {test.split('[')[0]}" in text for text in texts):
            found.append(name)
    return found


def test_every_repetition_is_a_test() -> None:
    assert unknown(repetitions()) == []


def test_a_test_that_was_renamed_is_found() -> None:
    renamed = ("test_repetitions.py::test_gone", "test_gone.py::")
    assert unknown(renamed) == list(renamed)
