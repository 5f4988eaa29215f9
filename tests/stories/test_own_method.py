"""A method in one file of the user's own: recipes, commands, saved runs and audits know it."""

from __future__ import annotations

import json
import os
import sys
from hashlib import sha256
from pathlib import Path

import pytest

import rescind as rs
from requesting import newest_receipt
from rescind.cli import main
from rescind.core.settings import find, sought
from rescind.errors import ConfigError
from rescind.experiments.learning_run import run_key
from rescind.experiments.prepared_data import obtained
from rescind.experiments.recipe import read
from rescind.methods import _outside, _own_file
from rescind.methods._outside import remember
from rescind.methods._own_file import file_of
from rescind.models.mf import MF
from rescind.privacy import keys
from rescind.storage.kinds import METHODS, UNLEARNERS

LEARNER = '''
from dataclasses import dataclass
import rescind as rs

@dataclass(frozen=True, kw_only=True)
class {name}(rs.methods.FedAvg):
    """FedAvg with another step."""

    pull: float = 0.1

    def server_step(self, state, sums, world, clock):
        return super().server_step(state, sums, world, clock)
'''
UNLEARNER = '''
from dataclasses import dataclass
from rescind.core import Unlearner

@dataclass(frozen=True, kw_only=True)
class {name}(Unlearner):
    """Forgets by starting again."""

    unlearning = "{name}"

    def forget(self, fed, request):
        return fed.retrained(request.event)
'''
RECIPE = """
[data]
name = "synthetic"
users = 30
items = 30
interactions = 400
[run]
rounds = 2
evaluate_every = 1
[axes]
method = [
  {{ label = "Popularity", name = "Popularity" }},
  {{ label = "mine", name = "{file}", pull = 0.5, model = {{ name = "MF", dim = 4 }} }},
]
seed = [0, 1]
"""


@pytest.fixture
def own(tmp_path):
    """Write a file with a method; returns its path. Names differ, as modules stay loaded."""

    def write(name: str, text: str = LEARNER, file: str = "") -> Path:
        path = tmp_path / (file or f"{name.lower()}.py")
        path.write_text(text.format(name=name))
        return path

    return write


@pytest.fixture
def rescind(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

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


def forgotten(path: Path) -> None:
    """Do as a new process does: nothing of this file is loaded."""
    name = _own_file.LOADED.pop(path.resolve())
    del sys.modules[name]


def test_a_recipe_beside_the_file_runs_it_and_a_table_compares_it(own, rescind, tmp_path):
    own("Beside")
    (tmp_path / "mine.toml").write_text(RECIPE.format(file="beside.py"))
    code, said = rescind("run", "mine.toml", "--record")
    assert code == 0, said
    code, said = rescind("table", "mine.toml", "--against", "Popularity", "--metric", "NDCG@20")
    assert code == 0
    assert "mine" in said
    lines = [json.loads(line) for line in (tmp_path / "mine.jsonl").read_text().splitlines()]
    versions = [line["versions"].get("Beside", "") for line in lines]
    assert [v.startswith("beside.py sha256:") for v in versions] == [False, False, True, True]


def test_a_later_command_finds_the_class_of_a_run_by_its_name(own, tiny):
    path = own("Remembered")
    cls = find(*METHODS, _outside.class_name(str(path)))
    fed = rs.Federation.start(tiny, cls(model=MF(dim=2), pull=0.3), seed=1).run(1)
    rs.save_federation(fed, path.parent / "run")
    forgotten(path)
    del cls, fed
    again = rs.load_federation(path.parent / "run")
    assert (type(again.method).__name__, again.method.pull) == ("Remembered", 0.3)
    assert rs.methods.Remembered is type(again.method)


def test_a_file_that_this_user_never_ran_is_not_run_by_loading_a_name(own):
    path = own("Stranger")
    assert sought(*METHODS, "Stranger") is None
    keys.private_folder()
    (keys.folder() / "methods.txt").write_text(f"{path}\n")
    assert sought(*METHODS, "Stranger") is not None  # control: the note is what makes it known


def test_only_files_that_have_the_class_are_run(own):
    noisy = own("Noisy", "raise SystemError('this file must not be run')\n# class {name}")
    keys.private_folder()
    (keys.folder() / "methods.txt").write_text(f"{noisy}\n")
    assert sought(*METHODS, "Noisy") is None


def test_an_own_unlearner_forgets(own, rescind, tmp_path):
    own("Anew1", UNLEARNER)
    own("Plain1")
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE.format(file="plain1.py"))
    words = ("run", "mine.toml", "--cell", "mine", "--seeds", "1", "--out", "run")
    assert rescind(*words)[0] == 0
    run = str(next(tmp_path.glob("run/**/run.json")).parent)
    code, said = rescind("forget", run, "--user", "1", "--method", "anew1.py")
    assert code == 0, said
    assert newest_receipt(run).done.unlearning == "Anew1"


