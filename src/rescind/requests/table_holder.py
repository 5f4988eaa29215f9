"""An imported table as a holder: its rows are deleted, and read again to make sure."""

from __future__ import annotations

from typing import Any

from rescind.core.files import locked
from rescind.data.erasing import delete_rows, rows_of
from rescind.data.importing import imported_folder, imported_names, load_imported
from rescind.home import Ledger, Request
from rescind.requests.holders import Held, Holder, Progress, named

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
        """Return how many rows there are; nothing is learnt from rows alone."""
        rows = rows_of(load_imported(self.copy.dataset), [*request.records])
        pairs = zip(rows.users[rows.user].tolist(), rows.items[rows.item].tolist(), strict=True)
        asked = [(u, i) for u, i in pairs if named(request, str(u), frozenset((str(i),)))]
        digest = load_imported(self.copy.dataset).digest
        return {"rows": len(asked), "items": len({*asked}), "before": digest}

    def purge(self, request: Request) -> None:
        with locked(imported_folder()):
            pairs = [
                (user, item)
                for user, items in self.held(request).items()
                for item in named(request, user, items)
            ]
            if pairs:
                delete_rows(self.copy.dataset, pairs)
