"""`rescind verify`: check offline that a receipt is unchanged, and which key signed it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from rescind.cli.given import key_given, read_bytes
from rescind.cli.options import Json
from rescind.cli.verify_folder import plain, print_checks, shown, verify_folder
from rescind.core.words import people_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rescind.core.records import Event
    from rescind.receipts.receipt import Receipt
    from rescind.receipts.verify import Check, Verification

MEMBERS = RECEIPT, REQUEST, KEY, PROOF = (
    "receipt.json", "request.json", "receipt.key", "receipt.tlog-proof",
)  # fmt: skip
"""Files in the .zip of an answer."""
MOST = 1 << 27
"""Bytes of one of them: a request may list all that somebody had."""


def command(
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
        Option("--event", "--request", help="Your request (request.json): is it about that?"),
    ] = None,
    event_key: Annotated[
        Path | None,
        Option(help="The key of the receipt (receipt.key), which opens its exact numbers."),
    ] = None,
    acknowledgement: Annotated[
        Path | None,
        Option(help="Of a service: its answer to your request, or what its page saves."),
    ] = None,
    item: Annotated[
        list[str] | None,
        Option(metavar="ID", help="A record that the acknowledgement is about; repeatable."),
    ] = None,
    data: Annotated[
        Path | None,
        Option(
            metavar="RUN",
            help="A run with the remaining data, to compute the stated sum again (additive "
            "learners).",
        ),
    ] = None,
    part: Annotated[
        Path | None,
        Option(metavar="FILE", help="Your part of a request that several made (parts/USER.json)."),
    ] = None,
    run: Annotated[
        Path | None,
        Option(help="A run: its receipt is compared with its model and its data, too."),
    ] = None,
    proof: Annotated[
        Path | None,
        Option(help="The receipt's .tlog-proof: is it in the issuer's log (--log-key)?"),
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

    if receipt is None and run is None:
        raise ConfigError("nothing to verify. Give a receipt.json, a folder of them, or --run RUN.")
    if receipt is not None and receipt.is_dir():
        if chain or event or event_key or acknowledgement or data or proof or part or run:
            raise ConfigError(f"{receipt} is a folder, which takes --key and --json only.")
        raise typer.Exit(verify_folder(receipt, _pinned(key or []), as_json))
    papers = {} if receipt is None else _papers(receipt)
    if event is not None:
        papers[REQUEST] = read_bytes(event, MOST)
    if proof is not None:
        papers[PROOF] = read_bytes(proof)
    elif log_key is None and not _in_own_log(papers.get(PROOF)):
        typer.echo("Its place in the log was not checked: give the log's key, --log-key.", err=True)
        papers.pop(PROOF, None)
    if PROOF not in papers and (witness or (log_key and acknowledgement is None)):
        raise ConfigError("--log-key and --witness check a proof. Give it with --proof FILE.")
    secret = _secret(event_key, papers)
    claims = [*_claims(data), *_part(part)]
    more, secret = _acknowledged(acknowledgement, item or [], secret, log_key)
    body = papers[RECEIPT] if RECEIPT in papers else _receipt_of(run)
    found = verify(
        body,
        _pinned(key or []),
        [read_bytes(path) for path in chain] if chain else None,
        _request(papers[REQUEST], secret) if REQUEST in papers else None,
        claims + more,
        secret,
    )
    if PROOF in papers:
        found = found.also(*_logged(body, papers[PROOF], log_key, witness or []))
    if run is not None:
        from rescind.receipts.of_run import compare

        found = found.also(*compare(run, given=papers.get(RECEIPT)))
    if as_json:
        typer.echo(json.dumps(plain(found), indent=2))
    else:
        _print(found, receipt or run, secret, has_part=part is not None)
    raise typer.Exit(0 if found.valid else 1)


def _papers(path: Path) -> dict[str, bytes]:
    """Return the members of an answer by name, or the receipt alone."""
    import zipfile

    from rescind.errors import DataError

    if not zipfile.is_zipfile(path):
        return {RECEIPT: read_bytes(path)}
    with zipfile.ZipFile(path) as packed:
        members = {one.filename: one for one in packed.infolist() if one.filename in MEMBERS}
        if RECEIPT not in members or any(one.file_size > MOST for one in members.values()):
            raise DataError(
                f"{path} has no {RECEIPT}, or a file of more than {MOST:,} bytes. Give the .zip "
                f"of an answer as it was sent."
            )
        return {name: packed.read(one) for name, one in members.items()}


def _in_own_log(proof: bytes | None) -> bool:
    """Return whether the log of a proof, if there is one, is this user's own."""
    from rescind.errors import RescindError
    from rescind.proof.notes import Proof
    from rescind.receipts.log import own_key_under

    try:
        return proof is None or bool(own_key_under(Proof.parse(proof.decode()).note))
    except (RescindError, UnicodeDecodeError):
        return False


