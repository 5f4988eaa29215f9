"""The comparison that a careful reader makes: with a model that never had the user."""

from __future__ import annotations

import polars as pl
import pytest
import torch

import rescind as rs

ROWS = sorted({(f"m{u:02}", f"s{(7 * u + k * k) % 50:02}") for u in range(40) for k in range(12)})
WHO = "m03"
SEED = 1
"""A seed with which who leaves is drawn to lend: then somebody else is drawn without them."""


def table(rows: list[tuple[str, str]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["user", "item"], orient="row")


def started(rows: list[tuple[str, str]]) -> rs.Federation:
    return rs.Federation.start(rs.from_frame(table(rows)), rs.methods.FedShare(), seed=SEED)


def users_of(rows: list[tuple[str, str]]) -> list[str]:
    return sorted({user for user, _ in rows})


def same(one: rs.Federation, two: rs.Federation) -> bool:
    mine, theirs = one.now.state.public, two.now.state.public
    return all(
        mine[name].shape == theirs[name].shape and torch.equal(mine[name], theirs[name])
        for name in mine
    )


def test_with_the_same_numbers_and_loans_a_table_without_the_user_gives_the_same_model() -> None:
    left = [row for row in ROWS if row[0] != WHO]
    start = rs.simulate_lending(started([*left, *(row for row in ROWS if row[0] == WHO)]))
    gone, _ = rs.forget(start.run(rounds=2), rs.Withdraw(WHO), audits="none")
    other = started(left)
    drawn = rs.simulate_lending(other)
    for user in users_of(left):
        if len(lent := start.lent(user)):
            other = other.apply(rs.Share(lent))
    never = other.run(rounds=2)
    assert same(gone, never)
    assert gone.evaluate() == never.evaluate()
    lends = [{u for u in users_of(left) if len(fed.lent(u))} for fed in (start, drawn)]
    assert lends[0] - {WHO} != lends[1], "control: drawn anew, others lend"


@pytest.mark.parametrize("given", ["Retrain", rs.methods.Retrain])
def test_an_unlearner_by_name_or_class_is_told_to_be_an_instance(given) -> None:
    fed = started(ROWS)
    with pytest.raises(rs.ConfigError, match=r"Give an instance, .*rs\.methods\.Retrain\(\)"):
        rs.forget(fed, rs.Withdraw(WHO), given, audits="none")
    rs.forget(fed, rs.Withdraw(WHO), rs.methods.Retrain(), audits="none")  # the control
