"""What installs the packages hands pip's settings over to uv, or leaves it to pip."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "install", Path(__file__).parents[1] / "install.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_places_of_packages_are_handed_over_and_variables_come_before_files(install):
    said = """:env:.find-links='wheels'
global.extra-index-url='file:///one file:///two'
global.find-links='elsewhere'
install.index-url='file:///first'
global.timeout='20'
freeze.user='true'"""
    assert sorted(install.handed_over(said)) == [
        "--default-index=file:///first",
        "--find-links=wheels",
        "--index=file:///one",
        "--index=file:///two",
    ]
    assert install.handed_over("") == []


@pytest.mark.parametrize("line", ["global.no-index='true'", ":env:.trusted-host='x'"])
def test_a_setting_that_uv_does_not_know_leaves_it_to_pip(install, line):
    said = "global.find-links='wheels'"
    assert install.handed_over(f"{said}\n{line}") is None
    assert install.handed_over(said) is not None


def test_without_uv_pip_installs_with_the_same_versions(install, monkeypatch):
    asked = []

    class Done:
        returncode, stdout = 0, ""

    def run(command, **more):
        asked.append((command, more.get("env", {})))
        done = Done()
        done.returncode = int(command[-1] == "uv")  # it cannot be had
        return done

    monkeypatch.setattr(install.subprocess, "run", run)
    assert not install.with_uv(["--editable", "."])
    assert install.with_pip(["--editable", "."]) == 0
    command, variables = asked[-1]
    assert command[1:3] == ["-m", "pip"]
    assert command[-2:] == ["--editable", "."]
    assert variables["PIP_CONSTRAINT"] == variables["PIP_BUILD_CONSTRAINT"] == "constraints.txt"
    assert [c for c, _ in asked if c[1:3] == ["-m", "uv"]] == []


@pytest.mark.parametrize("in_place", [True, False])
def test_a_clone_that_is_used_in_place_stays_so(install, monkeypatch, in_place):
    stated = f'{{"url": "file:///clone", "dir_info": {{"editable": {str(in_place).lower()}}}}}'
    found = SimpleNamespace(read_text=lambda _: stated)
    monkeypatch.setattr(install.metadata, "distribution", lambda _: found)
    more = ["--editable"] if in_place else []
    assert install.kept_in_place([".[postgres]"]) == [*more, ".[postgres]"]
    assert install.kept_in_place(["--editable", ".[dev]"]) == ["--editable", ".[dev]"]
