"""An imported table as a holder: its rows are deleted, and read again to make sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rescind.audits.finding import Finding
from rescind.core.claims import CASE, ITEMS, one_line
from rescind.core.files import locked
from rescind.core.labels import Labels
from rescind.core.records import Erase, Records
from rescind.data.erasing import delete_rows, rows_of
from rescind.data.importing import imported_folder, imported_names, load_imported
from rescind.forgetting.purge import kept_list
from rescind.home import Ledger, Request
from rescind.privacy.keys import about_signer
from rescind.receipts.receipt import Asked, Done, Draft, covered, prepare
from rescind.receipts.words import ROWS
from rescind.requests.holders import Held, Holder, Progress, named
from rescind.storage.events import event_text

ONLY_ROWS = "only rows"
"""Marks facts of a table: its draft counts only where no model has one."""
NOT_COVERED = "The file that was imported, and copies of it elsewhere."


class Table(Holder):
    """Rows in `data/NAME` of the home."""

    @property
    def there(self) -> bool:
        return self.copy.dataset in imported_names()

    def held(self, request: Request) -> Held:
        if request.kind == "unshare":  # rows stay where they are: a loan is no row
            return {}
        rows = rows_of(load_imported(self.copy.dataset), [*request.records])
        found: dict[str, set[str]] = {}
        for user, item in zip(rows.users[rows.user], rows.items[rows.item], strict=True):
            found.setdefault(str(user), set()).add(str(item))
        return {user: frozenset(items) for user, items in found.items()}

    def unlearn(self, ledger: Ledger, request: Request, progress: Progress) -> dict[str, Any]:
        """Return what a receipt about the rows says; nothing is learnt from rows alone."""
        data = load_imported(self.copy.dataset)
        rows = rows_of(data, [*request.records])
        every = zip(rows.users[rows.user].tolist(), rows.items[rows.item].tolist(), strict=True)
        pairs = [(u, i) for u, i in every if named(request, u, frozenset((i,)))]
        event, labels = _event(pairs)
        many = {"rows": len(pairs), "items": len({*pairs})}
        draft = _draft(request, event, labels, data.digest, **many)
        return {
            **many,
            "draft": draft.to_text(),
            "event": event_text(event, labels),
            ONLY_ROWS: True,
        }

    def purge(self, request: Request) -> None:
        with locked(imported_folder()):
            pairs = [
                (user, item)
                for user, items in self.held(request).items()
                for item in named(request, user, items)
            ]
            if pairs:
                delete_rows(self.copy.dataset, pairs)


def _event(pairs: Sequence[tuple[str, str]]) -> tuple[Erase, Labels]:
    """Return an erasure of these pairs, in numbers of its own."""
    users, items = ([*dict.fromkeys(pair[at] for pair in pairs)] for at in (0, 1))
    who, what = [users.index(u) for u, _ in pairs], [items.index(i) for _, i in pairs]
    return Erase(Records.of(who, what)), Labels(tuple(users), tuple(items))


def drafted_by_words(request: Request, rows: Mapping[str, Any]) -> Draft:
    """Return the receipt about rows elsewhere, which were deleted by the words of a request."""
    pairs = [(user, item) for user, items in request.records.items() for item in items or ()]
    return _draft(request, *_event(pairs), "", int(rows.get("rows", 0)), int(rows.get("items", 0)))


def _draft(
    request: Request, event: Erase, labels: Labels, before: str, rows: int, items: int
) -> Draft:
    """Return the receipt about rows that no model had learnt."""
    about = "This receipt is about stored rows, not about models."
    return prepare(
        Asked("Erase", rows, len(request.records), event.digest(request.key)),
        Done(
            method={"name": "imported data"}, unlearning=ROWS, level="L1", world_before=before,
            world_after="", model_before="", model_after="", rounds=0, client_rounds=0, online={},
            seconds=0.0,
        ),
        [kept_list("of the data", 64 * rows)],
        [scanned(rows), Finding("audit", "UNAUDITED", note=about)],
        request.key,
        not_covered=[NOT_COVERED],
        claims={**covered(event, request.key, labels), **about_signer()},
        bound_claims={
            ITEMS: str(items),
            **({CASE: one_line(request.case, "the case")} if request.case else {}),
        },
    )  # fmt: skip


def scanned(rows: int) -> Finding:
    """Return what `checked` found: it raises where a row is left."""
    note = "The imported rows were deleted, and the stored files were read again: none is there."
    return Finding("scan", "SHOWN", value=0.0, n=rows, note=note)
