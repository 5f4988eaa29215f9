"""README.md and the tutorials do what they say: their blocks are run, from top to bottom."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from typer.testing import CliRunner

import rescind as rs
from command_line import rescind
from page_blocks import ROOT, Block, blocks, play
from requesting import ROWS, items_of, write_rows
from rescind import data
from rescind.cli import app
from rescind.experiments.recipe import read
from rescind.methods._own_file import load_file

TUTORIALS = sorted(p.name for p in (ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


def test_every_tutorial_is_run_here():
    source = Path(__file__).read_text("utf-8")
    played = [name for name in TUTORIALS if f"docs/tutorials/{name}" in source]
    assert played == [name for name in TUTORIALS if name != "index.md"]


def test_a_run_on_a_page_has_seeds_of_its_recipe():
    """Of another seed no committed line tells whether the number is right."""
    command = re.compile(r"^rescind run (\S+/\S+) [^#\n]*?--seeds (\d+)", re.M)
    seen = 0
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        for found in command.finditer(page.read_text("utf-8")):
            path = ROOT / "recipes" / f"{found[1]}.toml"
            if path.is_file():
                named = tomllib.loads(path.read_text("utf-8"))["axes"]["seed"]
                said = f"{page.name}: {found[0]}: the recipe has seeds {named}"
                assert set(range(int(found[2]))) <= set(named), said
                seen += 1
    assert seen > 5, "the control: there are such commands"


def test_readme_is_short_and_its_python_does_what_its_comments_say(tmp_path, patch, capsys):
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 120
    real = data.load

    def fewer(name: str) -> data.Dataset:
        whole = real(name)
        return whole.select((whole.user > 420) & (whole.user < 460))  # few people, to be quick

    patch.setattr(data, "load", fewer)
    python = [b for b in blocks("README.md") if b.language == "python"]
    ten, six = (len([x for x in b.text.splitlines() if x]) - 1 for b in python)
    assert ten <= 10
    assert six <= 6
    patch.setattr("page_blocks.blocks", lambda _: python)
    names = play(["README.md"], tmp_path, patch).names
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "True", "forgetting gives the digest of a fit that never had her"
    assert told[-3] == "L3"
    assert len(names["gone"].lent(user=450)) == 0 < len(names["fed"].lent(user=450))


def test_own_data(tmp_path, patch):
    played = play(["docs/tutorials/own-data.md"], tmp_path, patch)
    assert "120 users, 80 items" in played.of("rescind data import")
    assert "c007" not in played.names["model"].users
    table = played.of("rescind table")
    rows = [row.replace("EASE, everybody", "EASE") for row in table.splitlines() if "±" in row]
    ndcg = {row.split()[0]: float(row.split()[5]) for row in rows}
    assert ndcg["Gram"] > ndcg["Popularity"], "the learner beats what it must beat"
    assert ndcg["EASE"] > ndcg["Popularity"], "the row of central learning"
    assert played.of("rescind recommend runs/shop/Gram/seed-0").count("p") >= 5


def test_a_request_is_answered_as_printed(tmp_path, patch):
    """Each block of commands, then each line of the table of what a person may want."""
    page = "docs/requests.md"
    write_rows(tmp_path / "shop.csv", ROWS)
    write_rows(tmp_path / "asked.csv", [("c8", items_of(8)[0]), ("c9", items_of(9)[0])])
    typed = [b for b in blocks(page) if b.language == "bash"]
    with patch.context() as only:
        only.setattr("page_blocks.blocks", lambda _: typed)
        played = play([page], tmp_path, patch)
    assert "  ERASED  " in played.of("rescind forget --user c7")
    assert "  REPEATED  " in played.of("rescind request answer")
    assert "DSR 117" in played.of("rescind request list --open")

    wants = re.findall(r"^\| .+? \| `rescind (.+?)`", (ROOT / page).read_text("utf-8"), re.M)
    outcomes = []
    for number, command in enumerate(wants):
        first, second = items_of(number)[:2]
        mine = {"c7": f"c{number}", "p2": first, "p5": second} if "forget" in command else {}
        _, said = rescind(*(mine.get(word, word) for word in shlex.split(command)))
        outcomes.append(re.findall("  ([A-Z]+)  ", said) or said.strip())
    assert outcomes[:4] == [["ERASED"], ["ERASED"], ["ERASED"], ["REFUSED"]], "nobody lent"
    assert "'c7' is in again" in outcomes[4]
    assert outcomes[5:] == [["ERASED", "ERASED"]]
    (tmp_path / "in" / "requests").mkdir(parents=True)
    (night,) = (b.text for b in blocks(page) if b.language == "toml")
    (tmp_path / "shop.toml").write_text(night, "utf-8")
    code, said = rescind("night", "shop.toml", "--check")
    assert code == 0, said


@pytest.mark.slow
def test_own_method(tmp_path, patch, capsys):
    names = play(["docs/tutorials/own-method.md"], tmp_path, patch).names
    found = names["found"]
    assert found["Anchored"] != found["FedAvg"], "the pull changes something"
    assert len(names["lent"]) >= 100, "fewer records cannot be audited"
    assert names["evidence"].report.verdict in ("PASS", "INCONCLUSIVE"), "a retrain cannot FAIL"
    assert "gain" in capsys.readouterr().out


@pytest.mark.slow
def test_add_a_method(tmp_path, patch, capsys):
    played = play(["docs/methods.md"], tmp_path, patch)
    assert played.names["evidence"].receipt.done.level == "L1", "a method of one's own claims"
    table = played.of("rescind table")
    for name in ("FedAvg", "Anchored", "Damped"):
        assert f"\n{name} " in table
    assert "Differences to 'FedAvg', paired by seed" in table
    assert "not shown, by" not in table, "the page runs enough seeds"
    assert "Claimed by code anchored.py sha256:" in played.of("rescind forget")
    assert (tmp_path / "runs" / "before" / "model").is_dir(), "the copy from before"


def test_the_classes_of_the_page_about_methods_learn_and_forget(tmp_path, patch, tiny):
    """The quick part: both files are loaded and run on six clients."""
    files = [b for b in blocks("docs/methods.md") if b.title.endswith(".py")]
    patch.setattr("page_blocks.blocks", lambda _: files)
    play(["docs/methods.md"], tmp_path, patch)
    damped = load_file(tmp_path / "damped.py").Damped
    anchored = load_file(tmp_path / "anchored.py").Anchored
    counted, mine, other = (
        rs.Federation.start(tiny, method, seed=0).run(1).now.state.public["item"]
        for method in (rs.methods.Popularity(), damped(damping=0.0, flatten=1.0), damped())
    )
    assert torch.allclose(mine / mine.sum(), counted / counted.sum()), "without damping it counts"
    assert not torch.allclose(other / other.sum(), counted / counted.sum()), "the control"
    ones = load_file(tmp_path / "ones.py").Ones
    first = [rs.Federation.start(tiny, made()).now.state.public["item"] for made in (ones, damped)]
    assert [float(one.mean()) for one in first] == [1.0, 0.0], "other first values, and the control"
    for method in (damped(), anchored(model=rs.models.MF(dim=2))):
        before = rs.Federation.start(tiny, method, seed=0).run(1)
        after, evidence = rs.forget(before, rs.Withdraw(3), audits="none")
        assert evidence.receipt.done.level == "L1"
        assert "sha256:" in evidence.receipt.claims["claimed by code"]
        assert not bool((after.now.vault.holdings.records.client == 3).any())


def test_the_recipe_of_the_page_about_methods_compares_equal_effort(tmp_path, patch):
    files = [b for b in blocks("docs/methods.md") if b.title]
    patch.setattr("page_blocks.blocks", lambda _: files)
    play(["docs/methods.md"], tmp_path, patch)
    made = read(tmp_path / "mine.toml").cells
    epochs = {cell.name: getattr(cell.method, "epochs", None) for cell in made}
    assert epochs["FedAvg"] == epochs["Anchored"] == 2


def test_a_number_of_a_table_is_recomputed_as_the_page_about_recipes_says(tmp_path, patch, capsys):
    every = blocks("docs/recipes.md")
    at = next(n for n, b in enumerate(every) if b.language == "python")
    again = every[at - 1 : at + 1]
    patch.setattr("page_blocks.blocks", lambda _: again)
    played = play(["docs/recipes.md"], tmp_path, patch)
    said = again[1].text.partition("{recorded:.4f}")[2].partition("# ")[2].splitlines()[0]
    assert f"{said}\n" in capsys.readouterr().out, "the page says what is printed"
    assert played.names["mine"] == pytest.approx(played.names["recorded"], abs=1e-12)
    line = json.loads((ROOT / "recipes/basics/floor.jsonl").read_text("utf-8").splitlines()[0])
    assert (line["cell"], line["seed"]) == ("ml-100k/Popularity", 0), "control"
    assert line["test"]["NDCG@20"] == pytest.approx(played.names["mine"], abs=1e-6)


def test_a_page_that_does_not_do_what_it_says_fails(tmp_path, patch):
    wrong = [Block("bash", "", "rescind verify nothing.json\n")]
    patch.setattr("page_blocks.blocks", lambda _: wrong)
    with pytest.raises(AssertionError, match=r"verify nothing\.json"):
        play(["wrong.md"], tmp_path, patch)
    right = Block("bash", "", "rescind verify nothing.json    # exit code 2\n")
    patch.setattr("page_blocks.blocks", lambda _: [right])
    assert "nothing.json" in play(["right.md"], tmp_path, patch).of("rescind verify")


def deployed(page: list[Block], folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Type the commands `rescind flower` of a page, each terminal in a process of its own."""
    from flower.deployments import PATIENCE, Machines, free_port, until

    patch.setenv("RESCIND_HOME", str(folder))
    with Machines(folder, silos=2) as machines:

        def words(line: str) -> list[str]:
            said = shlex.split(line.replace("8000", str(machines.port)), comments=True)
            apart = ["--port", str(free_port())] if "join" in said else []
            return [*said[2:], *apart]  # what comes after `rescind flower`

        for number, block in enumerate(page):
            if block.language == "toml":
                (folder / block.title).write_text(block.text, "utf-8")
            for line in block.commands if block.language == "bash" else ():
                name = block.title.partition(":")[0] or f"step {number}"
                if not line.startswith("rescind flower"):
                    continue
                started = machines.start(name, *words(line))
                if name == "terminal 1":
                    until(lambda: "listening on" in machines.log("terminal 1"), "the server")
                if not block.title or " run " in line:
                    assert started.wait(PATIENCE) == 0, machines.log(name)


