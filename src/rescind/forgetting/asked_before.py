"""Tell one who was in a run and has left it by a request from one who never was there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote

from rescind.core.labels import Alike, Labels, told_to_look_up
from rescind.data.blocklist import Blocklist
from rescind.errors import ConsentError, DataError
from rescind.storage.run_folder import read_facts


@dataclass(frozen=True)
class AskedBefore:
    """Requests that a run, or the data that it learnt from, answered before."""

    of_run: Blocklist = Blocklist()
    data: str = ""
    """The name of the data; "" if there is none, or it is unknown."""

    @classmethod
    def read(cls, run: Path) -> AskedBefore:
        """Read the list of a run's folder, which may be a federation that was saved by itself."""
        data = (read_facts(run) or {}).get("data") or {}
        return cls(Blocklist.read(run), str(data.get("name", "")))

    def client(self, user: str, labels: Labels, clients: int, alike: Alike | None = None) -> int:
        """Return the number of a user in the run; raise with what is known of one who is not there.

        No other id is suggested: it would be that of another person.
        alike: what to say of ids that may be meant. Default: that there is one, and where to look
        """
        if self.of_run.left(user, labels):
            how = "has left this run after an earlier request"
            if not self.of_run.has_withdrawn(user):
                how = (
                    "had everything erased from this run after an earlier request, and has not "
                    "left: rows that come later count"
                )
            raise ConsentError(
                f"user '{user}' {how}. See its receipt: nothing of theirs is left in it. Imported "
                f"data is another place: rescind data show NAME --user {quote(user)} tells whether "
                f"rows are still there, and rescind data erase NAME --user {quote(user)} deletes "
                f"them."
            )
        try:
            look_up = partial(told_to_look_up, where=self.data or "NAME")
            return labels.client(user, clients, alike or look_up)
        except DataError:
            if not self.data or not Blocklist.of_dataset(self.data).has_asked(user):
                raise
        raise DataError(
            f"there is no user '{user}' in this run. Its data, '{self.data}', leaves rows of "
            f"theirs out after an earlier request: see its receipt. What is stored: rescind data "
            f"show {self.data} --user {quote(user)}."
        )
