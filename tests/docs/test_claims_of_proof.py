"""No page, message or help text claims more about proof than docs/proof.md does."""

from __future__ import annotations

import re
from collections.abc import Iterator

from page_blocks import ROOT

PLACES = ("README.md", "CHANGELOG.md", "docs/**/*.md", "src/rescind/**/*.py",
          "src/rescind/service/static/*.js", "src/rescind/service/static/**/*.html")  # fmt: skip
GONE = r"(forgotten|forgot|erased|deleted|removed|gone|unlearnt)"
TOO_MUCH = {
    "the data or a model, which nobody outside can see": (
        rf"(proof|prov(es?|ed|ing)|guarantees?|shows?) (to (anybody|anyone|everybody|strangers) )?"
        rf"that (the|your|his|her|their|its) (data|records?|loans?|model)"
        rf"( is| are| was| were| has| have| been)* {GONE}"
    ),
    "a check by anybody, without saying of what": (
        r"a (proof|sum|model) that (anybody|anyone|everybody) can (check|verify)(?! offline)"
    ),
    "a witness that was not asked for": r"cosigned by nobody",
    "more than an estimate": (
        r"\b(tamper-?proof|unbreakable|unforgeable|provabl[ey]|cryptographically (proven|proved))\b"
    ),
}


def texts() -> Iterator[tuple[str, str]]:
    for pattern in PLACES:
        for path in sorted(ROOT.glob(pattern)):
            yield str(path.relative_to(ROOT)), " ".join(path.read_text("utf-8").split())


def claims(text: str) -> list[str]:
    """Return what a text claims too much."""
    return [
        f"{what}: {found[0]}"
        for what, pattern in TOO_MUCH.items()
        for found in re.finditer(pattern, text, re.I)
    ]


def test_nothing_claims_more_than_the_page_about_proof():
    every = list(texts())
    assert len(every) > 300
    assert {name: found for name, text in every if (found := claims(text))} == {}


def test_claims_that_were_made_once_are_found():
    for sentence in (
        "It gives a proof that anybody can check.",
        "The receipt proves that your data was deleted.",
        "This guarantees that the records are gone.",
        "the log has 3 entries and is cosigned by nobody else",
        "A tamper-proof log, provably exact.",
    ):
        assert claims(sentence), sentence
    assert not claims("a proof that anybody can check offline: the receipt is in the log")
