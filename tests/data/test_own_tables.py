"""Files and frames of strangers: empty columns, bad rows, titles, and frames of several kinds."""

from __future__ import annotations

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse

import rescind as rs
from rescind.data import load
from rescind.data.importing import append_file
from rescind.errors import ConfigError, DataError

ROWS = {"user_id": ["a", "b", "a"], "item_id": [1, 2, 2], "timestamp": [1500, 1501, 1503]}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def save(tmp_path):
    def write(text: str, name: str = "a.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.mark.parametrize("empty", ["timestamp", "rating"])
@pytest.mark.parametrize("kind", ["null", "nan", "csv"])
def test_a_column_without_any_value_is_absent_and_one_line_says_so(tmp_path, save, empty, kind):
    told: list[str] = []
    if kind == "csv":
        path = save(f"user,item,{empty}\n1,2,\n1,3,nan\n")
    else:
        cells = pa.nulls(2, pa.float64()) if kind == "null" else pa.array([np.nan, np.nan])
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"user": [1, 1], "item": [2, 3], empty: cells}), path)
    data = rs.import_file(path, "mine", tell=told.append)
    assert (data.rating, data.has_time) == (None, False)
    assert told == [f"without any value, so taken as absent: '{empty}'"]


def test_bad_cells_are_counted_by_kind_and_rows_of_another_width_are_never_dropped(save):
    path = save("user,item,rating,time\n1,2,5,10\n1,3,,11\n2,3,,12\n2,4,1,13\n")
    with pytest.raises(DataError) as refused:
        rs.import_file(path, "mine")
    text = str(refused.value)
    assert "line 3, column 3 ('rating'): ''" in text
    assert "the cell is empty (2 such cells)" in text
    assert "the other 2 of 4 rows with --drop-bad-rows" in text
    assert rs.import_file(path, "without", ignore=["rating"]).rating is None
    told: list[str] = []
    data = rs.import_file(path, "dropped", drop_bad_rows=True, tell=told.append)
    assert data.rating.tolist() == [5, 1]
    assert "dropped 2 of 4 rows" in told[0]
    wide = save("user,item,rating\nu,1,2\nu,7\nu,2,2\n", "wide.csv")
    with pytest.raises(DataError, match=r"line 3, column 3: 2 cells, 3 are expected"):
        rs.import_file(wide, "wide", drop_bad_rows=True)


def test_a_column_to_ignore_must_be_there(save):
    with pytest.raises(ConfigError, match="no column 'ratng'; the columns are user, item, rating"):
        rs.import_file(save("user,item,rating\n1,2,3\n"), "mine", ignore=["ratng"])


def test_titles_and_words_come_with_the_rows_or_from_a_table_of_items(save):
    path = save("user,item,title,brand,genre\n1,x,Up,Pixar,fun\n2,x,Up,Pixar,fun\n2,y,Heat,,\n")
    data = rs.import_file(path, "mine")
    assert data.titles.tolist() == ["Up", "Heat"]
    assert data.genres.tolist() == ["Pixar|fun", ""]
    assert load("mine").titles.tolist() == ["Up", "Heat"]
    table = save("item_id:token\tmovie_title:token_seq\tclass:token_seq\nx\tUp!\tsad\n", "a.item")
    told: list[str] = []
    plain = save("user,item\n1,x\n2,y\n", "b.csv")
    again = rs.import_file(plain, "other", items=table, tell=told.append)
    assert (again.titles.tolist(), again.genres.tolist()) == (["Up!", ""], ["sad", ""])
    assert "1 of 2 items are not in" in told[0]
    assert "no rows" not in " ".join(told), "each item of the table has some"
    served = save("id,title\nx,Up\ny,Heat\n", "films.csv")  # as `rescind serve --items` takes it
    assert rs.import_file(plain, "served", items=served).titles.tolist() == ["Up", "Heat"]
    with pytest.raises(DataError, match="a table about items needs a column of their ids"):
        rs.import_file(plain, "third", items=plain)


TRACKS = (
    "item_id:token\ttrack_title:token_seq\tgenre:token_seq\tyear:float\n"
    "x\tUp\tpop\t1999\ny\tDown\tjazz\t2001\n"
)


