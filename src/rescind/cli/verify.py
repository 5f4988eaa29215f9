"""`rescind verify`: check offline that a receipt is unchanged, and which key signed it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from rescind.cli.acknowledged import acknowledged
from rescind.cli.given import check_kinds, key_given, read_receipt, signing_key_given
from rescind.cli.options import Json
from rescind.cli.verify_folder import plain, print_checks, shown, verify_folder
from rescind.core.words import people_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rescind.core.records import Event
    from rescind.receipts.receipt import Receipt
    from rescind.receipts.verify import Check, Verification

RECEIPT, EXACT, KEY, PROOF = (
    "receipt.json", "request.json", "receipt.key", "receipt.tlog-proof",
)  # fmt: skip
"""Files in the .zip of an answer."""
MOST = 1 << 27
"""Bytes of one of them: a request may list all that somebody had."""
_PROOF = "Give with --proof the path of the .tlog-proof that came with the receipt"
_EVENT_KEY = "The key of the receipt (receipt.key), which opens its exact numbers."


def command(
    ctx: typer.Context,
    receipt: Annotated[
        Path | None,
        Argument(help="ANSWER.zip as it was sent, a receipt.json, or a folder to compare."),
    ] = None,
    key: Annotated[
        list[str] | None,
        Option(
            help="A public key you trust (ed25519:... or a file such as signing.pub); repeatable. "
            "Default: your own."
        ),
    ] = None,
    chain: Annotated[list[Path] | None, Option(help="An earlier receipt; repeatable.")] = None,
    event: Annotated[
        Path | None,
        Option(
            "--event",
            "--request",
            help="Your request (request.json), to check that the receipt is about it.",
        ),
    ] = None,
    event_key: Annotated[Path | None, Option(help=_EVENT_KEY)] = None,
    acknowledgement: Annotated[
        Path | None,
        Option(
            help="Of a service: its answer to your request, or the acknowledgement that its page "
            "saves: is the receipt about these records?"
        ),
    ] = None,
    item: Annotated[
        list[str] | None,
        Option(metavar="ID", help="A record that the acknowledgement is about; repeatable."),
    ] = None,
    data: Annotated[
        Path | None,
        Option(
            metavar="RUN",
            help="The folder of the run with the remaining data: its sum is computed again and "
            "compared with the stated one (additive learners).",
        ),
    ] = None,
    part: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Your part of a request that several made (parts/USER.json): shows that the "
            "receipt is about your records, too.",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        Option(help="A run: its receipt is compared with its model, its data and its ids, too."),
    ] = None,
    proof: Annotated[
        Path | None,
        Option(
            help="The receipt's .tlog-proof: is it in the issuer's log? Of another issuer, give "
            "--log-key, too."
        ),
    ] = None,
    log_key: Annotated[
        str | None,
        Option(help="The log's key (NAME+ID+KEY or a file with it). Default: your own log's."),
    ] = None,
    witness: Annotated[
        list[str] | None,
        Option(help="The key of a witness that must have cosigned the log; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print whether a receipt is VALID or NOT VALID, and why. Needs no network and no server.

    The .zip of an answer is checked with all that is in it: request, key, and place in the log.

    Exit code 0: valid, 1: not valid, 2: a file or key could not be read.

    Examples: rescind verify ANSWER.zip; rescind verify receipt.json
    """
    from rescind.errors import ConfigError
    from rescind.receipts.verify import verify

    named = shown_as = receipt
    if receipt is not None and (members := _unpacked(receipt, ctx)):
        named = receipt = members[RECEIPT]
        event, event_key = event or members.get(EXACT), event_key or members.get(KEY)
        proof = proof or _provable(members.get(PROOF), log_key)
    if run is not None:
        receipt = receipt or _receipt_of(run)
    if receipt is None:
        raise ConfigError("nothing to verify. Give a receipt.json, a folder of them, or --run RUN.")
    if (proof is None and witness) or (log_key and not (proof or acknowledgement)):
        raise ConfigError("--log-key and --witness check a proof. Give it with --proof FILE.")
    if receipt.is_dir():
        if chain or event or event_key or acknowledgement or data or proof or part or run:
            raise ConfigError(
                f"{receipt} is a folder of receipts, which takes --key and --json only. "
                f"Name one receipt.json for the other options."
            )
        raise typer.Exit(verify_folder(receipt, _pinned(key or []), as_json))
    check_kinds({"": [receipt, *(chain or ())], "--event": [event], "--part": [part],
                 "--event-key": [event_key], "--proof": [proof],
                 "--acknowledgement": [acknowledgement]})  # fmt: skip
    earlier = [read_receipt(path) for path in chain] if chain else None
    claims = [*_claims(data), *_part(part)]
    secret = None if event_key is None else _secret(event_key)
    request = None if event is None else _request(event, secret)
    more, secret, key_in = acknowledged(acknowledgement, item or [], secret, log_key)
    found = verify(
        read_receipt(receipt), _pinned(key or []), earlier, request, claims + more, secret, key_in
    )
    if proof is not None:
        found = found.also(
            *_logged(read_receipt(receipt), read_receipt(proof, _PROOF), log_key, witness or [])
        )
    if run is not None:
        from rescind.receipts.of_run import compare

        given = None if named is None else read_receipt(named)
        found = found.also(*compare(run, given=given))
    if as_json:
        typer.echo(json.dumps(plain(found), indent=2))
    else:
        _print(found, shown_as or receipt, secret, has_part=part is not None)
    raise typer.Exit(0 if found.valid else 1)


