"""Whoever can be named is named by original id; indices are for `rescind.core` alone."""

from __future__ import annotations

from dataclasses import replace
from typing import get_type_hints

import pytest
import torch

import rescind as rs
from rescind.core import named, records
from rescind.core.labels import Labels
from rescind.errors import ConsentError, DataError
from worlds import tiny_holdings

CLIENTS, ITEMS = 8, 12
IDS = tuple(str(n) for n in range(1, CLIENTS + 1))
"""From 1, as in MovieLens: the id of one user is the index of the next."""


@pytest.fixture
def fed() -> rs.Federation:
    labels = Labels(IDS, tuple(f"film {n}" for n in range(ITEMS)))
    method = rs.methods.Gram()
    return rs.Federation.start(tiny_holdings(CLIENTS, ITEMS), method, labels=labels).run(1)


def gone(after: rs.Federation) -> list[int]:
    return (~after.world.members).nonzero().squeeze(1).tolist()


def test_withdraw_takes_the_id_that_recommend_takes(fed):
    after, _ = rs.forget(fed, rs.Withdraw(7), audits="none")
    assert gone(after) == [fed.labels.users.index("7")] == [6]
    with pytest.raises(DataError, match="there is no user '7'"):
        after.recommend(user=7)
    assert after.recommend(user=8)
    # Control: the core names the same user by index, and id 7 is another index.
    assert gone(fed.apply(records.Withdraw(7))) == [7]


@pytest.mark.parametrize("user", [7, "7"])
def test_every_verb_reads_the_same_id(fed, user):
    event = records.Withdraw(6)
    assert fed.request(rs.Withdraw(user)).event == event
    assert gone(fed.apply(rs.Withdraw(user))) == [6]
    assert gone(fed.method.unlearn(fed, rs.Withdraw(user))) == [6]
    assert gone(fed.retrained(rs.Withdraw(user))) == [6]
    assert fed.apply(rs.Withdraw(user)).apply(rs.Join(user)).world.members.all()


def test_a_user_who_is_not_there_is_refused_by_name(fed):
    with pytest.raises(DataError, match="there is no user '0'"):
        rs.forget(fed, rs.Withdraw(0), audits="none")


def test_who_is_away_is_named_by_id(fed):
    assert fed.request(rs.Withdraw(7), away=[7, "3"]).away == (6, 2)


def test_without_ids_a_number_is_its_own_id():
    fed = rs.Federation.start(tiny_holdings(CLIENTS, ITEMS), rs.methods.Gram()).run(1)
    assert gone(fed.apply(rs.Withdraw(7))) == [7]


def test_a_digest_does_not_depend_on_how_a_user_was_named(fed):
    key = bytes(32)
    known = replace(fed, key=key)
    one, two = (known.apply(e).events[-1] for e in (rs.Withdraw(7), records.Withdraw(6)))
    assert one == two


def test_no_public_class_names_a_person_by_index():
    for name in rs.__all__:
        kind = getattr(rs, name)
        if isinstance(kind, type) and issubclass(kind, records.Event | named.Named):
            fields = get_type_hints(kind)
            assert "client" not in fields, f"rs.{name} takes an index"
    assert "client" in get_type_hints(records.Withdraw)  # the test can fail


@pytest.mark.parametrize("name", ["Records", "Arrive", "Host"])
def test_names_of_indices_are_in_the_core_and_say_so(name):
    from rescind import core

    assert getattr(core, name)
    with pytest.raises(AttributeError, match=rf"rescind\.core\.{name} now.*original"):
        getattr(rs, name)


def test_records_of_a_user_are_found_by_ids(fed):
    found = fed.records("7", ["film 3", "film 5"])
    assert torch.equal(found.client, torch.tensor([6, 6]))
    assert torch.equal(found.item, torch.tensor([3, 5]))


def test_a_refusal_names_original_ids_and_does_not_tell_what_somebody_holds(fed):
    held = fed.now.vault.holdings.records
    has = {c: set(held.item[held.client == c].tolist()) for c in range(CLIENTS)}
    client = min(has, key=lambda c: len(has[c]))
    mine, other = has[client], next(i for i in range(ITEMS) if i not in has[client])
    with pytest.raises(ConsentError, match="does not hold item") as told:
        fed.apply(rs.Erase(fed.records(IDS[client], [f"film {other}"])))
    assert "[" not in str(told.value)
    assert str(len(mine)) not in str(told.value).replace(f"film {other}", ""), "nor how many"
    assert str(told.value).startswith(f"user '{IDS[client]}' does not hold item 'film {other}', so")
    assert "client" not in str(told.value)
    assert (told.value.client, told.value.item) == (client, other), (
        "for programs, indices as before"
    )


def test_a_refusal_names_all_items_that_somebody_does_not_hold(fed):
    held = fed.now.vault.holdings.records
    who = int(held.client.bincount(minlength=CLIENTS).argmin())
    mine = set(held.item[held.client == who].tolist())
    not_mine = [i for i in range(ITEMS) if i not in mine][:2]
    assert (len(not_mine), len(mine) > 0) == (2, True)
    items = [f"film {i}" for i in (*not_mine, *sorted(mine)[:1])]
    with pytest.raises(ConsentError) as told:
        fed.apply(rs.Erase(fed.records(IDS[who], items)))
    missing = ", ".join(f"item 'film {i}'" for i in not_mine)
    assert str(told.value) == (
        f"user '{IDS[who]}' does not hold {missing}, so they cannot be erased. Nothing was changed."
    )
