"""`rescind data erase` and `rescind data admit`: people leave imported data, and come back."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from rescind.cli.asking import ask_to_go_on
from rescind.core.words import count_of

if TYPE_CHECKING:
    from rescind.data.dataset import Dataset


def erase_rows(
    name: Annotated[str, Argument(help="An imported dataset.")],
    user: Annotated[
        list[str],
        Option(help="A user's original id. Repeated: one receipt of them all, for you alone."),
    ],
    item: Annotated[
        list[str] | None, Option(help="Only this item of the users; repeatable. Default: all.")
    ] = None,
    receipt: Annotated[
        Path | None,
        Option(help="File of the receipt. Default: receipt-NAME.json, receipt-NAME-2.json, ..."),
    ] = None,
    case: Annotated[
        str, Option(metavar="TEXT", help="Your number of the request, for the top of the page.")
    ] = "",
    yes: Annotated[
        bool,
        Option(
            "--yes",
            help="Do not ask (without a terminal it never asks). Needed there to delete more rows "
            "of a user than their earlier requests named.",
        ),
    ] = False,
) -> None:
    """Delete rows of users from imported data, for good; write a signed receipt and its page.

    Says first how many rows it will delete, and on a terminal asks. Later imports under this name
    and every run leave them out. Runs that learnt from them are answered one by one: rescind forget
    RUN --withdraw USER (who did not withdraw: --erase FILE), or with --item: rescind forget RUN
    --user USER --item ITEM. Killed on the way, the same command goes on: no rows are gone without a
    receipt.

    Examples: rescind data erase mine --user c7 --case "DSR 117";
    rescind data erase mine --user c7 --item p20
    """
    from rescind.data.importing import imported_names
    from rescind.errors import ConfigError

    if name not in imported_names():
        known = ", ".join(imported_names()) or "none"
        raise ConfigError(
            f"'{name}' is not an imported dataset, so there are no rows of ours to delete. "
            f"Imported: {known}. For a run, use rescind forget RUN."
        )
    users, items = list(dict.fromkeys(user)), list(dict.fromkeys(item or ()))
    from rescind.forgetting.data_erasure import check_given, erase

    check_given(name, receipt, case)
    _announce(name, users, items, yes)
    from rescind.forgetting.receipt_check import REQUEST
    from rescind.forgetting.receipt_words import items_and_rows

    done = erase(name, users, items, receipt, case)
    here = Path.cwd()
    path = done.path.relative_to(here) if done.path.is_relative_to(here) else done.path
    if done.earlier:
        typer.echo(f"{name}: an interrupted deletion was finished first; receipt {done.earlier}")
    what = f"{items_and_rows(done.items, done.rows, 'row')} of {count_of(len(users), 'user')}"
    typer.echo(f"{name}: deleted {what}; later imports leave them out")
    whose = "for the requester only" if len(users) == 1 else "for you alone (it counts all users)"
    request = path.with_suffix(REQUEST)
    beside = f"{path.with_suffix('.key')}, {path.with_suffix('.html')}"
    beside += f", {request}" if request.is_file() else ""
    typer.echo(f"  receipt  {path}\n  {whose}  {beside}")
    typer.echo(f"\nNext: rescind verify {path}\n{_about_runs(name, users, items, case)}")


def _announce(name: str, users: Sequence[str], items: Sequence[str], yes: bool) -> None:
    """Say what will be deleted, before it is; ask on a terminal.

    More than what the users asked for earlier is deleted only if somebody says so. Rows that are
    not there are not mentioned: the deletion itself says why, or was interrupted.
    """
    from rescind.data.erasing import choose
    from rescind.errors import ConfigError, DataError

    try:
        chosen = choose(name, users, items)
    except DataError:
        return
    rows, all_rows = len(chosen.rows), len(chosen.before)
    who = f"user '{users[0]}'" if len(users) == 1 else count_of(len(users), "user")
    typer.echo(f"{name}: {rows:,} of {all_rows:,} rows will be deleted for good, of {who}")
    for line in _others_alike(chosen.before, users):
        typer.echo(line)
    beyond = [] if items else _beyond_requests(name, users, chosen.rows)
    for line in beyond:
        typer.echo(line)
    ask = not yes and sys.stdin.isatty()
    if beyond and not (ask or yes):
        raise ConfigError(
            "these users did not ask for all of these rows so far, and without a terminal nobody "
            "can be asked. Name the items with --item, or delete all rows with --yes. Nothing was "
            "erased."
        )
    if ask:
        ask_to_go_on("Nothing was erased.")


def _others_alike(dataset: Dataset, users: Sequence[str]) -> list[str]:
    """Say which of these users have somebody else beside them whose id looks like theirs."""
    from rescind.core.labels import told_alike

    others = {*dataset.users.tolist()}.difference(users)
    return [
        f"Careful: more than one id looks like '{user}'. {alike}Their rows stay: if it is the same "
        f"person, erase them by that id, too"
        for user in users
        if (alike := told_alike(user, others))
    ]


def _beyond_requests(name: str, users: Sequence[str], rows: Dataset) -> list[str]:
    """Say of which users only a part of these rows was asked for, and how to delete that alone."""
    from rescind.data.blocklist import Blocklist
    from rescind.data.erasing import rows_of

    asked_for, told = Blocklist.of_dataset(name), list[str]()
    for user in users:
        mine = rows_of(rows, [user])
        beyond = asked_for.left_of(mine)
        if not 0 < len(beyond) < len(mine):  # nobody asked before, or for everything
            continue
        kept = {*beyond.items[beyond.item].tolist()}
        asked = [one for one in dict.fromkeys(mine.items[mine.item].tolist()) if one not in kept]
        only = "".join(f" --item {shlex.quote(one)}" for one in asked)
        told.append(
            f"Careful: earlier requests of user '{user}' named {len(mine) - len(beyond):,} of "
            f"these rows. {len(beyond):,} more, which they did not name, will be deleted, too. To "
            f"delete only what was asked for: rescind data erase {name} --user "
            f"{shlex.quote(user)}{only}"
        )
    return told


def _about_runs(name: str, users: Sequence[str], items: Sequence[str], case: str) -> str:
    """Say which runs near here still have some of what was deleted, and how each is asked."""
    from rescind.experiments.other_runs import runs_near, split_outlived

    number = f" --case {shlex.quote(case)}" if case else ""
    forget = f"rescind forget RUN {_asked_of_a_run(users, items)}{number}"
    stays = "" if items else " (who did not withdraw: --erase FILE instead of --withdraw USER)"
    found = runs_near(name, {user: items or None for user in users})
    stand, outlived = split_outlived(found)
    told = list[str]()
    if stand:
        told.append(f"Runs that still have some of it: {_listed(stand)}. {forget}{stays}")
    if outlived:
        models = _listed([run / "model" for run in outlived])
        told.append(f"Models to delete, of runs that were trained again since: {models}")
    if not found:
        told.append(f"No run near here has any of it. If one elsewhere has: {forget}{stays}")
    return "\n".join(told)


def _listed(places: Sequence[Path]) -> str:
    return ", ".join(map(str, places))


def _asked_of_a_run(users: Sequence[str], items: Sequence[str]) -> str:
    """Return how a run is asked for the same: of items, never for everything of a person."""
    if not items:
        return "--withdraw USER --request FILE"
    if len(users) > 1:
        return "--erase FILE (a CSV with the columns user,item)"
    return (
        f"--user {shlex.quote(users[0])} "
        + " ".join(f"--item {shlex.quote(i)}" for i in items)
        + " --request FILE"
    )


def admit_user(
    name: Annotated[str, Argument(help="An imported dataset.")],
    user: Annotated[str, Option(help="The original id of a user who withdrew.")],
    run: Annotated[
        list[Path] | None, Option(help="A run that answered the withdrawal; repeatable.")
    ] = None,
    silo: Annotated[
        list[Path] | None, Option(help="The folder of a silo they withdrew from; repeatable.")
    ] = None,
) -> None:
    """Let a user who withdrew come in again: their rows in files that are added later count.

    Erased rows stay away, as the receipt says. A run keeps a list of its own, so name each run
    that answered the withdrawal (any of its folders: RUN, RUN-forgot-1). So does a silo: end its
    join, and name its folder.

    Example: rescind data admit mine --user c7 --run runs/mine
    """
    from rescind.data.blocklist import FILE, Blocklist
    from rescind.data.erasing import admit_imported
    from rescind.data.importing import check_imported
    from rescind.errors import ConfigError, DataError
    from rescind.flower.silo.silo_notes import is_silo
    from rescind.forgetting.run_chain import lineage

    check_imported(name)
    for one in run or ():
        if not one.is_dir():
            raise ConfigError(f"there is no run {one}. Nothing was changed.")
        if is_silo(one):  # its list has keys of ids, and what the data has stays away
            raise ConfigError(f"{one} is a silo: name it with --silo. Nothing was changed.")
    # Silos first: they look for the user's rows in the data, which loses them.
    found = _let_in_by_silos(silo, name, user) if silo else []
    found += [name] if admit_imported(name, user) else []
    folders = [folder for one in run or () for folder in lineage(one)]
    found += [str(folder) for folder in folders if Blocklist.admit(folder / FILE, user)]
    if not found:
        asked = ", ".join([name, *map(str, [*(run or ()), *(silo or ())])])
        raise DataError(f"no user '{user}' withdrew from {asked}. Nothing was changed.")
    typer.echo(f"let in again by {', '.join(found)}; erased rows stay away")
    if not run and not silo:
        typer.echo("A run or silo that answered the withdrawal leaves them out until it is named.")
    typer.echo(f"\nNext: rescind data append {name} FILE, with rows that are new")
    if silo:
        typer.echo("Then: rescind flower join, and rescind flower run without requests")


def _let_in_by_silos(silos: Sequence[Path], name: str, user: str) -> list[str]:
    """Return the silos that let a user in again. Only here Flower is needed."""
    from rescind.flower.silo.returns import admit_to_silo, check_silo

    for one in silos:
        check_silo(one, name)
    return [str(one) for one in silos if admit_to_silo(one, user)]