def _unpacked(path: Path, ctx: typer.Context) -> dict[str, Path]:
    """Return the files of an answer, unpacked for as long as the command; {} if it is none."""
    import tempfile
    import zipfile

    from rescind.errors import DataError

    if path.is_dir() or not zipfile.is_zipfile(path):
        return {}
    unpacked = tempfile.TemporaryDirectory()
    ctx.call_on_close(unpacked.cleanup)
    folder = Path(unpacked.name)
    with zipfile.ZipFile(path) as packed:
        members = [one for one in packed.infolist() if one.filename in (RECEIPT, EXACT, KEY, PROOF)]
        if RECEIPT not in {one.filename for one in members}:
            raise DataError(f"{path} has no {RECEIPT}. Give the .zip of an answer as it was sent.")
        if any(one.file_size > MOST for one in members):
            raise DataError(f"{path} has a file of more than {MOST:,} bytes: it is no answer.")
        for one in members:
            (folder / one.filename).write_bytes(packed.read(one))
            (folder / one.filename).chmod(0o600)
    return {one.filename: folder / one.filename for one in members}


def _provable(proof: Path | None, log_key: str | None) -> Path | None:
    """Return the proof of an answer, if the log's key was given or is one's own; else say so."""
    from rescind.errors import RescindError
    from rescind.proof.notes import Proof
    from rescind.receipts.log import own_key_under

    if proof is None or log_key is not None:
        return proof
    try:
        own_key_under(Proof.parse(proof.read_text(encoding="utf-8")).note)
    except (RescindError, UnicodeDecodeError):
        typer.echo("Its place in the log was not checked: give the log's key, --log-key.", err=True)
        return None
    return proof


def _receipt_of(run: Path) -> Path:
    """Return a file with the receipt of the last answer of a run, as its home has it."""
    from rescind.errors import ConfigError
    from rescind.privacy.keys import private_folder
    from rescind.receipts.of_run import answered_by

    known = answered_by(run)
    if "receipt" not in known:
        raise ConfigError(f"{run} answered no request in this home. Give a receipt.json.")
    path = private_folder() / "verified.json"
    path.write_text(known["receipt"], encoding="utf-8", newline="")
    return path


def _pinned(given: list[str]) -> dict[str, str]:
    """Return the trusted keys: those given, else the user's own."""
    from rescind.privacy import keys

    if given:
        return {signing_key_given(one): "the key you gave" for one in given}
    own = keys.own_public_key()
    earlier = keys.earlier_public_keys()
    trusted = {key: f"your own key until {day}" for key, day in earlier.items()}
    return trusted if own is None else {own: "your own key", **trusted}


def _logged(data: bytes, proof: bytes, log_key: str | None, witness: list[str]) -> list[Check]:
    """Check a proof with the log's key and those of witnesses."""
    from rescind.proof.notes import LOG, WITNESS
    from rescind.receipts.log import check_proof

    log = None if log_key is None else key_given(log_key, LOG)
    return check_proof(data, proof, log, [key_given(one, WITNESS) for one in witness])


def _claims(data: Path | None) -> list[Callable[[Receipt], Check]]:
    if data is None:
        return []
    from rescind.storage.run_folder import model_in

    model_in(data)
    from rescind.receipts.claims import checks_with  # loads torch

    return [checks_with(data)]


def _part(path: Path | None) -> list[Callable[[Receipt], Check]]:
    """Return the check of one person's proof."""
    if path is None:
        return []
    from rescind.errors import DataError
    from rescind.receipts.parts import PEOPLE, covers_names, read_proof
    from rescind.receipts.verify import BY_NUMBERS, Check

    try:
        user, proof = read_proof(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}. Give your part as a JSON file.") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    kind = type(proof.part).__name__

    def check(receipt: Receipt) -> Check:
        if PEOPLE not in receipt.claims:
            return Check(False, "it was made before receipts had parts for single people")
        part, fits = f"{kind} of {_what(proof.part, receipt)}", proof.fits(receipt.claims)
        if fits and not covers_names(receipt.claims):
            return Check(True, f"a part with {part} is part of what it is about{BY_NUMBERS}")
        is_ = "is part" if fits else "is not part"
        says, its = f"{part} of user '{user}' {is_} of what it is about", "your part of its request"
        return Check(fits, says, look_for="" if fits else its)

    return [check]