@pytest.mark.slow
@pytest.mark.flower
def test_devices_make_the_lines_that_a_stranger_checks(tmp_path, patch):
    pytest.importorskip("flwr", reason="the extra flower")
    text = (ROOT / "docs/deploy.md").read_text("utf-8")
    section = text.split("\n## Let strangers check the sum\n")[1].split("\n## ")[0]
    page = [b for b in blocks("docs/deploy.md") if b.text in section]
    kit = Block("bash", "", "rescind flower kit --silos 2\n")  # step 2 of the page
    deployed([kit, *page], tmp_path, patch)
    shutil.copy(tmp_path / "kit" / "silo-0" / "silos.pub", tmp_path / "silos.pub")
    _unzip(tmp_path)
    shown = [b for b in page if "log key" in b.text or "roster check" in b.text]
    key, check = (b.commands[-1] for b in shown)

    def typed(*lines: str) -> str:
        patch.setattr("page_blocks.blocks", lambda _: [Block("bash", "", "\n".join(lines))])
        return play(["deploy.md"], tmp_path, patch).of("rescind roster check")

    (tmp_path / "log.pub").write_text(_rescind_says(key.partition(" >")[0]), "utf-8")
    told = typed(check)
    assert "VALID" in told
    assert "39 lines were made by devices of 2 silos" in told
    lines = tmp_path / "public" / "roster.bin"
    honest = lines.read_bytes()
    lines.write_bytes(honest + bytes(8192))  # control: a line that nobody made
    assert "never added" in typed(f"{check}  # exit code 1")
    lines.write_bytes(honest)
    (tmp_path / "silos.pub").write_bytes(b"".join(_swapped(tmp_path / "silos.pub")))
    assert "did not sign these lines" in typed(f"{check}  # exit code 1")


def _unzip(folder: Path) -> None:
    """Take the receipt of the one request out of its papers."""
    (one,) = json.loads((folder / "runs" / "flower" / "run.json").read_text())["requests"]
    assert one["outcome"] == "ERASED"
    with ZipFile(one["papers"]) as packed:
        packed.extract("receipt.json", folder)


def _rescind_says(line: str) -> str:
    return CliRunner().invoke(app, shlex.split(line)[1:]).output


def _swapped(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)[::-1]


@pytest.mark.slow
@pytest.mark.flower
def test_two_silos(tmp_path, patch):
    pytest.importorskip("flwr", reason="the extra flower")
    deployed(blocks("docs/tutorials/two-silos.md"), tmp_path, patch)
    _unzip(tmp_path)
    (typed,) = [b for b in blocks("docs/tutorials/two-silos.md") if "verify" in b.text]
    verify = Block("bash", "", "\n".join(x for x in typed.commands if "verify" in x))
    patch.setattr("page_blocks.blocks", lambda _: [verify])
    assert "VALID" in play(["two-silos.md"], tmp_path, patch).of("rescind verify")
