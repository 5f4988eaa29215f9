"""The commands of docs/receipts.md and of every receipt's page, typed as they are printed.

The data has ratings, as most data has: no digest covers them, and they must not be in the way.
"""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import command_line
from page_blocks import blocks
from rescind.privacy import keys
from rescind.proof.witness import Witness, request_body
from rescind.receipts.log import key_of, log_receipt, open_log
from rescind.storage.federations import load_federation

PAGE = "docs/receipts.md"
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
    """A trained run, `runs/demo`, on imported data with ratings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    rows = [
        f"{user},p{(3 * n + 5 * k) % 23:02d},{1 + k % 5},{1000 * n + k}"
        for n, user in enumerate(USERS)
        for k in range(11)
    ]
    (tmp_path / "bought.csv").write_text("\n".join(["user,item,rating,timestamp", *rows]) + "\n")
    good("rescind data import bought.csv --name shop")
    good("rescind run --data shop --method Gram --out run")
    (run,) = {path.parent for path in Path("run").rglob("run.json")}
    Path("runs").mkdir()
    shutil.move(run, "runs/demo")
    records = load_federation(Path("runs/demo/model")).now.vault.holdings.records
    assert records.rating is not None, "control: the records of this run have ratings"
    return tmp_path


def typed(page: str, heading: str, number: int = 0) -> list[str]:
    """Return the commands of a block below a heading."""
    from page_blocks import ROOT

    rest = (ROOT / page).read_text("utf-8").split(f"\n{heading}\n")[1]
    below = [b for b in blocks(page) if b.text in rest and b.language in ("bash", "sh")]
    return below[number].commands


def ask(name: str, *rows: str) -> None:
    Path(name).write_text("\n".join(["user,item", *rows]) + "\n")


def cosigned(folder: Path) -> None:
    """Let a witness sign the log, and publish both keys."""
    log = open_log()
    Witness.start(folder / "witness")
    private = Ed25519PrivateKey.generate()
    witness = Witness(folder / "witness", "silo-0", private, [key_of(log)])
    reply = witness.add_checkpoint(
        request_body(0, log.tree.consistency(0, log.checkpoint.size), log.note)
    )
    log.cosigned(reply.body, witness.key)
    Path("log.pub").write_text(f"{key_of(log)}\n")
    Path("witness-0.pub").write_text(f"{witness.key}\n")


@pytest.fixture
def recipient(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Go on as whoever gets the receipt: with what is published, without the operator's keys."""

    def become() -> None:
        shutil.copy(keys.folder() / "signing.pub", "signing.pub")
        monkeypatch.setenv("RESCIND_HOME", str(folder / "recipient"))

    return become


def test_every_way_to_check_a_receipt_works_as_printed(
    folder: Path, recipient: Callable[[], None]
) -> None:
    ask("request.csv", "c03,p09", "c03,p14")
    (made,) = typed(PAGE, "## Make a receipt")
    good(made)
    good("rescind forget runs/demo-forgot-1 --withdraw c05 --request none")
    good("rescind forget runs/demo-forgot-2 --withdraw c06 --request none")
    for number, name in enumerate(("first", "second", "third"), 1):
        shutil.copy(f"runs/demo-forgot-{number}/receipt.json", f"{name}.json")
    for name in ("receipt.json", "receipt.key"):
        shutil.copy(f"runs/demo-forgot-1/{name}", name)
    cosigned(folder)
    log_receipt(Path("receipt.json"), open_log())
    own = keys.own_public_key()
    recipient()
    lines = [x.replace("ed25519:...", str(own)) for x in typed(PAGE, "## Check a receipt")]
    said = [good(line) for line in lines]
    assert len(said) == 6, "a command was added: say here what it must print"
    assert "VALID" in said[0]
    assert "it is about exactly the given Erase request" in said[1]
    assert "the key opens its exact numbers" in said[2]
    assert "2 earlier receipts are in order, back to the first" in said[3]
    assert "3 receipts: 3 valid; the history does not fork" in said[4]
    assert "silo-0 saw this log" in said[5]
    assert rescind("rescind verify receipt.json")[0] == 1, "control: nobody is trusted by default"
    for _ in range(2):  # without a log of their own, and with one
        code, told = rescind(lines[5].replace("--log-key log.pub", ""))
        assert code == 2, "nothing is wrong with the proof"
        assert "no log key was given" in told
        good("rescind log key")


