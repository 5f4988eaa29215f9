"""Receipts: any changed byte shows, nothing in them gives records away, anybody can check them."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from shutil import which

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rescind.audits.finding import QUESTIONS, VERDICTS, Finding, overall, question
from rescind.cli import main
from rescind.core.labels import Labels
from rescind.core.records import Erase, Records, Unshare, Withdraw
from rescind.errors import ConfigError, DataError
from rescind.privacy import keys
from rescind.receipts.how_to_check import READ_THIS, WITHOUT_THIS_PROGRAM
from rescind.receipts.page import page
from rescind.receipts.parts import PEOPLE
from rescind.receipts.receipt import (
    NOT_COVERED,
    Done,
    Kept,
    Receipt,
    canonical,
    digest,
    issue,
    parse,
    sealed,
    signed_bytes,
    write,
)
from rescind.receipts.verify import Check, Verification, verify
from rescind.storage.events import event_text, read_event

DONE = Done(
    method={"name": "FedAvg", "rate": 0.1, "model": {"name": "MF", "dim": 8}, "ks": (10, 20)},
    unlearning="Retrain",
    level="L3",
    world_before="blake2b:" + "01" * 32,
    world_after="blake2b:" + "02" * 32,
    model_before="sha256:" + "03" * 32,  # of full length: two digits are in many a page by chance
    model_after="sha256:" + "04" * 32,
    rounds=12,
    client_rounds=340,
    online={"requester": 0, "others": 40},
    seconds=3,
)
KEPT = (Kept("model", 4096, "The model itself, trained without the records."),)
PASSED = Finding(
    "Q1 population",
    "PASS",
    value=0.503,
    interval=(0.489, 0.517),
    reference=0.501,
    margin=0.02,
    controls={"no-op": 0.64, "score shift": 0.64, "retrain": 0.499},
    n=3300,
    note="Über 0.02 AUC sieht diese Größe nicht → says little of one person.",
    samples={"before": [0.1, 0.2]},
)
EVENT = Erase(Records.of([3, 3, 5], [1, 9, 9], [100, 200, 300]))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path))
    return tmp_path / "keys"


def mine() -> dict[str, str]:
    own = keys.own_public_key()
    assert own is not None
    return {own: "me"}


def signed(receipt: Receipt) -> bytes:
    """The receipt signed anew by this user's key, whatever it says."""
    key = keys.signing_key()
    receipt = replace(receipt, public_key=keys.public_text(key))
    raw = key.sign(signed_bytes(receipt))
    return canonical(replace(receipt, signature=f"ed25519:{raw.hex()}"))


def test_a_receipt_says_what_was_asked_done_measured_and_kept():
    issued = issue(
        EVENT, DONE, KEPT, [PASSED], claims={"after": "sha256:aa"}, not_covered=["A leaflet."]
    )
    receipt, exact = issued.receipt, issued.exact
    assert (exact.asked.kind, exact.asked.records, exact.asked.people) == ("Erase", 3, 2)
    assert (receipt.asked.kind, receipt.asked.records) == ("Erase", "0-9")
    assert exact.done.method["ks"] == receipt.done.method["ks"] == [10, 20]
    assert exact.done.model_after == DONE.model_after
    assert exact.findings == (PASSED,)
    assert receipt.findings == (Finding("Q1 population", "PASS"),)
    assert receipt.verdict == "PASS"
    assert receipt.not_covered == (*NOT_COVERED, "A leaflet.")
    assert {n: v for n, v in receipt.claims.items() if n != PEOPLE} == {"after": "sha256:aa"}
    assert receipt.previous == ""
    assert {"rescind", "commit", "torch"} <= receipt.code.keys()


def test_the_file_is_canonical_json():
    data = canonical(issue(EVENT, DONE, KEPT, [PASSED], not_covered=["ß → ü"]).receipt)
    table = json.loads(data)
    again = json.dumps(table, sort_keys=True, ensure_ascii=False, indent=1) + "\n"
    assert again.encode() == data
    assert canonical(parse(data)) == data
    assert "samples" not in table["findings"][0]
    assert "ß → ü" in data.decode()


def test_what_is_signed_is_the_file_without_one_line():
    # So that somebody without this program can check it with sed and openssl.
    receipt = issue(EVENT, DONE, KEPT, [PASSED]).receipt
    lines = canonical(receipt).decode().splitlines(keepends=True)
    left = [line for line in lines if not line.startswith(' "signature"')]
    assert len(lines) - len(left) == 1
    assert "".join(left).encode() == signed_bytes(receipt)