@pytest.mark.slow  # starts two processes that load torch
def test_two_workers_of_an_audit_know_the_file(own, rescind, tmp_path):
    own("Plain2")
    (tmp_path / "mine.toml").write_text(RECIPE.format(file="plain2.py"))
    assert rescind("run", "mine.toml", "--cell", "mine", "--seeds", "1", "--out", "run")[0] == 0
    run = str(next(tmp_path.glob("run/**/run.json")).parent)
    code, said = rescind("audit", run, "--user", "1", "--workers", "2")
    assert code in (0, 1), said
    assert "5 of 5 models" in said


def test_a_changed_file_is_run_again_with_resume(own, rescind, tmp_path):
    path = own("Edited")
    (tmp_path / "mine.toml").write_text(RECIPE.format(file="edited.py"))
    words = ("run", "mine.toml", "--cell", "mine", "--seeds", "1", "--out", "run")
    assert rescind(*words)[0] == 0
    assert "finished before" in rescind(*words, "--resume")[1]
    path.write_text(path.read_text() + "# edited\n")
    said = rescind(*words, "--resume")[1]
    assert "finished before" not in said
    assert "replaced: " in said
    assert "replaced: " not in rescind(*words, "--resume")[1], "the control: the same code"


def test_a_run_of_another_file_with_this_class_is_not_replaced_without_a_word(own, rescind):
    first, second = own("Yan", file="w1.py"), own("Yan", LEARNER + "# another text", "w2.py")
    sizes = ("run.rounds=1", "data.users=30", "data.items=30", "data.interactions=400")
    words = ("run", "--data", "synthetic", *(f"--set={one}" for one in sizes), "--out", "run")
    assert rescind(*words, "--method", str(first))[0] == 0
    renamed = own("Yan", file="w3.py")
    said = rescind(*words, "--method", str(renamed), "--resume")[1]
    assert "finished before" in said, "the control: the same text"
    said = rescind(*words, "--method", str(second))[1]
    assert "replaced: run" in said


def test_a_file_that_was_run_is_meant_by_a_name_that_is_close(own, rescind):
    words = ("run", "--data", "synthetic", "--method", "Cosin")
    code, said = rescind(*words)
    assert (code, "Cosine" in said) == (2, False), "the control: nobody has run it"
    remember(own("Cosine"))
    code, said = rescind(*words)
    assert code == 2
    assert "there is no method 'Cosin': did you mean 'Cosine'?" in said


def test_an_installed_package_is_found_by_its_entry_point(tmp_path, monkeypatch):
    (tmp_path / "their_package.py").write_text(LEARNER.format(name="Installed"))
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rescind.methods]\nInstalled = their_package:Installed\n"
    )
    assert sought(*METHODS, "installed") is None
    monkeypatch.syspath_prepend(str(tmp_path))
    _outside._installed.cache_clear()
    try:
        assert sought(*METHODS, "installed").__module__ == "their_package"
        with pytest.raises(ConfigError, match="did you mean 'Installed'"):
            find(*UNLEARNERS, "Instaled")
    finally:
        monkeypatch.undo()
        _outside._installed.cache_clear()


