"""Every shell script of the pages that reads what somebody else made, played with hostile files.

The pages are the only copy. Nothing that stands in a file, a name or an answer may run: such words
make a file here, `ran`. What is already there, and linked to under a name that a script writes,
stays as it was.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from page_blocks import ROOT, Block, blocks

TABLE = json.loads((ROOT / "tests" / "proof" / "vectors.json").read_text("utf-8"))
PROOF, LOG_KEY, WITNESS_KEY = (TABLE[name] for name in ("proof", "log_key", "witness_key"))
RUN = "a[$(touch ran; echo 0)]"
"""Arithmetic that runs a command in bash."""


def scripts() -> Iterator[tuple[str, Block]]:
    """Yield the shell blocks of all pages that compute with something: those are scripts."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))):
        for block in blocks(str(page.relative_to(ROOT))):
            if block.language in ("bash", "sh") and re.search(
                r"\$\(|\beval\b|\bxargs\b", block.text
            ):
                yield page.name, block


(CHECK,) = (block.text for page, block in scripts() if page == "proof.md")
(OPENSSL,) = (block.text for page, block in scripts() if page == "receipts.md")
(LEAVE,) = (block.text for page, block in scripts() if page == "service.md")
SHELLS = pytest.mark.parametrize(
    "shell",
    [
        "bash",
        "dash",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("bash --posix", "busybox sh")),
    ],
)
UNGUARDED = re.sub(r"^fits\(\).*", "fits() { :; }", CHECK, flags=re.M)
UNREAD = """proof=receipt.tlog-proof
here=$(sed -n '2s/^index //p' $proof)
last=$(($(sed -n '/^$/{n;n;p;q;}' $proof) - 1))
[ $((here % 2)) = 1 ] || [ $here = $last ]"""
"""How the page took its numbers out of a proof before it looked at them."""