def test_a_receipt_is_valid_for_whoever_pinned_its_key():
    data = canonical(issue(EVENT, DONE, KEPT, [PASSED]).receipt)
    found = verify(data, mine())
    assert found.valid
    assert found.problems == []


def places(data: bytes) -> list[int]:
    """Every byte, but of the long sealed part, which is one text, only some."""
    start = data.index(b'"sealed": "') + 50
    return [p for p in range(len(data)) if not start < p < start + 3000 or p % 50 == 0]


def test_every_changed_byte_is_found():
    data = canonical(issue(EVENT, DONE, KEPT, [PASSED]).receipt)
    pinned = mine()

    def changed(place: int, mask: int) -> bytes:
        return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]

    assert verify(data, pinned).valid
    for place in places(data):
        assert not verify(changed(place, 0x01), pinned).valid, place
    # The other case of a digit is the same number, and a signature does not sign its own digits.
    start = data.index(b'"signature"')
    for place in range(start, data.index(b"\n", start)):
        assert not verify(changed(place, 0x20), pinned).valid, place


def test_every_cut_and_every_added_byte_is_found():
    data = canonical(issue(EVENT, DONE, KEPT, [PASSED]).receipt)
    pinned = mine()
    for place in places(data):
        assert not verify(data[:place], pinned).valid
    for place in places(data)[::5]:
        assert not verify(data[: place + 1] + data[place:], pinned).valid  # one byte twice
        assert not verify(data[:place] + b" " + data[place:], pinned).valid
    assert not verify(data + b"\n", pinned).valid


def test_the_same_content_written_otherwise_is_refused():
    data = canonical(issue(EVENT, DONE, KEPT, [PASSED], not_covered=["ß → ü"]).receipt)
    table = json.loads(data)
    for text in (
        json.dumps(table, sort_keys=True),
        json.dumps(dict(reversed(table.items())), indent=1, ensure_ascii=False) + "\n",
        data.decode().replace("→", "\\u2192"),
        data.decode().replace("{\n", '{\n "format": 2,\n', 1),
        data.decode().replace('"format": 2', '"format": 2.0'),
    ):
        assert json.loads(text) == table
        assert not verify(text.encode(), mine()).valid


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"format": 1}',
        b'{"asked": {}, "done": {}, "format": 1}',
        b'{"asked": {}, "done": {}, "format": 2}',
        b'{"asked": {}, "done": {}, "format": 3}',
        b'{"asked": {}, "done": {}, "format": [1]}',
        b"[" * 100_000,
        b'{"asked": NaN, "done": 1, "format": 1}',
        b'{"asked": 1, "done": ' + b"9" * 5000 + b', "format": 1}',
        b" " * (1 << 21),
    ],
)
def test_what_is_no_receipt_is_said_to_be_none(data):
    found = verify(data, {})
    assert found.receipt is None
    assert not found.valid
    assert "not a valid receipt" in found.problems[0]


def test_fields_of_another_kind_are_named():
    table = json.loads(canonical(issue(EVENT, DONE, KEPT, [PASSED]).receipt))
    for change, where in (
        ({"kept": {}}, "kept"),
        ({"not_covered": [1]}, r"not_covered\[0\]"),
        ({"claims": {"a": 1}}, "claims.a"),
        ({"done": {**table["done"], "rounds": True}}, "done.rounds"),
        ({"done": {**table["done"], "level": "L9"}}, "L9"),
        ({"done": {**table["done"], "more": 1}}, "more"),
        ({"time": "2026-1-31T12:00:00Z"}, "time"),
        ({"findings": [{**table["findings"][0], "interval": [1.0]}]}, "interval"),
    ):
        text = json.dumps({**table, **change}, sort_keys=True, ensure_ascii=False, indent=1)
        with pytest.raises(DataError, match=where):
            parse(f"{text}\n".encode())


def test_missing_and_unknown_fields_are_named():
    table = json.loads(canonical(issue(EVENT, DONE, KEPT, [PASSED]).receipt))

    def told(change, *gone):
        changed = {**{name: v for name, v in table.items() if name not in gone}, **change}
        text = json.dumps(changed, sort_keys=True, ensure_ascii=False, indent=1)
        with pytest.raises(DataError) as caught:
            parse(f"{text}\n".encode())
        return str(caught.value)

    assert told({}, "verdict").endswith(": 'verdict'.")
    assert told({}, "kept", "code").endswith(": 'code', 'kept'.")
    assert told({"more": 1}).endswith(": 'more'.")
    assert told({"verdicts": "PASS"}, "verdict").endswith(": 'verdict', 'verdicts'.")
    less = {name: v for name, v in table["done"].items() if name != "level"}
    assert told({"done": less}).startswith("the receipt.done ")
    assert told({"done": less}).endswith(": 'level'.")
    assert told({"asked": 7}) == "the receipt.asked is '7', expected fields with names."
    many = told({f"x{n}": 1 for n in range(500)})
    assert many.count("'x") == 20
    assert len(many) < 400


