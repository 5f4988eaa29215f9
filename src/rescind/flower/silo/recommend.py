"""Recommend to a silo's clients without the server."""

from __future__ import annotations

from pathlib import Path

import torch

from rescind.core.executor import InProcess
from rescind.core.labels import Recommendation, told_alike
from rescind.core.records import Records
from rescind.core.tasks.metrics import top_k
from rescind.errors import ConsentError, DataError
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.departures import read_list
from rescind.flower.silo.names import NOT_HERE, USER, Numbering, key_of
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import method_of
from rescind.privacy import keys


def recommend_to(folder: Path, user: str, k: int) -> list[Recommendation]:
    """Return the k best items for a user of this silo, all by original ids.

    The numbers are those of the model's training; the data of now may have others.
    """
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder} here. Go to the silo's machine, to the folder where "
            f"'rescind flower join' was started."
        )
    store = Store(folder)
    data = RecipeData.noted_in(store)
    if read_list(folder).has_withdrawn(key_of(USER, user)):
        raise ConsentError(
            f"user '{user}' has left this silo. If they return: rescind request readmit --user ID "
            f"--silo {folder}."
        )
    labels, clients, items = data.names()
    about = store.model()[0]
    name = store.numbering_of(int(about["held"]))
    then, now = store.numbering(name), Numbering.of(labels, clients, items)
    if (number := then.user(user)) == NOT_HERE:
        if data.own and user not in labels.users:  # of others it has places, which do not count
            raise DataError(
                f"this silo has no user '{user}'. {told_alike(user, labels.users)}Original ids are "
                f"used, as in its data."
            )
        labels.client(user, clients)  # raises if the data does not know them either
        if {*then.users, *then.items}.isdisjoint({*now.users, *now.items}):
            raise DataError(
                f"this silo's data has other ids than its model under the keys in "
                f"{keys.folder()}. Set RESCIND_HOME to that of 'rescind flower join', or train "
                f"again."
            )
        raise DataError(f"user '{user}' was not there when the model was trained. Train again.")
    learnt = store.held(int(about["held"])).items
    if learnt > len(then.items):
        raise DataError(
            f"the model has {learnt} items and this silo's table {len(then.items)}: it was "
            f"trained over silos with different tables, so its items are mixed up. Give all silos "
            f"the same table and train again (docs/deploy.md)."
        )
    because = method_of(about["method"]).because
    place = {key: number for number, key in enumerate(now.items)}
    known = [(place.get(then.items[item]), score) for item, score in recommend(folder, number, k)]
    return [
        Recommendation(labels.item_id(item), labels.title(item), score, because)
        for item, score in known
        if item is not None  # the data has lost it since
    ]


def recommend(folder: Path, user: int, k: int) -> list[tuple[int, float]]:
    """Return the k best items that a client of this silo does not have, with their scores.

    Uses the last model that the silo received and the private state saved with it.
    """
    store = Store(folder)
    facts, public = store.model()
    vault = store.vault(int(facts["held"]), int(facts["private"]))
    held = vault.holdings
    if not 0 <= user < held.clients or not bool(held.members[user]):
        raise ConsentError(
            f"this user is not one of the {int(held.members.sum())} members of this silo: they "
            f"belong to another silo, or have no rows here any more."
        )
    if held.task == "nodes":
        raise DataError(
            f"this silo's model is for {held.task}. Only a ranking model can recommend."
        )
    items = torch.arange(held.items)
    pairs = Records.of(torch.full_like(items, user), items)
    scores = InProcess().query(method_of(facts["method"]), public, vault, pairs, "open")
    best = [i for i in top_k(scores.unsqueeze(0), None, min(k, held.items))[0].tolist() if i >= 0]
    return [(item, float(scores[item])) for item in best]
