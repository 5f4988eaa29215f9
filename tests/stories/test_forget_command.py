"""`rescind forget RUN`: several people, a few records, controls, and what a failed audit means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from requesting import papers, unpacked
from rescind.audits.battery import Report
from rescind.audits.finding import Finding
from rescind.cli import app
from rescind.data.blocklist import Blocklist, of_run
from rescind.errors import ConfigError, RescindError
from rescind.experiments.learning_run import run_cell
from rescind.experiments.recipe import Cell, DataSettings, RunSettings, SharingSettings
from rescind.forgetting import examine as examining
from rescind.forgetting import forget as forgetting
from rescind.home import Ledger
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.receipts.receipt import Receipt, parse
from rescind.requests import run_holder
from rescind.storage.federations import load_federation
from rescind.storage.run_folder import artefact_of

METHOD = FedShare(model=LightGCN(dim=4), clients_per_round=8, refine_pairs=16, contrast_items=4)
CELL = Cell(
    "tiny",
    DataSettings(name="synthetic", users=30, items=40, interactions=400),
    SharingSettings(ratio=(1, 1, 1), part=0.5),
    METHOD,
    RunSettings(rounds=3, evaluate_every=3, keep_every=1),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run_cell(CELL, tmp_path / "run")
    return tmp_path / "run"


def forget(run: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["forget", str(run), *words])


def answers(said: Result) -> list[dict[str, str]]:
    """Return what `--json` prints."""
    assert said.exit_code in (0, 1), (said.output, said.exception)
    found: list[dict[str, str]] = json.loads(said.stdout)
    return found


def code_of(said: Result) -> str:
    """Return the code of a refusal."""
    assert isinstance(said.exception, RescindError), said.output
    return said.exception.code


def members(run: Path) -> set[str]:
    fed = load_federation(run / "model")
    return {fed.labels.user_id(c) for c in fed.world.members.nonzero().squeeze(1).tolist()}


def receipt_of(done: dict[str, str]) -> Receipt:
    with Ledger.open() as ledger:
        return parse(ledger.receipt(done["receipt"])[0])


def test_all_who_leave_are_taken_each_with_a_receipt(run: Path) -> None:
    before = members(run)
    words = ("--user", "7", "--user", "8", "--json")
    first, second = answers(forget(run, *words))
    assert members(run) == before - {"7", "8"}
    assert receipt_of(second).previous == first["receipt"]
    assert papers(first["id"])["receipt.key"] != papers(second["id"])["receipt.key"]
    again = answers(forget(run, *words))
    assert [(one["outcome"], one["receipt"]) for one in again] == [
        ("REPEATED", first["receipt"]), ("REPEATED", second["receipt"]),
    ]  # fmt: skip


def test_a_page_begins_with_the_number_of_the_request_and_who_answered(run: Path) -> None:
    ask = CliRunner().invoke
    who, place = "Example Ltd <privacy@example.org>", "https://example.org/privacy?a=1&b=2"
    (before,) = answers(forget(run, "--user", "8", "--json"))
    assert not {"operator", "software"} & {*receipt_of(before).claims}, "control: nothing was said"
    assert ask(app, ["keys", "operator", who, "--software", place]).exit_code == 0
    (done,) = answers(forget(run, "--user", "7", "--case", "DSR-2026/117", "--json"))
    sent = papers(done["id"])
    body = sent["receipt.html"].decode()
    assert body.index("DSR-2026/117") < body.index("Example Ltd &lt;privacy@example.org&gt;")
    assert "https://example.org/privacy?a=1&amp;b=2" in body
    assert b"DSR-2026" not in sent["receipt.json"], "it may name a user"
    claims = receipt_of(done).claims
    assert (claims["operator"], claims["software"]) == (who, place)
    assert ask(app, ["keys", "operator"]).exit_code != 0, "nothing was said"
    assert ask(app, ["keys", "operator", "--software", "two\nlines"]).exit_code != 0


@pytest.mark.parametrize("case", ["two\nlines", "x" * 251, " "])
def test_a_case_is_one_line(run: Path, case: str) -> None:
    said = forget(run, "--user", "7", "--case", case)
    assert isinstance(said.exception, ConfigError), said.output
    assert "7" in members(run)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--user", "nobody"), "unknown-person"),
        (("--user", "7", "--item", "nothing"), "not-held"),
        (("--user", "7", "--kind", "unshare", "--item", "nothing"), "nothing-lent"),
        (("--file", "asked.csv", "--together"), "unknown-person"),
        (("--user", "7", "--received", "2126-01-01"), "date"),
    ],
)
def test_a_refusal_changes_nothing_and_leaves_no_request(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("asked.csv").write_text("user\n7\nnobody\n")
    before = (run / "run.json").read_bytes()
    assert code_of(forget(run, *words)) == code
    assert (run / "run.json").read_bytes() == before
    with Ledger.open() as ledger:
        assert ledger.requests() == [], "who gives a command reads the answer here"


def test_of_two_the_known_one_is_answered_and_the_other_refused(run: Path) -> None:
    assert isinstance(forget(run, "--user", "7", "--user", "nobody").exception, RescindError)
    assert "7" not in members(run)


def test_who_has_left_is_told_so_where_own_lines_are_written(run: Path, tmp_path: Path) -> None:
    assert forget(run, "--user", "7").exit_code == 0

    def refused(user: str) -> str:
        words = ["roster", "mine", str(run), "--user", user, "--out", str(tmp_path / "mine.json")]
        return code_of(CliRunner().invoke(app, words))

    assert (refused("7"), refused("nobody")) == ("has-left", "unknown-person")


def test_who_had_everything_erased_from_data_that_was_not_imported_can_leave(run: Path) -> None:
    assert forget(run, "--user", "7", "--kind", "erase").exit_code == 0
    name = of_run(artefact_of(run))
    assert not Blocklist.of_dataset(name).has_withdrawn("7"), "control: an erasure is no leaving"
    (said,) = answers(forget(run, "--user", "7", "--json"))
    assert said["outcome"] == "ALREADY_GONE"
    assert Blocklist.of_dataset(name).has_withdrawn("7")
    assert not Blocklist.of_dataset("synthetic"), "results of other runs stay"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--item", "3"),
        ("--user", "7", "--item", "3", "--kind", "leave"),
        ("--user", "7", "--user", "8", "--item", "3"),
        ("--nodes", "1", "--edges", "2-3"),
        ("--user", "7", "--kind", "withdraw"),
        ("--user", "7", "--audit", "some"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Path, words: tuple[str, ...]) -> None:
    assert isinstance(forget(run, *words).exception, RescindError)
    assert len(members(run)) == 30


def test_a_few_records_need_no_file(run: Path) -> None:
    fed = load_federation(run / "model")
    held = fed.now.vault.holdings.records
    client = int(held.client[0])
    user = fed.labels.user_id(client)
    mine = [fed.labels.item_id(i) for i in held.item[held.client == client].tolist()]
    said = forget(run, "--user", user, "--item", mine[0], "--item", mine[1])
    assert said.exit_code == 0, said.output
    after = load_federation(run / "model")
    held = after.now.vault.holdings.records
    assert [after.labels.item_id(i) for i in held.item[held.client == client].tolist()] == mine[2:]


@pytest.mark.parametrize("control", ["Nothing", "PurgeOnly"])
@pytest.mark.parametrize("audit", ["none", "standard"])
def test_a_control_cannot_answer(run: Path, control: str, audit: str) -> None:
    said = forget(run, "--user", "7", "--method", control, "--audit", audit)
    assert isinstance(said.exception, ConfigError)
    assert "7" in members(run)


def test_an_approximate_answer_without_an_audit_is_not_shown(run: Path) -> None:
    (done,) = answers(forget(run, "--user", "7", "--method", "FineTuneUnlearn", "--json"))
    receipt = receipt_of(done)
    assert (receipt.done.level, receipt.verdict) == ("L1", "UNAUDITED")


@pytest.mark.parametrize(
    ("verdict", "level", "code"),
    [("PASS", "L3", 0), ("INCONCLUSIVE", "L3", 0), ("FAIL", "L1", 1), ("VOID", "L3", 1)],
)
def test_a_failed_audit_ends_with_code_1_and_is_never_called_exact(
    run: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, level: str, code: int
) -> None:
    def examine(*_: object, **__: object) -> Report:
        return Report(verdict, (Finding("Q1 population", verdict),), {})

    monkeypatch.setattr(examining, "examine", examine)
    for module in (forgetting, run_holder):
        monkeypatch.setattr(module, "FEWEST", 1)
    said = forget(run, "--user", "7", "--audit", "standard", "--json")
    assert said.exit_code == code, said.output
    (done,) = answers(said)
    found = receipt_of(done)
    assert (found.verdict, found.done.level) == (verdict, level)
    assert any(one.check == "escalation" for one in found.findings) == (verdict == "FAIL")


def test_one_of_many_verifies_her_own_part(run: Path, tmp_path: Path) -> None:
    (tmp_path / "asked.csv").write_text("user\n" + "\n".join(map(str, range(3, 9))) + "\n")
    (done,) = answers(forget(run, "--file", str(tmp_path / "asked.csv"), "--together", "--json"))
    sent = unpacked(done["id"], tmp_path / "sent")
    mine = sent / "parts" / "7.json"
    verify = ["verify", str(sent / "receipt.json"), "--part", str(mine)]
    assert CliRunner().invoke(app, verify).exit_code == 0
    table = json.loads(mine.read_text())
    table["request"]["inner"]["item"][0] += 1
    mine.write_text(json.dumps(table))
    assert CliRunner().invoke(app, verify).exit_code == 1


def test_an_experiment_draws_whom_to_forget(run: Path) -> None:
    (done,) = answers(forget(run, "--draw", "0.5", "--json"))
    assert done["outcome"] == "ERASED"
    assert isinstance(forget(run, "--draw", "0").exception, RescindError)
