"""The commands of docs/receipts.md and of a receipt's own page, typed as they are printed.

The data has ratings, as most data has: no digest covers them, and they must not be in the way.
"""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import command_line
from page_blocks import blocks
from requesting import unpacked, write_rows
from rescind.privacy import keys
from rescind.proof.witness import Witness, request_body
from rescind.receipts.log import key_of, open_log
from rescind.requests.papers import papers_of

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
    assert "Erase of user 'c03' is part of what it is about" in said
    (of_part,) = [line for line in commands if "MY-PART" in line]
    part = json.loads(mine.read_text("utf-8"))
    assert part["request"]["user"] == ["c03", "c03"], "named as she knows herself"
    assert part["request"]["item"] == ["p09", "p14"]
    mine.write_text(json.dumps(part).replace("c03", "c07"), "utf-8")
    assert rescind(of_part)[0] == 1, "control: somebody else's name on her part"


def cosigned(folder: Path) -> None:
    """Let a witness sign the log, and publish both keys."""
    log = open_log()
    Witness.start(folder / "witness")
    private = Ed25519PrivateKey.generate()
    witness = Witness(folder / "witness", "silo-0", private, [key_of(log)])
    consistent = log.tree.consistency(0, log.checkpoint.size)
    reply = witness.add_checkpoint(request_body(0, consistent, log.note))
    log.cosigned(reply.body, witness.key)
    Path("log.pub").write_text(f"{key_of(log)}\n")
    Path("witness-0.pub").write_text(f"{witness.key}\n")


def test_every_way_to_check_a_receipt_works_as_printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, openssl = (b for b in blocks("docs/receipts.md") if b.language == "bash")
    (run,) = {path.parent for path in Path("run").rglob("run.json")}
    write_rows(folder / "asked.csv", [("c03", "p09"), ("c03", "p14"), ("c07", "p21")])
    together = sent("rescind forget --file asked.csv --together", folder)
    first = sent("rescind forget --user c05", folder)
    Path("receipts").mkdir()
    for number, answer in enumerate((together, first)):
        shutil.copy(answer / "receipt.json", f"receipts/{number}.json")
    shutil.copy(keys.folder() / "signing.pub", "signing.pub")
    shutil.copy(papers_of(first.name), "answer.zip")
    for paper in first.iterdir():
        if paper.is_file():
            shutil.copy(paper, paper.name)
    cosigned(folder)
    good("rescind log prove receipt.json --out receipt.tlog-proof")
    lines = [line.replace("ed25519:...", str(keys.own_public_key())) for line in check.commands]
    *lines, of_part, chain, of_run = lines
    said = [good(line) for line in lines]
    assert len(said) == 4, "a command was added: say here what it must print"
    assert all("VALID" in text for text in said)
    assert "it is about exactly the given Withdraw request" in said[0]
    assert "it is about exactly the given Withdraw request" in said[2]
    assert "the key opens its exact numbers" in said[2]
    assert "silo-0 saw this log" in said[3]
    assert "2 receipts, 0 not valid; the history does not fork" in good(chain)
    good(of_run.replace("runs/mine", str(run)))
    monkeypatch.setenv("RESCIND_HOME", str(folder / "nobody"))
    assert rescind("rescind verify receipt.json")[0] == 1, "control: nobody is trusted by default"

    own = (Path("signing.pub").read_text("utf-8").split() or [""])[0]
    typed = openssl.text.replace("ed25519:...", own)
    for text, valid in ((None, True), ('"L2"', False)):
        if text:
            forged = Path("receipt.json").read_text("utf-8").replace('"L3"', text)
            Path("receipt.json").write_text(forged, "utf-8")
        done = subprocess.run(["sh", "-c", typed], capture_output=True, text=True, check=False)
        assert ("Signature Verified Successfully" in done.stdout + done.stderr) == valid

    monkeypatch.chdir(together)
    shutil.copy("parts/c03.json", "793.json")
    shutil.copy(folder / "signing.pub", "signing.pub")
    assert "Erase of user 'c03' is part of what it is about" in good(of_part)
