"""The browser computes what Python computes, and refuses what Python refuses."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import page_vectors
from rescind.proof.notes import LOG, WITNESS, Key
from rescind.service.static_files import static

pytestmark = pytest.mark.browser
VECTORS = page_vectors.read()
BYTES = "const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));"
HEX = "const hex = b => Array.from(b, x => x.toString(16).padStart(2, '0')).join('');" + (
    "const raw = t => Uint8Array.from(t.match(/../g) ?? [], p => parseInt(p, 16));"
)


@pytest.fixture
def run(visit) -> Any:
    """Return what runs a piece of JavaScript with a module of the pages as `it`."""
    page = visit().open()

    def call(module: str, body: str, given: Any) -> Any:
        address = f"{static().root}/{module}"
        return page.evaluate(
            f"async given => {{ {BYTES} {HEX} const it = await import('{address}'); {body} }}",
            given,
        )

    return call


def test_lists_are_pythons_lists(run) -> None:
    lists = VECTORS["lists"]
    body = (
        "const w = it.read(bytes(given.file).buffer);"
        "return given.cases.map(c => it.recommend(w, c.own, c.k))"
    )
    found = run("scoring.js", body, lists)
    assert [case["list"] for case in lists["cases"]] == found
    spoilt = run("scoring.js", body.replace("c.own, c.k", "c.own.slice(1), c.k"), lists)
    assert spoilt != found  # the control: one record less is seen


def test_differences_are_grams(run) -> None:
    """Items and weights of `Gram` in Python, number for number."""
    both = VECTORS["differences"]
    body = (
        "return [given.cases.map(c => it.differenceOf(c.sent, c.kept)),"
        "given.weights.map((_, n) => it.weightOf(n))]"
    )
    found, weights = run("kept.js", body, both)
    assert [{"minus": c["minus"], "plus": c["plus"]} for c in both["cases"]] == found
    assert weights == both["weights"]
    spoilt, _ = run("kept.js", body.replace("c.sent,", "c.sent.slice(1),"), both)
    assert spoilt != found  # the control: one item less is seen


def test_trees_grow_as_in_python(run) -> None:
    body = """
      const wrong = []
      for (const { index, size, path } of given.inclusions) {
        const root = await it.rootOf(await it.leafHash(raw(given.entries[index])), index, size, path.map(raw))
        if (!root || hex(root) !== given.roots[size - 1]) wrong.push(['inclusion', index, size])
        if (size > 1 && await it.rootOf(await it.leafHash(raw(given.entries[index])), index, size, path.slice(1).map(raw))
            && path.length) wrong.push(['short', index, size])
      }
      return wrong"""
    assert run("check.js", body, VECTORS["trees"]) == []
    body = """
      const roots = given.roots.map(raw), wrong = []
      for (const { old, size, path } of given.growths) {
        if (!await it.growsFrom(old, roots[old - 1], size, roots[size - 1], path.map(raw))) wrong.push(['growth', old, size])
        const other = roots[old % roots.length]
        if (old < size && await it.growsFrom(old, other, size, roots[size - 1], path.map(raw))) wrong.push(['other', old, size])
      }
      return wrong"""
    assert run("log.js", body, VECTORS["trees"]) == []


def test_entries_of_changes_are_pythons(run) -> None:
    body = "return Promise.all(given.map(async c => hex(await it.entryOf(c, c.items))))"
    assert run("mine.js", body, VECTORS["changes"]) == [one["entry"] for one in VECTORS["changes"]]


def test_a_checked_receipt_says_who_witnessed_it_or_that_nobody_did(run) -> None:
    body = "return it.witnessed(new Map(given.map(([name, at]) => [name, new Date(at)])))"
    (none,) = run("mine.js", body, [])
    assert "no witness has signed this log yet" in none
    both = run("mine.js", body, [["silo-0", "2026-01-02T10:00:00Z"], ["silo-1", 0]])
    assert [one.partition(" on ")[0] for one in both] == ["seen by silo-0", "seen by silo-1"]
    assert all("still holds all that it saw before" in one for one in both)
    assert not any("no witness" in one for one in both), "control"


def test_a_receipt_holds_and_every_changed_byte_is_refused(run) -> None:
    body = """
      const keys = { receipts: given.receipts, log: given.log, witnesses: [given.witness] }
      const holds = async (r, p) => {
        try {
          await it.check(r, new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(p), keys)
          return true
        } catch { return false }
      }
      const good = { receipt: bytes(given.receipt), proof: bytes(given.proof) }
      const found = await it.check(good.receipt, new TextDecoder().decode(good.proof), keys)
      const taken = []
      for (const which of ['receipt', 'proof']) {
        for (let n = 0; n < good[which].length; n++) {
          const changed = { ...good, [which]: good[which].slice() }
          changed[which][n] ^= [0x01, 0x20, 0x80][n % 3]
          if (await holds(changed.receipt, changed.proof)) taken.push([which, n])
        }
      }
      const other = { ...keys, witnesses: [given.log] }
      return { index: found.index, size: found.size, seen: [...found.seen.keys()], level: found.receipt.done.level,
               tried: good.receipt.length + good.proof.length, taken }"""
    found = run("check.js", body, VECTORS["receipt"])
    assert found["taken"] == []
    assert found["tried"] > 3000
    assert (found["index"], found["size"], found["seen"]) == (300, 378, ["silo-0"])


CHECKED = """
      const keys = { receipts: given.receipts, log: given.log, witnesses: [given.witness] }
      try {
        await it.check(bytes(given.receipt), new TextDecoder().decode(bytes(given.proof)), keys)
        return ['taken']
      } catch (error) { return [error.message, error instanceof it.NotThatKey] }"""


def another(name: str, kind: int) -> str:
    """Return a new key of a log or a witness of this name."""
    return str(Key(name, Ed25519PrivateKey.generate().public_key().public_bytes_raw(), kind))


@pytest.mark.parametrize(
    "other",
    [
        {"receipts": "ed25519:" + "0" * 64},
        {"log": another("localhost/log", LOG)},
        {"witness": another("silo-0", WITNESS)},
        {"witness": another("localhost/log", WITNESS)},  # the log did not sign as its own witness
    ],
)
def test_another_key_is_refused(run, other: dict[str, str]) -> None:
    good = VECTORS["receipt"]
    assert run("check.js", CHECKED, good) == ["taken"], "control"
    printed = {**good, "witness": f"witness {good['witness']}\n"}
    assert run("check.js", CHECKED, printed) == ["taken"], "control: as rescind witness prints it"
    assert run("check.js", CHECKED, {**good, **other})[1:] == [False]


@pytest.mark.parametrize(("given", "for_"), [("log", "witness"), ("witness", "log")])
def test_a_key_of_another_kind_is_refused(run, given: str, for_: str) -> None:
    """Both look like NAME+ID+KEY: a log that vouches for itself is no witness."""
    good = VECTORS["receipt"]
    told, own_mistake = run("check.js", CHECKED, {**good, for_: good[given]})
    assert f"It is the key of a {given}." in told
    assert own_mistake, "nothing is said about the receipt"


FILES = {
    "u.data": "196\t3\t3\t881250949\n196\t4\t3\t891717742\n22\t5\t1\t878887116\n",
    "ratings.dat": "196::3::3::881250949\n196::4::3::891717742\n22::5::1::878887116\n",
    "ml.inter": "user_id:token\titem_id:token\ttimestamp:float\n196\t3\t881250949\n196\t4\t891717742\n22\t5\t1\n",
    "ratings.csv": "userId,movieId,rating,timestamp\n196,3,3,881250949\n196,4,3,891717742\n22,5,1,878887116\n",
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_several_people_are_read(run, name: str) -> None:
    rows = run("importing.js", "return it.rowsOf(given[1], given[0])", [name, FILES[name]])
    assert [(row["user"], row["id"]) for row in rows] == [("196", "3"), ("196", "4"), ("22", "5")]
    assert rows[0]["at"] == "1997-12-04"


def test_titles_are_found_as_people_write_them(run) -> None:
    text = 'Title;Watched Date\r\n"Amélie; ""the"" film";2001-04-25\nGODFATHER, THE (1972);12/31/2000\n'
    rows = run("importing.js", "return it.rowsOf(given)", text)
    assert [row["title"] for row in rows] == ['Amélie; "the" film', "GODFATHER, THE (1972)"]
    assert [row["at"] for row in rows] == ["2001-04-25", "2000-12-31"]
    found = run(
        "catalogue.js",
        "return [it.plain('Godfather, The (1972)'), it.plain('The Godfather (1972)')]",
        None,
    )
    assert found[0] == found[1]
    exported = '{"account": {}, "loans": [{"id": "film-1", "title": "x"}]}'
    assert run("importing.js", "return it.rowsOf(given)", exported)[0]["id"] == "film-1"
    said = "try { it.rowsOf(given, 'a.csv'); return '' } catch (error) { return error.message }"
    assert "no column called id or title" in run("importing.js", said, "colour,size\nred,3\n")
