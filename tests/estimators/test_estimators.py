"""An estimator behaves as scikit-learn's do, keeps nothing forgotten, and is the federated one."""

from __future__ import annotations

import stat

import pyarrow.parquet
import pytest
import torch
from sklearn.base import clone

import rescind as rs
from rescind.core.holdings import TEST, TRAIN, Holdings
from rescind.core.labels import Labels
from rescind.core.records import Records
from rescind.core.tasks.metrics import Ranking
from rescind.errors import ConfigError, DataError
from rescind.methods.additive._solve import WEIGHTS
from worlds import tiny_holdings

RECORDS = [
    ("ann", "x", 3), ("bob", "y", 1), ("ann", "y", 2), ("cid", "x", 5), ("cid", "z", 4),
    ("dan", "y", 1), ("dan", "z", 2), ("eve", "w", 1), ("eve", "x", 2), ("eve", "y", 3),
]  # fmt: skip
LEARNERS = pytest.mark.parametrize("learner", [rs.Gram, rs.SeqGram])


# -- the model ------------------------------------------------------------------------------------


def test_weights_by_hand():
    # One user with items 1 and 2: w = round(4096 / sqrt(2)) = 2896, G / 4096 = .70703 everywhere.
    # (G + 45 I)^-1: B_12 = G_12 / (G_22 + 45) of EASE with one other item = .70703 / 45.70703
    model = rs.Gram().fit([("u", 1), ("u", 2)])
    assert model.recommend(history=[1]) == [(2, pytest.approx(0.7070312 / 45.7070312, rel=1e-5))]


@pytest.mark.parametrize(
    ("learner", "method"),
    [
        (rs.Gram, rs.methods.Gram(cross=True)),
        (rs.SeqGram, rs.methods.SeqGram()),
        (rs.SeqGram.sequences, rs.methods.SeqGram.sequences()),
    ],
)
def test_it_is_the_model_of_the_federation(learner, method):
    held = tiny_holdings()
    fed = rs.Federation.start(held, method).run(1)
    columns = (held.records.client, held.records.item, held.records.time, held.split)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    model = learner().fit([(u, i, t) for u, i, t, split in rows if split == TRAIN])
    assert model.items == list(range(held.items))
    assert torch.equal(model._weights(), fed.now.state.public[WEIGHTS])
    tested = [(u, i) for u, i, _, split in rows if split == TEST]
    known = [(u, i) for u, i in tested if u in model.users]  # one device has nothing to train on
    theirs = fed.evaluate(metric=Ranking(k=(3,)))["HR@3"] * len(tested)
    assert model.evaluate(known, k=3)["HR@3"] * len(known) == pytest.approx(theirs)
    assert model.evaluate(tested, k=3) == model.evaluate(known, k=3)
    user = model.users[0]
    # A run also has what it held out, and recommends none of it; this model never saw that.
    has = {item for u, item, _, _ in rows if u == user}
    new = [r.item for r in model.recommend(user, k=12) if r.item not in has]
    assert new[:3] == [int(r.item) for r in fed.recommend(user, k=3)]


def test_held_out_items_that_nobody_has_count_as_missed():
    model = rs.Gram().fit(RECORDS)
    best = model.recommend("bob", k=1)[0].item
    assert model.evaluate([("bob", best)], k=1)["Recall@1"] == 1
    assert model.evaluate([("bob", best), ("bob", "new")], k=1)["Recall@1"] == 0.5
    assert model.evaluate([("bob", best), ("stranger", best)], k=(1, 2))["HR@1"] == 1
    with pytest.raises(DataError, match="no user of the held-out records is known"):
        model.evaluate([("stranger", best)])


@pytest.mark.parametrize("k", [0, "3"])
def test_a_list_has_at_least_one_item(k):
    with pytest.raises(ConfigError, match=r"k must be .*(1|at least 0)"):
        rs.Gram().fit(RECORDS).recommend("bob", k=k)


@LEARNERS
def test_held_out_records_that_were_fitted_are_told(learner):
    model = learner().fit(RECORDS)
    best = model.recommend("bob", k=1)[0].item
    mine = next(record[1] for record in RECORDS if record[0] == "bob")
    with pytest.warns(UserWarning, match="1 of 2 held-out records are in the fit"):
        model.evaluate([("bob", best), ("bob", mine)], k=1)
    with pytest.raises(DataError, match=r"1 of 1 held-out records are in the fit.*Give others"):
        model.evaluate([("bob", mine), ("stranger", best)])


@LEARNERS
def test_a_history_is_answered_as_its_owner(learner):
    model = learner().fit(RECORDS)
    assert model.recommend(history=["w", "x", "y"]) == model.recommend("eve")
    assert model.recommend(history=["w", "new", "x", "y", "w"]) == model.recommend("eve")
    with pytest.raises(DataError, match="none of the 1 items"):
        model.recommend(history=["new"])
    with pytest.raises(ConfigError, match="a user or a history"):
        model.recommend()


