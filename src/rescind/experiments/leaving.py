"""Note that somebody left of whom a run has nothing to forget: an earlier request did that.

An erasure names records, so rows that come later count; and who withdrew may have been let in again
(`rescind data admit`). Only a withdrawal that is noted keeps later rows out.
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


def may_still_leave(run: Path, user: str, everywhere: bool | None = None) -> bool:
    """Return whether a run has forgotten a user, and it is not noted that they left.

    everywhere: as in `forget_run.answer`
    """
    if not forgotten_before(run, user):
        return False
    return not all(listed.has_withdrawn(user) for listed in _lists(run, user, everywhere))


def let_in_again(run: Path, user: str) -> bool:
    """Return whether later rows of a user who asked before count: the answer of then is not enough.

    A list of who withdrew from a graph names no users, so that nobody comes back there.
    """
    lists = _lists(run, user, None)
    return any(listed.has_asked(user) and not listed.has_withdrawn(user) for listed in lists)


def _lists(run: Path, user: str, everywhere: bool | None) -> list[Blocklist]:
    """Return the lists that must have a user who leaves: of the run, and of imported data."""
    facts = read_facts(run) or {}
    lists = [Blocklist.read(run)]
    if "data" in facts and is_listed(facts, user, everywhere):
        lists.append(Blocklist.of_dataset(facts["data"]["name"]))
    return lists


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
