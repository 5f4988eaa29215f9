"""Untrusted archives are read by name and never unpacked."""

import zipfile

import pytest

from rescind.data import load, obtain
from rescind.data.catalogue import entry
from rescind.data.sources.archive import Files
from rescind.errors import DataError


def make(path, *members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "a/../../evil", "..\\evil", "\\evil", "C:\\evil"]
)
def test_names_that_lead_out_are_refused(tmp_path, name):
    path = make(tmp_path / "a.zip", ("u.data", "1\t1\t1\t1\n"), (name, "x"))
    with pytest.raises(DataError, match="leads out of the archive"):
        Files(path)


def test_links_are_refused(tmp_path):
    info = zipfile.ZipInfo("u.data")
    info.external_attr = 0o120777 << 16
    with pytest.raises(DataError, match="it is a link"):
        Files(make(tmp_path / "a.zip", (info, "/etc/passwd")))


def test_bombs_are_refused(tmp_path):
    path = make(tmp_path / "a.zip", ("u.data", b"0" * (2**25)))
    with pytest.raises(DataError, match="unpack to 33554432"):
        Files(path)


def test_a_damaged_archive_is_an_error(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(b"PK\x03\x04 but no more")
    with pytest.raises(DataError, match="not a readable zip archive"):
        Files(path)
    good = make(tmp_path / "b.zip", ("u.data", "1\t1\t1\t1\n" * 500)).read_bytes()
    (tmp_path / "c.zip").write_bytes(good[:40] + b"\0\0\0\0" + good[44:])
    with pytest.raises(DataError, match="damaged"):
        Files(tmp_path / "c.zip").read("u.data")


def test_a_missing_member_lists_what_is_there(tmp_path):
    files = Files(make(tmp_path / "a.zip", ("ml-100k/u.data", "x"), ("ml-100k/README", "y")))
    assert files.read("u.data") == b"x"
    with pytest.raises(DataError, match=r"no file 'u\.item' in it"):
        files.read("u.item")


def test_a_changed_copy_is_refused_by_its_digest(tmp_path, monkeypatch):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    user = np.arange(100_000, dtype=np.int32) % 943
    item = np.arange(100_000, dtype=np.int32) % 1682
    (tmp_path / "ml-100k").mkdir()
    pq.write_table(
        pa.table(
            {"user": user, "item": item, "rating": user * 0.0, "timestamp": user.astype("i8")}
        ),
        tmp_path / "ml-100k" / "interactions.parquet",
    )
    monkeypatch.setenv("RESCIND_DATA", str(tmp_path))
    with pytest.raises(DataError, match="expected is sha256:dea6a4f1"):
        load("ml-100k")


def test_a_publishers_archive_may_lie_in_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "hetrec2011-movielens").mkdir()
    rows = "userID\tmovieID\trating\ttimestamp\n75\t3\t1\t1162160236000\n"
    make(tmp_path / "hetrec2011-movielens" / "v2.zip", ("user_ratedmovies-timestamps.dat", rows))
    monkeypatch.setenv("RESCIND_DATA", str(tmp_path))
    with pytest.raises(DataError, match="should have 2,113 users"):  # it was read and counted
        load("hetrec2011-movielens")


def test_a_download_that_never_ends_is_cut(tmp_path, monkeypatch):
    class Endless:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def read(self, size):
            return b"x" * size

    monkeypatch.setattr("urllib.request.urlopen", lambda request, timeout: Endless())
    monkeypatch.setattr(obtain, "_LARGEST_DOWNLOAD", 2**21)
    with pytest.raises(DataError, match="more than 2097152 bytes"):
        obtain._download(entry("ml-1m").urls[0], tmp_path / "x", lambda _: None)


def test_two_processes_may_store_the_same_data(tmp_path):
    from rescind.data.canonical import write_atomically

    def slower(place):
        (place / "file").write_text("ours")
        write_atomically(tmp_path / "data", lambda other: (other / "file").write_text("theirs"))

    write_atomically(tmp_path / "data", slower)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert (tmp_path / "data" / "file").read_text() == "ours"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["file"]