def test_unsigned_foreign_and_unpinned_receipts_are_said_so(tmp_path, monkeypatch):
    receipt = issue(EVENT, DONE, KEPT, [PASSED]).receipt
    me = mine()
    assert "not signed" in verify(canonical(replace(receipt, signature="")), me).problems[0]
    assert "not a trusted key" in verify(canonical(receipt), {}).problems[0]
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path / "forger"))
    lie = replace(receipt, verdict="PASS", asked=replace(receipt.asked, records="10-99"))
    forged = signed(lie)
    assert "not a trusted key" in verify(forged, me).problems[0]
    # The forger's own pin shows that nothing else is wrong with it.
    assert verify(forged, mine()).valid
    # Keeping the true issuer's name does not help.
    as_if = replace(parse(forged), public_key=receipt.public_key)
    changed = verify(canonical(as_if), me)
    assert len(changed.checks) == 1
    assert "does not match" in changed.problems[0]


def test_digits_of_keys_and_signatures_have_one_form():
    receipt = issue(EVENT, DONE, KEPT, [PASSED]).receipt
    shouted = "ed25519:" + receipt.signature.removeprefix("ed25519:").upper()
    spaced = receipt.signature.replace("ed25519:", "ed25519: ")
    for other in (shouted, spaced, receipt.signature.removeprefix("ed25519:")):
        assert not verify(canonical(replace(receipt, signature=other)), mine()).valid
    key = keys.signing_key()
    loose = replace(receipt, public_key=receipt.public_key + "\n", signature="")
    loose = replace(loose, signature=f"ed25519:{key.sign(signed_bytes(loose)).hex()}")
    assert not verify(canonical(loose), {loose.public_key: "me"}).valid


def test_a_signed_verdict_that_its_findings_do_not_give_is_not_valid():
    receipt = issue(EVENT, DONE, KEPT, [replace(PASSED, verdict="FAIL")]).receipt
    assert receipt.verdict == "FAIL"
    assert verify(signed(receipt), mine()).valid
    found = verify(signed(replace(receipt, verdict="PASS")), mine())
    assert found.problems == ["its findings give the verdict FAIL, not PASS"]


def chain_of(length: int) -> list[bytes]:
    made: list[bytes] = []
    for _ in range(length):
        last = made[-1] if made else None
        made.append(canonical(issue(EVENT, DONE, KEPT, [PASSED], previous=last).receipt))
    return made


def test_a_chain_leads_back_to_the_first_receipt():
    first, second, third, last = chain_of(4)
    assert parse(last).previous == digest(third)
    for order in ([first, second, third], [third, first, second]):
        found = verify(last, mine(), order)
        assert found.valid
        assert "3 earlier receipts are in order, back to the first" in found.checks[-1].says
    # An open end is said, and is no fault.
    found = verify(last, mine(), [third])
    assert found.valid
    assert found.checks[-1].says.startswith("1 earlier receipt is in order; ")
    assert f"{digest(second)} was not given" in found.checks[-1].says


def test_a_broken_forked_or_foreign_chain_is_found(tmp_path, monkeypatch):
    first, second, third, last = chain_of(4)
    me = mine()
    assert not verify(last, me, [first, second]).valid  # the link between is missing
    assert not verify(last, me, [third, first]).valid
    fork = canonical(issue(EVENT, DONE, KEPT, [], previous=first).receipt)
    found = verify(last, me, [first, second, third, fork])
    assert found.problems == [
        f"1 of the given receipts are not on its chain: {digest(fork)}",
        f"FORK: {digest(second)} and {digest(fork)} both follow {digest(first)}",
    ]
    changed = third.replace(b'_rounds": "100-999"', b'_rounds": "100-998"')
    assert changed != third
    assert not verify(last, me, [first, second, changed]).valid
    # A later receipt of another signer on an earlier one of ours, and the reverse.
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path / "other"))
    theirs = canonical(issue(EVENT, DONE, KEPT, [], previous=last).receipt)
    found = verify(theirs, mine(), [last])
    assert "receipt 1 before it is not valid" in found.problems[0]