@pytest.mark.parametrize(
    ("text", "words"),
    {
        "class {name}(": "line 1: SyntaxError",
        "import torch\nimport no_such_library": "line 2: ModuleNotFoundError",
        "x = 1": "defines no learner. Write a frozen dataclass",
        LEARNER.replace("{name}", "Gram"): "is called Gram, as a method of rescind is",
        LEARNER.replace("@dataclass(frozen=True, kw_only=True)\n", ""): "has the settings pull",
        LEARNER + LEARNER.replace("{name}", "{name}Two"): "Name one of them: ",
        UNLEARNER.replace("forget", "forgets"): "lacks forget. Did you mean it by forgets?",
    }.items(),
    ids=["syntax", "import", "nothing", "taken", "no dataclass", "two", "abstract"],
)
def test_a_file_that_cannot_serve_is_refused_with_what_to_do(own, text, words, request):
    name = "Bad" + "".join(filter(str.isalpha, request.node.callspec.id)).title()
    path = own(name, text)
    with pytest.raises(ConfigError) as refused:
        _outside.class_name(str(path))
    assert words in str(refused.value)
    assert str(path) in str(refused.value) or "another name" in str(refused.value)
    assert not (keys.folder() / "methods.txt").exists()


def test_a_module_that_is_not_there_is_answered_with_what_to_do(own, tmp_path):
    path = own("Helped", "from helper.more import factor\n" + LEARNER)
    with pytest.raises(ConfigError, match=r"line 1: .*'helper'. Install 'helper' where rescind"):
        _outside.class_name(str(path))
    path.with_name("helper.py").write_text("factor = 2\n")
    with pytest.raises(ConfigError, match="A method is one file") as refused:
        _outside.class_name(str(path))
    assert f"of helper.py into {path.name}, or install 'helper' as a package" in str(refused.value)


def test_one_of_two_classes_is_named_behind_the_file(own):
    path = own("First", LEARNER + LEARNER.replace("{name}", "Second"))
    assert _outside.class_name(f"{path}:Second") == "Second"
    with pytest.raises(ConfigError, match="has no learner 'Secnd'; did you mean 'Second'"):
        _outside.class_name(f"{path}:Secnd")


def test_a_class_of_a_script_is_known_in_its_process(tiny, tmp_path):
    fed = rs.Federation.start(tiny, OfThisScript(model=MF(dim=2)), seed=1).run(1)
    rs.save_federation(fed, tmp_path / "run")
    assert type(rs.load_federation(tmp_path / "run").method) is OfThisScript


class OfThisScript(rs.methods.FedAvg):
    """FedAvg under another name."""


def test_a_class_with_the_name_of_a_method_is_not_saved(tiny, tmp_path):
    twin = type("FedAvg", (rs.methods.FedAvg,), {"__module__": "elsewhere"})
    fed = rs.Federation.start(tiny, twin(model=MF(dim=2)), seed=1)
    with pytest.raises(ConfigError, match="Give your class another name"):
        rs.save_federation(fed, tmp_path / "run")


def test_no_such_file_is_told(rescind, tmp_path):
    (tmp_path / "mine.toml").write_text(RECIPE.format(file="plain.py"))
    code, said = rescind("run", "mine.toml", "--method", "absent.py")
    assert code == 2
    assert "there is no file" in said
    assert "absent.py" in said


# -- which code opens a run -----------------------------------------------------------------------

COUNTING = LEARNER.replace("pull: float = 0.1", "pull: float = 0.1\n    step: float = {step}")


@pytest.fixture
def trained(own, rescind, tmp_path):
    """Train with a file, as a process of its own would; returns the path of the run."""

    def train(path: Path, run: str) -> Path:
        words = ("--set", "run.rounds=1", "--set", "data.users=30", "--set", "data.items=30",
                 "--set", "data.interactions=400", "--set", "method.model=MF")  # fmt: skip
        code, said = rescind("run", "--data", "synthetic", "--method", str(path), *words,
                             "--out", run)  # fmt: skip
        assert code == 0, said
        forgotten(path)
        return tmp_path / run

    return train


