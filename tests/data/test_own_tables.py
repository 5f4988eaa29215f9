"""Files and frames of strangers: empty columns, bad rows, titles, and frames of several kinds."""

from __future__ import annotations

import shlex
import shutil
import sys

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
    assert told == [f"column '{empty}' is empty in all 2 rows: taken as absent"]


def test_a_partly_empty_column_names_how_many_and_offers_what_to_do(save):
    path = save("user,item,rating,time\n1,2,5,10\n1,3,,11\n2,3,,12\n2,4,1,13\n")
    with pytest.raises(DataError) as refused:
        rs.import_file(path, "mine")
    text = str(refused.value)
    assert "line 3, column 3 ('rating'): ''" in text
    assert "column 'rating': 2 cells: the cell is empty" in text
    assert "to import the other 2 of 4 rows" in text
    assert "drop_bad_rows=True" in text
    assert "ignore=['rating']" in text
    assert rs.import_file(path, "without", ignore=["rating"]).rating is None
    told: list[str] = []
    data = rs.import_file(path, "dropped", drop_bad_rows=True, tell=told.append)
    assert data.rating.tolist() == [5, 1]
    assert "dropped 2 of 4 rows" in told[0]
    assert "column 'rating': 2 cells" in told[0]
    assert "line 3" not in told[0], "they were listed when the file was refused"


@pytest.mark.parametrize("kind", ["csv", "parquet", "dates", "polars", "arrow", "pandas", "dict"])
@pytest.mark.parametrize("column", ["timestamp", "rating"])
def test_every_way_in_names_how_many_cells_are_empty_and_both_ways_out(tmp_path, kind, column):
    pandas = pytest.importorskip("pandas")
    values = [1500, None, 1502, None, 1504]
    table = pa.table({"user": list("aabbc"), "item": list("vwvwv"), column: values})
    if kind == "dates":  # of pandas: NaT
        seen = pandas.to_datetime(pandas.Series(values), unit="s")
        if column == "rating":
            pytest.skip("ratings are no dates")
        table = pa.table(table.to_pandas().assign(**{column: seen}))
    frames = {
        "polars": lambda: polars.from_arrow(table),
        "arrow": lambda: table,
        "pandas": table.to_pandas,
        "dict": table.to_pydict,
    }
    path = tmp_path / ("a.csv" if kind == "csv" else "a.parquet")

    def read(name, **settings):
        if kind in frames:
            return rs.from_frame(frames[kind](), name, **settings)
        if kind == "csv":
            table.to_pandas().to_csv(path, index=False)
        else:
            pq.write_table(table, path)
        return rs.import_file(path, name, **settings)

    with pytest.raises(DataError) as refused:
        read("mine")
    last = str(refused.value).splitlines()[-2:]
    assert last[0].strip() == f"column '{column}': 2 cells: the cell is empty"
    assert "pass drop_bad_rows=True to import" in last[1]
    assert "the other 3 of 5 rows" in last[1]
    assert f"out with ignore=['{column}']." in last[1]
    assert "--" not in str(refused.value), "options are of the command line"
    assert len(read("dropped", drop_bad_rows=True, tell=lambda _: None)) == 3
    without = read("without", ignore=[column])
    assert (len(without), without.has_time, without.rating) == (5, False, None)


