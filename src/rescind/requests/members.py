"""Tell one who was in a run and has left it by a request from one who never was there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rescind.core.labels import Labels
from rescind.data.blocklist import Blocklist
from rescind.errors import DataError
from rescind.home.request import Refused
from rescind.storage.run_folder import artefact_of, dataset_of, read_facts


@dataclass(frozen=True)
class AskedBefore:
    """Who left a run, or the data that it learnt from."""

    listed: Blocklist = Blocklist()
    data: str = "NAME"

    @classmethod
    def read(cls, run: Path) -> AskedBefore:
        """Read the departures of a run, which may be a federation that was saved by itself."""
        facts = read_facts(run)
        if facts is None:
            return cls()
        return cls(
            Blocklist.of_dataset(dataset_of(facts, artefact_of(run))), str(facts["data"]["name"])
        )

    def client(self, user: str, labels: Labels, clients: int) -> int:
        """Return the number of a user in the run; raise with what is known of one who is not there.

        No other id is suggested: it would be that of another person.
        """
        if self.listed.has_withdrawn(user):
            raise Refused("has-left", f"user '{user}' has left this data after a request.")
        if self.listed.left(user, labels):
            raise Refused("erased", f"all records of user '{user}' were erased by a request.")
        try:
            return labels.client(user, clients)
        except DataError:
            look = f"Use the ids of your data: rescind data show {self.data}"
            raise Refused(
                "unknown-person", f"unknown user '{user}' ({clients:,} users). {look}."
            ) from None
