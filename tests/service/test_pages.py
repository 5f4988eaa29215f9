"""The pages' files: what is committed, how it is served, and that no page loosens its policy."""

from __future__ import annotations

import hashlib
import html
import json
import re
from pathlib import Path

import pytest

from doors import House
from rescind.ledger.lending import TakeBack
from rescind.service import problems
from rescind.service.guard import POLICY_OF_PAGES
from rescind.service.problems import Problem
from rescind.service.static_files import static

STATIC = Path(__file__).parents[2] / "src" / "rescind" / "service" / "static"
VENDOR = STATIC / "vendor"
LONGEST = 300


def wrong_digests(folder: Path) -> list[str]:
    """Vendored files that are not what vendor.json says, or that it does not name."""
    told = json.loads((VENDOR / "vendor.json").read_text(encoding="utf-8"))
    stated = {name: one["sha256"] for each in told.values() for name, one in each["files"].items()}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name not in {"vendor.json", "LICENSES.txt"}
    }
    return sorted(name for name in stated | found if stated.get(name) != found.get(name))


def test_vendored_libraries_are_what_their_list_says(tmp_path: Path) -> None:
    assert wrong_digests(VENDOR) == []
    for path in VENDOR.iterdir():  # the control: one byte more, one file more
        (tmp_path / path.name).write_bytes(path.read_bytes() + b" " * (path.name == "htm.mjs"))
    (tmp_path / "other.mjs").write_bytes(b"")
    assert wrong_digests(tmp_path) == ["htm.mjs", "other.mjs"]


def test_every_library_has_its_licence() -> None:
    told = json.loads((VENDOR / "vendor.json").read_text(encoding="utf-8"))
    licences = (VENDOR / "LICENSES.txt").read_text(encoding="utf-8")
    for name, one in told.items():
        assert f"{name} {one['version']}" in licences
        assert one["licence"] in {"MIT", "ISC", "Apache-2.0"}


def test_modules_are_short_and_import_what_is_there() -> None:
    for path in STATIC.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= LONGEST, f"{path.name} is too long"
        for name in re.findall(r"from '\./([^']+)'", text):
            assert (STATIC / name).is_file(), f"{path.name} imports {name}"


@pytest.mark.parametrize("name", sorted(path.name for path in STATIC.glob("*.html")))
def test_pages_hold_no_script_style_or_handler_of_their_own(name: str) -> None:
    text = (STATIC / name).read_text(encoding="utf-8")
    inline = r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|https?://|javascript:"
    assert re.findall(inline, text) == []
    assert re.findall(inline, '<a onclick="x">') == [" onclick="]


def test_files_are_kept_for_ever_under_their_digest_and_pages_are_not(house: House) -> None:
    caller = house.caller()
    page = caller.get("/")
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["content-security-policy"] == POLICY_OF_PAGES
    assert "require-trusted-types-for 'script'" in POLICY_OF_PAGES
    paths = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
    assert len(paths) >= 3
    for path in paths:
        answer = caller.get(path)
        assert answer.status_code == 200, path
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-security-policy"] == POLICY_OF_PAGES
    old = paths[0].replace(static().digest, "0" * 16)
    assert caller.get(old).status_code == 404
    assert caller.get(f"/static/{static().digest}/../plain.py").status_code == 404


def test_what_the_service_says_about_itself_is_text(house: House, monkeypatch) -> None:
    monkeypatch.setattr(type(house.service), "facts", lambda _: {"said": ["<b>&"]})
    assert "<p>&lt;b&gt;&amp;</p>" in house.caller().get("/").text


def test_a_link_is_a_page_for_browsers_and_json_for_programs(house: House) -> None:
    person = house.person((0, 1, 2))
    made = house.do(TakeBack(person.id, "unshare", (0,))).body
    shown = house.caller().get(made["link"], headers={"accept": "text/html,*/*;q=0.8"})
    assert "link.js" in shown.text
    assert "Accept" in shown.headers["vary"]
    assert house.caller().get(made["link"]).json()["request_id"] == made["request_id"]


def test_a_refusal_is_a_page_for_browsers_and_json_for_programs(house: House, monkeypatch) -> None:
    browser, program = {"accept": "text/html,application/xml;q=0.9,*/*;q=0.8"}, {"accept": "*/*"}
    for path, told in (
        ("/v1/enter/used", "This link opens nothing, or no longer."),
        ("/opperator", "There is nothing here for you."),
        ("/v1/me", "Nobody is signed in."),
    ):
        given = house.caller().get(path, headers=program)
        shown = house.caller().get(path, headers=browser)
        problem = given.json()
        assert problem["detail"] == told
        assert shown.status_code == given.status_code == problem["status"]
        assert shown.headers["content-type"].startswith("text/html")
        assert shown.headers["content-security-policy"] == POLICY_OF_PAGES
        for text in (told, problem["next"]):
            assert html.escape(text) in shown.text
        assert '<a href="/">' in shown.text
        assert "<script" not in shown.text
        for file in re.findall(r'href="(/static/[^"]+)"', shown.text):
            assert house.caller().get(file).status_code == 200
        assert "{" not in shown.text, "every part is filled in"
    assert house.caller().get("/", headers=browser).status_code == 200, "control"
    changed = house.caller().post("/v1/me/loans", {"items": []}, headers=browser)
    assert changed.headers["content-type"] == "application/problem+json", "no form sends changes"
    wrong = house.caller().get("/", headers={**browser, "host": "<b>.example"})
    assert f'<a href="{house.service.settings.origin}/">' in wrong.text, "the name it has"
    monkeypatch.setattr(type(house.service), "facts", lambda _: 1 / 0)
    failed = house.caller().get("/", headers=browser)
    assert failed.status_code == 500
    assert "Its number is" in failed.text


def test_a_refusal_shows_what_was_given_as_text(house: House, monkeypatch) -> None:
    told = Problem(404, "<script>alert(1)</script>", "{said}&")
    monkeypatch.setattr(problems, "named", lambda _: told)
    shown = house.caller().get("/v1/enter/used", headers={"accept": "text/html"}).text
    assert "&lt;script&gt;alert(1)" in shown
    assert "<script" not in shown


def test_the_checker_is_one_file_with_the_keys_of_this_service(house: House) -> None:
    answer = house.caller().get("/check.html")
    assert "attachment" in answer.headers["content-disposition"]
    stated = house.caller().get("/v1/keys").json()
    assert stated["receipts"] in answer.text
    assert html.escape(stated["log"]) in answer.text
    assert re.findall(r"<(?:script|link)[^>]*(?:src|href)=|\nexport |\nimport ", answer.text) == []
    assert "async function check (" in answer.text
    assert "are signed with other keys than those of this service" in answer.text


def test_a_browser_can_ask_who_it_is_without_an_error(house: House) -> None:
    assert house.caller().get("/v1/session").json()["role"] == "anonymous"
    assert house.person().get("/v1/session").json()["role"] == "person"
    assert house.operator().get("/v1/session").json()["role"] == "operator"