def test_the_command_takes_both_ways_out_as_it_writes_them(tmp_path, save):
    from typer.testing import CliRunner

    from rescind.cli.data import app

    def ask(*words):
        done = CliRunner().invoke(app, ["import", *words, "--name", "mine"])
        return done.exit_code, str(done.exception)

    path = str(save("1,2,5,10\n1,3,4,\n2,3,4,12\n", "plain.csv"))
    named = str(save('who,what,"seen at"\n1,2,10\n1,3,\n2,3,12\n', "named.csv"))
    roles = ["--user", "who", "--item", "what", "--time", "seen at"]
    for words, out in (
        ([path, "--no-header"], "--ignore 4"),
        ([named, *roles], "--ignore 'seen at'"),
    ):
        code, told = ask(*words)
        assert code == 1, "main makes it 2"
        assert f"column out with {out}." in told
        assert "pass --drop-bad-rows to import" in told
        assert ask(*words, *shlex.split(out))[0] == 0
        assert (len(load("mine")), load("mine").has_time) == (3, False)
        assert ask(*words, "--drop-bad-rows", "--replace")[0] == 0
        assert (len(load("mine")), load("mine").has_time) == (2, True)
        shutil.rmtree(tmp_path / "cache")


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_a_split_of_numbers_is_told_because_they_may_be_folds(tmp_path, save, kind):
    def told_of(split: list[object], name: str) -> str:
        told: list[str] = []
        table = pa.table({"user": [1, 1, 2], "item": [3, 4, 4], "split": split})
        if kind == "frame":
            rs.from_frame(table, tell=told.append)
            return " ".join(told)
        path = tmp_path / "a.parquet"
        if kind == "csv":
            path = save(f"user,item,split\n1,3,{split[0]}\n1,4,{split[1]}\n2,4,{split[2]}\n")
        else:
            pq.write_table(table, path)
        assert rs.import_file(path, name, tell=told.append).split is not None
        return " ".join(told)

    told = told_of([0, 1, 2], "numbers")
    assert "column 'split' was read as the split: 0 is train, 1 is valid, 2 is test." in told
    assert "If the numbers are folds, pass ignore=['split']" in told
    assert told_of(["train", "valid", "test"], "words") == "", "control"


def test_a_column_of_users_cannot_be_ignored(save):
    path = save("who,item\n1,2\n1,3\n")
    with pytest.raises(ConfigError, match="'who' is the user: it cannot be ignored"):
        rs.import_file(path, "mine", columns={"user": "who"}, ignore=["who"])


def test_ids_of_dropped_rows_alone_do_not_stay(save):
    path = save("user,item,rating\n1,2,5\nghost,secret,x\n1,3,4\n")
    data = rs.import_file(path, "mine", drop_bad_rows=True, tell=lambda _: None)
    assert (data.users.tolist(), data.items.tolist()) == (["1"], ["2", "3"])


@pytest.mark.parametrize("more", [0, 1, 7])
def test_rows_of_another_width_are_counted_and_the_message_says_that_none_is_dropped(
    save, monkeypatch, more
):
    monkeypatch.setattr("rescind.data.import_tables.BATCH", 3)
    good = "".join(f"u,{n},4\n" for n in range(5))
    path = save("user,item,rating\n" + good + "u,7\n" + (good + "u,a, b,4\n\n") * more + good)
    for settings in ({}, {"drop_bad_rows": True}):
        with pytest.raises(DataError) as refused:
            rs.import_file(path, "mine", **settings)
        text = str(refused.value)
        assert "line 7, column 3: 2 cells, 3 are expected (user, item, rating)." in text
        assert (f" {1 + more} rows are of another width." in text) == (more > 0)
        assert "Mend the file: a quote or a separator is missing there" in text
        told = (
            "drop_bad_rows=True drops rows with an invalid cell, but none of another width." in text
        )
        assert told == bool(settings), "control: who did not ask to drop rows is not told"


def test_rows_of_another_width_are_counted_as_far_as_the_file_can_be_read(save, monkeypatch):
    monkeypatch.setattr("rescind.data.import_tables.BATCH", 3)
    wide = "u,7\n" + "u,8,4\n" * 30
    with pytest.raises(DataError, match=r"line 2, column 3: 2 cells, .* 2 rows or more are of"):
        rs.import_file(save("user,item,rating\n" + wide * 2 + 'u,"9,4\n'), "mine")
    monkeypatch.setattr("rescind.data.import_tables._COUNTED", 40)
    with pytest.raises(DataError, match=r"line 2, column 3: 2 cells, .* 2 rows or more are of"):
        rs.import_file(save("user,item,rating\n" + wide * 5), "mine")
    with pytest.raises(DataError, match="2 rows are of another width"):
        rs.import_file(save("user,item,rating\n" + wide + "u,7\n"), "mine")