def test_columns_of_a_table_of_items_are_named_and_told_as_those_of_the_rows(save):
    rows, table = save("user,item,mood\n1,x,sad\n2,y,fun\n"), save(TRACKS, "a.item")
    told: list[str] = []
    quiet = {"items": table, "tell": told.append}
    plain = rs.import_file(rows, "plain", **quiet, ignore=["mood"])
    assert (plain.titles, plain.genres.tolist()) == (None, ["pop", "jazz"])
    [line] = told
    assert line.startswith(f"not used of {table}: track_title, year. Name a column with ")
    told.clear()
    named = {"title": "track_title", "genres": "genre,mood"}
    both = rs.import_file(rows, "named", columns=named, **quiet, ignore=["year"])
    assert told == [], "each column is used, or known"
    assert both.titles.tolist() == ["Up", "Down"]
    assert both.genres.tolist() == ["sad|pop", "fun|jazz"], "words of both files"
    later = save("user,item,mood\n3,x,sad\n", "later.csv")
    assert append_file("named", later).rows == 1, "what was asked of the items is not asked of it"
    with pytest.raises(ConfigError, match=r"no column 'name'; the columns are user, .* year"):
        rs.import_file(rows, "third", columns={"title": "name"}, **quiet)


def test_new_users_whose_ids_seem_to_have_lost_something_are_told(save):
    """As of a table that was saved by a spreadsheet: 00017 is 17 there."""
    rs.import_file(save("user,item\n00017,x\nK-03,y\n"), "shop", tell=lambda _: None)
    told: list[str] = []
    rows = save("user,item\n00017,y\nK-04,x\n", "good.csv")
    assert append_file("shop", rows, tell=told.append).rows == 2
    assert told == [], "control: one known user, and one who is new indeed"
    rows = save("user,item\n17,x\nk-03 ,x\nK-05,x\n", "worn.csv")
    assert append_file("shop", rows, tell=told.append).rows == 3
    (line,) = told
    assert line.startswith("2 users count as new, such as '17', and an id here differs in capitals")
    assert "--data shop --user 17, then append" in line


def test_a_title_that_is_named_counts_before_one_that_has_a_usual_name_in_the_other_file(save):
    rows = save("user,item,track\n1,x,Up\n2,y,Down\n")
    table = save("item,title,genre\nx,A,pop\ny,B,jazz\n", "items.csv")
    usual = rs.import_file(rows, "usual", items=table, tell=lambda _: None)
    assert usual.titles.tolist() == ["A", "B"], "control"
    told: list[str] = []
    named = rs.import_file(rows, "named", columns={"title": "track"}, items=table, tell=told.append)
    assert (named.titles.tolist(), named.genres.tolist()) == (["Up", "Down"], ["pop", "jazz"])
    [line] = told
    assert line.startswith(f"not used of {table}: title. ")


def test_the_column_of_ids_in_a_table_of_items_may_be_named(save):
    table = save(TRACKS.replace("item_id", "track"), "a.item")
    for place, rows in enumerate(("user,track\n1,x\n2,y\n", "user,item\n1,x\n2,y\n")):
        told: list[str] = []
        data = rs.import_file(
            save(rows), f"data{place}", columns={"item": "track"}, items=table, tell=told.append
        )
        assert data.genres.tolist() == ["pop", "jazz"]
        assert "not in" not in " ".join(told)
    with pytest.raises(DataError, match=r"there are track, .* Name them with --item"):
        rs.import_file(save("user,item\n1,x\n2,y\n"), "third", items=table)


def test_the_title_of_a_review_is_no_title_of_an_item(save):
    path = save("user,item,title\n1,x,my secret review\n2,x,good\n2,y,bad\n")
    told: list[str] = []
    assert rs.import_file(path, "mine", tell=told.append).titles is None
    assert told == ["'title' differs between rows of one item: not read as a fact about it"]
    named = rs.import_file(path, "named", columns={"title": "title"})
    assert named.titles.tolist() == ["my secret review", "bad"], "control: it can be asked for"


BAD_FIRST = (
    "user,item,title,brand,rating\na,p,WRONG,W,five\na,p,Right,R,5\nb,p,Right,R,4\nb,q,Q,,3\n"
)


@pytest.mark.parametrize("named", [{}, {"title": "title", "genres": "brand"}])
@pytest.mark.parametrize("kind", ["csv", "parquet", "frame", "append"])
def test_a_dropped_row_says_nothing_about_its_item(tmp_path, save, kind, named):
    told: list[str] = []
    path = save(BAD_FIRST)
    settings = {"columns": named, "drop_bad_rows": True, "tell": told.append}
    cells = [line.split(",") for line in BAD_FIRST.splitlines()]
    frame = pa.table(dict(zip(cells[0], zip(*cells[1:], strict=True), strict=True)))
    if kind == "frame":
        data = rs.from_frame(frame, **settings)
    elif kind == "append":
        rs.import_file(save("user,item,rating\nc,r,1\nc,s,2\n", "first.csv"), "mine")
        data = append_file("mine", path, **settings).dataset
    else:
        if kind == "parquet":
            path = tmp_path / "a.parquet"
            pq.write_table(frame, path)
        data = rs.import_file(path, "mine", **settings)
    titles = dict(zip(data.items.tolist(), data.titles.tolist(), strict=True))
    words = dict(zip(data.items.tolist(), data.genres.tolist(), strict=True))
    assert (titles["p"], titles["q"]) == ("Right", "Q")
    assert (words["p"], words["q"]) == ("R", "")
    assert len(told) == 1
    assert "dropped 1 of 4 rows" in told[0]