@pytest.mark.parametrize("event", [EVENT, Unshare(EVENT.records), Withdraw(5)])
def test_the_requester_sees_that_it_is_their_request(event):
    issued = issue(event, DONE, KEPT, [PASSED], records=3)
    data = canonical(issued.receipt)
    kept = read_event(event_text(event))
    assert kept == event
    assert verify(data, mine(), request=(kept, issued.key)).valid
    other = issue(event, DONE, KEPT, [PASSED], records=3)
    assert not verify(data, mine(), request=(kept, other.key)).valid
    for wrong in (Erase(Records.of([3], [1], [100])), Unshare(EVENT.records[:2]), Withdraw(4)):
        assert not verify(data, mine(), request=(wrong, issued.key)).valid


def test_further_checks_of_claims_can_be_brought_along():
    data = canonical(issue(EVENT, DONE, KEPT, [], claims={"totals after": "sha256:aa"}).receipt)

    def totals(known: str):
        return lambda receipt: Check(receipt.claims["totals after"] == known, "totals are as said")

    assert verify(data, mine(), claims=[totals("sha256:aa")]).valid
    assert verify(data, mine(), claims=[totals("sha256:bb")]).problems == ["totals are as said"]


# What an attacker learns (S5).

USERS, ITEMS = 12, 20


def space() -> list[tuple[int, int]]:
    return [(user, item) for user in range(USERS) for item in range(ITEMS)]


def guesses(told: str, keyed_with: list[bytes]) -> list[tuple[int, int]]:
    """Every pair whose digest, under one of these keys, stands anywhere in the receipt."""
    return [
        (user, item)
        for user, item in space()
        for key in keyed_with
        if Erase(Records.of([user], [item])).digest(key) in told
    ]


def test_a_receipt_alone_confirms_no_guess():
    secret = (7, 13)
    event = Erase(Records.of([secret[0]], [secret[1]]))
    issued = issue(event, DONE, KEPT, [PASSED])
    told = canonical(issued.receipt).decode()
    # Everything the attacker can find in the receipt is tried as a key.
    table = issued.receipt
    hexes = [table.public_key, table.signature, table.asked.digest, table.done.world_before]
    found = [bytes.fromhex(text.split(":")[1])[:32] for text in hexes]
    assert guesses(told, [b"", bytes(32), *found]) == []
    assert issued.key.hex() not in told
    # The attack works: with the key it finds the one pair, and a plain digest falls to it.
    assert guesses(told, [issued.key]) == [secret]
    assert guesses(event.digest(), [b""]) == [secret]


def test_somebody_who_knows_all_the_rest_confirms_no_guess_either(tiny_fed):
    # They know the world without the record, and so the digest of every world with one more.
    rest = tiny_fed.world
    secret, known = (2, 7), rest.digest()

    def with_one_more(user: int, item: int) -> str:
        return replace(rest, shared=rest.shared + Records.of([user], [item])).digest()

    plain = replace(DONE, world_before=with_one_more(*secret), world_after=known)
    event = Unshare(Records.of([secret[0]], [secret[1]]))
    issued = issue(event, plain, KEPT, [], sealed_claims={"totals before": with_one_more(*secret)})
    told = canonical(issued.receipt).decode()
    worlds = {(u, i): with_one_more(u, i) for u in range(6) for i in range(12)}
    assert [pair for pair, world in worlds.items() if world in told] == []
    assert known not in told
    # Unsealed they would have it at once; with the key the requester does.
    assert [pair for pair, world in worlds.items() if world in str(plain)] == [secret]
    for seal in (issued.receipt.done.world_before, issued.receipt.claims["totals before"]):
        assert [p for p, w in worlds.items() if sealed(w, issued.key) == seal] == [secret]


def test_two_receipts_of_one_request_cannot_be_linked():
    one, two = (issue(EVENT, DONE, KEPT, []) for _ in range(2))
    assert one.key != two.key
    assert one.receipt.asked.digest != two.receipt.asked.digest
    assert one.receipt.done.world_before != two.receipt.done.world_before
    assert one.key.hex() not in repr(one)
    with pytest.raises(ConfigError, match="32 bytes"):
        sealed("text", b"")


def test_no_digest_that_could_be_computed_again_is_left_plain():
    done = issue(EVENT, DONE, KEPT, []).receipt.done
    assert done.model_after.startswith("bound:")
    for name in ("world_before", "world_after", "model_before"):
        assert getattr(done, name).startswith("sealed:")


# Findings.