def played(script: str, shell: str, folder: Path, **names: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, in which `ran` is the trace of a word that ran."""
    for program in (shell.split(maxsplit=1)[0], "openssl", "sha256sum", "base64"):
        if not which(program):
            pytest.skip(f"{program} is not installed")
    return subprocess.run(
        [*shell.split(), "-c", script], cwd=folder, env=os.environ | names, capture_output=True,
        check=False, text=True, errors="replace", timeout=60,
    )  # fmt: skip


def line(number: int, text: str) -> str:
    """Return the proof with another line in this place."""
    lines = PROOF.split("\n")
    lines[number] = text
    return "\n".join(lines)


HOSTILE = {
    "index that runs": line(1, f"index {RUN}"),
    "size that runs": line(12, RUN),
    "command in place of the index": line(1, "index $(touch ran)`touch ran`;touch ran"),
    "octal index": line(1, "index 0106"),
    "hexadecimal index": line(1, "index 0x46"),
    "negative index": line(1, "index -70"),
    "index beyond the size": line(1, "index 131"),
    "huge index": line(1, "index " + "9" * 30),
    "huge size": line(12, "9" * 4000),
    "no size": line(12, "0"),
    "hash that runs": line(2, "$(touch ran)" + "A" * 31 + "="),
    "hash that is an option": line(2, "--help"),
    "hash that names files": line(2, "*"),
    "hash that is too short": line(2, "AAAA"),
    "root that runs": line(13, RUN),
    "signature that runs": line(15, f"— example.org/log {RUN}"),
    "signature that is an option": line(15, "— example.org/log -d"),
    "signature of another length": line(15, "— example.org/log " + "A" * 88),
    "two signatures of one name": PROOF + PROOF.splitlines()[-2] + "\n",
    "ends of lines of another system": PROOF.replace("\n", "\r\n"),
    "no empty line": PROOF.replace("\n\n", "\n"),
    "no end of the last line": PROOF[:-1],
    "nothing": "",
    "one hundred thousand hashes": line(2, "\n".join([PROOF.split("\n")[2]] * 100_000)),
    "more than is read": PROOF.replace("\n\n—", "\n\n" + "— a A\n" * 11_000 + "—"),
    "bytes that are no text": line(2, "\0\x01\x1b[2J" + "A" * 40),
    "another sign for the end of a line": PROOF.replace("\n", "\x01"),
}  # fmt: skip
KEYS = {
    "name that is a pattern": LOG_KEY.replace("example.org/log", ".*"),
    "name that runs": LOG_KEY.replace("example.org/log", "$(touch${IFS}ran)"),
    "key that runs": f"example.org/log+98713855+{RUN}",
    "second line": f"{LOG_KEY}\n{RUN}",
    "option": "-n",
    "nothing": "",
}


def test_no_other_page_has_a_script() -> None:
    """Whoever writes one plays it here."""
    assert {page for page, _ in scripts()} == {
        "proof.md", "receipts.md", "service.md",
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "receipt.json").write_text(TABLE["receipt"], "utf-8")
    (tmp_path / "receipt.tlog-proof").write_text(PROOF, "utf-8", newline="")
    (tmp_path / "mine").write_text("mine")
    for name in ("key.der", "checkpoint.txt", "signed.txt"):
        (tmp_path / name).symlink_to("mine")
    return tmp_path


def untouched(folder: Path) -> bool:
    return not (folder / "ran").exists() and (folder / "mine").read_text() == "mine"


@SHELLS
def test_a_hostile_proof_runs_nothing_and_shows_nothing(folder: Path, shell: str) -> None:
    def last(**keys: str) -> tuple[bool, str]:
        done = played(CHECK, shell, folder, **{"LOG_KEY": LOG_KEY, "WITNESS_KEY": "", **keys})
        assert untouched(folder), done
        return done.returncode == 0, done.stdout.splitlines()[-1]

    honest = last(WITNESS_KEY=WITNESS_KEY)
    assert honest == (True, "In the log, and seen by the witness (time 1790000000).")
    for how, key in KEYS.items():
        assert last(LOG_KEY=key)[1].startswith("NOT shown: that the log signed"), how
        if key:
            good, told = last(WITNESS_KEY=key)
            assert not good, how
            assert told.startswith("NOT shown: that the witness saw"), how
    for how, proof in HOSTILE.items():
        (folder / "receipt.tlog-proof").write_text(proof, "utf-8", newline="")
        good, told = last(WITNESS_KEY=WITNESS_KEY)
        assert not good, how
        assert told.startswith("NOT shown: that"), how
    (folder / "receipt.tlog-proof").unlink()
    os.mkfifo(folder / "receipt.tlog-proof")
    assert last()[1].startswith("NOT shown"), "it does not wait for what nobody writes"


@pytest.mark.parametrize("shell", ["bash", "bash --posix"])
@pytest.mark.parametrize(
    ("how", "script"),
    [("index that runs", UNREAD), ("size that runs", UNREAD), ("size that runs", UNGUARDED)],
    ids=["index", "size", "size, without the form"],
)
def test_control_a_shell_runs_a_number_that_nobody_read(
    folder: Path, shell: str, how: str, script: str
) -> None:
    (folder / "receipt.tlog-proof").write_text(HOSTILE[how], "utf-8")
    played(script, shell, folder)
    assert (folder / "ran").exists()


def test_control_a_link_is_followed_where_it_is_not_removed(folder: Path) -> None:
    assert "rm -f" in CHECK
    assert "rm -f" in OPENSSL
    for script in (CHECK, OPENSSL):
        played(re.sub("^rm -f .*", "", script, flags=re.M), "bash", folder, LOG_KEY=LOG_KEY)
        assert (folder / "mine").read_bytes() != b"mine"
        (folder / "mine").write_text("mine")


@SHELLS
def test_a_hostile_receipt_runs_nothing_and_has_no_signature(folder: Path, shell: str) -> None:
    script, receipt = OPENSSL.replace("ed25519:...", TABLE["signing_key"]), TABLE["receipt"]
    (signature,) = re.findall(r'^ "signature": "ed25519:(\w+)",$', receipt, re.M)

    def good() -> bool:
        done = played(script, shell, folder)
        assert untouched(folder), done
        return "Signature Verified Successfully" in done.stdout

    assert good()
    for words in (RUN, "$(touch ran)", "*", "-n", "%s%n", "f" * 128, f"{signature}\n{signature}"):
        other = receipt.replace(signature, words)
        (folder / "receipt.json").write_text(other, "utf-8")
        assert not good(), words
    double = receipt.replace("\n", f'\n "signature": "ed25519:{signature}",\n', 1)
    (folder / "receipt.json").write_text(double, "utf-8")
    assert not good(), "two signatures"


def test_a_hostile_answer_runs_nothing_where_somebody_is_taken_out(folder: Path) -> None:
    answer = '{"link":"/r/$(touch ran)`touch ran`|e touch ran\n&%s","-n":"' + RUN + '"}\n-rf mine'
    curl = 'curl() { [[ $* != */requests ]] || printf %s "$ANSWER"; }\n'
    names = {"ANSWER": answer, "BASE": "https://lend.example.org", "CODE": "none"}
    done = played(curl + LEAVE, "bash", folder, **names)
    assert (done.returncode, untouched(folder)) == (0, True), done
    (left,) = folder.glob("left-*.json")
    assert left.read_text() == answer.replace('"/r/', '"https://lend.example.org/r/')