def test_a_table_of_items_with_a_row_of_another_width_speaks_of_no_rows_to_drop(save):
    rows, table = save("user,item\n1,x\n2,y\n"), save("id,title\nx,Up\ny\n", "films.csv")
    with pytest.raises(DataError, match=r"films.csv, line 3, column 2: 1 cells, 2 are") as refused:
        rs.import_file(rows, "mine", items=table, drop_bad_rows=True)
    assert "drop" not in str(refused.value)


def test_all_bad_cells_are_counted_and_the_first_of_each_kind_shown(save):
    rows = "".join(f"1,{n},{'x' if n % 2 else 3}\n" for n in range(100)) + "-4,7,y\n"
    with pytest.raises(DataError) as refused:
        rs.import_file(save("user,item,rating\n" + rows), "mine")
    lines = str(refused.value).splitlines()
    assert [line.split(", ")[1] for line in lines[:4]] == ["line 3", "line 5", "line 7", "line 102"]
    assert all("is not a valid" in line for line in lines[:4])
    assert "... and 48 more" in lines[4]
    assert "'rating': 51 cells: a rating must be a number" in lines[5]
    assert "'user': 1 cell: a numeric id must not have a sign" in lines[6]
    assert len(lines) == 8, "and what to do"


def test_a_rating_with_a_decimal_comma_is_told_how_to_write_it(save):
    for cell, told in (('"5,5"', True), ("five", False)):
        with pytest.raises(DataError, match="a rating must be a number") as refused:
            rs.import_file(save(f"user,item,rating\n1,2,4\n1,3,{cell}\n"), "mine")
        assert (", with a decimal point: 5.5, not 5,5" in str(refused.value)) is told


@pytest.mark.parametrize("name", ["a.xlsx", "a.XLS", "a.ods"])
def test_a_spreadsheet_is_answered_with_how_to_save_it(save, name):
    with pytest.raises(DataError, match=r"is a spreadsheet.*save it as CSV UTF-8"):
        rs.import_file(save("PK", name), "mine")
    with pytest.raises(DataError, match=r"extension '.jsn' is not supported.*convert the file"):
        rs.import_file(save("PK", "a.jsn"), "mine")


def test_a_column_to_ignore_must_be_there(save):
    with pytest.raises(ConfigError, match="no column 'ratng' to ignore; did you mean 'rating'"):
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
    assert line.startswith(f"not used of {table}: columns track_title, year. A column is read as ")
    assert "item names with columns={'title': 'track_title'}" in line
    assert "times" not in line, "a table of items has none"
    told.clear()
    named = {"title": "track_title", "genres": "genre,mood"}
    both = rs.import_file(rows, "named", columns=named, **quiet, ignore=["year"])
    assert told == [], "each column is used, or known"
    assert both.titles.tolist() == ["Up", "Down"]
    assert both.genres.tolist() == ["sad|pop", "fun|jazz"], "words of both files"
    later = save("user,item,mood\n3,x,sad\n", "later.csv")
    assert append_file("named", later).rows == 1, "what was asked of the items is not asked of it"
    with pytest.raises(
        DataError, match=r"no column 'name' for the title.* user, item, mood; those"
    ):
        rs.import_file(rows, "third", columns={"title": "name"}, **quiet)
    with pytest.raises(ConfigError, match="no column 'yaer' to ignore; did you mean 'year'"):
        rs.import_file(rows, "third", ignore=["yaer"], **quiet)


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
    assert line.startswith("2 users of this file count as new, and an id here differs in capitals")
    assert "rescind data erase shop --user 17, and append" in line
    assert "('17' is the first of them)" in line


def test_a_title_that_is_named_counts_before_one_that_has_a_usual_name_in_the_other_file(save):
    rows = save("user,item,track\n1,x,Up\n2,y,Down\n")
    table = save("item,title,genre\nx,A,pop\ny,B,jazz\n", "items.csv")
    usual = rs.import_file(rows, "usual", items=table, tell=lambda _: None)
    assert usual.titles.tolist() == ["A", "B"], "control"
    told: list[str] = []
    named = rs.import_file(rows, "named", columns={"title": "track"}, items=table, tell=told.append)
    assert (named.titles.tolist(), named.genres.tolist()) == (["Up", "Down"], ["pop", "jazz"])
    assert told == [f"not used of {table}: column title. ignore=['COLUMN'] says that you know"]


