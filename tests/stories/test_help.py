"""Help for a newcomer: groups by what people want, help of every argument, nearest names."""

from __future__ import annotations

import re
import sys

import click
import pytest
import typer

from rescind import __version__
from rescind.cli import app, main
from rescind.cli.help_text import DEPLOY, FORGET, LEARN, REPRODUCE, TRY, flow


def every(command: click.Command, path: str = "rescind"):
    """All commands that can be given, by their words."""
    for name, below in getattr(command, "commands", {}).items():
        yield f"{path} {name}", below
        yield from every(below, f"{path} {name}")


COMMANDS = dict(every(flow(typer.main.get_command(app))))


@pytest.fixture
def rescind(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def ask(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rescind", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out = capsys.readouterr()
        return code, out.out + out.err

    return ask


def test_every_command_stands_in_a_group_and_the_groups_come_in_this_order(rescind):
    _, said = rescind("--help")
    places = [said.index(f"─ {group} ─") for group in (TRY, LEARN, FORGET, DEPLOY, REPRODUCE)]
    assert places == sorted(places)
    assert "─ Commands ─" not in said, "a command without a group"


@pytest.mark.parametrize("words", COMMANDS)
def test_every_argument_and_option_has_help(words):
    for param in COMMANDS[words].params:
        assert getattr(param, "help", None), f"{words}: {param.name} has no help"
    assert COMMANDS[words].help, f"{words} has no help"


def test_help_without_help_is_noticed():
    @click.command()
    @click.argument("what")
    def bare(what: str) -> None: ...

    assert [getattr(p, "help", None) for p in bare.params] == [None]


def test_help_of_an_argument_is_shown_and_paragraphs_flow(rescind):
    _, said = rescind("table", "--help")
    assert "A TOML file, or the name of a recipe (paper/table)." in said
    told = flow(click.Command("x", help="One line\nand another.\n\nA second\nparagraph."))
    assert told.help == "One line and another.\n\nA second paragraph."


@pytest.mark.parametrize("command", ["run", "recommend", "forget", "audit", "table", "verify"])
def test_the_commands_of_the_first_hour_have_examples(rescind, command):
    _, said = rescind(command, "--help")
    assert re.search(rf"Examples?: .*rescind {command}", " ".join(said.split()))


def test_the_nearest_name_is_named_once(rescind):
    for words, near in (
        (["recomend"], "'recommend'"),
        (["data", "gt"], "'get'"),
        (["recommend", "x", "--usr", "3"], "'--user'"),
        (["data", "describe", "ml-10k"], "'ml-100k'"),
        (["run", "basics/flor"], "'basics/floor'"),
    ):
        code, said = rescind(*words)
        assert code == 2
        assert said.lower().count(f"did you mean {near}") == 1, said


def test_version_and_completion(rescind, monkeypatch):
    assert rescind("--version") == (0, f"rescind {__version__}\n")
    for name, value in (("COMP_WORDS", "rescind da"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_RESCIND_COMPLETE", "complete_bash")
    assert rescind() == (0, "data\n")


def test_k_is_written_in_two_ways(rescind):
    for command in ("rescind recommend", "rescind value", "rescind flower recommend"):
        (k,) = [p for p in COMMANDS[command].params if p.name == "k"]
        assert set(k.opts) == {"-k", "--k"}


def test_a_run_of_flower_says_where_to_ask(rescind, tmp_path):
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    code, said = rescind("recommend", "run", "--user", "7")
    assert "flower" not in said, "control: a folder without any model"
    (model / "public.safetensors").write_bytes(b"")
    code, said = rescind("recommend", "run", "--user", "7")
    assert code == 2
    assert "rescind flower recommend SILO_FOLDER --user 7" in said