@LEARNERS
def test_an_unknown_user_is_told_without_other_people(learner):
    model = learner().fit(RECORDS).forget(users=["eve"])
    with pytest.raises(DataError, match=r"there is no user 'eve' among 4 users\.$"):
        model.recommend("eve")
    for near in ("ane", "bob "):
        for ask in (lambda u=near: model.recommend(u), lambda u=near: model.forget(users=[u])):
            with pytest.raises(DataError, match="there is no user") as refused:
                ask()
            assert not [name for name in model.users if f"'{name}'" in str(refused.value)]
    with pytest.raises(DataError, match=r"4 users\. Nothing was changed\.$"):
        model.forget(users=["eve"])


# -- settings -------------------------------------------------------------------------------------


@LEARNERS
def test_settings_as_in_scikit_learn(learner):
    model = learner(ridge=7.0)
    assert model.get_params() == {**learner().get_params(), "ridge": 7.0}
    again = clone(model)
    for name, value in model.get_params().items():
        assert again.get_params()[name] is value
    assert again.users == []
    assert repr(again) == f"{learner.__name__}(ridge=7.0)"
    assert model.set_params(ridge=8.0) is model
    assert model.ridge == 8.0
    with pytest.raises(ConfigError, match="has no setting 'rigde'; did you mean 'ridge'"):
        model.set_params(rigde=1.0)
    with pytest.raises(ConfigError, match="has no setting 'rigde'; did you mean 'ridge'"):
        learner(rigde=1.0)


@LEARNERS
@pytest.mark.parametrize(("ridge", "told"), [(-1.0, "above 0"), ("much", "a number")])
def test_wrong_settings_are_told_and_change_nothing(learner, ridge, told):
    model = learner().fit(RECORDS)
    before = model.digest()
    with pytest.raises(ConfigError, match=rf"{learner.__name__}.ridge must be {told}"):
        model.set_params(ridge=ridge).fit([("new", "new", 1)])
    assert model.set_params(ridge=1.0).digest() == before


@LEARNERS
def test_a_new_setting_counts_at_the_next_use(learner):
    model, changes = learner().fit(RECORDS), {"ridge": 3.0}
    model.recommend("ann")
    if learner is rs.SeqGram:
        changes |= {"far": 2.0, "power": 0.5, "recent": 1.0}
    model.set_params(**changes).forget(users=["bob"])
    known = learner(**changes).fit([r for r in RECORDS if r[0] != "bob"])
    assert model.recommend("ann") == known.recommend("ann")
    assert model.digest() == known.digest()


def test_too_many_items_are_refused_before_anything_changes():
    model = rs.Gram(max_items=4).fit(RECORDS)
    with pytest.raises(ConfigError, match=r"5 items take .* max_items is 4"):
        model.add([("ann", "new")])
    assert model.items == ["w", "x", "y", "z"]


# -- large catalogues: neighbours instead of all pairs --------------------------------------------


def large(**settings) -> rs.Gram:
    return rs.Gram(dense_items=3, **settings)


def test_a_large_catalogue_is_learnt_as_local_gram_does_and_this_is_said(caplog):
    dense = rs.Gram().fit(RECORDS)
    assert not caplog.records, "the control"
    model = large().fit(RECORDS)
    assert "4 items are more than 3" in caplog.text
    assert "LocalGram" in caplog.text
    users, items = model.users, model.items
    client, item = ([known.index(r[n]) for r in RECORDS] for n, known in enumerate((users, items)))
    records = Records.of(client, item)
    held = Holdings.of(records, torch.zeros(len(records)), len(users), len(items))
    method = rs.methods.LocalGram(cross=True)
    fed = rs.Federation.start(held, method, labels=Labels(tuple(users), tuple(items))).run(1)
    for user in users:
        known = {each.item: each.score for each in fed.recommend(user)}
        assert dict(model.recommend(user)) == pytest.approx(known, rel=1e-6)
    assert model.recommend(users[0]) != dense.recommend(users[0]), "the control"


def test_a_large_catalogue_forgets_bit_for_bit_also_across_the_limit():
    model = large().fit(RECORDS)
    model.recommend("ann")
    left = [r for r in RECORDS if r[0] != "bob"]
    assert model.forget(users=["bob"]).digest() == large().fit(left).digest()
    assert model.recommend("ann") == large().fit(left).recommend("ann")
    fewer = [r for r in RECORDS if r[1] in ("x", "y", "z")]
    model = large().fit(RECORDS).forget(items=["w"])
    assert model.digest() == rs.Gram().fit(fewer).digest(), "three items: every pair again"
    more = rs.Gram(dense_items=3).fit(fewer).add(RECORDS)
    assert more.digest() == large().fit(RECORDS).digest()