def _what(part: Event, receipt: Receipt) -> str:
    """Return how much a person's part of a request names.

    It names items, and a receipt counts their rows: a part of all records of a user has both.
    """
    from rescind.core.claims import ITEMS
    from rescind.receipts.words import NOUNS, items_and_rows, records

    named = getattr(part, "records", None)
    if named is None:
        return "all data"
    if ITEMS not in receipt.claims:  # of a graph, or from before receipts counted items
        return records(len(named), NOUNS.get(type(part).__name__, "record"))
    return items_and_rows(len(named.pairs().unique()), len(named), "item")


def _secret(path: Path) -> bytes:
    """Read the requester's key, and say if others on this machine can read it, too."""
    from rescind.privacy.keys import read_saved_secret

    secret, mode = read_saved_secret(path)
    if mode:
        typer.echo(
            f"note: other users of this machine can read {path} (mode {mode:03o}), and with it "
            f"they can test guesses of what was asked. To keep it for yourself: chmod 600 {path}",
            err=True,
        )
    return secret


def _request(event: Path, secret: bytes | None) -> tuple[Event, bytes, str]:
    from rescind.errors import ConfigError, DataError

    if secret is None:
        raise ConfigError(
            "--event was given without --event-key. Give both: the request, and the key that "
            "came with its receipt."
        )
    try:
        text = event.read_text(encoding="utf-8-sig")  # editors of Windows put a mark at the start
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DataError(f"cannot read {event}: {why}. Give the request as a JSON file.") from None
    from rescind.storage.events import names_in, read_event

    try:
        return read_event(text), secret, names_in(text)
    except DataError as error:
        raise DataError(f"{event}: {error}") from None


def _print(
    found: Verification, path: Path, secret: bytes | None = None, has_part: bool = False
) -> None:
    """Print what was checked and what the receipt says.

    secret: the key that opened it    has_part: one of several asks, to whom nobody gives that key
    """
    from rescind.audits.finding import SAID_IN_WORDS, counted, legend, question
    from rescind.core.claims import CASE, CONFIRMED, OPERATOR, SOFTWARE
    from rescind.privacy.sealing import BOUND
    from rescind.receipts import words
    from rescind.receipts.loan_words import only_the_loan, same_model
    from rescind.reporting.html import word_of

    typer.echo(f"{'VALID' if found.valid else 'NOT VALID'}: {path}")
    print_checks(found)
    receipt = found.exact or found.receipt
    if receipt is None or not found.valid:
        typer.echo(_advice(found))
        return
    asked, done = receipt.asked, receipt.done
    bands = isinstance(asked.records, str) and not words.only_the_silo_counts(receipt)
    what = f"{asked.records} records" if bands else words.amount(receipt)
    typer.echo(
        f"It says, on {receipt.time}: {shown(asked.kind)} of {shown(what)} of "
        f"{shown(people_of(asked.people))}, by {shown(done.unlearning)}.\n"
        f"  level    {done.level}: {shown(words.level_says(receipt))}\n"
        f"  verdict  {receipt.verdict}: {words.verdict_says(receipt)}"
    )
    if secret is not None and only_the_loan(receipt) and same_model(receipt, secret):
        typer.echo("  model    the same as before, bit for bit")
    for name in (CASE, OPERATOR, SOFTWARE, CONFIRMED):
        if not (text := str(receipt.claims.get(name, BOUND))).startswith(BOUND):
            typer.echo(f"  {name}: {shown(text)}")
    for one in receipt.findings:
        number = counted(one)
        asks = f" {shown(one.check):16} {question(one.check)}".rstrip()
        typer.echo(f"    {word_of(one.verdict):12}{asks}" + (f" ({number})" if number else ""))
        if one.note and (one.verdict == "UNAUDITED" or one.check in SAID_IN_WORDS):
            typer.echo(f"    {'':12} {shown(one.note)}")
    for line in legend(one.verdict for one in receipt.findings if one.verdict != receipt.verdict):
        typer.echo(f"    {words.said_of(receipt, line)}")
    if receipt.sealed and found.exact is None:
        opens = "" if has_part else " The requester's key opens the exact ones: --event-key FILE."
        typer.echo(f"Numbers are bands.{opens}")
    typer.echo("Not covered:")
    for line in receipt.not_covered:
        typer.echo(f"  - {shown(line)}")
    typer.echo(
        "A valid signature says who states this and that it is unchanged; it does not make the\n"
        "statement true."
    )


def _advice(found: Verification) -> str:
    """Return what to do about a receipt that is NOT VALID."""
    if not (files := found.mixed_up):
        return "Do not rely on anything it says."
    return (
        f"The receipt itself is unchanged, and signed by a key that you trust, but the files do "
        f"not belong together. Look for what came with this receipt: {', '.join(files)}. Until "
        f"that fits, do not take this receipt for the answer to your request."
    )
