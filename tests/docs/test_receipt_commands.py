"""The commands on the page of a receipt, typed as they are printed.

The data has ratings, as most data has: no digest covers them, and they must not be in the way.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path

import pytest

import command_line
from requesting import unpacked, write_rows
from rescind.privacy import keys

USERS = [f"c{n:02d}" for n in range(12)]


def rescind(line: str) -> tuple[int, str]:
    """Type a command; return its exit code and what it said."""
    words = shlex.split(line, comments=True)
    assert words.pop(0) == "rescind", line
    return command_line.rescind(*words)


def good(line: str) -> str:
    code, said = rescind(line)
    assert code == 0, f"{line}\n{said}"
    return said


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trained run on imported data with ratings."""
    monkeypatch.chdir(tmp_path)
    rows = [
        (user, f"p{(3 * n + 5 * k) % 23:02d}", str(1 + k % 5), str(1000 * n + k))
        for n, user in enumerate(USERS)
        for k in range(11)
    ]
    write_rows(tmp_path / "bought.csv", rows, "user,item,rating,timestamp")
    good("rescind data import bought.csv --name shop")
    good("rescind run --data shop --method Gram --out run")
    return tmp_path


def commands_of(page: Path) -> list[str]:
    """Return what a page says to type, with the keys that the operator publishes."""
    printed = re.findall(r"<pre[^>]*>(.*?)</pre>", page.read_text("utf-8"), re.S)
    text = html.unescape(re.sub(r"<[^>]+>", "", printed[0])).replace("\\\n", " ")
    of_log = good("rescind log key").split()[0]
    return [
        line.replace("KEY-FROM-THE-OPERATORS-WEB-PAGE", str(keys.own_public_key())).replace(
            "KEY-OF-THEIR-LOG", of_log
        )
        for line in text.splitlines()
        if line.startswith("rescind")
    ]


def sent(command: str, folder: Path) -> Path:
    """Give a request; return the folder into which the person unpacks the answer."""
    (done,) = json.JSONDecoder().raw_decode(good(f"{command} --json"))[0]
    return unpacked(done["id"], folder / done["id"])


def test_the_commands_of_the_page_work_in_the_folder_of_what_is_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = sent("rescind forget --user c03 --item p09", folder)
    commands = commands_of(theirs / "receipt.html")
    monkeypatch.chdir(theirs)
    Path("MY-REQUEST.json").write_bytes(Path("request.json").read_bytes())
    said = "".join(map(good, commands))
    assert "it is about exactly the given Erase request" in said
    assert "is entry" in said
    table = json.loads(Path("request.json").read_text("utf-8"))
    assert (table["user"], table["item"]) == (["c03"], ["p09"]), "as the user knows them"
    other = {**table, "inner": {**table["inner"], "item": [0]}}
    Path("MY-REQUEST.json").write_text(json.dumps(other), "utf-8")
    (of_request,) = [line for line in commands if "MY-REQUEST" in line]
    assert rescind(of_request)[0] == 1, "control: another request"


def test_one_person_of_many_checks_her_part_as_printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(folder / "asked.csv", [("c03", "p09"), ("c03", "p14"), ("c07", "p21")])
    theirs = sent("rescind forget --file asked.csv --together", folder)
    page = theirs / "parts" / "receipt.html"
    assert "receipt.key" not in page.read_text("utf-8").split("</style>")[1], "nobody gets it"
    commands = commands_of(page)
    monkeypatch.chdir(theirs)
    mine = Path("MY-PART.json")
    mine.write_bytes(Path("parts/c03.json").read_bytes())
    said = "".join(map(good, commands))
    assert "Erase of 2 items of user 'c03' is part of what it is about" in said
    (of_part,) = [line for line in commands if "MY-PART" in line]
    part = json.loads(mine.read_text("utf-8"))
    assert part["request"]["user"] == ["c03", "c03"], "named as she knows herself"
    assert part["request"]["item"] == ["p09", "p14"]
    mine.write_text(json.dumps(part).replace("c03", "c07"), "utf-8")
    assert rescind(of_part)[0] == 1, "control: somebody else's name on her part"
