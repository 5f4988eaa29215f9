"""How a stranger checks a receipt: where the software and the key come from, what to compare."""

from __future__ import annotations

from rescind.forgetting.receipt import Receipt, canonical, digest
from rescind.reporting.html import Page

WITHOUT_THIS_PROGRAM = r"""hex() { sed -n "s/^ \"$1\": \"ed25519:\([0-9a-f]*\)\".*/\1/p" receipt.json; }
bytes() { printf "$(sed 's/../\\x&/g')"; }
KEY=ed25519:...                                  # the operator's, from their web page, not from this file
(printf 302a300506032b6570032100; printf %s "${KEY#ed25519:}") | bytes > key.der
hex signature | tr -d '\n' | bytes > signature.bin
grep -v '^ "signature"' receipt.json > signed.txt
openssl pkeyutl -verify -pubin -keyform DER -inkey key.der -rawin -in signed.txt -sigfile signature.bin
"""  # noqa: E501 - lines to copy
"""Checks the signature with a shell and openssl; `docs/receipts.md` has the same lines."""
THEIR_KEY = "KEY-FROM-THE-OPERATORS-WEB-PAGE"


def how_to_check(out: Page, receipt: Receipt) -> None:
    """Add what to get, what to compare, and the commands."""
    out.heading("Check it yourself")
    out.text("This page is not signed; the signed receipt is receipt.json. You need three things:")
    out.listing(
        [
            f"The software: {_program(receipt)} or newer, from whoever you trust. It is free "
            f"(Apache 2.0). {_same_program(receipt)}You can also do without it: a shell and "
            f"openssl are enough for the signature (below).",
            "The operator's public key, by another way than this page and this file: from their "
            "web page, by letter or by telephone. They have it in the file `signing.pub`.",
            "Your own papers, which only you have: `receipt.key`, and the request "
            "(`request.json`) or your part of it.",
        ]
    )
    out.text("Then compare:")
    out.listing(
        [
            f"The key that the operator gave you with the one here: `{receipt.public_key}`",
            "The signature with the file: `rescind verify` must say VALID.",
            "The request in the receipt with yours: the second command below.",
            "This page with the file: verdict, level and date must be those that the command "
            f"prints, and the SHA-256 of receipt.json must be `{_bare(receipt)}`.",
        ],
        ordered=True,
    )
    out.code(  # a key from this page would only show that the page agrees with itself
        f"rescind verify receipt.json --key {THEIR_KEY}\n"
        "# is it about my request?\n"
        "rescind verify receipt.json --event request.json --event-key receipt.key \\\n"
        f"  --key {THEIR_KEY}\n"
        "# the same, if several asked together and I got my part of it\n"
        f"rescind verify receipt.json --part MY-PART.json --key {THEIR_KEY}"
    )
    with out.folded("Without our software", "a shell and openssl"):
        out.text("It prints `Signature Verified Successfully`; then compare `sha256sum`.")
        out.code(f"{WITHOUT_THIS_PROGRAM}sha256sum receipt.json")
    out.text(
        "A valid signature shows who states this and that it is unchanged. It does not make the "
        "statement true: that is what the measurements and their controls are for.",
        note=True,
    )


def _program(receipt: Receipt) -> str:
    version = receipt.code.get("rescind", "")
    return f"rescind {version}" if version[:1].isdigit() else "rescind"


def _same_program(receipt: Receipt) -> str:
    """Return how to tell that a copy is the program that made the receipt, if that is known."""
    commit = receipt.code.get("commit", "").removesuffix(" (told)")
    if not commit:
        return ""
    changed = " and changes of the operator's own" if commit.endswith("-dirty") else ""
    made = commit.removesuffix("-dirty")
    return (
        f"This receipt was made by commit `{made}`{changed}; a commit's id is a digest of its "
        f"source, so `git rev-parse HEAD` shows whether a copy is the same. "
    )


def _bare(receipt: Receipt) -> str:
    return digest(canonical(receipt)).removeprefix("sha256:")