def digest_of(path: Path) -> str:
    return f"{path.name} sha256:{sha256(path.read_bytes()).hexdigest()[:12]}"


def test_a_run_is_opened_with_the_file_that_made_it_not_with_the_newest(own, trained, rescind):
    twin, other = own("Twin"), own("Twin", LEARNER + "# another text", "twin_old.py")
    first, second = trained(twin, "first"), trained(other, "second")
    assert file_of(type(rs.load_federation(first).method)) == twin
    assert file_of(type(rs.load_federation(second).method)) == other, "the control"
    code, said = rescind("forget", str(first), "--user", "5")
    assert code == 0, said
    assert newest_receipt(first).code["Twin"] == digest_of(twin)


COMMANDS = (
    ("recommend", "RUN", "--user", "5"),
    ("forget", "RUN", "--user", "5"),
    ("audit", "RUN", "--user", "5", "--workers", "1"),
    ("export", "RUN", "--out", "exported"),
    ("value", "RUN", "--users", "2"),
    ("data", "show", "RUN", "--user", "5"),
)


def test_a_run_is_not_opened_with_a_file_that_was_edited(own, trained, rescind):
    path = own("Changed")
    run, made, before = trained(path, "run"), digest_of(path), path.read_text()
    path.write_text(before.replace("pull: float", "step: float = 1.0\n    pull: float"))
    for words in COMMANDS:
        code, said = rescind(*(str(run) if word == "RUN" else word for word in words))
        assert code == 2, (words, said)
        assert f"was made by {made}" in said, words
        assert str(path.parent / digest_of(path)) in said
        assert "Put changed.py back as it was" in said
    assert (run / "model").is_dir()
    changed = find(*METHODS, _outside.class_name(str(path)))
    assert type(rs.load_federation(run, method=changed).method) is changed  # said to be harmless
    path.write_text(before)
    assert rescind("recommend", str(run), "--user", "5")[0] == 0, "the control"


def test_files_that_once_had_the_class_are_not_listed_with_the_one_that_was_edited(
    own, trained, rescind
):
    path = own("Listed")
    others = [own("Listed", LEARNER + f"# {n}", f"listed_{n}.py") for n in range(4)]
    run = trained(path, "run")
    for other in others:
        _outside.remember(other)
    path.write_text(path.read_text() + "# edited\n")
    said = rescind("recommend", str(run), "--user", "5")[1]
    assert str(path.parent / digest_of(path)) in said
    assert "listed_" not in said
    path.unlink()
    assert "listed_" in rescind("recommend", str(run), "--user", "5")[1], "the control: no other"


def test_a_moved_file_is_asked_for_by_its_name_and_shown_once(own, trained, rescind, tmp_path):
    path = own("SoloMix")
    run, made = trained(path, "run"), digest_of(path)
    new = tmp_path / "kept" / "solo.py"
    new.parent.mkdir()
    path.rename(new)
    code, said = rescind("recommend", str(run), "--user", "5")
    assert code == 2
    assert f"was made by {made}, which is no longer at {path}" in said
    assert "rescind doctor --method FOLDER/solomix.py" in said
    assert "Allowed" not in said
    code, said = rescind("doctor", "--method", str(new))
    assert code == 0, said
    assert digest_of(new) in said
    assert rescind("recommend", str(run), "--user", "5")[0] == 0


def test_an_edit_of_the_same_size_in_the_same_second_counts(own):
    path = own("Quick", COUNTING.replace("{step}", "1.0"))
    assert find(*METHODS, _outside.class_name(str(path))).step == 1.0
    forgotten(path)
    when = path.stat()
    path.write_text(path.read_text().replace("1.0", "2.0"))
    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
    assert find(*METHODS, _outside.class_name(str(path))).step == 2.0


