"""A receipt and the terminal say of the stored copy of the data what is true when it is signed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rescind.experiments.forget_run import Answer, answer
from rescind.experiments.read_request import NamedRecords
from rescind.forgetting.data_erasure import erase
from typer.testing import CliRunner

from rescind.cli import app
from rescind.data.blocklist import place
from rescind.data.erasing import erase_imported, items_of
from rescind.data.importing import import_file, imported_folder
from rescind.experiments.learning_run import run_cell
from rescind.experiments.recipe import Cell, DataSettings, RunSettings, SharingSettings
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF

CELL = Cell(
    "tiny",
    DataSettings(name="club"),
    SharingSettings(ratio=(1, 0, 0), part=1.0),
    FedAvg(model=MF(dim=4), clients_per_round=8),
    RunSettings(rounds=1, evaluate_every=1, checkpoint_every=1),
)
ANN, BEN = "ann", "ben"
STORED, NONE = "rows that are still stored there", "none of these rows is stored there any more"
NOT_HERE = "it is not on this machine"
STAY = "They stay in the data, and runs learn from them on devices."


@pytest.fixture
def club(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs on imported data in which everybody lends."""
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    people = [ANN, BEN, *(f"person-{n}" for n in range(10))]
    rows = [f"{user},film-{(n + k) % 14}" for n, user in enumerate(people) for k in range(8)]
    (tmp_path / "club.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    import_file(tmp_path / "club.csv", "club")
    for name in ("one", "two"):
        run_cell(CELL, tmp_path / name)
    return tmp_path


def unshares(club: Path, user: str = ANN, run: str = "one", everywhere: bool | None = None):
    (club / "asked.csv").write_text(f"user\n{user}\n")
    asked = str(club / "asked.csv")
    return answer(club / run, "unshare", asked, audits="none", everywhere=everywhere)


def copy_told(done: Answer) -> str:
    """What the receipt says of the stored copy."""
    (found,) = (one for one in done.evidence.receipt.not_covered if " of 'club': " in one)
    return found


def test_unsharing_deleted_rows_does_not_say_that_they_stay(club: Path) -> None:
    erase("club", [ANN], path=club / "rows.json")
    done = unshares(club)
    assert NONE in copy_told(done)
    assert "stay" not in copy_told(done)
    assert STAY not in done.later_runs
    assert "None of them is stored in the data any more." in done.later_runs
    control = unshares(club, BEN, "two")
    assert f"{STORED} stay, as they do on devices, and are not lent again" in copy_told(control)
    assert STAY in control.later_runs


def test_unsharing_rows_of_which_some_were_deleted_tells_no_count(club: Path) -> None:
    erase("club", [ANN], items_of("club", ANN)[:3], club / "rows.json")
    some, whole = unshares(club), unshares(club, BEN, "two")
    assert copy_told(some) == copy_told(whole), "a stranger learns nothing more"
    assert "Those that are still stored stay in the data" in some.later_runs
    assert STAY not in some.later_runs


def test_the_sentence_is_printed_by_the_commands(club: Path) -> None:
    """As an officer gives them: two signed receipts do not contradict each other."""

    def told(*words: object) -> str:
        got = CliRunner().invoke(app, [str(word) for word in words])
        assert got.exit_code == 0, got.output
        return " ".join(got.output.split())

    told("data", "erase", "club", "--user", ANN, "--receipt", club / "rows.json", "--yes")
    (club / "lent.csv").write_text(f"user,item\n{ANN},film-0\n{ANN},film-1\n")
    papers = ("--request", club / "request.json", "--yes", "--audits", "none")
    said = told("forget", club / "one", "--unshare", club / "lent.csv", *papers)
    assert "None of them is stored in the data any more." in said
    assert NONE in told("verify", club / "one-forgot-1" / "receipt.json")


@pytest.mark.parametrize("kind", ["erase", "withdraw"])
def test_forgetting_deleted_rows_does_not_say_how_to_delete_them(club: Path, kind: str) -> None:
    def forgets(user: str, run: str) -> Answer:
        few = NamedRecords(user, tuple(f"film-{n}" for n in (1, 2)))
        return answer(club / run, kind, few if kind == "erase" else user, audits="none")  # type: ignore[arg-type]

    erase("club", [ANN], path=club / "rows.json")
    gone, control = copy_told(forgets(ANN, "one")), copy_told(forgets(BEN, "two"))
    assert NONE in gone
    assert "rescind data erase" not in gone
    assert "The file it was imported from." in gone, "which nobody deleted"
    assert f"{STORED} are left out of every run from now on, and `rescind data erase`" in control


def test_a_user_who_leaves_has_rows_stored_that_the_run_never_had(club: Path) -> None:
    """None of the run's rows is stored, but another one is."""
    erase("club", [ANN], path=club / "rows.json")
    (club / "more.csv").write_text(f"user,item\n{ANN},film-13\n{BEN},film-13\n")
    import_file(club / "more.csv", "club", replace=True)
    assert STORED in copy_told(answer(club / "one", "withdraw", ANN, audits="none"))


@pytest.mark.parametrize("kind", ["unshare", "withdraw"])
def test_data_that_is_not_on_this_machine_is_not_said_to_store_rows(club: Path, kind: str) -> None:
    """It was deleted, or the run was copied from another machine."""

    def forgets(run: str) -> Answer:
        if kind == "unshare":
            return unshares(club, run=run)
        return answer(club / run, "withdraw", ANN, audits="none")

    control = copy_told(forgets("one"))
    assert STORED in control
    assert NOT_HERE not in control
    shutil.rmtree(imported_folder() / "club")
    done = forgets("two")
    assert NOT_HERE in copy_told(done)
    assert STORED not in copy_told(done)
    assert STAY not in done.later_runs


def test_a_copy_that_cannot_be_read_may_store_rows(club: Path) -> None:
    for file in (imported_folder() / "club").glob("*.parquet"):
        file.write_bytes(b"broken")
    assert STORED in copy_told(unshares(club)), "and the request is answered all the same"


@pytest.mark.parametrize("earlier", ["withdraw", "erase"])
def test_unsharing_rows_that_every_run_leaves_out(club: Path, earlier: str) -> None:
    """They are stored, but no new run learns from them, on devices or not."""
    every = NamedRecords(ANN, tuple(items_of("club", ANN)))
    answer(club / "two", earlier, ANN if earlier == "withdraw" else every, audits="none")  # type: ignore[arg-type]
    done = unshares(club)
    assert STAY not in done.later_runs
    assert "New runs leave them out altogether, after an earlier request." in done.later_runs
    assert STORED in copy_told(done)
    assert ANN not in run_cell(CELL, club / "three").fed.labels.users, "as it says"
    assert STAY in unshares(club, BEN, "one-forgot-1").later_runs, "control"


def test_a_trial_says_of_unshared_rows_that_they_are_not_lent_not_left_out(club: Path) -> None:
    assert "may lend these rows again" in unshares(club, BEN, "one", False).later_runs, "control"
    unshares(club, ANN, "one-forgot-1")
    done = unshares(club, ANN, "two", everywhere=False)
    assert "by an earlier request: new runs do not lend them." in done.later_runs
    assert "are not lent again" in copy_told(done)
    assert ANN in run_cell(CELL, club / "three").fed.labels.users, "they are learnt on devices"


def test_a_trial_says_of_erased_rows_that_they_are_not_lent(club: Path) -> None:
    erase_imported("club", [ANN])
    done = unshares(club, everywhere=False)
    assert "may lend these rows again" not in done.later_runs


def test_a_trial_of_leaving_says_that_later_rows_count(club: Path) -> None:
    """Their rows are deleted and listed, but not that they left."""
    erase("club", [ANN], path=club / "rows.json")
    trial = answer(club / "one", "withdraw", ANN, audits="none", everywhere=False)
    assert "may learn these rows again" not in trial.later_runs
    assert "Rows of this user that come later may be learnt" in trial.later_runs
    answer(club / "one", "withdraw", ANN, audits="none", everywhere=True)
    again = answer(club / "two", "withdraw", ANN, audits="none", everywhere=False)
    assert f"({place('club')}), by an earlier request: new runs leave them out." in again.later_runs
    assert "come later" not in again.later_runs, "control: it is noted that they left"


def test_published_files_keep_their_rows(club: Path) -> None:
    from rescind.data import load

    public = replace(load("club"), source="publisher")
    run_cell(CELL, club / "public", dataset=public)
    shutil.rmtree(imported_folder() / "club")
    done = unshares(club, run="public")
    assert "The published files of 'club': all rows stay there" in copy_told(done)


def test_equal_worlds_tell_that_nothing_lent_was_changed(club: Path) -> None:
    """As the page on receipts says of what strangers learn."""
    half = replace(CELL, sharing=SharingSettings(ratio=(0, 1, 0), part=0.5))
    fed = run_cell(half, club / "half").fed
    labels, shared = fed.labels, fed.world.shared
    lent = {
        labels.item_id(item)
        for client, item in zip(shared.client.tolist(), shared.item.tolist(), strict=True)
        if labels.user_id(client) == ANN
    }
    kept = sorted({*items_of("club", ANN)} - lent)

    def worlds(run: str, item: str) -> set[str]:
        done = answer(club / run, "erase", NamedRecords(ANN, (item,)), audits="none")
        return {done.evidence.receipt.done.world_before, done.evidence.receipt.done.world_after}

    assert len(worlds("half", kept[0])) == 1
    assert len(worlds("half-forgot-1", min(lent))) == 2, "control"
