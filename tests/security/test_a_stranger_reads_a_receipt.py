"""A stranger has a receipt and the public data, and tries every person. Forks and clocks, too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import rescind
from rescind.audits.finding import Finding
from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.records import Withdraw
from rescind.errors import DataError
from rescind.forgetting.forget import forget
from rescind.forgetting.purge import inventory
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.privacy import keys
from rescind.privacy.sealing import band, decrypt, encrypt, fits, run_key
from rescind.receipts.claims import AFTER, sum_digest
from rescind.receipts.receipt import Done, Receipt, canonical, issue, opened, signed_bytes, write
from rescind.receipts.verify import verify, verify_all
from worlds import tiny_holdings

DONE = Done({"name": "FedAvg"}, "Retrain", "L3", "", "", "", "", 0, 0, {}, 0.1)
METHODS = {"trained": FedAvg(model=MF(dim=2)), "summed": Gram()}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESCIND_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


def mine() -> dict[str, str]:
    return {keys.public_text(keys.signing_key()): "me"}


def learnt(method: str) -> Federation:
    """A run on public data: everybody knows the data, the method and the seed."""
    return Federation.start(tiny_holdings(clients=9, items=14), METHODS[method], seed=2).run(2)


def expected(fed: Federation, person: int) -> dict[str, Any]:
    """What the receipt would state if this person had left, made from public data alone."""
    request = fed.request(Withdraw(person))
    after = fed.method.unlearn(fed, request)
    made = {
        "records": len(request.records),
        "model": params.digest(after.now.state.public),
        **{f"kept {one.name}": one.bytes for one in inventory(after)},
    }
    if fed.method.additive:
        made["sum"] = sum_digest(after.now.state.own)
    return made


def stated(receipt: Receipt) -> dict[str, Any]:
    kept = {f"kept {one.name}": one.bytes for one in receipt.kept}
    made = {"records": receipt.asked.records, "model": receipt.done.model_after, **kept}
    return {**made, "sum": receipt.claims[AFTER]} if AFTER in receipt.claims else made


def names(receipt: Receipt, fed: Federation) -> list[int]:
    """The stranger: everybody whose leaving explains all that the receipt states."""
    told = stated(receipt)

    def explains(name: str, value: Any) -> bool:
        closed = isinstance(told[name], str) and told[name].startswith(("bound:", "sealed:"))
        return closed or told[name] in (value, band(value) if isinstance(value, int) else None)

    people = fed.world.members.nonzero().squeeze(1).tolist()
    guesses = {person: expected(fed, person) for person in people}
    return [p for p, made in guesses.items() if all(explains(*one) for one in made.items())]


@pytest.mark.parametrize("method", METHODS)
def test_a_stranger_with_the_public_data_does_not_find_the_person(method):
    fed = learnt(method)
    _, evidence = forget(fed, Withdraw(4), audits="none", data="sha256:public")
    sizes = {p: expected(fed, p)["records"] for p in range(9)}
    crowd = [p for p, size in sizes.items() if band(size) == band(sizes[4])]
    assert len(crowd) >= 4
    assert names(evidence.receipt, fed) == crowd, "everybody with about as many records"
    assert names(evidence.exact, fed) == [4], "the attack works on exact numbers"
    by_count = [p for p, size in sizes.items() if size == evidence.exact.asked.records]
    assert len(by_count) < len(crowd), "the count alone narrowed it down"


@pytest.mark.parametrize("method", METHODS)
def test_receipts_of_two_people_differ_only_in_what_is_random(method):
    fed = learnt(method)

    def outside(person: int, exact: bool = False) -> dict[str, Any]:
        _, evidence = forget(fed, Withdraw(person), audits="none")
        receipt = evidence.exact if exact else evidence.receipt
        table = json.loads(canonical(receipt))
        random = ("sealed", "signature", "time", "previous")
        table = {name: value for name, value in table.items() if name not in random}
        table["asked"].pop("digest")
        table["done"].pop("seconds" if exact else "digest", None)
        text = json.dumps(table, sort_keys=True).split('"')
        keyed = ("bound:", "sealed:", "blake2b-tree:", "blake2b-named-tree:")
        return [w.partition(":")[0] if w.startswith(keyed) else w for w in text]

    sizes = {p: expected(fed, p)["records"] for p in range(9)}
    first = next(p for p in range(9) if p != 4 and band(sizes[p]) == band(sizes[4]))
    assert outside(4) == outside(first)
    assert outside(4, exact=True) != outside(first, exact=True)


def test_numbers_of_an_audit_are_sealed_and_the_key_opens_them():
    measured = Finding(
        "Q1 population", "PASS", 0.50312, (0.48, 0.52), 0.501, 0.02, {"no-op": 0.64}, 162,
        note="162 records were judged.",
    )  # fmt: skip
    fed = learnt("trained")
    _, evidence = forget(fed, Withdraw(4), audits="none")
    issued = issue(Withdraw(4), evidence.exact.done, [], [measured], records=162)
    told = canonical(issued.receipt).decode()
    numbers = json.dumps(json.loads(told)["findings"]) + str(issued.receipt.asked.records)
    for number in ("0.50312", "0.64", "162"):
        assert number not in numbers
    assert issued.exact.findings == (measured,)
    assert issued.exact.asked.records == 162
    assert (issued.receipt.asked.records, issued.receipt.verdict) == ("100-999", "PASS")
    found = verify(told.encode(), mine(), key=issued.key)
    assert found.valid
    assert found.exact == issued.exact
    other = verify(told.encode(), mine(), key=keys.new_secret())
    assert other.exact is None
    assert "belongs to another receipt" in other.problems[0]


def test_the_sealed_part_must_agree_with_the_open_one():
    _, evidence = forget(learnt("trained"), Withdraw(4), audits="none")
    receipt, key, signer = evidence.receipt, evidence.key, keys.signing_key()
    inside = json.loads(decrypt(receipt.sealed, key))
    lies = [
        replace(receipt, asked=replace(receipt.asked, records="1000-9999")),
        replace(receipt, done=replace(receipt.done, model_after="bound:" + "0" * 64)),
        replace(receipt, sealed=encrypt(json.dumps({**inside, "kept": []}).encode(), key)),
    ]
    for lie in lies:  # signed by the issuer, so nothing else is wrong with it
        raw = signer.sign(signed_bytes(lie)).hex()
        data = canonical(replace(lie, signature=f"ed25519:{raw}"))
        assert verify(data, mine()).valid
        assert verify(data, mine(), key=key).problems == [
            "its sealed part contradicts what it says in the open"
        ]
    for broken in ("", "chacha20-poly1305:", "chacha20-poly1305:????", receipt.sealed[:-8]):
        with pytest.raises(DataError, match="does not open"):
            opened(replace(receipt, sealed=broken), key)


def test_lengths_of_sealed_parts_tell_nothing():
    def length(records: int, value: float) -> int:
        finding = Finding("Q1 population", "PASS", value, n=records)
        done = opened(one.receipt, one.key).done
        return len(issue(Withdraw(1), done, [], [finding], records=records).receipt.sealed)

    _, one = forget(learnt("trained"), Withdraw(4), audits="none")
    assert length(1, 0.5) == length(123_456, 0.123456789)


def test_whoever_has_the_run_can_check_that_it_holds_the_model(tmp_path):
    fed = learnt("trained")
    after, evidence = forget(fed, Withdraw(4), audits="none")
    secret = write(evidence, tmp_path / "receipt.json")  # type: ignore[arg-type]
    kept = keys.read_secret(tmp_path / "run.key")
    assert (tmp_path / "run.key").stat().st_mode & 0o777 == 0o600
    assert kept == run_key(evidence.key) != keys.read_secret(secret)
    told = evidence.receipt.done.model_after
    assert fits(told, params.digest(after.now.state.public), kept)
    assert not fits(told, params.digest(fed.now.state.public), kept)
    assert not fits(told, params.digest(after.now.state.public), keys.new_secret())
    assert not fits(told, params.digest(after.now.state.public), None)
    with pytest.raises(DataError, match="does not open"):
        opened(evidence.receipt, kept)  # the run's key does not give the requester's numbers


def chained(previous: bytes | None = None, time: str = "") -> bytes:
    receipt = issue(Withdraw(1), DONE, [], [], records=9, previous=previous).receipt
    if not time:
        return canonical(receipt)
    receipt, signer = replace(receipt, time=time), keys.signing_key()
    return canonical(
        replace(receipt, signature=f"ed25519:{signer.sign(signed_bytes(receipt)).hex()}")
    )


def test_a_clock_that_steps_back_is_noted_and_the_chain_stays_valid():
    late = chained(time="2999-01-01T00:00:00Z")
    after = chained(late)
    found = verify(after, mine(), [late])
    assert found.valid
    (note,) = [check for check in found.checks if check.note]
    assert "the clock stepped back from 2999-01-01T00:00:00Z" in note.says
    assert not verify(late, mine(), [after]).valid, "the digests give the order"
    in_order = verify(chained(after), mine(), [after])
    assert not any(check.note for check in in_order.checks)


def test_two_successors_of_one_receipt_are_a_fork_and_both_are_named():
    first = chained()
    left, right = chained(first), chained(first)
    history = {"first": first, "left": left, "after left": chained(left)}
    assert all(found.valid for found in verify_all(history, mine()).values())
    split = verify_all({**history, "right": right}, mine())
    assert split[""].problems == ["FORK: left and right both follow first"]
    assert all(found.valid for name, found in split.items() if name), "each one by itself is fine"
    copied = verify_all({**history, "copy": left}, mine())
    assert "" not in copied, "a copy is no second successor"
    forged = right.replace(b'"L3"', b'"L2"')
    assert "" not in verify_all({**history, "forged": forged}, mine())


def verified(*words: object) -> tuple[int, str]:
    """Give `rescind verify`; return its exit code and what it says."""
    return rescind("verify", *words)


def test_the_command_compares_a_folder_of_receipts(tmp_path):
    first = chained(time="2999-01-01T00:00:00Z")
    for name, data in {"a": first, "a-forgot-1": chained(first)}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "receipt.json").write_bytes(data)
    code, out = verified(tmp_path)
    assert code == 0, out
    assert "it follows a/receipt.json" in out
    assert "note the clock stepped back" in out
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "receipt.json").write_bytes(chained(first))
    code, out = verified(tmp_path)
    assert code == 1
    both = "a-forgot-1/receipt.json and copy/receipt.json both follow a/receipt.json"
    assert f"FORK: {both}" in out
    code, out = verified(tmp_path, "--json")
    assert code == 1
    assert both in json.loads(out)[""]["checks"][0]["says"]


def test_a_forged_receipt_of_any_name_is_found_in_a_folder(tmp_path):
    good = chained()
    forged = good.replace(b'"L3"', b'"L2"')
    (tmp_path / "first.json").write_bytes(good)
    for name in ("run.json", "parts/7.json", "request.json", "log.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"asked": "x", "verdict": "PASS"}')
    (tmp_path / "list.json").write_text("[1, 2]")
    code, out = verified(tmp_path)
    assert (code, out.count("VALID\n")) == (0, 1), "control: other things are no receipts"
    assert "1 receipt, 0 not valid; the history does not fork here." in out
    assert "skipped" not in out
    (tmp_path / "deep").mkdir()
    for name in ("mine.json", "deep/x.request.json", "COPY.JSON"):
        (tmp_path / name).write_bytes(forged)
        code, out = verified(tmp_path)
        assert code == 1, name
        assert f"{name}: NOT VALID" in out
        (tmp_path / name).unlink()


def test_a_gap_in_the_chain_is_told(tmp_path):
    first = chained()
    second = chained(first)
    files = {"a": first, "b": second, "c": chained(second)}
    for name, data in files.items():
        (tmp_path / f"{name}.json").write_bytes(data)
    assert "is not among the valid ones" not in verified(tmp_path)[1]
    (tmp_path / "b.json").unlink()
    code, out = verified(tmp_path)
    assert code == 0, "who keeps one receipt only has done nothing wrong"
    assert "is not among the valid ones" in out
    (tmp_path / "b.json").write_bytes(second.replace(b'"L3"', b'"L2"'))
    code, out = verified(tmp_path)
    assert (code, "is not among the valid ones" in out) == (1, True)