def test_cells_of_two_files_with_classes_of_one_name_run_their_own(own, tmp_path):
    first = own("Namesake", COUNTING.replace("{step}", "1.0"), "first.py")
    second = own("Namesake", COUNTING.replace("{step}", "2.0"), "second.py")
    files = ("first.py", "second.py", "first.py")
    named = ", ".join(f'{{ label = "{n}", name = "{file}" }}' for n, file in enumerate(files))
    (tmp_path / "mine.toml").write_text(f'data.name = "synthetic"\n[axes]\nmethod = [{named}]\n')
    cells = read(tmp_path / "mine.toml").cells
    assert [cell.method.step for cell in cells] == [1.0, 2.0, 1.0]
    assert [cell.code["Namesake"] for cell in cells] == [
        digest_of(path) for path in (first, second, first)
    ]


def test_a_receipt_names_the_file_of_an_own_unlearner(own, trained, rescind):
    unlearner, run = own("Anew2", UNLEARNER), trained(own("Plain3"), "run")
    words = ("--user", "1", "--method", str(unlearner))
    code, said = rescind("forget", str(run), *words)
    assert code == 0, said
    receipt = newest_receipt(run)
    assert receipt.code["Anew2"] == digest_of(unlearner)
    assert "Plain3" in receipt.code


def test_a_result_states_the_files_that_learn_and_forget(own, rescind, tmp_path):
    learner, unlearner = own("Learns"), own("Forgets", UNLEARNER)
    text = RECIPE.format(file="learns.py") + "[sharing]\nratio = [5, 5, 0]\n"
    text += '[forget]\nname = "forgets.py"\ndraw = 0.3\naudits = "none"\n'
    (tmp_path / "mine.toml").write_text(text)
    code, said = rescind("run", "mine.toml", "--cell", "mine", "--seeds", "1", "--record")
    assert code == 0, said
    line = json.loads((tmp_path / "mine.jsonl").read_text())
    found = [line["versions"].get(name) for name in ("Learns", "Forgets", "Popularity")]
    assert found == [digest_of(learner), digest_of(unlearner), None]


def test_a_table_leaves_out_results_of_an_older_text_of_the_file(own, rescind, tmp_path):
    path = own("Improved")
    (tmp_path / "mine.toml").write_text(RECIPE.format(file="improved.py"))
    assert rescind("run", "mine.toml", "--record")[0] == 0
    mine = ("table", "mine.toml", "--json")
    table = json.loads(rescind(*mine)[1])
    assert {e["seeds"] for e in table["entries"]} == {2}, "the control: one text of the file"
    assert table["stale"] == []
    path.write_text(path.read_text() + "# edited\n")
    assert rescind("run", "mine.toml", "--record", "--seeds", "1", "--cell", "mine")[0] == 0
    table = json.loads(rescind(*mine)[1])
    seeds = {e["cell"]: e["seeds"] for e in table["entries"]}
    assert seeds == {"Popularity": 2, "mine": 1}
    said = rescind("table", "mine.toml")[1]
    assert "Results of other settings or code are left out (mine seed 1)" in said
    assert rescind("run", "mine.toml", "--record", "--cell", "mine")[0] == 0
    assert "are left out" not in rescind("table", "mine.toml")[1], "all were run again"


def test_checkpoints_of_an_older_text_of_the_file_are_not_gone_on_with(own, tmp_path):
    path = own("Halted")
    (tmp_path / "mine.toml").write_text(RECIPE.format(file="halted.py"))

    def keys_of_runs() -> list[str]:
        cells = read(tmp_path / "mine.toml").cells
        return [run_key(cell, obtained(cell)) for cell in cells if cell.run.seed == 0]

    popularity, mine = keys_of_runs()
    assert keys_of_runs() == [popularity, mine], "the control"
    path.write_text(path.read_text() + "# edited\n")
    again = keys_of_runs()
    assert again[0] == popularity
    assert again[1] != mine


