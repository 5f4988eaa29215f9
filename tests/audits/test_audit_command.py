"""`rescind audit`: a run is audited as if it forgot, and stays as it is."""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest

from requesting import ask_of
from rescind.audits.battery import FULL, STANDARD, Report
from rescind.audits.durability import CHECKS
from rescind.audits.finding import VERDICTS, Finding, question
from rescind.cli import main as entry
from rescind.cli import progress
from rescind.core import doing
from rescind.core.records import Erase
from rescind.errors import ConfigError
from rescind.experiments.learning_run import run_cell
from rescind.experiments.recipe import Cell, DataSettings, RunSettings, SharingSettings
from rescind.experiments.unlearners import chosen_unlearner as unlearner
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.receipts.words import NEVER
from rescind.storage.federations import load_federation


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "small"
    data = DataSettings(name="synthetic", users=120, items=80, interactions=3000)
    method = FedShare(model=LightGCN(dim=8), clients_per_round=40, refine_rate=0.02)
    settings = RunSettings(rounds=8, evaluate_every=8, restore=False, patience=None)
    cell = Cell("small", data, SharingSettings(ratio=(4, 2, 4)), method, settings)
    run_cell(cell, folder)
    return folder


@pytest.fixture
def audit(monkeypatch, capfd):
    def ask(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rescind", "audit", *map(str, words)])
        code = 0
        try:
            entry()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return ask


def test_an_audit_says_what_it_found_and_changes_nothing(run, audit):
    model = (run / "model" / "server.safetensors").read_bytes()
    code, out, err = audit(run, "--draw", "0.4", "--workers", 1)
    assert code in (0, 1), err
    assert "Controls: no-op: " in out
    assert "Q1 population" in out
    facts = json.loads((run / "audit.json").read_text())
    assert facts["verdict"] in ("PASS", "FAIL", "INCONCLUSIVE", "VOID")
    (verdict,) = [line for line in out.splitlines() if line.startswith("Verdict of the audit: ")]
    assert verdict.startswith(f"Verdict of the audit: {facts['verdict']}. ")
    named = [line for line in out.splitlines() if line.startswith(("PASS:", "FAIL:"))]
    assert named == [], "what a word means is no verdict: it is set in"
    assert question("Q1 population") in out
    used = {f["verdict"] for f in facts["findings"]}
    assert {word for word in VERDICTS if VERDICTS[word] in out} == used | {facts["verdict"]}
    assert (run / "model" / "server.safetensors").read_bytes() == model
    assert len(list((run / "audits").glob("retrain-*"))) == 5


def test_an_audit_counts_what_it_does_and_tells_how_much_is_left(run, audit, monkeypatch):
    steps: list[doing.Step] = []
    real = doing.Step.__init__

    def noted(self, *given, **named):
        real(self, *given, **named)
        steps.append(self)

    monkeypatch.setattr(doing.Step, "__init__", noted)
    monkeypatch.setattr(progress, "EVERY", 0.001)
    _, _, err = audit(run, "--draw", "0.4", "--workers", 1)
    counted = {(one.what, one.done, one.total) for one in steps}
    answers = (len(STANDARD) + 1) * (5 + 5)  # one attack by lot; five roles, five retrains
    asking = "asking all models, and resampling their answers"
    assert {
        ("forgetting", 8, 8),  # rounds: it trains again
        ("training models for the audit", 5, 5),
        ("training a model with planted records", 8, 8),
        (asking, answers, answers),
    } <= counted
    told = re.findall(rf"audit: {asking}: (\d+) of {answers} answers, about \d+ s left", err)
    assert [int(done) for done in told] == sorted(int(done) for done in told)
    assert told


def test_every_check_asks_a_question_in_words():
    names = [check.name for check in FULL]
    names += [f"{again} {name}" for name in CHECKS for again in ("Q9", "Q9 blocks", "Q10")]
    names += ["Q0 controls", "Q2 canaries", "Q3 U-LiRA scores", "Q5 relearn", "Q7 trigger"]
    assert [name for name in names if not question(name).endswith("?")] == []
    # A later check is not taken for a shorter name that it begins with.
    assert len({question(name) for name in names}) == len(names)


def test_the_same_audit_again_finds_its_retrains_and_the_no_op_is_no_pass(run, audit):
    audit(run, "--draw", "0.4", "--workers", 1)
    code, out, err = audit(run, "--draw", "0.4", "--method", "nothing", "--workers", 1, "--json")
    assert code == (1 if json.loads(out)["verdict"] in ("FAIL", "VOID") else 0)
    assert err.split("\n")[0].strip() == "5 of 5 models to compare with"
    facts = json.loads(out)
    assert facts["unlearner"] == "nothing"
    assert facts["verdict"] != "PASS"


DRAW, OWN = ("--draw", "0.3"), ("--draw", "0.3", "--method", "FedShareUnlearn", "--set")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--user"),
        ((*DRAW, "--method", "FedShareUnlern"), "did you mean 'FedShareUnlearn'?"),
        ((*DRAW, "--method", "FedShare"), "there is no unlearner 'FedShare'"),
        ((*DRAW, "--set", "rounds=2"), "none was named"),
        ((*DRAW, "--method", "Retrain", "--set", "rounds"), "key=value"),
        ((*DRAW, "--method", "Retrain", "--set", "rounds=2"), "none at all"),
        ((*DRAW, "--method", "Gram", "--set", "ridge=2"), "none at all"),
        ((*OWN, "keep_sums=true"), "keep_sums"),
        ((*OWN, "damping=measured"), "keep_sums = true"),
        ((*OWN, "dampin=0.1"), "did you mean 'damping'?"),
        ((*OWN, "damping=often"), "damping"),
        (("--user", "nobody"), "nobody"),
        (("--user", "7", "--item", "nothing"), "nothing"),
        (("--nodes", "7"), "graph"),
        (("--file", "missing.csv"), "missing.csv"),
    ],
)
def test_a_request_that_cannot_be_read_ends_with_code_2(run, audit, words, said):
    code, _, err = audit(run, *words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_settings_reach_the_unlearner_as_numbers_and_as_words():
    found = unlearner("fedshareunlearn", ["rounds=3", "damping=measured", "own_layer = false"])
    assert (found.rounds, found.damping, found.own_layer) == (3, "measured", False)
    assert unlearner("FedShareUnlearn", ["damping=0.02"]).damping == 0.02
    assert unlearner(None, ()) is None


def test_a_folder_without_a_run_is_named(tmp_path, audit):
    code, _, err = audit(tmp_path, "--draw", "0.3")
    assert code == 2
    assert "holds no finished run" in err


@pytest.mark.parametrize(
    ("verdict", "code"), [("PASS", 0), ("INCONCLUSIVE", 0), ("FAIL", 1), ("VOID", 1)]
)
def test_a_script_can_tell_a_failed_audit_by_its_exit_code(run, audit, monkeypatch, verdict, code):
    report = Report(verdict, (Finding("Q1 population", verdict, 0.6),), {"subject": verdict})
    monkeypatch.setattr("rescind.forgetting.examine.examine", lambda *_, **__: report)
    assert audit(run, "--draw", "0.4")[0] == code
    found, out, _ = audit(run, "--draw", "0.4", "--json")
    assert (found, json.loads(out)["verdict"]) == (code, verdict)


def test_an_audit_of_an_unshare_does_not_say_that_nobody_has_the_records(run, audit, monkeypatch):
    report = Report("PASS", (Finding("Q1 population", "PASS", 0.5),), {"subject": "PASS"})
    monkeypatch.setattr("rescind.forgetting.examine.examine", lambda *_, **__: report)
    fed = load_federation(run / "model")
    who = fed.labels.user_id(int(fed.world.shared.client[0]))
    code, said, _ = audit(run, "--user", who, "--kind", "unshare")
    assert (code, NEVER in said) == (0, True)
    assert "never had the records" not in said, "devices have them"


def test_what_is_only_reported_is_not_judged_for_people_and_shown_for_programs(
    run, audit, monkeypatch
):
    findings = (Finding("Q1 population", "PASS", 0.5), Finding("Q6 lists", "SHOWN", 0.4))
    report = Report("PASS", findings, {"subject": "PASS"})
    monkeypatch.setattr("rescind.forgetting.examine.examine", lambda *_, **__: report)
    _, out, _ = audit(run, "--draw", "0.4")
    (line,) = [one for one in out.splitlines() if one.startswith("Q6 lists")]
    assert " not judged " in line
    assert "SHOWN" not in line
    assert "not judged (SHOWN in JSON): " in out
    facts = json.loads(audit(run, "--draw", "0.4", "--json")[1])
    assert [f["verdict"] for f in facts["findings"]] == ["PASS", "SHOWN"]


def test_only_unlearners_are_named_where_one_is_asked_for(run, audit):
    _, _, err = audit(run, "--draw", "0.3", "--method", "foo")
    listed = err.split("Allowed: ")[1].split(".")[0].split(", ")
    assert {"Retrain", "FedShareUnlearn", "FRU", "PurgeOnly"} <= set(listed)
    assert not {"FedShare", "FedAvg", "Popularity", "F3CRec"} & set(listed)


def test_whoever_left_is_told_so_and_no_near_name(run, audit, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    fed = load_federation(copy / "model")
    who = fed.labels.user_id(int(fed.world.shared.client[0]))
    ask_of(copy, "leave", who)
    (tmp_path / "request.csv").write_text(f"user\n{who}\n")
    for words in (("--user", who), ("--user", f"{who}x"), ("--file", tmp_path / "request.csv")):
        code, _, err = audit(copy, *words)
        assert code == 2
        assert ("has left" in err) == (words[1] != f"{who}x")
        assert "did you mean" not in err, "it may be the name of one who left"


@pytest.mark.parametrize(("words", "few"), [(("--user", "7"), True), (("--draw", "0.4"), False)])
def test_an_audit_of_one_user_says_first_that_it_cannot_pass(run, audit, monkeypatch, words, few):
    def stop(*given, **named):
        raise ConfigError("here the work would begin")

    monkeypatch.setattr("rescind.forgetting.examine.forgotten", stop)
    _, _, err = audit(run, *words)
    assert "here the work would begin" in err
    assert ("cannot get a PASS" in err) is few


def test_an_audit_takes_a_few_records_of_one_user_as_forget_does(run, audit, monkeypatch):
    asked = []
    report = Report("INCONCLUSIVE", (Finding("Q1 population", "POWERLESS", 0.5),), {})

    def noted(before, after, event, **_):
        asked.append(event)
        return report

    monkeypatch.setattr("rescind.forgetting.examine.examine", noted)
    fed = load_federation(run / "model")
    record = fed.world.shared
    user, item = fed.labels.user_id(int(record.client[0])), fed.labels.item_id(int(record.item[0]))
    assert audit(run, "--user", user, "--item", item)[0] == 0
    (event,) = asked
    assert isinstance(event, Erase)
    assert (event.records.client.tolist(), event.records.item.tolist()) == (
        [int(record.client[0])],
        [int(record.item[0])],
    )
