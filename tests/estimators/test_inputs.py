"""Frames of every kind give the same model; what cannot be read ends with a sentence."""

from __future__ import annotations

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from scipy.sparse import coo_matrix, csr_array

import rescind as rs
from rescind.errors import ConfigError, DataError

RECORDS = [("ann", "x", 3), ("bob", "y", 1), ("ann", "y", 2), ("cid", "x", 5), ("cid", "z", 4)]
USER, ITEM, TIME = (list(column) for column in zip(*RECORDS, strict=True))
PLAIN = {"user": USER, "item": ITEM, "time": TIME}
DATES = np.array(TIME, "datetime64[D]")


class Speaks:
    """A frame that speaks Arrow and nothing else, as polars writes text."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def arrow(kind):
    text = {name: pyarrow.array(PLAIN[name]).cast(kind) for name in ("user", "item")}
    return pyarrow.table({**text, "time": TIME})


FRAMES = {
    "tuples": RECORDS,
    "columns": PLAIN,
    "arrays": {name: np.array(values) for name, values in PLAIN.items()},
    "pandas": pandas.DataFrame(PLAIN),
    "pandas, objects": pandas.DataFrame(PLAIN).astype({"user": object, "item": object}),
    "pandas, categories": pandas.DataFrame(PLAIN).astype({"user": "category"}),
    "pandas, dates": pandas.DataFrame({**PLAIN, "time": DATES}),
    "arrow": arrow(pyarrow.string()),
    "arrow, dates": pyarrow.table({**PLAIN, "time": pyarrow.array(DATES)}),
    "polars": polars.DataFrame(PLAIN),
    "polars, lazy": polars.LazyFrame(PLAIN),
    "as polars": Speaks(arrow(pyarrow.string_view())),
    "twice": RECORDS + RECORDS,
    "another order": RECORDS[::-1],
    "later copies": [*RECORDS, ("ann", "y", 9)],
}


@pytest.mark.parametrize("learner", [rs.Gram, rs.SeqGram])
@pytest.mark.parametrize("kind", FRAMES)
def test_every_frame_gives_the_same_model(kind, learner):
    model, known = learner().fit(FRAMES[kind]), learner().fit(RECORDS)
    assert model.digest() == known.digest()
    assert model.recommend("bob") == known.recommend("bob")
    assert (model.users, model.items) == (["ann", "bob", "cid"], ["x", "y", "z"])


def test_columns_are_found_by_common_names_or_named():
    named = {"UserID": USER, "movie_id": ITEM}
    other = {"who": USER, "what": ITEM, "movie_id": ITEM}
    digest = rs.Gram().fit(RECORDS).digest()
    assert rs.Gram().fit(named).digest() == digest
    chosen = {"user": "who", "item": "what"}
    assert rs.Gram().fit(other, columns=chosen).digest() == digest
    left = rs.Gram().fit(other, columns=chosen).forget(records=other, columns=chosen)
    assert left.users == []


def test_columns_that_fit_was_given_are_remembered_for_frames_that_have_them():
    chosen = {"user": "who", "item": "what"}
    frame, more = {"who": USER, "what": ITEM}, {"who": ["dan"], "what": ["x"]}
    model = rs.Gram().fit(frame, columns=chosen)
    expected = rs.Gram().fit(RECORDS).add([("dan", "x")])
    assert model.add(more).digest() == expected.digest()
    held = {"who": ["dan"], "what": ["y"]}
    assert model.evaluate(held) == expected.evaluate([("dan", "y")])
    assert model.forget(records=more).digest() == rs.Gram().fit(RECORDS).digest()
    plain = {"user": ["dan"], "item": ["x"]}
    assert model.add(plain).digest() == expected.digest(), "a frame with common names, too"
    assert model.forget(records=[("dan", "x")]).users == ["ann", "bob", "cid"]
    with pytest.raises(DataError, match="is the user: columns="):
        model.fit(RECORDS).add(more)  # a fit without columns has none to remember


@pytest.mark.parametrize("kind", [coo_matrix, csr_array])
def test_a_sparse_matrix_has_numbers_as_ids(kind):
    matrix = kind(np.array([[0, 2.5, 1], [0, 0, 0], [1, 0, 1]]))
    model = rs.Gram().fit(matrix)
    assert (model.users, model.items) == ([0, 2], [0, 1, 2])
    assert {type(each) for each in (*model.users, *model.items)} == {int}
    assert model.digest() == rs.Gram().fit([(0, 1), (0, 2), (2, 0), (2, 2)]).digest()
    assert model.recommend(np.int64(0))[0].item == 0
    with pytest.raises(DataError, match="ids are text or whole numbers"):
        model.recommend([0, 2])


def test_text_and_numbers_are_different_ids():
    model = rs.Gram().fit([(1, "a"), ("1", "a"), ("1", 1), (1, "1")])
    assert model.users == [1, "1"]
    assert model.items == [1, "1", "a"]
    model.forget(users=[1])
    assert model.users == ["1"]
    with pytest.raises(DataError, match=r"there is no user 1 among 1 users.*did you mean '1'"):
        model.forget(users=[1])


def test_a_catalogue_dataset_is_a_frame():
    data = rs.load("synthetic")
    model = rs.Gram().fit(data)
    users, items = data.users[data.user].tolist(), data.items[data.item].tolist()
    pairs = set(zip(users, items, strict=True))
    assert len(model) == len(pairs)
    assert model.digest() == rs.Gram().fit(sorted(pairs)).digest()


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        ({"user": ["a"], "thing": ["b"]}, "no column of user, thing is the item"),
        ({"user": ["a"], "uid": ["a"], "item": ["b"]}, "several columns could be the user"),
        ({"user": ["a", "b"], "item": ["b"]}, "equally long; got user 2, item 1"),
        ({"user": [1.0], "item": ["b"]}, "user 1.0 is a float; ids are text or whole"),
        ({"user": [True], "item": ["b"]}, "user True is a bool"),
        (
            pandas.DataFrame({"user": ["a", None], "item": [1, 2]}),
            "the user of row 1 .* is missing",
        ),
        (7, "records cannot be read from a int"),
        ([("a",)], "tuples .user, item. or .user, item, time.*got"),
        (["ab"], "got 'ab'"),
    ],
)
def test_what_cannot_be_read_ends_with_a_sentence(frame, told):
    model = rs.Gram().fit(RECORDS)
    before = model.digest()
    with pytest.raises(DataError, match=told):
        model.add(frame)
    assert model.digest() == before


def test_sequences_need_times():
    for frame in (coo_matrix(np.eye(2)), [("a", "b")], {"user": ["a"], "item": ["b"]}):
        with pytest.raises(DataError, match="no column of times"):
            rs.SeqGram().fit(frame)
    day = np.datetime64("2024-05-01", "D")
    for times in (
        [1.5, 2.0],
        ["2024-05-01", "2024-05-02"],
        [1, None],
        np.asarray([day, np.datetime64("NaT", "D")]),
    ):
        with pytest.raises(DataError, match="times must be whole numbers or dates"):
            rs.SeqGram().fit({"user": ["a", "a"], "item": ["b", "c"], "time": times})
    with pytest.raises(ConfigError, match="columns has 'place'"):
        rs.Gram().fit(RECORDS, columns={"place": "x"})
