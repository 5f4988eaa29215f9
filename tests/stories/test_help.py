"""Help for a newcomer: groups by what people want, help of every argument, nearest names."""

from __future__ import annotations

import re
import shlex
import sys

import click
import pytest
import typer

from rescind import __version__
from rescind.cli import COMMANDS as NAMES
from rescind.cli import app, main, named, program
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


@pytest.mark.parametrize("words", [words for words in COMMANDS if words.count(" ") == 1])
def test_a_command_that_is_read_alone_is_the_one_among_all(words):
    alone = dict(every(flow(typer.main.get_command(program(named(words.split()[1:]))))))
    told = {name: one.to_info_dict(click.Context(one)) for name, one in alone.items()}
    among = {name: one for name, one in COMMANDS.items() if f"{name} ".startswith(f"{words} ")}
    assert told == {name: one.to_info_dict(click.Context(one)) for name, one in among.items()}


@pytest.mark.parametrize("words", [[], ["--help"], ["runn"]])
def test_all_commands_are_read_where_none_is_named(words):
    assert named(words) == [*NAMES]


@pytest.mark.parametrize("words", [["--home", "x", "run"], ["--home=x", "run"], ["run", "data"]])
def test_the_first_command_is_read_alone_also_after_the_home(words):
    assert named(words) == ["run"]


@pytest.mark.parametrize(
    ("words", "twice"),
    [
        ("recommend runs/x --user 7 --user 8", "--user was given 2 times"),
        ("recommend runs/x --user 7 -k 3 -k 4", "-k was given 2 times"),
        ("recommend runs/x --user=7 --user=8", "--user was given 2 times"),
        ("forget runs/x --case a --case b --user 7", "--case was given 2 times"),
        ("data show x --user 7 --user 8", "--user was given 2 times"),
        ("forget runs/x --user 7 --user 8", ""),
        ("recommend runs/x --user 7 -k 3", ""),
    ],
)
def test_an_option_of_one_value_that_is_given_twice_is_refused(rescind, words, twice):
    code, said = rescind(*words.split())
    assert code == 2
    assert twice in said
    assert bool(twice) == (" times and takes one value" in said), "control: it may be repeated"


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


def examples(command: click.Command) -> list[list[str]]:
    """Return the examples in the help of a command, each in words."""
    told = (command.help or "").split("\n\n")
    shown = [found[1] for p in told if (found := re.match(r"Examples?: (.*)", p, re.DOTALL))]
    return [shlex.split(line) for text in shown for line in text.split(";")]


def does_something(command: click.Command) -> bool:
    """Tell whether a command does more than list those below it."""
    return not isinstance(command, click.Group) or command.invoke_without_command


def read(line: list[str]) -> str:
    """Read a line as the command line would, and return the command it gives. Nothing is run."""
    known = [n for n in range(len(line), 0, -1) if " ".join(line[:n]) in COMMANDS]
    words, given = " ".join(line[: known[0]]), line[known[0] :]
    COMMANDS[words].make_context(words, given)
    return words


@pytest.mark.parametrize("words", [w for w, command in COMMANDS.items() if does_something(command)])
def test_every_command_has_examples_that_can_be_given(words, rescind):
    shown = examples(COMMANDS[words])
    assert shown, f"{words} --help shows no example"
    assert [read(line) for line in shown] == [words] * len(shown)
    _, said = rescind(*words.split()[1:], "--help")
    assert re.search(rf"Examples?: {words}\b", " ".join(said.split()))


def test_examples_that_are_missing_or_wrong_are_noticed():
    assert not examples(click.Command("x", help="Do it.\n\nFor example at night."))
    given = click.Command("x", help="Do it.\n\nExamples: rescind x --to 'a b'; rescind x")
    assert examples(given) == [["rescind", "x", "--to", "a b"], ["rescind", "x"]]
    for wrong, why in (
        ("rescind data get ml-1m --form x", click.NoSuchOption),
        ("rescind data get", click.MissingParameter),
        ("rescind data get ml-1m ml-100k", click.UsageError),
        ("rescind flower kit --silos two", click.BadParameter),
    ):
        with pytest.raises(why):
            read(wrong.split())


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


def test_an_option_with_a_default_is_not_called_needed():
    help_of = {p.name: p.help for p in COMMANDS["rescind verify"].params}
    assert "Default: your own log's" in help_of["log_key"]
    assert "Needs --log-key" not in help_of["proof"]
    assert "--log-key" in help_of["proof"], "who needs it is told"
