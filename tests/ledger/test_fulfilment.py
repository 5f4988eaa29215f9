"""Requests from asked to receipt: levels, signatures, keys, deadlines."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from ledgers import done, joined
from rescind.audits.finding import Finding
from rescind.cli import app
from rescind.core.claims import AFTER, ENTRY, OPERATOR, PEOPLE, RELEASE, SOFTWARE
from rescind.errors import DataError
from rescind.ledger import fulfilment, tables
from rescind.ledger.book import Ledger
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.lending import TakeBack
from rescind.ledger.options import Options
from rescind.privacy import keys
from rescind.privacy.sealing import BOUND, band, fits, run_key, sealed
from rescind.proof.changes import statement
from rescind.proof.notes import Proof
from rescind.receipts import receipt as receipts
from rescind.receipts.page import page
from rescind.receipts.verify import verify

CATALOGUE = Catalogue([f"film-{n}" for n in range(20)])
START = datetime(2026, 11, 16, 12, tzinfo=UTC)
KEY = bytes(range(32))


@pytest.fixture
def ledger(tmp_path: Path):
    ledger = opened(tmp_path / "state")
    yield ledger
    ledger.close()


def opened(state: Path, **options: Any) -> Ledger:
    chosen = replace(Options(people=4, neighbours=5, min_count=1), **options)
    return Ledger.open(state, catalogue=CATALOGUE, options=chosen)


def asked(ledger: Ledger, kind: str = "unshare", items: tuple[int, ...] | None = (3, 5)) -> Any:
    """Lend as some people, release, take back as one of them; return the answer's body."""
    people = [joined(ledger, *range(n, n + 8)) for n in range(5)]
    if not ledger.options.instant:
        ledger.releases.make()
    return done(ledger, TakeBack(people[2], kind, items, KEY)).body


def request_of(ledger: Ledger, name: str) -> Any:
    return ledger.reading.request(name)


@pytest.mark.parametrize(
    ("kind", "items", "said"),
    [("unshare", (3, 5), "Unshare"), ("erase", None, "Erase"), ("leave", None, "Withdraw")],
)
def test_a_request_is_l1_with_its_answer_and_l3_with_the_release(
    ledger: Ledger, kind: str, items: Any, said: str
) -> None:
    body = asked(ledger, kind, items)
    row = request_of(ledger, body["request_id"])
    assert (row.status, row.level, row.receipt) == ("in_progress", "L1", None)
    release = ledger.releases.make()
    row = request_of(ledger, body["request_id"])
    assert (row.status, row.level, row.release) == ("fulfilled", "L3", release.number)
    issued = receipts.parse(bytes(row.receipt))
    assert (issued.asked.kind, issued.done.level) == (said, "L3")
    assert issued.public_key == keys.public_text(ledger.signer)
    assert verify(bytes(row.receipt), {issued.public_key: "operator"}, key=KEY).valid
    assert not verify(bytes(row.receipt), {"ed25519:" + 64 * "0": "another"}).valid


def test_a_receipt_states_release_people_and_entry_and_opens_with_the_persons_key(
    ledger: Ledger,
) -> None:
    body = asked(ledger)
    release = ledger.releases.make()
    row = request_of(ledger, body["request_id"])
    issued = receipts.parse(bytes(row.receipt))
    exact = receipts.opened(issued, KEY)
    assert exact.asked.records == 2
    assert issued.asked.records == "0-9"
    time = body["acknowledgement"]["time"]
    said = statement("unshare", ["film-3", "film-5"], time, body["acknowledgement"]["seq"])
    assert issued.asked.digest == sealed(said.decode(), KEY)
    assert issued.claims[RELEASE] == "2"
    assert issued.claims[PEOPLE].startswith("1 accounts of the one before have other loans now")
    assert "counts accounts. No count tells who made them." in page(issued)
    assert "fewer than the 4 wanted" in issued.claims[PEOPLE]
    assert issued.claims[ENTRY] == str(body["acknowledgement"]["leaf"])
    assert issued.claims[AFTER].startswith(BOUND)
    assert fits(issued.claims[AFTER], ledger.live.digest(), run_key(KEY))
    assert not fits(issued.claims[AFTER], "sha256:" + 64 * "0", run_key(KEY))
    assert fits(issued.done.model_after, release.digest, run_key(KEY))
    with pytest.raises(DataError, match="another receipt"):
        receipts.opened(issued, bytes(32))


