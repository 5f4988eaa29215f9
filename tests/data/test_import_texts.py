"""Short texts of large files get the numbers that a plain dictionary gives them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv, parquet

from rescind.data import import_columns, import_kernels, import_order, import_texts
from rescind.data.import_texts import Texts

# Those that differ in one end, in the middle, in length, and in bytes that count as nothing.
SHORT = st.one_of(
    st.text("ab\0", max_size=16),
    st.integers(0, 50).map("user-{:011}".format),
    st.integers(0, 50).map("{:07}z".format),
    st.sampled_from(["", "é", "éééééééé", "12345678", "123456789", "1234567812345678"]),
)


def numbered(parts):
    """Number by a dictionary."""
    known = {}
    return [known.setdefault(text, len(known)) for part in parts for text in part], list(known)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(SHORT, max_size=60), min_size=1, max_size=5), st.integers(0, 3))
def test_numbers_are_those_of_a_dictionary(lists, before):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_texts, "_SLOTS", 4)  # the table grows
        texts = Texts()
        for upto in range(len(lists)):
            part = pa.array(["?"] * before + lists[upto], pa.string()).slice(before)
            column = texts.dictionary([part])
            numbers, distinct = numbered(lists[: upto + 1])
            assert column.dictionary.to_pylist() == distinct
            here = len(numbers) - len(lists[upto])
            assert column.indices.to_pylist() == numbers[here:]


def test_a_long_text_is_left_to_arrow():
    texts = Texts()
    assert texts.dictionary([pa.array(["a", "b" * 16])]) is not None
    assert texts.dictionary([pa.array(["c", "b" * 17])]) is None
    assert texts.dictionary([pa.array(["a"])]) is None  # "c" has a number that nobody was told


def colliding(seed, slots, how_many):
    """Return texts that all begin at the same place of a table."""
    found = []
    for n in range(slots * how_many * 2):
        table = np.zeros((slots, 3), dtype=np.uint64)
        letters = np.frombuffer(f"{n:08}".encode(), dtype=np.uint8)
        rows = np.zeros(1, dtype=np.int32)
        ends = np.array([0, 8], dtype=np.int32)
        import_kernels.number_texts(letters, ends, 0, seed, table, 0, 0, rows, rows.copy())
        found += [f"{n:08}"] if table[7, 2] else []
        if len(found) == how_many:
            return found
    raise AssertionError("no texts")


def test_texts_made_to_collide_are_left_to_arrow_unless_they_miss_the_seed(monkeypatch):
    slots, many = 256, import_kernels._MOST_STEPS + 2
    monkeypatch.setattr(import_texts, "_SLOTS", slots)
    seed = np.uint64(12345)
    made = pa.array(colliding(seed, slots, many))
    for given_seed, number_of in ((seed, None), (np.uint64(54321), many)):
        texts = Texts()
        texts._seed = given_seed
        column = texts.dictionary([made])
        assert (column and len(column.dictionary)) == number_of


def test_two_tables_do_not_begin_alike():
    assert Texts()._seed != Texts()._seed


@pytest.mark.parametrize("long", [16, 17])
def test_a_dictionary_is_read_whole_before_its_texts_are_repeated(tmp_path, long):
    """The long text stands in the last of many rows, and is repeated there."""
    rows = 50_000
    column = [f"u{n % 500}" for n in range(rows)] + ["x" * long] * rows
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"user": column, "item": column}), path, row_group_size=2 * rows)
    file = parquet.ParquetFile(path, read_dictionary=["user", "item"])
    assert import_columns._is_short(file, ["user", "item"]) == (long == 16)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("long", [0, 20])
def test_large_files_give_what_small_ones_give(tmp_path, monkeypatch, kind, long):
    rows = 3000
    user = [f"u{n * 7 % 611}" for n in range(rows)]
    item = [f"i{n * n % 997}" for n in range(rows - 1)] + ["j" * max(2, long)]
    path = tmp_path / f"rows.{kind}"
    table = pa.table({"user": user, "item": item})
    if kind == "csv":
        csv.write_csv(table, path, csv.WriteOptions(quoting_style="none"))
    else:
        parquet.write_table(table, path, row_group_size=700)
    wanted = import_columns.Wanted({"user": 0, "item": 1}, True, "s")

    def read():
        if kind == "csv":
            first = ["user", "item"]
            return import_columns.plain_text(path, ",", True, first, True, 10**6, wanted)
        return import_columns.plain_parquet(path, ["user", "item"], 10**6, wanted)

    small = read()
    monkeypatch.setattr(import_order, "MANY", 2)
    monkeypatch.setattr(import_columns, "_BLOCK", 4096)
    monkeypatch.setattr(import_columns, "_ROWS", 256)
    monkeypatch.setattr(import_columns, "_TOGETHER", 1000)
    asked = []
    monkeypatch.setattr(
        import_columns.Texts, "dictionary",
        lambda self, parts, ask=Texts.dictionary: asked.append(1) or ask(self, parts),
    )  # fmt: skip
    large = read()
    assert asked or (kind == "parquet" and long)  # there its repeated texts stay a dictionary
    assert small.users == large.users
    assert small.items == large.items
    for role, column in small.rows.items():
        assert (column == large.rows[role]).all()
