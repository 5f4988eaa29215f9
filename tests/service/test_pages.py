"""The pages' files: what is committed, how it is served, and that no page loosens its policy."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
from pathlib import Path

import pytest

from doors import House
from rescind.ledger.lending import TakeBack
from rescind.service.guard import POLICY_OF_PAGES
from rescind.service.pages import static

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


def test_compressed_files_are_the_files() -> None:
    for name, file in static().files.items():
        if file.packed:
            assert gzip.decompress(file.packed) == file.data, name


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
