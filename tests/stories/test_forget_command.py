"""`rescind forget`: several people, a few records, controls, and what a failed audit means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rescind.audits.battery import Report
from rescind.audits.finding import Finding
from rescind.cli import app
from rescind.data.blocklist import Blocklist
from rescind.errors import ConfigError, DataError
from rescind.experiments.learning_run import run_cell
from rescind.experiments.recipe import Cell, DataSettings, RunSettings, SharingSettings
from rescind.forgetting import forget as forgetting
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.receipts import receipt
from rescind.receipts.page import NOT_TO_SEND
from rescind.reporting.progress import RoundBar
from rescind.storage.federations import load_federation

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


def members(run: Path) -> set[str]:
    fed = load_federation(run / "model")
    return {fed.labels.user_id(c) for c in fed.world.members.nonzero().squeeze(1).tolist()}


def receipt_of(run: Path) -> receipt.Receipt:
    return receipt.parse((run / "receipt.json").read_bytes())


def test_all_who_leave_are_taken_each_with_a_receipt(run, tmp_path):
    before = members(run)
    said = forget(run, "--withdraw", "7", "--withdraw", "8", "--audits", "none")
    assert said.exit_code == 0, said.output
    assert members(tmp_path / "run-forgot-2") == before - {"7", "8"}
    first = (tmp_path / "run-forgot-1" / "receipt.json").read_bytes()
    assert receipt_of(tmp_path / "run-forgot-2").previous == receipt.digest(first)
    keys = [(tmp_path / f"run-forgot-{n}" / "receipt.key").read_bytes() for n in (1, 2)]
    assert keys[0] != keys[1], "one key opens one receipt"
    again = forget(run, "--withdraw", "7", "--withdraw", "8", "--audits", "none")
    assert again.exit_code == 0, "the same command again gives the same answers"
    assert not (tmp_path / "run-forgot-3").exists()


def test_what_is_asked_in_words_is_answered_and_no_audit_is_announced_where_none_is(
    run, monkeypatch
):
    announced = []

    class Bar(RoundBar):
        def __init__(self, title: str, rounds: int | None, after: str) -> None:
            announced.append(after)
            super().__init__(title, rounds, after=after)

    monkeypatch.setattr("rescind.reporting.progress.RoundBar", Bar)
    said = forget(run, "--withdraw", "7", "--method", "FineTuneUnlearn")
    assert said.exit_code == 0, said.output
    asked = said.output.index("which unlearner was tried first?")
    assert "FineTuneUnlearn was requested. It is approximate" in said.output[asked:]
    assert announced == ["saving"], "too few records to audit"


def test_a_page_begins_with_the_number_of_the_request_and_who_answered(run, tmp_path):
    ask = CliRunner().invoke
    who = "Example Ltd <privacy@example.org>"
    forget(run, "--withdraw", "8", "--audits", "none")
    before = (tmp_path / "run-forgot-1" / "receipt.html").read_text()
    assert "<p>The request was answered on 20" in before, "the control: neither was said"
    assert ask(app, ["keys", "operator", who]).exit_code == 0
    words = ("--withdraw", "7", "--audits", "none", "--case", "DSR-2026/117")
    said = forget(tmp_path / "run-forgot-1", *words)
    assert said.exit_code == 0, said.output
    new = tmp_path / "run-forgot-2"
    body = (new / "receipt.html").read_text().split("</style>")[1]
    first = body.index("Request DSR-2026/117 was answered on 20")
    assert " by Example Ltd &lt;privacy@example.org&gt;." in body[first:]
    assert first < body.index('class="summary')
    assert "The operator has it, too, until they delete it" in body
    assert "only the requester has" not in body
    data = (new / "receipt.json").read_bytes()
    assert b"DSR-2026" not in data, "it may name a user"
    assert receipt_of(new).claims["operator"] == who
    key = str(new / "receipt.key")
    shown = ask(app, ["verify", str(new / "receipt.json"), "--event-key", key])
    assert shown.exit_code == 0, shown.output
    assert "case: DSR-2026/117" in shown.output
    changed = data.replace(b"privacy@", b"private@")
    (new / "receipt.json").write_bytes(changed)
    assert ask(app, ["verify", str(new / "receipt.json")]).exit_code != 0, "it is signed"


def test_a_page_says_where_the_requester_gets_the_program(run, tmp_path):
    ask, place = CliRunner().invoke, "https://example.org/privacy?a=1&b=2"
    forget(run, "--withdraw", "8", "--audits", "none")
    before = (tmp_path / "run-forgot-1" / "receipt.html").read_text()
    assert "Ask the operator for a copy, and do not install a package of that name" in before
    assert ask(app, ["keys", "operator", "--software", place]).exit_code == 0
    assert place in ask(app, ["keys", "show"]).output
    said = forget(tmp_path / "run-forgot-1", "--withdraw", "7", "--audits", "none")
    assert said.exit_code == 0, said.output
    new = tmp_path / "run-forgot-2"
    body = (new / "receipt.html").read_text()
    assert "where to get it: https://example.org/privacy?a=1&amp;b=2 (their web page" in body
    assert "Ask the operator for a copy" not in body
    claims = receipt_of(new).claims
    assert (claims["software"], "operator" in claims) == (place, False), "each is said by itself"
    shown = ask(app, ["verify", str(new / "receipt.json")])
    assert (shown.exit_code, f"software: {place}" in shown.output) == (0, True), shown.output
    assert ask(app, ["keys", "operator"]).exit_code != 0, "nothing was said"
    assert ask(app, ["keys", "operator", "--software", "two\nlines"]).exit_code != 0


def test_advice_to_the_operator_is_printed_and_not_sent_to_a_person(run, tmp_path):
    said = forget(run, "--withdraw", "7")
    assert said.exit_code == 0, said.output
    assert "too few records" in said.output
    assert "Audit requests in batches" in said.output
    sent = (tmp_path / "run-forgot-1" / "receipt.html").read_text()
    assert "too few records" in sent
    assert "batches" not in sent
    assert "no-op" not in sent


def test_the_exact_request_of_one_person_is_never_replaced_by_that_of_another(run, tmp_path):
    path, parts = tmp_path / "request.json", tmp_path / "parts"
    quick = ("--audits", "none", "--request", str(path), "--parts", str(parts))
    said = forget(run, "--withdraw", "7", *quick)
    assert said.exit_code == 0, said.output
    assert f"Written: the exact request, {path}" in said.output
    mine, part = path.read_bytes(), (parts / "7.json").read_bytes()
    next_run = tmp_path / "run-forgot-1"
    for more in (quick[:4], ("--audits", "none", "--parts", str(parts))):
        refused = forget(next_run, "--withdraw", "8", *more)
        assert isinstance(refused.exception, ConfigError)
        assert "Nothing was forgotten." in str(refused.exception)
    assert "8" in members(next_run)
    assert (path.read_bytes(), (parts / "7.json").read_bytes()) == (mine, part)
    again = forget(run, "--withdraw", "7", *quick[:4])
    assert again.exit_code == 0, "the same command again: the file is that of the request"
    assert again.output.startswith("answered before: the receipt is the same\n")
    assert "answered before" not in said.output, "control: the first time"
    path.unlink()
    late = forget(run, "--withdraw", "7", *quick[:4])
    assert isinstance(late.exception, ConfigError), "it cannot be made again, so this is told"
    told = str(late.exception)
    receipt = tmp_path / "run-forgot-1" / "receipt.json"
    assert told.startswith(f"this request was answered before. Its receipt is {receipt}, its key")
    assert "Only the exact request (--request) cannot be written now" in told
    (receipt.parent / "receipt.key").unlink()
    told = str(forget(run, "--withdraw", "7", *quick).exception)
    assert f"{receipt}, its key handed over, or deleted: nothing of the answer is lost." in told
    assert "the exact request (--request) and the parts (--parts) cannot be written" in told
    again = forget(run, "--withdraw", "7", *quick[:2])
    assert again.exit_code == 0, "control: without papers the answer is shown again"


@pytest.mark.parametrize("case", ["two\nlines", "x" * 251, " "])
def test_a_case_is_one_line(run, case):
    said = forget(run, "--withdraw", "7", "--audits", "none", "--case", case)
    assert isinstance(said.exception, ConfigError)
    assert "the case must be one line" in str(said.exception)


def test_nobody_is_forgotten_if_one_of_them_is_unknown(run, tmp_path):
    said = forget(run, "--withdraw", "7", "--withdraw", "nobody", "--audits", "none")
    assert isinstance(said.exception, DataError)
    assert "there is no user 'nobody'" in str(said.exception)
    assert "7" in members(run)
    assert not (tmp_path / "run-forgot-1").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--withdraw", "nobody"), "there is no user 'nobody'"),
        (("--withdraw", "7", "--withdraw", "nobody"), "there is no user 'nobody'"),
        (("--user", "7", "--item", "nothing"), "there is no item 'nothing'"),
        (("--erase", "asked.csv"), "asked.csv, line 3: there is no user 'nobody'"),
        (("--erase", "none.csv"), "there is no file none.csv"),
    ],
)
def test_a_refusal_says_once_that_nothing_was_forgotten(run, tmp_path, monkeypatch, words, why):
    monkeypatch.chdir(tmp_path)
    Path("asked.csv").write_text("user\n7\nnobody\n")
    said = forget(run, *words, "--audits", "none")
    assert isinstance(said.exception, DataError)
    assert str(said.exception).startswith(why)
    assert str(said.exception).endswith(". Nothing was forgotten.")
    assert str(said.exception).count("Nothing was ") == 1
    assert not (tmp_path / "run-forgot-1").exists()


def test_it_is_not_said_if_another_request_of_the_command_was_answered(run, tmp_path, monkeypatch):
    real = forgetting.forget
    asked: list[object] = []

    def second_fails(*given, **more):
        asked.append(given)
        if len(asked) == 2:
            raise DataError("the disk is full.")
        return real(*given, **more)

    monkeypatch.setattr("rescind.experiments.forget_run.forget", second_fails)
    said = forget(run, "--withdraw", "7", "--withdraw", "8", "--audits", "none")
    assert str(said.exception) == "the disk is full."
    assert (tmp_path / "run-forgot-1" / "receipt.json").is_file(), "control: 7 was forgotten"


def test_who_has_left_is_told_so_where_own_lines_are_written(run, tmp_path):
    assert forget(run, "--withdraw", "7", "--audits", "none").exit_code == 0
    out = str(tmp_path / "mine.json")

    def refused(user: str) -> str:
        words = ["roster", "mine", f"{run}-forgot-1", "--user", user, "--out", out]
        return str(CliRunner().invoke(app, words).exception)

    assert "user '7' has left this run after an earlier request. See its" in refused("7")
    never = refused("nobody")
    assert "there is no user 'nobody' among 29 users. 1 place is empty: of users who left" in never


def test_who_had_everything_erased_from_data_that_was_not_imported_can_leave(run, tmp_path):
    (tmp_path / "asked.csv").write_text("user\n7\n")
    words = ("--erase", str(tmp_path / "asked.csv"), "--audits", "none")
    assert forget(run, *words).exit_code == 0
    new = tmp_path / "run-forgot-1"
    assert not Blocklist.read(new).has_withdrawn("7"), "control: an erasure is no withdrawal"
    said = forget(new, "--withdraw", "7")
    assert said.exit_code == 0, said.output
    assert "that come later are left out of this run if it learns again.\n" in said.output
    for folder in (run, new):
        assert Blocklist.read(folder).has_withdrawn("7"), "also where it may learn again"
    assert not Blocklist.of_dataset("synthetic"), "results of other runs stay"


def test_the_next_request_to_an_emptied_run_is_told_the_run_that_stands_now(run, tmp_path):
    for user, at in (("7", run), ("8", tmp_path / "run-forgot-1")):
        forget(at, "--withdraw", user, "--audits", "none")
    said = forget(run, "--withdraw", "9", "--audits", "none")
    assert isinstance(said.exception, DataError)
    now = tmp_path / "run-forgot-2"
    assert f"was emptied. A request was answered there: give the same command with {now}," in str(
        said.exception
    )
    shown = CliRunner().invoke(app, ["data", "show", str(run), "--user", "9"])
    assert str(shown.exception).startswith(f"{run} was emptied. A request was answered there:")
    for words in (["forget", "--withdraw"], ["recommend", "--user"]):
        wrong = CliRunner().invoke(app, [words[0], f"{run}-forgot-3", words[1], "9"])
        assert str(wrong.exception) == (
            f"there is no folder {run}-forgot-3. The newest of this run is {now}."
        )
        wrong = CliRunner().invoke(app, [words[0], f"{run}x", words[1], "9"])
        assert f"there is no folder {run}x. Finished runs in {run.parent}: {now}" in str(
            wrong.exception
        ), "control"
    assert forget(now, "--withdraw", "9", "--audits", "none").exit_code == 0, "and that works"


@pytest.mark.parametrize(
    "words",
    [
        ("--erase", "a.csv", "--erase", "b.csv"),
        ("--unshare", "a.csv", "--unshare", "b.csv"),
        ("--withdraw", "7", "--erase", "a.csv"),
        ("--nodes", "1", "--nodes", "2"),
        (),
    ],
)
def test_what_cannot_be_taken_together_is_refused(run, words):
    said = forget(run, *words)
    assert isinstance(said.exception, ConfigError)
    assert "give exactly one" in str(said.exception)


def test_a_few_records_need_no_file(run, tmp_path):
    fed = load_federation(run / "model")
    held = fed.now.vault.holdings.records
    client = int(held.client[0])
    mine = [fed.labels.item_id(i) for i in held.item[held.client == client].tolist()]
    words = ["--user", fed.labels.user_id(client), "--item", mine[0], "--item", mine[1]]
    said = forget(run, *words, "--audits", "none")
    assert said.exit_code == 0, said.output
    after = load_federation(tmp_path / "run-forgot-1" / "model")
    held = after.now.vault.holdings.records
    left = [after.labels.item_id(i) for i in held.item[held.client == client].tolist()]
    assert left == mine[2:]


@pytest.mark.parametrize(
    "words", [("--user", "7"), ("--item", "3"), ("--user", "1", "--user", "2")]
)
def test_a_user_without_items_is_refused(run, words):
    said = forget(run, *words)
    assert isinstance(said.exception, ConfigError)
    assert "--withdraw USER" in str(said.exception)


def test_who_withdraws_names_no_items(run):
    said = str(forget(run, "--withdraw", "7", "--item", "film 3").exception)
    assert "--withdraw takes no --item" in said
    assert "--user 7 --item 'film 3'" in said, "what to give instead"
    assert "0 users" not in said
    words = ("--withdraw", "Anna M", "--user", "O'Brien", "--item", "3")
    said = str(forget(run, *words).exception)
    assert "Given were Anna M (--withdraw) and O'Brien (--user): give a command for each" in said
    assert "--user 'Anna M' --item" not in said, "these are the records of another person"
    assert "0 users and 1 item" in str(forget(run, "--item", "3").exception), "control"


@pytest.mark.parametrize("control", ["Nothing", "PurgeOnly"])
@pytest.mark.parametrize("audits", ["none", "standard"])
def test_a_control_cannot_answer(run, tmp_path, control, audits):
    said = forget(run, "--withdraw", "7", "--method", control, "--audits", audits)
    assert isinstance(said.exception, ConfigError)
    assert f"{control} leaves the model as it was" in str(said.exception)
    assert "7" in members(run)
    assert not (tmp_path / "run-forgot-1").exists()


def test_an_approximate_answer_without_an_audit_is_not_shown(run, tmp_path):
    words = ("--withdraw", "7", "--method", "FineTuneUnlearn", "--audits", "none")
    assert forget(run, *words).exit_code == 0
    done = receipt_of(tmp_path / "run-forgot-1")
    assert (done.done.level, done.verdict) == ("L1", "UNAUDITED")
    assert "not shown that the influence" in done.findings[-1].note
    assert "not shown" in receipt.LEVELS["L1"]


@pytest.mark.parametrize(
    ("verdict", "level", "code"),
    [("PASS", "L3", 0), ("INCONCLUSIVE", "L3", 0), ("FAIL", "L1", 1), ("VOID", "L3", 1)],
)
def test_a_failed_audit_ends_with_code_1_and_is_never_called_exact(
    run, tmp_path, monkeypatch, verdict, level, code
):
    def examine(*_, **__):
        return Report(verdict, (Finding("Q1 population", verdict),), {})

    monkeypatch.setattr(forgetting, "examine", examine)
    monkeypatch.setattr(forgetting, "FEWEST", 1)
    said = forget(run, "--withdraw", "7")
    assert said.exit_code == code, said.output
    found = receipt_of(tmp_path / "run-forgot-1")
    assert (found.verdict, found.done.level) == (verdict, level)
    told = [f.note for f in found.findings if f.check == "escalation"]
    assert any("One of them is wrong" in note for note in told) == (verdict == "FAIL")
    facts = json.loads((tmp_path / "run-forgot-1" / "run.json").read_text())
    assert facts["forgotten"][-1]["level"] == level


def test_one_of_many_verifies_her_own_part(run, tmp_path):
    (tmp_path / "asked.csv").write_text("user\n" + "\n".join(map(str, range(3, 9))) + "\n")
    words = ("--erase", str(tmp_path / "asked.csv"), "--parts", str(tmp_path / "parts"))
    said = forget(run, *words, "--audits", "none")
    assert said.exit_code == 0, said.output
    mine = tmp_path / "parts" / "7.json"
    assert mine.stat().st_mode & 0o077 == 0, "for its owner only"
    sent, kept = tmp_path / "parts" / "receipt.html", tmp_path / "run-forgot-1" / "receipt.html"
    assert "Numbers are bands: the exact ones would tell you about the others" in sent.read_text()
    assert NOT_TO_SEND not in sent.read_text()
    assert NOT_TO_SEND in kept.read_text(), "control: the one with the numbers of all"
    assert "their own part of the request" in kept.read_text(), "the operator made parts"
    verify = ["verify", str(tmp_path / "run-forgot-1" / "receipt.json"), "--part"]
    good = CliRunner().invoke(app, [*verify, str(mine)])
    assert good.exit_code == 0, good.output
    assert "of user '7' is part of what it is about" in good.output
    table = json.loads(mine.read_text())
    table["request"]["inner"]["item"][0] += 1
    mine.write_text(json.dumps(table))
    bad = CliRunner().invoke(app, [*verify, str(mine)])
    assert bad.exit_code == 1
    assert "is not part of what it is about" in bad.output
    assert "Look for what came with this receipt: your part of its request." in bad.output
    assert "Do not rely" not in bad.output, "the receipt is as it was signed"