def test_dropped_rows_are_known_in_every_batch_and_where_cells_have_several_lines(
    save, monkeypatch
):
    monkeypatch.setattr("rescind.data.import_tables.BATCH", 3)
    lines = [
        f'u{n},i{n % 4},"{title}\nof {n % 4}",{rating}'
        for n in range(40)
        for title, rating in [("Title", n) if n % 5 else ("WRONG", "x")]
    ]
    path = save("user,item,title,rating\n\n" + "\n".join(lines) + "\n")
    data = rs.import_file(path, "mine", drop_bad_rows=True, tell=lambda _: None)
    assert len(data) == 32
    assert sorted(data.titles.tolist()) == [f"Title of {n}" for n in range(4)]


def test_frames_of_all_kinds_give_the_same_data_as_a_file(save):
    pandas = pytest.importorskip("pandas")
    lines = "\n".join(",".join(map(str, row)) for row in zip(*ROWS.values(), strict=True))
    file = rs.import_file(save(",".join(ROWS) + "\n" + lines + "\n"), "mine")
    coded = pandas.DataFrame(ROWS).astype({"user_id": "category"})
    for frame in (pandas.DataFrame(ROWS), coded, polars.DataFrame(ROWS), pa.table(ROWS), ROWS):
        assert rs.from_frame(frame, "mine").digest == file.digest
    for kind in ("pandas", "polars", "arrow"):
        assert rs.from_frame(file.to_frame(kind)).digest == file.digest
    assert rs.from_frame(pa.table({**ROWS, "item_id": [1, 2, 3]})).digest != file.digest


def test_a_matrix_has_users_as_rows_and_values_other_than_one_are_ratings():
    matrix = scipy.sparse.csr_matrix([[0, 1, 0], [1, 0, 1]])
    data = rs.from_frame(matrix)
    assert (data.rating, data.users[data.user].tolist()) == (None, ["0", "1", "1"])
    assert data.items[data.item].tolist() == ["1", "0", "2"]
    assert rs.from_frame(matrix * 3).rating.tolist() == [3, 3, 3]


def test_a_frame_is_refused_as_a_file_is():
    with pytest.raises(DataError, match="row index 1, column 2 \\('item'\\): ''"):
        rs.from_frame({"user": [1, 2, 3], "item": [5, None, 6]})
    with pytest.raises(DataError, match="object of type int"):
        rs.from_frame(7)
    with pytest.raises(DataError, match="kind is 'R'"):
        rs.from_frame(ROWS).to_frame("R")


def test_the_row_numbers_of_a_filtered_frame_are_no_column():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": list("aab"), "item": list("xyx"), "note": list("pqr")})
    said: list[str] = []
    made = rs.from_frame(frame[frame.item == "x"], tell=said.append)
    assert len(made) == 2
    assert said[0].startswith("not used of the frame: note."), "and no index"
    named = frame.set_index("user")
    assert rs.from_frame(named, tell=said.append).users.tolist() == ["a", "b"], "a name is data"


def test_a_frame_that_is_kept_is_found_by_its_name():
    data = rs.from_frame(ROWS, "kept", keep=True)
    assert load("kept").digest == data.digest
    with pytest.raises(ConfigError, match="already exists"):
        rs.from_frame(ROWS, "kept", keep=True)


def test_items_of_a_table_that_have_no_rows_are_told(save):
    rows = save("user,item\n1,x\n2,y\n")
    table = save("id,title\nx,Up\ny,Heat\nz,Alien\nw,\n", "films.csv")
    told: list[str] = []
    assert rs.import_file(rows, "mine", items=table, tell=told.append).size["items"] == 2
    assert len(told) == 1
    assert f"2 items of {table} without rows" in told[0]


def test_ids_that_pandas_made_fractions_because_one_is_missing_are_whole() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"user_id": [1, 1, 2, None, 3], "item_id": [5, 6, 5, 7, 6]})
    assert frame["user_id"].dtype == float
    with pytest.raises(DataError, match="row index 3"):
        rs.from_frame(frame)
    data = rs.from_frame(frame, drop_bad_rows=True)
    assert list(data.users) == ["1", "2", "3"]
    frame["user_id"] = [1.5, 1, 2, None, 3]
    with pytest.raises(DataError, match="whole number"):  # the control
        rs.from_frame(frame)