def _receipt_of(run: Path | None) -> bytes:
    """Return the receipt of the last answer of a run, as its home has it."""
    from rescind.errors import ConfigError
    from rescind.receipts.of_run import answered_by

    known = {} if run is None else answered_by(run)
    if "receipt" not in known:
        raise ConfigError(f"{run} answered no request in this home. Give a receipt.json.")
    return str(known["receipt"]).encode()


def _pinned(given: list[str]) -> dict[str, str]:
    """Return the trusted keys: those given, else the user's own."""
    from rescind.privacy import keys

    if given:
        return {keys.public_key(one): "the key you gave" for one in given}
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
        user, proof = read_proof(read_bytes(path, MOST).decode("utf-8-sig"))
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}") from None
    part = type(proof.part).__name__

    def check(receipt: Receipt) -> Check:
        fits = PEOPLE in receipt.claims and proof.fits(receipt.claims)
        if fits and not covers_names(receipt.claims):
            return Check(True, f"a part, {part}, is part of what it is about{BY_NUMBERS}")
        is_ = "is part" if fits else "is not part"
        return Check(fits, f"{part} of user '{user}' {is_} of what it is about")

    return [check]


def _acknowledged(
    path: Path | None, items: list[str], secret: bytes | None, log_key: str | None
) -> tuple[list[Callable[[Receipt], Check]], bytes | None]:
    """Return the checks of a service's acknowledgement, and the key of the receipt.

    secret: the key, if it was given; otherwise that of the answer is taken
    """
    from rescind.errors import ConfigError, DataError

    if path is None:
        if items:
            raise ConfigError("--item belongs to a service's answer: give --acknowledgement, too.")
        return [], secret
    from rescind.proof.notes import LOG
    from rescind.receipts.acknowledgement import LARGEST, claims, read

    try:
        answer = read(read_bytes(path, LARGEST))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    key = secret or answer.key
    log = None if log_key is None else key_given(log_key, LOG)
    return claims(answer, items, key, log), key


def _secret(path: Path | None, papers: dict[str, bytes]) -> bytes | None:
    """Read the requester's key, and say if others on this machine can read it, too."""
    from rescind.privacy.keys import read_saved_secret, secret_in

    if path is None:
        return secret_in(papers[KEY], KEY) if KEY in papers else None
    secret, mode = read_saved_secret(path)
    if mode:
        typer.echo(
            f"note: other users of this machine can read {path} (mode {mode:03o}). To keep it for "
            f"yourself: chmod 600 {path}",
            err=True,
        )
    return secret


def _request(body: bytes, secret: bytes | None) -> tuple[Event, bytes, str]:
    from rescind.errors import ConfigError, DataError
    from rescind.storage.events import names_in, read_event

    if secret is None:
        raise ConfigError("--event needs the key that came with its receipt, too: --event-key.")
    try:
        text = body.decode("utf-8-sig")  # editors of Windows put a mark at the start
        return read_event(text), secret, names_in(text)
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(f"the request cannot be read: {error}. Give request.json.") from None


def _print(
    found: Verification, path: Path | None, secret: bytes | None = None, has_part: bool = False
) -> None:
    """Print what was checked and what the receipt says.

    secret: the key that opened it    has_part: one of several asks, to whom nobody gives that key
    """
    from rescind.audits.finding import SAID_IN_WORDS, counted, legend, question
    from rescind.core.claims import CASE, CONFIRMED, OPERATOR, SOFTWARE
    from rescind.privacy.sealing import BOUND
    from rescind.receipts import words
    from rescind.reporting.html import word_of

    typer.echo(f"{'VALID' if found.valid else 'NOT VALID'}: {path}")
    print_checks(found)
    receipt = found.exact or found.receipt
    if receipt is None or not found.valid:
        typer.echo("Do not rely on anything it says. Are all files those that came with it?")
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
    if secret is not None and words.same_model(receipt, secret):
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
        typer.echo(f"    {line}")
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