def test_the_worst_verdict_decides_and_nothing_judged_is_no_pass():
    def over(*verdicts: str) -> str:
        return overall(Finding("check", verdict) for verdict in verdicts)

    assert over() == over("SHOWN") == over("POWERLESS", "SHOWN") == "INCONCLUSIVE"
    assert over("PASS", "SHOWN", "POWERLESS") == "PASS"
    assert over("PASS", "INCONCLUSIVE") == "INCONCLUSIVE"
    assert over("PASS", "INCONCLUSIVE", "VOID") == "VOID"
    assert over(*VERDICTS) == "FAIL"


def test_findings_that_no_receipt_can_state_are_refused():
    for wrong in (
        {"verdict": "pass"},
        {"value": float("nan")},
        {"controls": {"no-op": float("inf")}},
        {"interval": (0.6, 0.4)},
        {"interval": (0.1, float("nan"))},
        {"n": -1},
    ):
        with pytest.raises(DataError, match="Q1 population"):
            replace(PASSED, **wrong)


def test_numbers_of_tensors_and_numpy_can_be_stated():
    tensor = torch.tensor(0.25, dtype=torch.float64)
    finding = replace(PASSED, value=tensor.numpy(), n=torch.tensor(7).numpy())
    receipt = issue(EVENT, replace(DONE, seconds=2), KEPT, [finding]).exact
    assert (receipt.findings[0].value, receipt.findings[0].n) == (0.25, 7)


def test_a_receipt_of_what_json_cannot_say_is_refused_in_words():
    for wrong in ({"rounds": float("nan")}, {"method": {"rate": torch.ones(1)}}):
        with pytest.raises(DataError, match="a receipt cannot hold"):
            issue(EVENT, replace(DONE, **wrong), KEPT, [])
    with pytest.raises(ConfigError, match="records="):
        issue(Withdraw(3), DONE, KEPT, [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kind": "Share", "client": [1], "item": [1], "time": [1]}',
        '{"kind": "Erase", "client": [1], "item": [1]}',
        '{"kind": "Erase", "client": [1], "item": [1, 2], "time": [1]}',
        '{"kind": "Erase", "client": [0.5], "item": [1], "time": [1]}',
        '{"kind": "Erase", "client": ["a"], "item": [1], "time": [1]}',
        '{"kind": "Erase", "client": [99999999999999999999], "item": [1], "time": [1]}',
        '{"kind": "Withdraw", "client": "a"}',
        '{"kind": "Withdraw", "client": 1, "item": [1]}',
    ],
)
def test_a_request_that_is_none_is_said_in_words(text):
    with pytest.raises(DataError):
        read_event(text)


@pytest.mark.parametrize("shell", ["bash", "dash", "sh"])
def test_the_way_without_this_program_works_as_the_documentation_tells_it(tmp_path, shell):
    if not (which("openssl") and which(shell)):
        pytest.skip(f"openssl or {shell} is not installed")
    told = (Path(__file__).parents[2] / "docs" / "receipts.md").read_text()
    told = told.split("### Without this program")[1]
    script = told.split("```bash\n")[1].split("```")[0]
    assert script == WITHOUT_THIS_PROGRAM, "the page tells the same"
    assert READ_THIS in " ".join(told.split("```")[2].split())
    receipt = issue(EVENT, DONE, KEPT, [PASSED], not_covered=["ß → ü"]).receipt
    data = canonical(receipt)

    def checked(content: bytes, key: str = receipt.public_key) -> bool:
        (tmp_path / "receipt.json").write_bytes(content)
        asked = [shell, "-c", script.replace("ed25519:...", key)]
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, check=False)
        good = done.returncode == 0
        assert good == (b"Signature Verified Successfully" in done.stdout)
        return good

    assert checked(data)
    assert (tmp_path / "signed.txt").read_bytes() == signed_bytes(receipt), "what is to be read"
    assert not checked(data.replace(b'"seconds": "0-9"', b'"seconds": "0-8"'))
    other = issue(EVENT, DONE, KEPT, [PASSED], signer=Ed25519PrivateKey.generate()).receipt
    assert checked(canonical(other), other.public_key), "control"
    assert not checked(canonical(other)), "a forger's receipt, checked with the operator's key"
    (line,) = re.findall(rb'^ "signature": .*\n', data, re.M)
    name, end = line[:-2], line[-2:]
    for forged in (  # whatever else stands on the line of the signature, a reader of JSON believes
        name + b', "not_covered": []' + end,
        name + b', "claims": {}' + end,
        name + b', "asked": {"kind": "Withdraw", "records": "0-9"}' + end,
        line + b' "signature": "none",\n',
        line + line,
        b"",
    ):
        changed = data.replace(line, forged)
        assert json.loads(changed) is not None, "control: it is JSON"
        assert not checked(changed), forged
        assert not verify(changed, mine()).valid, forged


# The page for people.