def test_the_column_of_ids_in_a_table_of_items_may_be_named(save):
    table = save(TRACKS.replace("item_id", "track"), "a.item")
    for place, rows in enumerate(("user,track\n1,x\n2,y\n", "user,item\n1,x\n2,y\n")):
        told: list[str] = []
        data = rs.import_file(
            save(rows), f"data{place}", columns={"item": "track"}, items=table, tell=told.append
        )
        assert data.genres.tolist() == ["pop", "jazz"]
        assert "not in" not in " ".join(told)
    with pytest.raises(DataError, match=r"The columns are track, .* Name others with columns="):
        rs.import_file(save("user,item\n1,x\n2,y\n"), "third", items=table)


def test_the_title_of_a_review_is_no_title_of_an_item(save):
    path = save("user,item,title\n1,x,my secret review\n2,x,good\n2,y,bad\n")
    told: list[str] = []
    assert rs.import_file(path, "mine", tell=told.append).titles is None
    assert told == ["column 'title' differs between rows of one item: not read as a fact about it"]
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


def test_a_kept_row_that_differs_still_counts_beside_dropped_ones(save):
    told: list[str] = []
    path = save(BAD_FIRST + "c,p,Other,R,2\n")
    data = rs.import_file(path, "mine", drop_bad_rows=True, tell=told.append)
    assert data.titles is None
    assert data.genres.tolist() == ["R", ""], "no kept row differs in this column"
    assert [line for line in told if "differs" in line] == [
        "column 'title' differs between rows of one item: not read as a fact about it"
    ]


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


def test_without_pandas_a_frame_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DataError, match=r"pip install pandas\), or use to_frame\('arrow'\)"):
        rs.from_frame(ROWS).to_frame()
    assert rs.from_frame(ROWS).to_frame("arrow").num_rows, "the control"


def test_advice_about_a_frame_names_arguments_of_python():
    said: list[str] = []
    wrong = {
        "columns={'user': 'COLUMN'}.": ({"who": [1, 2], "item": [5, 6]}, {}),
        "text_ids=True": ({"user": [-1, 2], "item": [5, 6]}, {}),
        "time_unit='ms'": ({"user": [1, 2], "item": [5, 6], "time": [15 * 10**11, 1]}, {}),
        "replace=True": (ROWS, {"name": "taken", "keep": True}),
    }
    rs.from_frame({"user": [1, 2], "item": [5, 6], "label": [7, 8]}, "taken", keep=True,
                  tell=said.append)  # fmt: skip
    assert "times with columns={'time': 'COLUMN'}" in said[0]
    for argument, (frame, settings) in wrong.items():
        with pytest.raises((DataError, ConfigError)) as refused:
            rs.from_frame(frame, **settings)
        said.append(str(refused.value))
        assert argument in said[-1]
    assert "--" not in "".join(said), "options are of the command line"


def test_the_row_numbers_of_a_filtered_frame_are_no_column():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": list("aab"), "item": list("xyx"), "note": list("pqr")})
    said: list[str] = []
    made = rs.from_frame(frame[frame.item == "x"], tell=said.append)
    assert len(made) == 2
    assert said[0].startswith("not used: column note."), "and no index"
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
    assert f"2 items of {table} have no rows: they are not in this dataset" in told[0]
    assert f"rescind serve --import mine --items {table} has all of them" in told[0]


def test_ids_that_pandas_made_fractions_because_one_is_missing_are_whole() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"user_id": [1, 1, 2, None, 3], "item_id": [5, 6, 5, 7, 6]})
    assert frame["user_id"].dtype == float
    with pytest.raises(DataError, match="row index 3"):
        rs.from_frame(frame)
    data = rs.from_frame(frame, drop_bad_rows=True)
    assert list(data.users) == ["1", "2", "3"]
    frame["user_id"] = [1.5, 1, 2, None, 3]
    with pytest.raises(DataError, match="must not be a fraction"):  # the control
        rs.from_frame(frame)
