"""`rescind audit`: a run is audited as if it forgot, and stays as it is."""

from __future__ import annotations

import json
import sys

import pytest

from rescind.cli import main as entry
from rescind.experiment import run_cell
from rescind.methods.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.recipe import Cell, DataSettings, RunSettings, SharingSettings


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
    code, out, err = audit(run, "--erase", "draw:0.4", "--workers", 1)
    assert code == 0, err
    assert "Controls: no-op: " in out
    assert "Q1 population" in out
    facts = json.loads((run / "audit.json").read_text())
    assert facts["verdict"] in ("PASS", "FAIL", "INCONCLUSIVE", "VOID")
    assert f"{facts['verdict']}: " in out
    assert (run / "model" / "server.safetensors").read_bytes() == model
    assert len(list((run / "audits").glob("retrain-*"))) == 5


def test_the_same_audit_again_finds_its_retrains_and_the_no_op_is_no_pass(run, audit):
    audit(run, "--erase", "draw:0.4", "--workers", 1)
    code, out, err = audit(
        run, "--erase", "draw:0.4", "--method", "nothing", "--workers", 1, "--json"
    )
    assert code == 0
    assert err.split("\n")[0].strip() == "5 of 5 models to compare with"
    facts = json.loads(out)
    assert facts["unlearner"] == "nothing"
    assert facts["verdict"] != "PASS"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give exactly one of --erase FILE, --unshare FILE and --withdraw USER; 0 were given"),
        (("--erase", "draw:0.3", "--withdraw", "7"), "2 were given"),
        (("--erase", "draw:0.3", "--method", "FedShar"), "did you mean 'FedShare'?"),
        (("--withdraw", "nobody"), "nobody"),
        (("--erase", "missing.csv"), "missing.csv cannot be read as a request"),
    ],
)
def test_a_request_that_cannot_be_read_ends_with_code_2(run, audit, words, said):
    code, _, err = audit(run, *words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_a_folder_without_a_run_is_named(tmp_path, audit):
    code, _, err = audit(tmp_path, "--erase", "draw:0.3")
    assert code == 2
    assert "holds no finished run" in err