def test_a_mistake_in_the_file_is_shown_by_its_own_lines(own, rescind, tmp_path, monkeypatch):
    wrong = LEARNER.replace("return super().server_step(state", "return super().server_step(None")
    own("Mistaken", wrong)
    (tmp_path / "mine.toml").write_text(RECIPE.format(file="mistaken.py"))
    words = ("run", "mine.toml", "--cell", "mine", "--seeds", "1")
    code, said = rescind(*words)
    assert code == 1
    shown = said[said.index("  File") :]
    assert "mistaken.py" in shown.splitlines()[0]
    assert "in server_step" in shown.splitlines()[0]
    assert "AttributeError: 'NoneType' object" in shown
    assert shown.count("  File") == 2  # the line of the file, and the one where it happened
    monkeypatch.setenv("RESCIND_TRACEBACK", "1")
    with pytest.raises(AttributeError):
        rescind(*words)


def test_a_value_that_fails_in_our_code_is_told_in_a_few_lines(own, rescind, tmp_path):
    narrow = LEARNER.replace(
        "    def server_step(self, state, sums, world, clock):\n"
        "        return super().server_step(state, sums, world, clock)\n",
        "    def client_init(self, ids, clock):\n"
        "        given = super().client_init(ids, clock)\n"
        "        return given.with_(user=given.values['user'][:, :3])\n",
    )
    own("Narrow", narrow)
    (tmp_path / "mine.toml").write_text(RECIPE.format(file="narrow.py"))
    words = ("run", "mine.toml", "--cell", "mine", "--seeds", "1")
    code, said = rescind(*words)
    assert (code, "Narrow.client_init returned 'user' as" in said) == (2, True), "by its name"
    width = (  # both halves are the author's, so that no model says which width is right
        "    model: rs.core.Model = rs.models.MF(dim=4)\n\n"
        "    def server_init(self, world, clock):\n"
        "        return super().server_init(world, clock)\n\n"
        "    def client_init("
    )
    own("Narrow", narrow.replace("    def client_init(", width))
    code, said = rescind(*words)
    assert code == 1
    shown = said[said.index("  File") :]
    assert shown.count("  File") == 1
    assert "narrow.py, but most likely about a value from there" in shown
    assert "RuntimeError" in shown


COUNTS = '''
from dataclasses import dataclass
import torch
import rescind as rs
from rescind.core import Method, Model, Rows, Update

@dataclass(frozen=True, kw_only=True)
class {name}(Method):
    """Counts items."""

    enough_rounds = 1
    model: Model = rs.models.Counts()

    def client_train(self, public, private, cohort, clock):
        lot = cohort.train
        each = torch.ones(len(lot.count))
        value = each[lot.owner].unsqueeze(1)
        rows = Rows(lot.owner, lot.item, value, cohort.items)
        return Update(len(cohort), {{"item": rows}}), private

    def server_step(self, state, sums, world, clock):
        return state.next({{"item": sums["train"].totals["item"]}})

    def client_scores(self, public, private, cohort):
        return public["item"].T.expand(len(cohort), -1).clone()
'''


