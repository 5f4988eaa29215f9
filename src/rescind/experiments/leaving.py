"""Note that somebody left whose records were all erased before: a run has nothing to forget then.

An erasure names records, so rows that come later count. Only a withdrawal keeps those out, too.
"""

from __future__ import annotations

from pathlib import Path

from rescind.core.files import locked
from rescind.data.blocklist import Blocklist
from rescind.experiments.forget_run import is_listed
from rescind.experiments.other_runs import still_has
from rescind.forgetting.succession import replaced
from rescind.storage.run_folder import check_finished, has_model, read_facts


def forgotten_before(run: Path, user: str) -> bool:
    """Return whether a run has nothing of a user any more, after an earlier request."""
    if not has_model(run) or not Blocklist.read(run).has_asked(user):
        return False
    return not still_has(run, {user: None})


def may_still_leave(run: Path, user: str) -> bool:
    """Return whether a run has forgotten a user, and nobody noted that they left."""
    return forgotten_before(run, user) and not Blocklist.read(run).has_withdrawn(user)


def note_leaving(run: Path, user: str, everywhere: bool | None = None) -> str:
    """Leave out all rows of a user that come later; say from what. Again, it changes nothing.

    everywhere: as in `forget_run.answer`
    """
    left = Blocklist().with_withdrawn(user)
    with locked(run):
        check_finished(run)  # another command may have replaced it before the lock was free
        facts = read_facts(run) or {}
        name, listed = facts["data"]["name"], is_listed(facts, user, everywhere)
        if listed:
            left.add_to_dataset(name)
        for folder in (*replaced(run), run):  # the run comes last: by it a repeat knows the rest
            (Blocklist.read(folder) | left).write(folder)
    return f"every run of '{name}' on this machine" if listed else "this run if it learns again"