@pytest.mark.parametrize("instant", [False, True])
def test_receipts_state_the_operator_from_the_next_one_on(tmp_path: Path, instant: bool) -> None:
    ledger = opened(tmp_path / "state", instant=instant)
    who, where = "Büro für Filme, privacy@example.org", "https://example.org/" + 230 * "ü"
    body = asked(ledger)
    found = []
    for told in ({OPERATOR: None, SOFTWARE: None}, {OPERATOR: who, SOFTWARE: where}):
        for name, text in told.items():
            if text:
                keys.say_of_signer(name, text)
        if instant:
            done(ledger, ledger.releases.at_once(request_of(ledger, body["request_id"]).seq))
        else:
            ledger.releases.make()
        row = request_of(ledger, body["request_id"])
        issued = receipts.parse(bytes(row.receipt))
        assert {name: issued.claims.get(name) for name in (OPERATOR, SOFTWARE)} == told
        assert band(len(row.receipt)) == fulfilment.RECEIPT_BYTES
        found.append((bytes(row.receipt), issued.public_key))
        body = done(ledger, TakeBack(joined(ledger, 1, 2, 3), "unshare", (1, 2), KEY)).body
    assert all(verify(one, {key: "operator"}, key=KEY).valid for one, key in found)
    text = page(receipts.parse(found[1][0]))
    assert (who in text, where in text) == (True, True)
    ledger.close()


@pytest.mark.parametrize("kind", ["unshare", "leave"])
def test_a_receipt_states_what_the_ledger_keeps_of_the_request(ledger: Ledger, kind: str) -> None:
    body = asked(ledger, kind, None)
    ledger.releases.make()
    row = request_of(ledger, body["request_id"])
    issued = receipts.parse(bytes(row.receipt))
    stated = {kept.name: kept.bytes for kept in receipts.opened(issued, KEY).kept}
    with ledger.store.reading() as tx:
        leaves = tx.execute(
            select(tables.leaf.c.entry, tables.leaf.c.hash).where(
                tables.leaf.c.n.in_([row.leaf, row.receipt_leaf])
            )
        ).all()
        lines = tx.execute(
            select(tables.event).where(tables.event.c.leaf.in_([row.leaf, row.receipt_leaf]))
        ).all()
        left = tx.execute(select(tables.person).where(tables.person.c.state == "left")).all()
        request = dict(
            tx.execute(select(tables.request).where(tables.request.c.id == row.id)).mappings().one()
        )
    del request["receipt"]
    assert (len(leaves), len(lines)) == (2, 2)
    assert stated["request"] == held(request.values())
    assert stated["receipt"] == band(len(bytes(row.receipt)))
    assert stated["log"] == sum(held(leaf) for leaf in leaves)
    assert stated["history"] == sum(held(line) for line in lines)
    of_account = [16 + len("left") for _ in left]
    assert [stated[name] for name in stated if name == "account"] == of_account
    assert (len(left) == 1) == (kind == "leave"), "control: who only takes back keeps the account"
    assert {kept.bytes for kept in issued.kept} <= {"10-99", "100-999", "1000-9999"}
    assert len(bytes(row.receipt)) < 6500, "small, also with all this"
    assert all(stated.values()), "nothing that is kept has no size"


def held(values: Iterable[Any]) -> int:
    """The bytes of a row: texts and bytes as they are, any number or time 8."""
    sized = (value.encode() if isinstance(value, str) else value for value in values)
    return sum(len(v) if isinstance(v, bytes) else 8 for v in sized if v is not None)


def test_a_receipt_is_a_leaf_and_its_key_is_destroyed_here(ledger: Ledger) -> None:
    body = asked(ledger)
    slot = request_of(ledger, body["request_id"]).receipt_slot
    assert ledger.keys.get(slot)  # control: it is there until the receipt is
    ledger.releases.make()
    row = request_of(ledger, body["request_id"])
    entry = b"\x02" + hashlib.sha256(bytes(row.receipt)).digest()
    assert ledger.reading.entries(row.receipt_leaf, 1) == [entry]
    assert (row.receipt_slot, row.receipt_key) == (None, None)
    with pytest.raises(DataError, match="destroyed"):
        ledger.keys.get(slot)


def test_a_receipt_and_its_proof_have_at_most_8_kb(ledger: Ledger, monkeypatch) -> None:
    """The proof is of a log of a million leaves. Earlier receipts were larger, and open, too."""
    way = tuple(bytes([n]) * 32 for n in range(20))
    proof = str(Proof(999_999, way, "x" * 300)).encode()

    def issued() -> bytes:
        body = asked(ledger)
        ledger.releases.make()
        return bytes(request_of(ledger, body["request_id"]).receipt)

    small = issued()
    assert receipts.opened(receipts.parse(small), KEY).asked.records == 2
    assert len(small) + len(proof) <= 8000
    monkeypatch.setattr(receipts, "to_compact", receipts.to_bytes)
    earlier = issued()
    assert receipts.opened(receipts.parse(earlier), KEY).asked.records == 2
    assert len(earlier) + len(proof) > 8000


def test_receipts_are_chained_and_issued_once_even_if_there_are_many(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fulfilment, "AT_ONCE", 2)
    people = [joined(ledger, *range(n, n + 8)) for n in range(5)]
    ledger.releases.make()
    for n, person in enumerate(people):
        done(ledger, TakeBack(person, "unshare", (n,), KEY))
    ledger.releases.make()
    with ledger.store.reading() as tx:
        rows = tx.execute(select(tables.request).order_by(tables.request.c.receipt_leaf)).all()
    found = [bytes(row.receipt) for row in rows]
    assert len(found) == 5
    assert receipts.parse(found[0]).previous == ""
    for one, two in itertools.pairwise(found):
        assert receipts.parse(two).previous == receipts.digest(one)
    size = len(ledger.tree)
    ledger.releases.make()
    assert len(ledger.tree) == size + 1  # the release's own leaf, no second receipt