@pytest.mark.parametrize(
    ("name", "right", "wrong", "words"),
    [
        ("Sound", "", "", ""),
        ("Rolling", "torch.ones(", "torch.rand(", "error: two calls of Rolling.client_train with"),
        ("PerClient", "each[lot.owner].unsq", "each.unsq", "error: what PerClient.client_train"),
        ("Beyond", "lot.item,", "lot.item + 1,", "'item' has an index 30; expected 0 to 29"),
        ("Alone", "}}), private", "}})", "error: Alone.client_train returned Update; expected ("),
        ("Misspelt", "def client_scores", "def client_score", "did you mean 'client_scores'"),
        ("Untyped", "model: Model =", "model =", "sets model without a type, so it would not"),
        ("Constant", "enough_rounds = 1", "enough_rounds = 1; width = 128",
         "sets width without a type, so nobody could set it. For a setting write width: int ="),
        ("TooFew", "state, sums, world, clock)", "state, sums)",
         "TooFew.server_step takes (self, state, sums), but is called with (self, state, sums,"),
        ("NoReturn", "return state.next", "state.next",
         "error: NoReturn.server_step returned None; expected a ServerState of Tensors by name."),
        ("Mapped", "return state.next({{", "return ({{",
         "Mapped.server_step returned {{'item': Tensor}}; expected a ServerState of Tensors"),
        ("Arrays", ".clone()", ".numpy()",
         "error: Arrays.client_scores returned a numpy array; expected a Tensor [C, I]. Change"),
        ("NoStart", "    def server_step",
         '    def server_init(self, *_):\n        return {{"item": 1}}\n\n    def server_step',
         "NoStart.server_init returned {{'item': int}}; expected a ServerState of Tensors"),
    ],
)  # fmt: skip
def test_a_common_mistake_is_told_in_one_line(own, rescind, name, right, wrong, words):
    path = own(name, COUNTS.replace(right, wrong) if right else COUNTS)
    small = ("--set", "data.users=30", "--set", "data.items=30", "--set", "data.interactions=400")
    code, said = rescind("run", "--data", "synthetic", *small, "--method", str(path))
    assert code == (2 if words else 0), said
    assert words.replace("{{", "{").replace("}}", "}") in said
    assert "Traceback" not in said


# -- a class that is named without its file -------------------------------------------------------

BY_NAME = '[data]\nname = "synthetic"\n[axes]\nmethod = [{named}]\n'


def test_a_plain_name_says_which_file_it_means(own, tmp_path, caplog):
    path = own("Lonely")
    (tmp_path / "mine.toml").write_text(BY_NAME.format(named='"Lonely"'))
    with pytest.raises(ConfigError, match="there is no method 'Lonely'"):
        read(tmp_path / "mine.toml")
    _outside.class_name(str(path))
    forgotten(path)
    assert caplog.messages == []
    (cell,) = read(tmp_path / "mine.toml").cells
    assert file_of(type(cell.method)) == path
    assert caplog.messages == [f"Lonely: the class of {path}, which you have run before"]
    read(tmp_path / "mine.toml", ["method=lonely.py"])
    assert len(caplog.messages) == 1, "the control: a file that is named need not be told"


def test_a_plain_name_of_two_files_is_refused_with_both(own, rescind, tmp_path):
    """It meant the file that was first run last, and the same recipe gave other results."""
    first, second = own("Zed", file="v1.py"), own("Zed", LEARNER + "# another text", "v2.py")
    (tmp_path / "mine.toml").write_text(BY_NAME.format(named='"Zed"'))
    for path in (first, second):
        _outside.class_name(str(path))
        forgotten(path)
    ways = (
        ("run", "mine.toml"), ("run", "--data", "synthetic", "--method", "zed"),
        ("tune", "synthetic", "--method", "Zed"), ("table", "mine.toml"),
    )  # fmt: skip
    for words in ways:
        code, said = rescind(*words)
        assert code == 2, said
        assert f"{first}, {second}" in said.replace("\n", " "), words
        assert 'name = "v2.py"' in said
    with pytest.raises(ConfigError, match="2 files that you have run have a class 'Zed'"):
        rs.methods.Zed  # noqa: B018
    second.write_text(first.read_text())
    (cell,) = read(tmp_path / "mine.toml").cells
    assert type(cell.method).__name__ == "Zed", "the control: one text is one method"


def test_a_file_that_another_cell_names_does_not_decide_a_plain_name(own, tmp_path):
    named = ", ".join(f'"{one}"' for one in ("one.py", "two.py", "Shared"))
    (tmp_path / "mine.toml").write_text(BY_NAME.format(named=named))
    own("Shared", file="one.py")
    own("Shared", LEARNER + "# another text", "two.py")
    with pytest.raises(ConfigError, match="2 files that you have run have a class 'Shared'"):
        read(tmp_path / "mine.toml")
