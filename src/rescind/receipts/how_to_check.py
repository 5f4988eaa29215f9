"""How a stranger checks a receipt: where the software and the key come from, what to compare."""

from __future__ import annotations

from shlex import quote

from rescind.core.claims import SOFTWARE
from rescind.receipts.receipt import Receipt, canonical, digest
from rescind.reporting.html import Page

WITHOUT_THIS_PROGRAM = r"""# from their web page, not this file:
KEY=ed25519:...
# each could be a link to your file:
rm -f key.der signature.bin signed.txt
LINE='^ "signature": "ed25519:\([0-9a-f]\{128\}\)",$'
bytes() { printf %b "$(printf '\\0%03o' $(sed 's/../0x& /g'))"; }
printf %s "302a300506032b6570032100${KEY#ed25519:}" | bytes > key.der
sed -n "s/$LINE/\1/p" receipt.json | bytes > signature.bin
sed "/$LINE/d" receipt.json > signed.txt
openssl pkeyutl -verify -pubin -keyform DER -inkey key.der -rawin -in signed.txt -sigfile signature.bin
"""  # noqa: E501 - lines to copy
"""Checks the signature with any POSIX shell and openssl; `docs/receipts.md` has the same lines. A
line of the signature with anything else on it stays in the text, so that nothing is unsigned."""
READ_THIS = (
    "It must print `Signature Verified Successfully`. Then read `signed.txt`, not `receipt.json`: "
    "only what stands in there is signed. `Signature Verification Failure` means that the file was "
    "changed, or signed with another key; every other message is about the tools or about KEY."
)
THEIR_KEY = "KEY-FROM-THE-OPERATORS-WEB-PAGE"
THEIR_LOG_KEY = "KEY-OF-THEIR-LOG"


def how_to_check(out: Page, receipt: Receipt, name: str, of_many: bool = False) -> None:
    """Add what to get, what to compare, and the commands.

    name: of the file, without .json
    of_many: whether it is for each of several, who have a part of the request
    """
    file, proof = quote(f"{name}.json"), quote(f"{name}.tlog-proof")
    key = quote(f"{name}.key")
    words = "--part MY-PART.json" if of_many else f"--event MY-REQUEST.json --event-key {key}"
    own = "your part of the request" if of_many else f"the request and its key, `{key}`"
    out.heading("Check it yourself")
    out.text(f"This page is not signed; the signed receipt is {file}. You need three things:")
    out.listing(
        [
            f"The software, rescind {receipt.code.get('rescind', '')}, from the operator"
            f"{_where(receipt)}: do not install a package of that name from elsewhere, it may be "
            f"somebody else's. A shell and openssl are enough for the signature (below).",
            "The operator's public key, by another way than this page and this file: from their "
            "web page, by letter or by telephone. They have it in the file `signing.pub`.",
            f"Your own papers, which only you have: {own}.",
        ]
    )
    out.text("Then compare:")
    out.listing(
        [
            f"The key that the operator gave you with the one here: `{receipt.public_key}`",
            "The signature with the file: `rescind verify` must say VALID.",
            "The request in the receipt with yours: the second command. It prints your id.",
            f"If you got `{proof}`: that the receipt stands in the operator's log, the last "
            f"command. The log has a key of its own, which they publish, too.",
            "This page with the file: verdict, level and date must be those that the command "
            f"prints, and the SHA-256 of {file} must be `{_bare(receipt)}`.",
        ],
        ordered=True,
    )
    out.code(  # a key from this page would only show that the page agrees with itself
        f"rescind verify {file} --key {THEIR_KEY}\n"
        f"# is it about my request?\n"
        f"rescind verify {file} {words} \\\n  --key {THEIR_KEY}\n"
        f"# is it in the operator's log?\n"
        f"rescind verify {file} --proof {proof} --log-key {THEIR_LOG_KEY} \\\n  --key {THEIR_KEY}"
    )
    with out.folded("Without our software", "a shell and openssl"):
        told = f"{READ_THIS} Last compare the `sha256sum` with the one above."
        out.text(told.replace("receipt.json", file))
        out.code(f"{WITHOUT_THIS_PROGRAM}sha256sum receipt.json".replace("receipt.json", file))
    measured = receipt.verdict != "UNAUDITED"
    out.text(
        "A valid signature shows who states this and that it is unchanged. It does not make the "
        "statement true"
        + (": that is what the measurements and their controls are for." if measured else "."),
        note=True,
    )


def _where(receipt: Receipt) -> str:
    """Return where the operator says the program is, and the commit that made the receipt."""
    site, commit = receipt.claims.get(SOFTWARE, ""), receipt.code.get("commit", "")
    says = f", who names {site} (their web page must say the same)" if site else ""
    return says + (f", at commit `{commit}`" if commit else "")


def _bare(receipt: Receipt) -> str:
    return digest(canonical(receipt)).removeprefix("sha256:")