def test_a_large_catalogue_is_saved(tmp_path):
    model = large().fit(RECORDS)
    model.save(tmp_path / "model")
    assert rs.Gram.load(tmp_path / "model").recommend("ann") == model.recommend("ann")


# -- forgetting -----------------------------------------------------------------------------------


@LEARNERS
def test_what_is_not_there_cannot_be_forgotten(learner):
    model = learner().fit(RECORDS)
    before = model.digest()
    for asked, told in [
        ({"users": ["ann", "nobody"]}, "there is no user 'nobody' among 5 users"),
        ({"users": ["ann"], "items": ["nothing"]}, "there is no item 'nothing' among 4 items"),
        ({"records": [("ann", "x"), ("ann", "z")]}, "user 'ann' has no record of item 'z'"),
        ({"records": [("nobody", "x")]}, "there is no user 'nobody'"),
    ]:
        with pytest.raises(DataError, match=told):
            model.forget(**asked)
    for asked, told in [
        ({}, "nothing to forget"),
        ({"users": [("ann", "x")]}, r"users takes ids\. Write records=\[\('ann', 'x'\)\]"),
        ({"users": []}, "nothing to forget"),
        ({"users": "ann"}, r"users must be a list of ids; got 'ann'. Write users=\['ann'\]"),
    ]:
        with pytest.raises(ConfigError, match=told):
            model.forget(**asked)
    assert model.digest() == before


@LEARNERS
def test_a_record_cannot_be_forgotten_twice(learner):
    model = learner().fit(RECORDS).forget(records=[("ann", "x")])
    with pytest.raises(DataError, match="user 'ann' has no record of item 'x'"):
        model.forget(records=[("ann", "x")])
    assert model.add([("ann", "x", 3)]).digest() == learner().fit(RECORDS).digest()


@LEARNERS
def test_nothing_of_who_left_is_reachable(learner, tmp_path):
    model = learner().fit(RECORDS)
    model.recommend("eve")
    model.forget(users=["eve"], items=["z"])  # only eve had w
    assert (model.users, model.items) == (["ann", "bob", "cid", "dan"], ["x", "y"])
    model.save(tmp_path / "model")
    everything = repr(vars(model)) + repr(vars(model._ledger))
    assert "eve" not in everything
    assert "'w'" not in everything
    assert b"eve" not in (tmp_path / "model").read_bytes()


@LEARNERS
def test_everybody_may_leave(learner):
    model = learner().fit(RECORDS).forget(users=learner().fit(RECORDS).users)
    empty = learner().fit([])
    assert model.digest() == empty.digest() == learner().digest()
    assert (model.users, model.items, len(model)) == ([], [], 0)
    assert model.add(RECORDS).digest() == learner().fit(RECORDS).digest()
    with pytest.raises(DataError, match="no user 'ann' among 0 users"):
        empty.recommend("ann")


# -- files ----------------------------------------------------------------------------------------


@LEARNERS
def test_a_saved_model_comes_back(learner, tmp_path):
    model = learner(ridge=7.0).fit(RECORDS)
    model.save(tmp_path / "model")
    again = learner.load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    assert again.digest() == model.digest()
    assert again.recommend("bob") == model.recommend("bob")
    assert again.forget(users=["ann"]).digest() == model.forget(users=["ann"]).digest()
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o600
    other = rs.SeqGram if learner is rs.Gram else rs.Gram
    with pytest.raises(DataError, match=f"holds {learner.__name__}, format 1; {other.__name__}"):
        other.load(tmp_path / "model")
    (tmp_path / "model").write_bytes((tmp_path / "model").read_bytes()[:-3])
    with pytest.raises(DataError, match="cannot be read"):
        learner.load(tmp_path / "model")


@pytest.mark.parametrize("settings", [{}, {"dense_items": 3}])
def test_neighbours_go_out_as_parquet(tmp_path, settings):
    model = rs.Gram(**settings).fit(RECORDS)
    model.write_neighbours(tmp_path / "near.parquet", k=2)
    table = pyarrow.parquet.read_table(tmp_path / "near.parquet").to_pylist()
    assert {row["item"] for row in table} <= set(model.items)
    assert max([row["item"] for row in table].count(item) for item in model.items) == 2
    for row in table:
        (score,) = [s for i, s in model.recommend(history=[row["item"]]) if i == row["neighbour"]]
        assert row["weight"] == pytest.approx(score)
    with pytest.raises(DataError, match="a Parquet column has one type"):
        rs.Gram().fit([("u", 1), ("u", "1")]).write_neighbours(tmp_path / "mixed")