@pytest.mark.parametrize(("verdict", "level"), [("FAIL", "L1"), ("PASS", "L3")])
def test_a_failed_audit_is_never_called_exact(ledger: Ledger, verdict: str, level: str) -> None:
    body = asked(ledger)
    served = ledger.releases._served(ledger.releases._release, (Finding("loss", verdict, n=100),))
    seq = request_of(ledger, body["request_id"]).seq
    done(ledger, fulfilment.Issue(replace(served, seq=seq), ledger.releases._signer))
    row = request_of(ledger, body["request_id"])
    assert row.level == receipts.parse(bytes(row.receipt)).done.level == level


def test_a_request_after_the_copy_waits_for_the_next_release(ledger: Ledger) -> None:
    body = asked(ledger)
    late = joined(ledger, *range(10))

    taken = ledger.releases._copy()
    more = done(ledger, TakeBack(late, "unshare", (1,), KEY)).body
    assert request_of(ledger, more["request_id"]).seq > taken[1]
    ledger.releases._copy = lambda: taken
    ledger.releases.make()
    statuses = [request_of(ledger, one["request_id"]).status for one in (body, more)]
    assert statuses == ["fulfilled", "in_progress"]


def test_the_instant_form_fulfils_at_once(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", instant=True)
    body = asked(ledger)
    assert request_of(ledger, body["request_id"]).status == "in_progress"
    operation = ledger.releases.at_once(body["acknowledgement"]["seq"])
    assert operation is not None
    done(ledger, operation)
    row = request_of(ledger, body["request_id"])
    assert (row.status, row.level) == ("fulfilled", "L3")
    issued = receipts.parse(bytes(row.receipt))
    assert issued.claims[RELEASE].startswith("at once")
    assert fits(issued.claims[AFTER], ledger.live.digest(), run_key(KEY))
    ledger.close()


def test_a_start_of_the_instant_form_issues_what_a_crash_left(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", instant=True)
    body = asked(ledger)
    ledger.close()
    again = opened(tmp_path / "state", instant=True)
    assert request_of(again, body["request_id"]).status == "fulfilled"
    again.close()


def test_without_the_instant_form_nothing_is_fulfilled_before_a_release(ledger: Ledger) -> None:
    assert ledger.releases.at_once(99) is None


def test_a_lost_key_of_a_receipt_does_not_stop_the_others(ledger: Ledger) -> None:
    body = asked(ledger)
    ledger.keys.destroy(request_of(ledger, body["request_id"]).receipt_slot)
    ledger.releases.make()
    row = request_of(ledger, body["request_id"])
    assert (row.status, row.receipt) == ("fulfilled", None)
    assert "the key of its receipt is gone" in row.reason


@dataclass
class Open:
    """A request as the alarms see it."""

    id: str
    received_at: datetime = START
    expected_by: datetime = START + timedelta(days=30)


def test_alarms_ring_at_half_and_at_four_fifths_of_the_time() -> None:
    def ringing(days: float) -> list[str]:
        found = fulfilment.alarms([Open("one")], START + timedelta(days=days))  # type: ignore[list-item]
        return [name for name, ids in found.items() if ids]

    assert [ringing(days) for days in (14.9, 15, 23.9, 24, 29.9, 30)] == [
        [], ["half"], ["half"], ["urgent"], ["urgent"], ["late"],
    ]  # fmt: skip


def test_a_deadline_that_the_law_does_not_allow_is_written_with_a_warning(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    body = asked(ledger)
    ledger.close()
    name, due = body["request_id"], datetime.fromisoformat(body["expected_by"])
    careful = []
    for days in (14, 14, 60):
        words = ["requests", "extend", name, "--days", str(days), "--reason", "many requests"]
        said = CliRunner().invoke(app, [*words, "--state", str(tmp_path / "state")])
        assert said.exit_code == 0, said.output
        due += timedelta(days=days)
        assert f"{name} is due on {due.isoformat()}" in said.output, "it is done all the same"
        careful.append("Careful: that is more than three months after it was" in said.output)
    assert careful == [False, False, True], "44, 58 and 118 days"


def test_a_prepared_request_needs_no_records(tmp_path: Path) -> None:
    prepared = receipts.Asked("Erase", 3, 1, sealed("said", KEY))
    done_ = receipts.Done({"name": "Gram"}, "Subtract", "L3", "", "", "", "", 0, 0, {}, 0.0)
    issued = receipts.issue(prepared, done_, (), (), key=KEY)
    assert issued.key == KEY
    assert issued.exact.asked == prepared
