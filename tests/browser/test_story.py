"""The whole story: join, import, lend, recommend, why, take back, receipt, check, leave.

After each step the page is compared with the ledger: nothing lost, nothing that nobody asked for.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rescind.privacy.keys import public_text
from rescind.proof.notes import WITNESS, Key, signature_line
from rescind.receipts.receipt import Asked, Done, canonical, issue
from rescind.service import recovery
from rescind.service.import_users import BringIn

expect = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it").expect
pytestmark = pytest.mark.browser
MINE = range(10, 22)


def button(page, name: str):
    return page.get_by_role("button", name=name, exact=True)


def test_the_whole_story(visit, place, tmp_path: Path) -> None:
    me = visit(accept_downloads=True)
    page = me.join()
    assert len(me.codes) == 10

    me.bring(page, *MINE)
    expect(page.get_by_text("12 records are on this device.")).to_be_visible()
    assert place.lent(me.person) == set()  # what is brought here is sent nowhere
    assert place.changes(me.person) == [("join", 0)]

    made = page.locator("[data-made=release]")
    expect(made).to_contain_text("Made on this device")
    expect(page.get_by_text("nothing yet. With fewer than 5 lent records")).to_be_visible()

    button(page, "lend all").click()
    expect(page.get_by_text("12 are lent.")).to_be_visible()
    assert place.lent(me.person) == {f"film-{n}" for n in MINE}
    expect(page.get_by_text("of your 20 would be others without it")).to_be_visible()

    page.get_by_role("button", name="Why ").first.click()
    reason = page.locator(".why li").first
    expect(reason).to_contain_text("Without it, it would")
    take = reason.get_by_role("button", name="take it back")
    title = reason.locator("strong").inner_text()
    item = place.ledger.catalogue.ids[place.ledger.catalogue.titles.index(title)]
    take.click()
    expect(page.get_by_text("11 are lent.")).to_be_visible()
    assert place.lent(me.person) == {f"film-{n}" for n in MINE} - {item}

    request = page.locator("[data-request]")
    expect(request.locator(".steps .done")).to_have_count(2)
    expect(request).to_contain_text("with release")
    expect(request).to_contain_text("at the latest")
    with page.expect_download() as saved:
        request.get_by_role("button", name="acknowledgement ↓").click()
    said = json.loads(saved.value.path().read_text(encoding="utf-8"))
    assert said["items"] == [item]
    assert said["kind"] == "unshare"

    place.release()  # the page hears of it
    witness = cosigned(place)
    expect(page.locator("[data-status=fulfilled]")).to_have_count(1)
    request.get_by_role("button", name="check it here").click()
    good = page.locator("[data-checked=true]")
    expect(good).to_contain_text("about exactly the record that you took back")
    expect(good).to_contain_text("consistent with the log that this browser saw before")
    expect(good).to_contain_text(f"seen by {witness.name} on")
    told = re.search(r"entry [\d,]+ of ([\d,]+) in the log", good.inner_text())
    assert told, "the receipt's place"
    # The log may have grown since, but the page must not tell that it is shorter than that.
    page.wait_for_function(
        """least => {
            const says = document.querySelector('[data-log=grown]')?.textContent ?? ''
            const size = says.match(/The log has ([0-9,]+) entries/)?.[1] ?? ''
            return Number(size.replaceAll(',', '')) >= least
        }""",
        arg=int(told[1].replace(",", "")),
    )

    files = {}
    for name in ("receipt ↓", "proof ↓", "its key ↓", "acknowledgement ↓"):
        with page.expect_download() as saved:
            request.get_by_role("button", name=name).click()
        files[name] = tmp_path / saved.value.suggested_filename
        saved.value.save_as(files[name])
    verified(place, files, item)
    offline(visit, page, files, str(place.app.state.service.log.key), str(witness))

    page.get_by_role("button", name="leave", exact=True).click()
    button(page, "Leave, and confirm with my passkey").click()
    page.get_by_role("heading", name="You have left").wait_for()
    assert me.person not in place.people()
    link = page.locator("a.digest").inner_text()
    stranger = visit().open(link.removeprefix(place.origin))
    expect(stranger.locator(".steps .done")).to_have_count(2)
    place.release()
    stranger.reload()
    stranger.get_by_role("button", name="check it here").click()
    expect(stranger.locator("[data-checked=true]")).to_be_visible()


def cosigned(place) -> Key:
    """Let a witness sign the log as it is now; return its key."""
    private, service = Ed25519PrivateKey.generate(), place.app.state.service
    key = Key(f"silo-{secrets.token_hex(4)}", private.public_key().public_bytes_raw(), WITNESS)
    service.log.witnesses.admit(key, None)
    note = service.log.read_checkpoint()
    text = note.rpartition("\n\n")[0] + "\n"
    at = int(place.clock().timestamp())
    line = signature_line(text, key.name, private, WITNESS, at)
    assert service.log.witnesses.keep(note + line) == [key.name]
    return key


def verified(place, files, item: str) -> None:
    """`rescind verify` says the same of the files that the page saved."""
    from rescind.privacy import keys

    service = place.app.state.service
    command = [sys.executable, "-m", "rescind.cli", "verify", str(files["receipt ↓"])]
    command += ["--key", keys.public_text(service.ledger.signer), "--log-key", str(service.log.key)]
    command += ["--proof", str(files["proof ↓"])]
    command += ["--acknowledgement", str(files["acknowledgement ↓"])]
    command += ["--event-key", str(files["its key ↓"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VALID" in done.stdout
    assert f"about exactly this record: '{item}'" in done.stdout
    assert "the signed receipt is about exactly what the acknowledgement is about" in done.stdout


def offline(visit, page, files, log_key: str, witness: str) -> None:
    """The checker is one file: it works from the disk, without a network."""
    link = page.get_by_role("link", name="save the checker")
    expect(link.locator("..")).to_contain_text("what it says is true: save the checker, one file")
    with page.expect_download() as saved:
        link.click()
    checker = files["receipt ↓"].with_name("check.html")
    saved.value.save_as(checker)
    me = visit()
    me.context.set_offline(True)
    alone = me.context.new_page()
    alone.goto(checker.as_uri())
    alone.get_by_label("Receipt (.json)").set_input_files(files["receipt ↓"])
    alone.get_by_label("Proof (.tlog-proof)").set_input_files(files["proof ↓"])
    alone.get_by_role("button", name="Check").click()
    expect(alone.locator("#answer .good")).to_contain_text("VALID")
    expect(alone.locator("#answer")).to_contain_text("nobody but the log itself vouches for its")
    alone.get_by_label("Keys of witnesses").fill(log_key)
    alone.get_by_role("button", name="Check").click()
    expect(alone.locator("#answer .bad")).to_contain_text("is not the key of a witness")
    expect(alone.locator("#answer")).to_contain_text("Nothing was checked")
    alone.get_by_label("Keys of witnesses").fill(witness)
    alone.get_by_role("button", name="Check").click()
    expect(alone.locator("#answer .good")).to_contain_text("Seen by silo-")
    expect(alone.locator("#answer")).not_to_contain_text("nobody but the log")
    right = files["proof ↓"].read_text(encoding="utf-8")
    other = files["proof ↓"].with_name("other.tlog-proof")
    other.write_text(re.sub(r"(?m)^index \d+$", "index 0", right, count=1), encoding="utf-8")
    assert other.read_text(encoding="utf-8") != right
    alone.get_by_label("Proof (.tlog-proof)").set_input_files(other)
    alone.get_by_role("button", name="Check").click()
    expect(alone.locator("#answer .bad")).to_contain_text("the proof belongs to another receipt")
    expect(alone.locator("#answer .bad")).to_contain_text("The receipt itself is unchanged")
    alone.get_by_label("Proof (.tlog-proof)").set_input_files(files["proof ↓"])
    changed = files["receipt ↓"].with_name("changed.json")
    changed.write_bytes(files["receipt ↓"].read_bytes().replace(b'"Unshare"', b'"unshare"'))
    alone.get_by_label("Receipt (.json)").set_input_files(changed)
    alone.get_by_role("button", name="Check").click()
    expect(alone.locator("#answer .bad")).to_contain_text("NOT VALID")
    me.wrong.clear()  # it has no favicon and needs none


def test_the_checker_checks_the_signature_of_a_receipt_that_has_no_proof(
    visit, place, tmp_path: Path
) -> None:
    signer = Ed25519PrivateKey.generate()
    did = Done({}, "Retrain", "L3", "", "", "", "sha256:04", 1, 2, {"others": 4}, 3.0)
    asked = Asked("Erase", 3, 1, "blake2b:00")
    whole = canonical(issue(asked, did, [], [], records=3, signer=signer).receipt)
    receipt, changed = tmp_path / "receipt.json", tmp_path / "changed.json"
    receipt.write_bytes(whole)
    changed.write_bytes(whole.replace(b'"Erase"', b'"erase"'))
    me = visit()
    checker = tmp_path / "check.html"
    checker.write_bytes(me.context.request.get(f"{place.origin}/check.html").body())
    me.context.set_offline(True)
    page = me.context.new_page()
    page.goto(checker.as_uri())

    def says(good: str, *, of: Path | None = receipt) -> Any:
        page.get_by_label("Receipt (.json)").set_input_files(of or [])
        page.get_by_role("button", name="Check").click()
        return page.locator(f"#answer .{good}")

    expect(says("bad", of=None)).to_have_text("Choose the receipt first.")
    expect(says("bad")).to_contain_text("It is signed by another key")  # than the service's
    page.get_by_label("The operator's key").fill("")
    expect(says("bad")).to_contain_text("No operator's key was given. It is signed by ed25519:")
    page.get_by_label("The operator's key").fill(public_text(signer))
    good = says("good")
    expect(good).to_contain_text("The signature is VALID. The place in the log was not checked.")
    expect(good).to_contain_text("choose the proof of this receipt (.tlog-proof), too")
    expect(good).to_contain_text("level L3")
    expect(good).not_to_contain_text("Entry")
    expect(says("bad", of=changed)).to_contain_text("NOT VALID")


def test_titles_can_be_picked_and_deleted_here(visit, place) -> None:
    me = visit()
    page = me.join()
    page.get_by_label("Or pick titles").fill("film of 7")
    page.get_by_role("button", name="+ The Film of 7 (1957)").click()
    expect(page.get_by_text("1 record is on this device.")).to_be_visible()
    page.reload()
    expect(page.get_by_text("1 record is on this device.")).to_be_visible()
    page.get_by_role("button", name="Delete The Film of 7 (1957) from this device").click()
    expect(page.locator(".record")).to_have_count(0)
    assert place.changes(me.person) == [("join", 0)]


def use_code(page, code: str) -> None:
    box = page.get_by_label("Your code")
    if not box.is_visible():
        button(page, "I have a code, or lost my passkey").click()
        expect(box).to_be_focused()
    box.fill(code)
    button(page, "Use the code and make a passkey").click()


def says_no(page) -> None:
    """Let the next passkey dialog be cancelled, once."""
    page.evaluate(
        """() => {
          const real = navigator.credentials.create
          navigator.credentials.create = async () => {
            navigator.credentials.create = real
            throw new DOMException('no', 'NotAllowedError')
          }
        }"""
    )


def test_a_code_is_spent_with_the_passkey_and_the_last_one_brings_new_ones(visit, place) -> None:
    text = recovery.new_text()
    place.ledger.submit(BringIn(recovery.kept(text), (5, 6))).result(30)
    me = visit(viewport={"width": 375, "height": 812})
    page, before = me.open(), place.people()
    me.keys = me.passkey(page)
    button(page, "I have a code, or lost my passkey").click()
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0
    button(page, "I have a code, or lost my passkey").click()
    says_no(page)
    use_code(page, text)
    expect(page.get_by_text("No passkey was used. Nothing has changed.")).to_be_visible()
    assert me.context.cookies() == []  # nobody is signed in
    button(page, "Use the code and make a passkey").click()
    expect(page.get_by_role("heading", name="Keep these codes")).to_be_visible()
    codes = page.locator("pre.codes").inner_text().split()
    assert len(set(codes)) == 10
    button(page, "I have kept them").click()
    expect(page.get_by_text("2 records are on this device.")).to_be_visible()
    assert place.people() == before

    button(page, "new recovery codes").click()
    button(page, "Make them, and confirm with my passkey").click()
    expect(page.get_by_role("heading", name="Keep these codes")).to_be_visible()
    fresh = page.locator("pre.codes").inner_text().split()
    assert len(set(fresh)) == 10
    assert not set(fresh) & set(codes)
    assert page.evaluate(wide) <= 0
    button(page, "I have kept them").click()
    expect(page.get_by_role("dialog")).to_have_count(0)

    button(page, "sign out").click()
    use_code(page, codes[0])
    expect(page.get_by_text("This recovery code is not known", exact=False)).to_be_visible()
    me.wrong.clear()  # the console names the refusal
    use_code(page, fresh[0])
    expect(page.get_by_text("9 recovery codes are left.")).to_be_visible()


def test_a_passkey_signs_in_and_a_recovery_code_replaces_a_lost_one(visit, place) -> None:
    me = visit()
    page = me.join()
    me.bring(page, 5, 6)
    button(page, "sign out").click()
    button(page, "I have a passkey").click()
    expect(page.get_by_text("2 records are on this device.")).to_be_visible()
    button(page, "sign out").click()
    session, device = me.keys
    session.send("WebAuthn.clearCredentials", {"authenticatorId": device})
    use_code(page, me.codes[3])
    expect(page.get_by_text("9 recovery codes are left.")).to_be_visible()
    expect(page.get_by_text("2 records are on this device.")).to_be_visible()
    button(page, "sign out").click()
    button(page, "I have a passkey").click()
    expect(page.get_by_text("2 records are on this device.")).to_be_visible()
