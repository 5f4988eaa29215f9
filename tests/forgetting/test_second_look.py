"""An exact answer that fails its audit is audited again, with other models, before it is said."""

from __future__ import annotations

import importlib

import pytest

from rescind.audits.battery import Report
from rescind.audits.finding import Finding
from rescind.core.federation import Federation
from rescind.core.records import Erase, Share
from rescind.forgetting.forget import Evidence, forget
from rescind.forgetting.second_look import confirmed
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from worlds import lendable, tiny_holdings

METHOD = FedShare(model=LightGCN(dim=4), clients_per_round=6, refine_pairs=16, contrast_items=4)
LISTS, QUALITY = "Q4 lists", "Q8 quality"


def report(**verdicts: str) -> Report:
    names = {"lists": LISTS, "quality": QUALITY}
    found = tuple(Finding(names[name], one, note="seen") for name, one in verdicts.items())
    given = [one.verdict for one in found]
    worst = next(v for v in ("VOID", "FAIL", "INCONCLUSIVE", "PASS") if v in given)
    return Report(worst, found, {})


def verdicts(found: Report) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in found.findings}


def test_what_only_one_of_two_audits_finds_is_undecided():
    first = report(lists="PASS", quality="FAIL")
    found, said = confirmed(first, lambda: report(lists="PASS", quality="PASS"))
    assert found.verdict == "INCONCLUSIVE", "never PASS: one of two saw something"
    assert verdicts(found) == {LISTS: "PASS", QUALITY: "INCONCLUSIVE"}
    assert found.findings[1].note == "seen FAIL in the first audit, PASS in the second."
    assert f"an audit failed ({QUALITY})" in said.note


@pytest.mark.parametrize(
    "second", [report(quality="FAIL"), report(lists="FAIL", quality="FAIL")], ids=["same", "more"]
)
def test_what_two_audits_find_stands(second):
    """The control: a fault that is there is seen twice."""
    first = report(lists="PASS", quality="FAIL")
    found, said = confirmed(first, lambda: second)
    assert found == first
    assert "One of them is wrong" in said.note


def test_two_audits_that_fail_in_different_checks_are_undecided():
    first = report(lists="PASS", quality="FAIL")
    found, _ = confirmed(first, lambda: report(lists="FAIL", quality="PASS"))
    assert found.verdict == "INCONCLUSIVE"
    assert "second." in found.findings[1].note


def test_a_second_audit_that_means_nothing_refutes_nothing():
    first = report(lists="PASS", quality="FAIL")
    found, said = confirmed(first, lambda: report(lists="VOID", quality="PASS"))
    assert found.verdict == "FAIL"
    assert "could not be used (VOID)" in said.note


def answered(monkeypatch, *reports: Report) -> tuple[Evidence, list[int]]:
    """Forget exactly, with audits that say this in turn; return the seeds of the audits, too."""
    seeds, left = [], list(reports)

    def examine(*_, seed: int = 0, **__) -> Report:
        seeds.append(seed)
        return left.pop(0)

    module = importlib.import_module("rescind.forgetting.forget")  # `forget` hides its module
    monkeypatch.setattr("rescind.forgetting.examine.examine", examine)
    monkeypatch.setattr(module, "FEWEST", 1)  # small as it is, this request is audited
    fed = Federation.start(tiny_holdings(12, 15), METHOD, seed=1)
    fed = fed.apply(Share(lendable(fed.now.vault.holdings, 0, 1))).run(3)
    _, evidence = forget(fed, Erase(lendable(fed.now.vault.holdings, 0)))
    return evidence, seeds


def test_a_retraining_that_fails_by_chance_keeps_its_level_and_says_what_was_seen(monkeypatch):
    evidence, seeds = answered(monkeypatch, report(quality="FAIL"), report(quality="PASS"))
    receipt = evidence.receipt
    assert seeds == [0, 1], "other models: those of the first audit would say the same"
    assert (receipt.verdict, receipt.done.level) == ("INCONCLUSIVE", "L3")
    told = [one.note for one in receipt.findings if one.check == "escalation"]
    assert len(told) == 1
    assert "undecided" in told[0]


def test_a_retraining_that_fails_twice_is_called_a_contradiction(monkeypatch):
    evidence, seeds = answered(monkeypatch, report(quality="FAIL"), report(quality="FAIL"))
    receipt = evidence.receipt
    assert seeds == [0, 1]
    assert (receipt.verdict, receipt.done.level) == ("FAIL", "L1")
    (told,) = [one.note for one in receipt.findings if one.check == "escalation"]
    assert "One of them is wrong" in told


@pytest.mark.parametrize("verdict", ["PASS", "INCONCLUSIVE", "VOID"])
def test_an_exact_answer_that_does_not_fail_is_audited_once(monkeypatch, verdict):
    evidence, seeds = answered(monkeypatch, report(quality=verdict))
    assert seeds == [0]
    assert evidence.receipt.verdict == verdict