def test_the_commands_on_the_page_of_a_receipt_work_as_printed(folder: Path) -> None:
    good("rescind forget runs/demo --user c03 --item p09 --request request.json --parts parts")
    for name in ("receipt.json", "receipt.key", "receipt.html", "receipt.tlog-proof"):
        shutil.copy(f"runs/demo-forgot-1/{name}", name)
    of_log = good("rescind log key").split()[0]
    shutil.copy("parts/c03.json", "MY-PART.json")
    shutil.copy("request.json", "MY-REQUEST.json")
    lines = []
    for page in ("receipt.html", "parts/receipt.html"):
        printed = re.findall(r"<pre[^>]*>(.*?)</pre>", Path(page).read_text("utf-8"), re.S)
        text = html.unescape(re.sub(r"<[^>]+>", "", printed[0])).replace("\\\n", " ")
        lines += text.splitlines()
    sent = Path("parts/receipt.html").read_text("utf-8").split("</style>")[1]
    assert "receipt.key" not in sent, "nobody of them gets it"
    commands = [
        line.replace("KEY-FROM-THE-OPERATORS-WEB-PAGE", str(keys.own_public_key())).replace(
            "KEY-OF-THEIR-LOG", of_log
        )
        for line in lines
        if line.startswith("rescind")
    ]
    assert len(commands) == 6
    said = "".join(map(good, commands))
    assert "it is about exactly the given Erase request" in said
    assert "Erase of 1 item of user 'c03' is part of what it is about" in said
    assert "is entry" in said
    table = json.loads(Path("request.json").read_text("utf-8"))
    assert (table["user"], table["item"]) == (["c03"], ["p09"]), "as the user knows them"
    other = {**table, "inner": {**table["inner"], "item": [0]}}
    Path("MY-REQUEST.json").write_text(json.dumps(other), "utf-8")
    code, refused = rescind(commands[1])
    assert code == 1, "control: another request"
    assert "not about the given request" in refused
    assert "the request file belongs to another receipt, or was changed" in refused
    forged = Path("receipt.json").read_text("utf-8").replace('"L3"', '"L2"')
    Path("receipt.json").write_text(forged, "utf-8")
    code, refused = rescind(commands[1])
    assert code == 1
    assert "the request file belongs" not in refused, "the receipt itself was changed"


def test_one_person_of_many_checks_her_part_as_printed(
    folder: Path, recipient: Callable[[], None]
) -> None:
    ask("asked.csv", "c03,p09", "c03,p14", "c07,p21")
    lines = typed(PAGE, "## One person of many")
    forget, verify = (line.replace("793", "c03") for line in lines)
    good(forget)
    for path in ("runs/demo-forgot-1/receipt.json", "parts/c03.json"):
        shutil.copy(path, Path(path).name)
    recipient()
    assert "Erase of 2 items of user 'c03' is part of what it is about" in good(verify)
    part = json.loads(Path("c03.json").read_text("utf-8"))
    assert part["request"]["user"] == ["c03", "c03"], "named as she knows herself"
    assert part["request"]["item"] == ["p09", "p14"]
    named = json.dumps(part).replace("c03", "c07")
    Path("c03.json").write_text(named, "utf-8")
    assert rescind(verify)[0] == 1, "control: somebody else's name on her part"
    part["request"]["inner"]["item"][0] = 0
    Path("c03.json").write_text(json.dumps(part), "utf-8")
    code, refused = rescind(verify)
    assert code == 1, "control: another part"
    assert "is not part of what it is about" in refused


def test_an_officer_answers_as_printed_and_can_read_it_on_a_phone(folder: Path) -> None:
    answer = typed("docs/officer.md", "## 3. The answer")
    names = {"RUN": "runs/demo", "USER": "c03", "NAME": "shop"}
    for line in answer[:2]:
        good(re.sub("|".join(names), lambda found: names[found[0]], line))
    for page in ("runs/demo-forgot-1/receipt.html", "receipt-rows-117.html"):
        assert "Request DSR 117 was answered on 20" in Path(page).read_text("utf-8")
    check = "rescind verify {} --event {} --event-key {}"
    new = "runs/demo-forgot-1"
    model = (f"{new}/receipt.json", "request-117.json", f"{new}/receipt.key")
    rows = ("receipt-rows-117.json", "receipt-rows-117.request.json", "receipt-rows-117.key")
    for own, other in ((model, rows), (rows, model)):
        assert "belongs" not in good(check.format(*own)), "control: each with its own files"
        for mixed in ((own[0], other[1], own[2]), (own[0], *other[1:]), (*own[:2], other[2])):
            assert rescind(check.format(*mixed))[0] == 1
    ask("asked.csv", "c05,p09", "c07,p21")
    assert len(answer) == 4, "a command was added: try it here"
    good(answer[2].replace("RUN", "runs/demo-forgot-1"))
    told = {path.name for path in Path("parts-118").iterdir()}
    assert told == {"c05.json", "c07.json", "receipt.html"}
