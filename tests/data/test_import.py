"""Importing files: formats, original ids, and invalid files."""

import re
import subprocess
import sys
import textwrap
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rescind as rs
from rescind.core import records
from rescind.data import (
    describe,
    import_cells,
    import_columns,
    import_facts,
    import_file,
    import_order,
    import_reading,
    load,
    names,
)
from rescind.data.blocklist import Blocklist
from rescind.data.import_columns import Wanted
from rescind.data.import_tables import open_table
from rescind.data.importing import imported_folder
from rescind.errors import ConfigError, DataError, RescindError

GOOD = "user,item,rating,time\nanna,B2,4.5,1500000000\nbob,B1,3,1400000000\nanna,B1,5,1300000000\n"


@pytest.fixture
def save(tmp_path):
    """Return a function that writes a file and returns its path."""

    def make(content, name="mine.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def as_rows(data):
    return sorted(zip(data.users[data.user], data.items[data.item], data.time, strict=True))


EXPECTED = [("anna", "B1", 1300000000), ("anna", "B2", 1500000000), ("bob", "B1", 1400000000)]


def test_what_was_imported_can_be_run_whatever_its_ratings():
    assert import_cells._LARGEST_RATING == records.LARGEST_RATING


def test_a_csv_file_with_text_ids_comes_back_with_them(save):
    data = import_file(save(GOOD), "mine", terms="ours")
    assert as_rows(data) == EXPECTED
    again = load("mine")
    assert (again.digest, again.source, again.terms) == (data.digest, "imported", "ours")
    assert again.users.tolist() == ["anna", "bob"]
    assert again.rating.tolist() == [5.0, 4.5, 3.0]
    assert "mine" in names()
    assert describe("mine")["rows"] == 3


@pytest.mark.parametrize(
    ("content", "name", "settings"),
    [
        (GOOD.replace(",", "\t"), "a.tsv", {}),
        (GOOD.replace(",", ";"), "a.csv", {"separator": ";"}),
        (GOOD.replace("\n", "\r\n"), "a.csv", {}),
        ("\ufeff" + GOOD, "a.csv", {}),
        (GOOD + "\n\n", "a.csv", {}),
        (GOOD.replace("anna", '"anna"'), "a.csv", {}),
        (GOOD.replace("000000,", "000000, ").replace("B1,", " B1 ,"), "a.csv", {}),
        (GOOD.replace("00000\n", "00000000\n"), "a.csv", {"time_unit": "ms"}),
        (GOOD.replace("00000\n", "00000000000000\n"), "a.csv", {"time_unit": "ns"}),
        (GOOD.replace("1500000000", "2017-07-14T02:40:00"), "a.csv", {}),
        (
            GOOD.replace("1500000000", "14/07/2017 02:40:00")
            .replace("1400000000", "13/05/2014 16:53:20")
            .replace("1300000000", "13/03/2011 07:06:40"),
            "a.csv",
            {"time_unit": "%d/%m/%Y %H:%M:%S"},
        ),
        (GOOD.replace("1500000000", "1500000000.0"), "a.csv", {}),
        (GOOD.split("\n", 1)[1], "a.csv", {"header": False}),
        (
            GOOD.replace(",", "\t").replace(
                "user\titem\trating\ttime",
                "user_id:token\titem_id:token\trating:float\ttimestamp:float",
            ),
            "a.inter",
            {},
        ),
        (
            GOOD.replace("user,item,rating,time", "who,what,how,when"),
            "a.csv",
            {"columns": {"user": "who", "item": "what", "rating": "how", "time": "when"}},
        ),
    ],
)
def test_forms_of_the_same_file_give_the_same_data(save, content, name, settings):
    plain = import_file(save(GOOD, "plain.csv"), "plain")
    assert import_file(save(content, name), "other", **settings).digest == plain.digest


def test_ratings_and_times_may_be_missing_and_a_split_may_be_given(save):
    data = import_file(save("user,item,split\n1,2,train\n1,3,test\n2,2,valid\n"), "mine")
    assert (data.rating, data.has_time) == (None, False)
    assert load("mine").split.tolist() == [0, 2, 1]


def table(*lines):
    return "user,item,rating,time\n" + "".join(line + "\n" for line in lines)


BAD = {
    "empty file": ("", "line 1, column 1: the file is empty"),
    "only a header": (table(), "has 0 interactions"),
    "one row": (table("1,2,3,4"), "has 1 interactions"),
    "duplicate header": ("user,item,user\n1,2,3\n", "line 1, column 3: the header has 'user'"),
    "second header": (table("1,2,3,4", "user,item,rating,time"), "line 3, column 1: a second"),
    "NaN rating": (table("1,2,nan,4", "1,3,5,4"), "line 2, column 3 ('rating'): 'nan'"),
    "huge rating": (
        table("1,2,3,4", "1,3,1e10,4"),
        "line 3, column 3 ('rating'): '1e10' is not a valid rating: a rating must be a number "
        "from -1,000,000,000 to 1,000,000,000",
    ),
    "negative id": (table("1,2,3,4", "-7,2,3,4"), "line 3, column 1 ('user'): '-7'"),
    "huge id": (table(f"1,{2**63},3,4"), "line 2, column 2 ('item')"),
    "fraction as id": (table("1.0,2,3,4"), "line 2, column 1 ('user'): '1.0'"),
    "control character": (table("1,a\x1b[31m,3,4"), "control characters"),
    "milliseconds": (table("1,2,3,1500000000000"), "--time-unit says otherwise: ms"),
    "a fraction of nanoseconds": (table("1,2,3,1500000000000000000.5"), "line 2, column 4"),
    "a date in the future": (table("1,2,3,2999-05-06"), "not in the future"),
    "a date in a form of its own": (table("1,2,3,31/12/2024"), "such as %d/%m/%Y"),
    "NUL byte": (table("1,2,3,4", "1,\0,3,4"), "line 3, column 3: a NUL byte"),
    "not UTF-8": (b"user,item\n1,2\n1,\xff\n", "line 3, column 3: a byte that is not utf-8"),
    "too few cells": (table("1,2,3,4", "1,2"), "line 3, column 3: 2 cells, 4 are expected"),
    "open quote": (table('"1,2,3,4'), "quotes"),
    "old Mac line ends": (b"user,item\r1,2\r1,3\r", "line endings"),
    "no user column": ("a,item\n1,2\n", "no column for the user among: a, item"),
    "huge line": (b"x" * (2**20 + 10), "longer than"),
}


@pytest.mark.parametrize(("content", "place"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_named_with_its_place_and_not_imported(save, own_cache, content, place):
    path = save(content)
    with pytest.raises(DataError) as error:
        import_file(path, "mine")
    assert str(path) in str(error.value)
    assert place in str(error.value)
    assert not own_cache.exists()


def test_rows_in_another_order_are_another_dataset_with_the_same_sums():
    frame = rs.load("synthetic", users=60, items=30, interactions=900).to_frame()[["user", "item"]]
    one, other = (rs.from_frame(rows) for rows in (frame, frame[::-1]))
    assert one.digest != other.digest
    assert set(one.users) == set(other.users)

    def measured(method):
        feds = [rs.Federation.start(data, method).run(2) for data in (one, other)]
        return [fed.evaluate()["NDCG@20"] for fed in feds]

    first, second = measured(rs.methods.Gram())
    assert first == pytest.approx(second, abs=1e-9)
    first, second = measured(rs.methods.FedAvg())
    assert first != pytest.approx(second, abs=1e-3)


def test_bad_parquet_files(save, tmp_path, own_cache):
    cases = {
        "row 2, column 1 ('user')": {"user": [1, None], "item": [1, 2]},
        "row 1, column 1 ('user'): '1.5'": {"user": [1.5, 2.0], "item": [1, 2]},
        "row 2, column 3 ('rating'): 'nan'": {
            "user": [1, 2],
            "item": [1, 2],
            "rating": [1.0, np.nan],
        },
        "row 1, column 2 ('item'): '-3'": {"user": [1, 2], "item": [-3, 2]},
        "lists and structs": {"user": [[1], [2]], "item": [1, 2]},
        "has 0 interactions": {"user": pa.array([], pa.int64()), "item": pa.array([], pa.int64())},
    }
    for place, columns in cases.items():
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        with pytest.raises(DataError) as error:
            import_file(tmp_path / "a.parquet", "mine")
        assert place in str(error.value)
    with pytest.raises(DataError, match="not a Parquet file"):
        import_file(save("user,item\n", "b.parquet"), "mine")
    assert not own_cache.exists()


def test_text_ids_are_kept_as_written(save):
    ids = ["-7", str(2**70), "1.0", "null"]
    content = "user,item\n" + "".join(f"{name},1\n" for name in ids)
    assert import_file(save(content), "mine", text_ids=True).users.tolist() == ids


@pytest.mark.parametrize("name", ["../up", "A", "", "x" * 65, "ml-100k"])
def test_an_invalid_name_is_refused(save, name):
    with pytest.raises(ConfigError, match="name"):
        import_file(save(GOOD), name)


def test_an_import_is_not_overwritten_by_accident(save):
    import_file(save(GOOD), "mine")
    with pytest.raises(ConfigError, match=r"already exists.*--replace"):
        import_file(save(GOOD), "mine")
    other = GOOD.replace("anna", "carla")
    import_file(save(other), "mine", replace=True)
    assert load("mine").users.tolist() == ["carla", "bob"]


def test_a_file_that_is_missing_is_told_before_a_name_that_is_taken(save):
    import_file(save(GOOD), "mine")
    with pytest.raises(DataError, match=r"nowhere\.csv: there is no such file"):
        import_file("nowhere.csv", "mine")
    with pytest.raises(DataError, match=r"films\.csv: there is no such file"):
        import_file(save(GOOD), "mine", items="films.csv")
    with pytest.raises(DataError, match=r"^\.: there is no such file but a folder"):
        import_file(".", "mine")
    with pytest.raises(ConfigError, match="'mine' already exists"):
        import_file(save(GOOD), "mine")


def test_unknown_columns_and_extensions_are_refused(save):
    with pytest.raises(DataError, match=r"no column for the user among: user, item"):
        import_file(save(GOOD), "mine", columns={"user": "nobody"})
    with pytest.raises(DataError, match=r"no column for the user among: .*--separator"):
        import_file(save(GOOD.replace(",", ";")), "semicolons")
    with pytest.raises(DataError, match=r"extension '\.json' is not supported"):
        import_file(save(GOOD, "a.json"), "mine")
    with pytest.raises(ConfigError, match=r"'usr'; allowed are user, .*split, title, genres\."):
        import_file(save(GOOD), "mine", columns={"usr": "user"})
    with pytest.raises(DataError, match="more than one column for the user"):
        import_file(save("user,userId,item\n1,2,3\n"), "mine")


def test_counts_that_were_taken_for_times_are_doubted(save):
    told: list[str] = []
    plays = "user,item,plays,when\na,x,1,1500000000\nb,y,200,1500000001\n"
    import_file(save(plays), "mine", columns={"time": "plays"}, ignore=["when"], tell=told.append)
    assert len(told) == 1
    assert "all times of 'plays' lie in January 1970" in told[0]
    told.clear()
    roles = {"time": "when"}
    import_file(save(plays), "real", columns=roles, ignore=["plays"], tell=told.append)
    import_file(save("1 1\n1 2\n2 1\n", "order.txt"), "order", tell=told.append)
    assert not told, "times, and places in an order"
    divided = "user,item,when\na,x,1500000\nb,y,1672531\n"
    import_file(save(divided), "divided", columns=roles, tell=told.append)
    assert "all times of 'when' lie in January 1970" in told[0]


def test_an_import_again_tells_how_many_rows_stay_out(save):
    told: list[str] = []
    import_file(save(GOOD), "mine", tell=told.append)
    Blocklist().with_withdrawn("anna").add_to("mine")
    data = import_file(save(GOOD), "mine", replace=True, tell=told.append)
    assert len(data) == 1
    assert len(told) == 1
    assert "2 rows skipped: erased or withdrawn users" in told[0]


def test_a_changed_import_is_detected(save):
    import_file(save(GOOD), "mine")
    path = imported_folder() / "mine" / "interactions.parquet"
    columns = pq.ParquetFile(path).read()
    changed = columns.set_column(2, "rating", pa.array([1.0, 1.0, 1.0], pa.float32()))
    pq.write_table(changed, path)
    with pytest.raises(DataError, match="files were changed"):
        load("mine")


@pytest.mark.parametrize("room", [20_000, 80_000], ids=["the ledger", "the table"])
def test_a_full_disk_leaves_nothing_behind(save, room):
    # A limit on the file size simulates a full disk: the write really fails half way.
    rows = "".join(f"{n * 7919 % 10007},{n * 104729 % 9973}\n" for n in range(20_000))
    path = save("user,item\n" + rows)
    code = f"""
        import resource, signal
        from rescind.data import import_file
        from rescind.errors import DataError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
        try:
            import_file({str(path)!r}, "mine")
        except DataError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "the disk is full" in done.stdout
    assert "RESCIND_HOME" in done.stdout
    assert list(imported_folder().glob("*mine*")) == []


def test_a_failed_replacement_keeps_the_old_import(save, monkeypatch):
    first = import_file(save(GOOD), "mine").digest

    def fail(*arguments, **settings):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(DataError, match="the disk is full"):
        import_file(save(GOOD.replace("anna", "carla")), "mine", replace=True)
    assert load("mine").digest == first


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.text(alphabet="0123456789-.,\"'\n\r\t\0eEnaN ;é", max_size=80).map(
            lambda text: ("user,item,rating,time\n" + text).encode()
        ),
    )
)
def test_any_bytes_give_a_dataset_or_a_clean_error(tmp_path, content):
    path = tmp_path / "any.csv"
    path.write_bytes(content)
    try:
        data = import_file(path, "any", replace=True)
    except RescindError as error:
        data, message = None, str(error)
    assert "any.csv" in message if data is None else len(data) >= 2


# Two readers, one result: whole columns if a file is plain, every cell if it is not.


def read_plainly(path, columns=None, text_ids=False, unit="s", **settings):
    """Return the columns that the fast reader finds, or None, and a call of the careful one."""
    table = open_table(path, **settings)
    header = settings.get("header", True)
    wanted = Wanted(import_reading.find_columns(table, dict(columns or {}), header), text_ids, unit)
    return table.plain(wanted), lambda: careful(table, wanted)


def careful(table, wanted):
    """Read every cell; raise if one is invalid."""
    reader = import_reading._CellReader(table, wanted)
    found = reader.read(drop=False)
    if reader.problems.rows:
        raise reader.problems.error(reader.total)
    return found


def assert_same(fast, careful):
    assert (fast.users, fast.items) == (careful.users, careful.items)
    assert fast.rows.keys() == careful.rows.keys()
    for role, column in careful.rows.items():
        assert fast.rows[role].dtype == column.dtype, role
        assert fast.rows[role].tolist() == column.tolist(), role


NUMBERS = st.integers(0, 2**63 - 1) | st.integers(0, 5)
ZEROS = st.integers(0, 5) | st.sampled_from(["00", "01", "007"])
WORDS = st.sampled_from(["7", "07", "anna", "Jörg", "a b", "x'y", "-", "1.x", "語", "-7k", "n.a."])
COLUMNS = {
    "rating": st.floats(-1e9, 1e9) | st.integers(-5, 5),
    "time": st.integers(0, 1_700_000_000),
    "split": st.sampled_from(["train", "valid", "Test", "0", "1"]),
    "note": st.text("abé' ", max_size=3),
}
KINDS = {"csv": ",", "tsv": "\t", "inter": "\t", "txt": " "}


@st.composite
def plain_tables(draw, extra=tuple(COLUMNS)):
    """Draw column names and rows."""
    ids = draw(st.sampled_from([NUMBERS, ZEROS.map(str), WORDS]))
    held = {"user": ids, "item": ids}
    held |= {name: COLUMNS[name] for name in extra if draw(st.booleans())}
    names = draw(st.permutations(list(held)))
    rows = st.lists(st.tuples(*(held[name] for name in names)), min_size=1, max_size=40)
    return names, draw(rows)


any_file = settings(max_examples=150, deadline=None)


@any_file
@given(plain_tables(), st.sampled_from(["csv", "tsv", "inter"]), st.sampled_from(["\n", "\r\n"]),
       st.booleans(), st.booleans())  # fmt: skip
def test_plain_text_is_read_as_cell_by_cell(tmp_path_factory, table, kind, end, header, ended):
    names, rows = table
    lines = [names, *rows] if header else rows
    text = end.join(KINDS[kind].join(map(str, row)) for row in lines) + end * ended
    path = tmp_path_factory.mktemp("plain") / f"a.{kind}"
    path.write_bytes(text.encode())
    columns = {} if header else {n: str(at + 1) for at, n in enumerate(names) if n != "note"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_columns, "_BLOCK", 256)  # several blocks,
        patch.setattr(import_columns, "_TOGETHER", 20)  # some of them with numbers of their own
        fast, careful = read_plainly(path, columns, header=header)
    assert fast is not None
    assert_same(fast, careful())


@any_file
@given(plain_tables(extra=()))
def test_plain_sequences_are_read_as_cell_by_cell(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("plain") / "a.txt"
    path.write_text("".join(f"{str(u).replace(' ', '')} {str(i).replace(' ', '')}\n"
                            for u, i in table[1]))  # fmt: skip
    fast, careful = read_plainly(path)
    assert fast is not None
    assert_same(fast, careful())


@any_file
@given(plain_tables(), st.booleans(), st.sampled_from(["s", "ms", "us", "ns", "number"]),
       st.sampled_from([None, "UTC"]))  # fmt: skip
def test_plain_parquet_is_read_as_cell_by_cell(tmp_path_factory, table, coded, unit, zone):
    names, rows = table
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    if "rating" in columns:
        columns["rating"] = pa.array(map(float, columns["rating"]), pa.float32())
    if "time" in columns and unit != "number":
        times = pa.array(columns["time"], pa.timestamp("s", zone))
        columns["time"] = times.cast(pa.timestamp(unit, zone))
    if coded and isinstance(columns["user"][0], str):  # a dictionary in an order of its own
        kinds = ["nobody", *sorted(set(columns["user"]), reverse=True)]
        numbers = pa.array([kinds.index(user) for user in columns["user"]], pa.int32())
        columns["user"] = pa.DictionaryArray.from_arrays(numbers, pa.array(kinds))
    path = tmp_path_factory.mktemp("plain") / "a.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=17)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_columns, "_ROWS", 7)
        fast, careful = read_plainly(path)
    assert fast is not None
    assert_same(fast, careful())


@pytest.mark.parametrize("user", ["7", "07", "00", str(2**63 - 1), " 7", "+7", "0x7"])
@pytest.mark.parametrize("at", [0, 41, 43])
def test_an_id_is_read_as_a_number_only_if_it_is_written_as_one(save, monkeypatch, user, at):
    path = save("item,user\n" + "1,2\n" * at + f"3,{user}\n3,2\n{user},4\n")
    monkeypatch.setattr(import_columns, "_BLOCK", 64)  # the id lies in one block, or in two
    fast, careful = read_plainly(path, text_ids=True)
    assert (fast is None) == (user == " 7")
    if fast:
        assert_same(fast, careful())


@pytest.mark.parametrize(
    ("content", "settings"),
    [
        (GOOD, {}),
        (GOOD.replace("user,item,rating,time", '"user","item","rating","time"'), {}),
        (GOOD.replace(",", ";"), {"separator": ";"}),
        (GOOD.split("\n", 1)[1], {"header": False}),
        (GOOD.replace("00000\n", "00000000\n"), {"time_unit": "ms"}),
        (GOOD.replace("bob", "-7").replace("anna", "null"), {"text_ids": True}),
    ],
)
def test_a_plain_file_is_never_read_cell_by_cell(save, monkeypatch, content, settings):
    path = save(content)
    with monkeypatch.context() as patch:
        patch.setattr(import_reading, "_CellReader", None)  # to call it would fail
        fast = import_file(path, "fast", **settings)
    monkeypatch.setattr("rescind.data.import_tables.plain_text", lambda *_: None)
    assert import_file(path, "careful", **settings).digest == fast.digest


FAR = GOOD + 60_000 * "anna,B1,3,1300000000\n"  # more than what is read to find the header
UNUSUAL = {
    "quote": (GOOD.replace("anna", '"anna"'), {}),
    "blank cell": (GOOD.replace("4.5", ""), {}),
    "space around an id": (GOOD.replace("bob", " bob"), {}),
    "repeated header": (GOOD + GOOD, {}),
    "header among users": (GOOD.replace("bob", "user"), {}),
    "fraction as id": (GOOD.replace("bob", "1.0"), {}),
    "signed id": (GOOD.replace("B1", "-1"), {}),
    "long id": (GOOD.replace("bob", "b" * 257), {}),
    "control character": (GOOD.replace("bob", "b\x07b"), {}),
    "bad UTF-8": ((FAR + "\xf6,B1,3,1\n").encode("latin-1"), {}),
    "cut UTF-8": (FAR.encode() + b"eve,B1,3,1\xc3", {}),
    "bad UTF-8 nobody asked for": (
        FAR.replace("rating", "note").encode() + b"eve,B1,\xff,1\n",
        {},
    ),
    "another encoding": (GOOD.encode("latin-1"), {"encoding": "latin-1"}),
    "NUL": (FAR + "b\0b,B1,3,1\n", {}),
    "carriage return": (GOOD.replace("bob", "b\rob"), {}),
    "too few cells": (GOOD + "eve,B1\n", {}),
    "time in base 16": (GOOD.replace("1500000000", "0x10"), {}),
    "date": (GOOD.replace("1500000000", "2017-07-14"), {}),
    "fraction of a second": (GOOD.replace("1500000000", "1500000000.5"), {}),
    "nan rating": (GOOD.replace("4.5", "nan"), {}),
    "unknown split": ("user,item,split\n1,2,train\n1,3,exam\n", {}),
    "too many rows": (GOOD, {"max_rows": 2}),
    "long line": (GOOD.replace("time", "note") + f"eve,B1,3,{'x' * 150_000}\n", {}),
    "no rows": (table(), {}),
    "separator of two bytes": (GOOD.replace(",", "é"), {"separator": "é"}),
}


@pytest.mark.parametrize(("content", "settings"), UNUSUAL.values(), ids=UNUSUAL)
def test_whatever_is_unusual_is_read_cell_by_cell(save, monkeypatch, content, settings):
    path = save(content)
    assert read_plainly(path, **settings)[0] is None

    def outcome():
        try:
            return import_file(path, "mine", replace=True, **settings).digest
        except DataError as error:
            return str(error)

    found = outcome()
    monkeypatch.setattr("rescind.data.import_tables.plain_text", lambda *_: None)
    assert outcome() == found


UNUSUAL_COLUMNS = {
    "missing id": {"user": [1, None]},
    "truth as id": {"user": [True, False]},
    "negative id": {"user": [-1, 2]},
    "space around an id": {"user": ["a", "b "]},
    "long id": {"user": ["a", "b" * 5000]},
    "missing rating": {"rating": [1.0, None]},
    "text as rating": {"rating": ["1", "2"]},
    "future time": {"time": [1, 10**12]},
    "fraction of a second": {"time": [1.5, 2.5]},
    "local time": {"time": pa.array([1, 2], pa.timestamp("s", "CET"))},
}  # fmt: skip


@pytest.mark.parametrize("column", UNUSUAL_COLUMNS.values(), ids=UNUSUAL_COLUMNS)
def test_unusual_parquet_is_read_cell_by_cell(tmp_path, column):
    pq.write_table(pa.table({"user": [1, 2], "item": [3, 4], **column}), tmp_path / "a.parquet")
    assert read_plainly(tmp_path / "a.parquet")[0] is None


SMALL = st.integers(0, 3)


@given(
    st.lists(st.tuples(SMALL, SMALL | st.integers(0, 2**62), SMALL), max_size=60),
    st.booleans(),
    st.booleans(),
    st.sampled_from([4, 2**19]),
)
def test_rows_are_sorted_as_by_lexsort(rows, timed, sort_first, group):
    rows = sorted(rows) if sort_first else rows
    user, time, item = (np.asarray([row[n] for row in rows], dtype=np.int64) for n in range(3))
    keys = (item, time, user) if timed else (item, user)
    columns = {"user": user, "item": item, "rating": np.arange(len(rows))}  # the row itself
    with mock.patch.object(import_order, "_GROUP", group):
        found = import_order.sorted_rows(columns | ({"time": time} if timed else {}))
    assert found["rating"].tolist() == np.lexsort(keys).tolist()


def test_numbers_of_more_than_32_bits_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(import_columns, "_ROWS", 2)  # the first batch fits into 32 bits
    table = pa.table({"user": [7, 7, 2**40, 7], "item": [0, 1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    fast, careful = read_plainly(tmp_path / "a.parquet")
    assert fast is not None
    assert_same(fast, careful())


@pytest.mark.parametrize("block", range(1, 24))
def test_a_zero_before_digits_is_seen_wherever_a_block_ends(tmp_path, monkeypatch, block):
    monkeypatch.setattr(import_columns, "_BLOCK", block)
    for text, as_written in (("12,7\n07,15\n3,04\n", False), ("12,7\n7,15\n0,40\n", True)):
        path = tmp_path / "rows.csv"
        path.write_text(text)
        found = import_columns._check_bytes(path, b",", quotes=True, header=False, timed=False)
        assert found == as_written
    for wrong in ("1,2\r3,4\n", "1,2\r\n3,4\r"):
        path.write_bytes(wrong.encode())
        with pytest.raises(import_columns._Unusual):
            import_columns._check_bytes(path, b",", quotes=True, header=False, timed=False)


def test_a_form_of_dates_is_checked_and_kept_to(save) -> None:
    days = save("user,item,time\n1,2,05/06/2024\n2,3,31/12/2023\n")
    assert import_file(days, "days", time_unit="%d/%m/%Y").time.max() == 1717545600  # 5 June
    with pytest.raises(DataError, match=r"'31/12/2023'.*says: %m/%d/%Y"):
        import_file(days, "other", time_unit="%m/%d/%Y")
    for wrong in ("%d/%m", "%H:%M", "days", "%q"):
        with pytest.raises(ConfigError, match="with day, month"):
            import_file(days, "other", time_unit=wrong)


def test_titles_command_no_terminal_and_no_direction(save, monkeypatch):
    """What a list of items shows in a terminal or a table is text only. Control: without it."""
    titles = ["\x1b]0;own\x07\x1b[2Jx", "a\rb", "two\nlines", "\u202egnp.exe", "\u05d0\u200f!"]
    rows = "".join(f'u{n},i{n},"{one}"\n' for n, one in enumerate(titles))
    file = save("user,item,title\n" + rows)
    shown = ["]0;own [2Jx", "a b", "two lines", "gnp.exe", "\u05d0\u200f!"]
    assert sorted(import_file(file, "safe").titles) == sorted(shown)
    monkeypatch.setattr(import_facts, "_COMMANDS", re.compile("(?!)"))
    assert "\x1b]0;own\x07\x1b[2Jx" in import_file(file, "raw").titles


def test_numbers_outside_their_dictionary_never_reach_compiled_code():
    """A damaged Parquet file has them; compiled code would write outside of its table."""
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 40]), pa.array(["a"]), safe=False)
    table = pa.table({"user": wrong, "item": ["x", "y"]})
    wanted = Wanted({"user": 0, "item": 1}, True, "s")
    assert import_columns.plain_arrow(table, table.column_names, 9, wanted) is None
    with pytest.raises(IndexError):  # control: what trusts them
        import_columns._by_appearance(np.array([0, 40]), 1)
