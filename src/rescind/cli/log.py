"""`rescind log`: the operator's log of receipts, for strangers to check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from rescind.cli.given import checkpoint_given, key_given, read_bytes

if TYPE_CHECKING:
    from rescind.proof.log_folder import LogFolder
    from rescind.proof.notes import Proof

app = typer.Typer(
    help="Keep a log of receipts that others can check and cosign.", no_args_is_help=True
)
Log = Annotated[
    Path | None, Option("--log", help="The folder of the log. Default: keys/log of the home.")
]
ReceiptFile = Annotated[Path, Argument(help="The file receipt.json.")]


@app.command("key")
def key(
    log: Log = None,
    name: Annotated[
        str | None, Option(help="Name of a new log, such as example.org/log. It cannot change.")
    ] = None,
) -> None:
    """Print the log's public key, to publish. The log is made if there is none.

    Examples: rescind log key; rescind log key --name example.org/log
    """
    from rescind.receipts.log import key_of, open_log

    typer.echo(str(key_of(open_log(log, name))))


@app.command("add")
def add(receipt: ReceiptFile, log: Log = None) -> None:
    """Add a receipt to the log, and write its proof beside it. Repeating it changes nothing.

    Example: rescind log add receipt.json
    """
    from rescind.receipts.log import log_receipt, open_log, proof_path
    from rescind.receipts.receipt import parse

    parse(read_bytes(receipt))
    place = open_log(log)
    number = log_receipt(receipt, place)
    size, name = place.checkpoint.size, place.checkpoint.origin
    typer.echo(f"entry {number + 1:,} of {size:,} in {name} (index {number:,})")
    typer.echo(f"Written: {proof_path(receipt)}")
    typer.echo(f"Next: rescind verify {receipt} --proof {proof_path(receipt)}")


@app.command("prove")
def prove(
    receipt: ReceiptFile,
    log: Log = None,
    out: Annotated[Path | None, Option(help="Default: beside the receipt.")] = None,
) -> None:
    """Write the proof of a receipt anew, with what witnesses have signed since.

    A proof with the signature of a witness that has not signed the newest checkpoint yet is kept.

    Example: rescind log prove receipt.json
    """
    from rescind.core.files import write_atomically
    from rescind.proof.log_folder import RECEIPT, entry_of
    from rescind.receipts.log import proof_path

    place, target = _open(log), out or proof_path(receipt)
    entry = entry_of(RECEIPT, read_bytes(receipt))
    proof = place.proof(entry)
    at, size = proof.index, place.checkpoint.size
    if names := _lost(target, proof, entry):
        typer.echo(
            f"entry {at + 1:,} of {size:,} (index {at:,}). Kept: {target}, which has the signature "
            f"of {', '.join(names)}. For the newest checkpoint: rescind log cosign URL"
        )
        return
    write_atomically(target, str(proof).encode())
    typer.echo(f"entry {at + 1:,} of {size:,} (index {at:,}). Written: {target}")


def _lost(target: Path, newer: Proof, entry: bytes) -> list[str]:
    """Return which signatures the proof in a file would lose; none if it is no proof of this."""
    from rescind.errors import DataError
    from rescind.proof.notes import Proof
    from rescind.proof.signers import lost

    try:
        return lost(Proof.parse(target.read_text(encoding="utf-8")), newer, entry)
    except (OSError, ValueError, DataError):
        return []


@app.command("list")
def show(log: Log = None) -> None:
    """List the entries: their index (from 0), what they are about, and their digest.

    Example: rescind log list
    """
    from rescind.proof.log_folder import KINDS

    place = _open(log)
    for number, entry in enumerate(place.entries[: place.checkpoint.size]):
        typer.echo(f"{number:>8,}  {KINDS[entry[0]]:<20} {entry[1:].hex()}")
    typer.echo(f"{place.checkpoint.size:,} entries in {place.checkpoint.origin}")


@app.command("check")
def check(
    log: Log = None,
    log_key: Annotated[str | None, Option(help="The log's key. Default: your own.")] = None,
    witness: Annotated[
        list[str] | None, Option(help="The key of a witness that must have signed; repeatable.")
    ] = None,
    since: Annotated[
        Path | None, Option(help="A checkpoint kept from before: is the log a continuation of it?")
    ] = None,
) -> None:
    """Check a whole log: every entry, who signed, and that it only grew. Exit code 1 if not.

    Examples: rescind log check --since checkpoint.kept;
    rescind log check --log public/log --log-key log.pub
    """
    from rescind.errors import DataError
    from rescind.proof.log_folder import saw
    from rescind.proof.notes import LOG, WITNESS
    from rescind.receipts.log import own_key_under

    trusted = key_given(log_key, LOG) if log_key else None
    witnesses = [key_given(one, WITNESS) for one in witness or []]
    before = checkpoint_given(since)
    try:
        place = _open(log)
        seen = place.check(trusted or own_key_under(place.note), witnesses, before)
    except DataError as error:
        typer.echo(f"NOT VALID: {error}")
        raise typer.Exit(1) from None
    names = saw(seen)
    typer.echo(f"VALID: {place.checkpoint.size:,} entries in {place.checkpoint.origin}")
    typer.echo(f"  cosigned by {names}" if names else "  no witness was named: --witness KEY")
    if before is not None:
        typer.echo(f"  begins with what {since} signed")


@app.command("cosign")
def cosign(
    url: Annotated[str, Argument(help="Where the witness listens, such as http://silo-0:8017.")],
    key: Annotated[str, Option(help="The witness's key, which rescind witness prints.")],
    log: Log = None,
    public: Annotated[
        Path | None,
        Option(help="A folder of rescind roster publish, to show the signature there, too."),
    ] = None,
) -> None:
    """Ask a witness to sign the newest checkpoint, and keep its signature.

    Example: rescind log cosign http://silo-0:8017 --key witness-0.pub
    """
    from rescind.errors import DataError
    from rescind.proof.notes import WITNESS
    from rescind.proof.roster import Public
    from rescind.proof.witness_http import ask

    place, witness = _open(log), key_given(key, WITNESS)
    shown = Public.read(public) if public else None
    try:
        at = ask(url, witness, place)
    except DataError as error:
        raise DataError(f"{url}: {error}") from None
    typer.echo(f"{witness.name} signed {place.checkpoint.size:,} entries (time {at}).")
    if shown is not None:
        shown.show(place)
        typer.echo(f"Written: {public}, with the signature")
    typer.echo("Next: rescind log prove RECEIPT, to put the signature into a proof")


def _open(log: Path | None) -> LogFolder:
    from rescind.proof.log_folder import LogFolder
    from rescind.receipts.log import default_log

    return LogFolder(log or default_log())