class Reader(HTMLParser):
    """Tags, attributes and words of a page, as a browser would see them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        wanted = ("src", "href", "xlink:href", "action", "srcset", "onload", "onclick")
        self.links += [value or "" for name, value in attrs if name in wanted]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_says_everything_the_receipt_says():
    findings = [
        PASSED,
        Finding("Q6 distance", "SHOWN", 0.25, n=9),
        Finding("Q3 likelihood", "VOID", 0.7, (0.6, 0.8), note="The no-op passed."),
    ]
    issued = issue(EVENT, DONE, KEPT, findings, claims={"totals after": "sha256:aa"})
    receipt = issued.receipt
    words = Reader(page(receipt, key=issued.key)).words
    for text in (
        *(finding.check for finding in findings),
        *(finding.note for finding in findings),
        *PASSED.controls,
        *receipt.not_covered,
        *("0.5030", "0.4890 to 0.5170", "3,300", "0.6400", "2 people", "3 records"),
        *(receipt.public_key, DONE.model_after, "totals after", "4,096", "VOID", "L3"),
        digest(canonical(receipt)),
    ):
        assert text in words, text
    assert VERDICTS["VOID"] in words
    assert VERDICTS["FAIL"] not in words
    assert "1 PASS, 1 not judged, 1 VOID" in words, "at the title of what is folded"
    assert words.count("SHOWN") == words.count("not judged (SHOWN in JSON)") == 1
    assert receipt.findings[1].verdict == "SHOWN", "files have the word"
    assert question(PASSED.check) in words
    for_strangers = Reader(page(receipt)).words
    for exact in ("0.5030", "3,300", "2 people", "3 records", DONE.model_after, "4,096"):
        assert exact not in for_strangers, exact


def test_the_page_is_one_file_that_runs_nothing_and_asks_nobody():
    curve = {"fpr": [0, 0.5, 1], "tpr": [0, 0.7, 1], "low": [0, 0.6, 1], "high": [0, 0.8, 1]}
    drawn = replace(PASSED, curves={"before": curve}, samples={"a": [0.1, 0.2], "b": [0.5]})
    issued = issue(EVENT, DONE, KEPT, [drawn])
    plain = Reader(page(issued.receipt))
    exact = Reader(page(issued.receipt, key=issued.key))
    full = Reader(page(issued.receipt, [drawn], issued.key))
    assert plain.tags.count("svg") == 3, "three steps; a line would need the numbers"
    assert exact.tags.count("line") == 2, "where the model lies, and its interval"
    assert full.tags.count("svg") == exact.tags.count("svg") + 1, "the curves"
    assert "script" not in full.tags
    # Within the picture, shapes are named by #; nothing leads out of the file.
    assert all(link.startswith("#") for link in full.links)
    assert "url(" not in page(issued.receipt).split("</style>")[0], "nor does the stylesheet"


def test_digests_come_last_and_details_are_folded():
    totals = "sha256:" + "aa" * 32
    html = page(issue(EVENT, DONE, KEPT, [PASSED], claims={"totals": totals}).receipt)
    body = html.split("</style>")[1]
    first = body.index("asked to erase")
    assert first < body.index('class="steps"') < body.index("<details>")
    last = body.rindex("<details>")
    assert "Digests, claims and versions" in body[last:]
    assert totals in body[last:]
    assert totals not in body[:last]


def test_words_in_a_receipt_cannot_become_markup():
    trick = "<script>alert(1)</script>&"
    finding = replace(PASSED, check=trick, note=trick, controls={trick: 0.1})
    done = replace(DONE, unlearning=trick, method={"name": trick, trick: trick})
    issued = issue(EVENT, done, [Kept(trick, 1, trick)], [finding], not_covered=[trick])
    read = Reader(page(issued.receipt, key=issued.key))
    assert "script" not in read.tags
    assert read.words.count(trick) >= 8


def test_a_page_says_nothing_that_was_not_signed():
    issued = issue(EVENT, DONE, KEPT, [PASSED])
    for findings, key in (([replace(PASSED, value=0.5)], issued.key), ([PASSED], None)):
        with pytest.raises(DataError, match="not those of the receipt"):
            page(issued.receipt, findings, key=key)


def test_a_page_without_checks_claims_nothing():
    words = Reader(page(issue(EVENT, DONE, KEPT, []).receipt)).words
    assert "No check was run" in words
    assert "INCONCLUSIVE" in words


# On the command line.


@pytest.fixture
def rescind(monkeypatch, capfd):
    def ask(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["rescind", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfd.readouterr()
        return int(end.value.code or 0), out, err

    return ask


def test_verify_says_valid_or_not_and_why(rescind, tmp_path, home):
    path = tmp_path / "receipt.json"
    issued = issue(EVENT, DONE, KEPT, [PASSED])
    secret = write(issued, path)
    assert secret.stat().st_mode & 0o777 == 0o600
    code, out, _ = rescind("verify", path)
    assert (code, out.split(":")[0]) == (0, "VALID")
    assert "your own key" in out
    request = tmp_path / "request.json"
    request.write_text(event_text(EVENT))
    pin = home / "signing.pub"
    words = ("--key", pin, "--event", request, "--event-key", secret)
    code, out, _ = rescind("verify", path, *words)
    assert code == 0
    assert "exactly the given Erase request" in out
    path.write_bytes(path.read_bytes().replace(b'"PASS"', b'"FAIL"', 1))
    code, out, _ = rescind("verify", path, "--key", pin)
    assert code == 1
    assert out.startswith("NOT VALID")
    code, out, _ = rescind("verify", path, "--json")
    assert code == 1
    assert json.loads(out)["valid"] is False


def test_a_requesters_key_is_read_as_a_mail_program_saved_it(rescind, tmp_path, home):
    path, request = tmp_path / "receipt.json", tmp_path / "request.json"
    secret = write(issue(EVENT, DONE, KEPT, [PASSED]), path)
    request.write_text(event_text(EVENT))
    words = (path, "--key", home / "signing.pub", "--event", request, "--event-key", secret)
    code, _, err = rescind("verify", *words)
    assert (code, err) == (0, ""), "control: nobody else can read it"
    secret.chmod(0o644)
    code, out, err = rescind("verify", *words)
    assert (code, "exactly the given Erase request" in out) == (0, True)
    assert err.startswith("note: other users of this machine can read")
    assert f"chmod 600 {secret}" in err
    code, out, err = rescind("verify", *words, "--json")
    assert (code, json.loads(out)["valid"]) == (0, True), "the note is no part of what was asked"
    secret.write_text("not a key")
    assert rescind("verify", *words)[0] == 2


def test_what_is_no_file_of_ours_is_told_in_words_and_a_mark_of_windows_is_read(
    rescind, tmp_path, home
):
    path, request, other = (tmp_path / f"{name}.json" for name in ("receipt", "request", "other"))
    secret = write(issue(EVENT, DONE, KEPT, [PASSED]), path)
    words = ("verify", path, "--event-key", secret, "--event")
    for text in ("no JSON", "{}", '{"kind": "Erase"}', "[1]"):
        other.write_text(text)
        for given in ((*words, other), ("verify", path, "--part", other)):
            code, _, err = rescind(*given)
            assert code == 2
            assert not re.search(r"Error\(|\('\w+'\)", err), "no words of Python"
    request.write_text(event_text(EVENT), encoding="utf-8-sig")
    code, out, _ = rescind(*words, request)
    assert (code, "exactly the given Erase request" in out) == (0, True)


LABELS = Labels(tuple(f"user {n}" for n in range(50)), tuple(f"film {n}" for n in range(50)))


def test_names_in_a_request_are_covered(rescind, tmp_path, home):
    path, request = tmp_path / "receipt.json", tmp_path / "request.json"
    secret = write(issue(EVENT, DONE, KEPT, [PASSED], labels=LABELS), path)
    words = (path, "--key", home / "signing.pub", "--event", request, "--event-key", secret)
    text = event_text(EVENT, LABELS)
    request.write_text(text)
    code, out, _ = rescind("verify", *words)
    assert (code, "exactly the given Erase request" in out) == (0, True)
    for other in ("user", "film"):
        request.write_text(text.replace(f'"{other} ', '"somebody '))
        code, out, _ = rescind("verify", *words)
        assert (code, "names other users or items" in out) == (1, True), other
    path.unlink()
    secret.unlink()
    write(issue(EVENT, DONE, KEPT, [PASSED]), path)  # an older receipt covers numbers alone
    code, out, _ = rescind("verify", *words)
    assert (code, "does not cover names" in out) == (0, True)
    assert "exactly" not in out.split("names")[0]


def test_verify_prints_who_says_exact_and_what_is_not_covered(rescind, tmp_path):
    path = tmp_path / "receipt.json"
    told = Finding("exactness", "SHOWN", note="The platform trained the rounds again.")
    issued = issue(EVENT, DONE, KEPT, [told], not_covered=["A copy in a drawer."])
    write(issued, path)
    _, out, _ = rescind("verify", path)
    assert "The platform trained the rounds again." in out
    for line in issued.receipt.not_covered:
        assert f"  - {line}" in out
    path.write_bytes(path.read_bytes().replace(b"drawer", b"cellar"))
    _, out, _ = rescind("verify", path)
    assert "Ask the operator for the file again" in out
    assert "cellar" not in out, "nothing of a changed receipt is repeated"


def test_verify_explains_every_word_and_number_it_prints(rescind, tmp_path):
    path = tmp_path / "receipt.json"
    findings = [
        PASSED,
        Finding("Q1 tail", "POWERLESS", 0.01, n=9),
        Finding("Q6 lists", "SHOWN", 0.5, n=9),
        Finding("Q9 kept", "SHOWN", 0.5, n=9),
    ]
    write(issue(EVENT, DONE, KEPT, findings), path)
    _, out, _ = rescind("verify", path)
    words = {"PASS": "PASS", "POWERLESS": "POWERLESS", "SHOWN": "not judged (SHOWN in JSON)"}
    for verdict, word in words.items():
        assert out.count(f"{word}: {VERDICTS[verdict]}") == 1, word
    assert out.count("SHOWN") == 1, "people would read it as proved"
    assert VERDICTS["FAIL"] not in out
    for finding in findings:
        (line,) = [one for one in out.splitlines() if f" {finding.check} " in one]
        assert "?" in line, line
    assert QUESTIONS["kept"] in out, "what is asked again later is the same question"


def test_verify_says_why_nothing_was_measured(rescind, tmp_path):
    path = tmp_path / "receipt.json"
    write(issue(EVENT, DONE, KEPT, [Finding("audit", "UNAUDITED", note="Too few.\x1b[2J")]), path)
    _, out, _ = rescind("verify", path)
    assert "Too few.?[2J" in out, "and moves no cursor"


def test_an_unknown_check_is_shown_without_a_question():
    assert question("Q77 something") == question("") == ""
    assert question("Q9 " * 100_000) == QUESTIONS["Q9"]


def test_verify_knows_a_chain(rescind, tmp_path):
    paths = [tmp_path / f"{n}.json" for n in range(3)]
    for path, data in zip(paths, chain_of(3), strict=True):
        path.write_bytes(data)
    assert rescind("verify", paths[2], "--chain", paths[0], "--chain", paths[1])[0] == 0
    assert rescind("verify", paths[2], "--chain", paths[0])[0] == 1


def test_bad_input_ends_with_two_and_no_traceback(rescind, tmp_path, home):
    path = tmp_path / "receipt.json"
    secret = write(issue(EVENT, DONE, KEPT, []), path)
    request = tmp_path / "request.json"
    request.write_text("{}")
    for words in (
        (tmp_path / "nothing.json",),
        (tmp_path / "keys",),
        (path, "--key", "ed25519:12"),
        (path, "--key", tmp_path / "nothing"),
        (path, "--chain", tmp_path / "nothing"),
        (path, "--event", request),
        (path, "--event-key", request),
        (tmp_path, "--event-key", secret),
        (path, "--event", request, "--event-key", secret),
        (path, "--event", path, "--event-key", request),
    ):
        code, out, err = rescind("verify", *words)
        assert code == 2, words
        assert err.startswith("error: ")
        assert "Traceback" not in err + out
    (home / "signing.key").chmod(0o644)
    code, _, err = rescind("verify", path)
    assert code == 2
    assert "chmod 600" in err


def test_a_receipt_cannot_write_its_own_verdict_on_the_screen(rescind, tmp_path):
    trick = "x\x1b[2J\rVALID"
    receipt = issue(EVENT, replace(DONE, unlearning=trick), KEPT, []).receipt
    path = tmp_path / "receipt.json"
    path.write_bytes(signed(replace(receipt, previous=trick)))
    (tmp_path / "other.json").write_bytes(chain_of(1)[0])
    for words in ((), ("--chain", tmp_path / "other.json")):
        _, out, _ = rescind("verify", path, *words)
        assert "\x1b" not in out
        assert "\r" not in out


def test_a_second_receipt_does_not_overwrite_the_first_ones_key(tmp_path):
    issued = issue(EVENT, DONE, KEPT, [])
    secret = write(issued, tmp_path / "receipt.json")
    with pytest.raises(ConfigError, match="exists already"):
        write(issue(EVENT, DONE, KEPT, []), tmp_path / "receipt.json")
    assert keys.read_secret(secret) == issued.key
    assert parse((tmp_path / "receipt.json").read_bytes()) == issued.receipt


def test_a_verification_without_a_receipt_is_never_valid():
    assert not Verification(None, (Check(True, "fine"),)).valid
