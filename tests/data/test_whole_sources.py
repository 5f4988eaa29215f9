"""The whole datasets, written back in their publishers' formats and read again: same digest."""

import pickle  # noqa: TID251  the tests write the files that the package must not run

import numpy as np
import pytest

from rescind.data import assemble, canonical, load
from rescind.data.catalogue import entry
from rescind.data.sources.archive import Files

slow = pytest.mark.slow
FLAGS = "|".join("0" * 19)


def table(path, separator, *columns, header=None):
    rows = (separator.join(map(str, row)) for row in zip(*columns, strict=True))
    text = "\n".join(([header] if header else []) + list(rows)) + "\n"
    path.write_bytes(text.encode("latin-1"))


def ml_100k(folder, raw, ids):
    user, item, rating, time = ratings(raw, ids)
    table(folder / "u.data", "\t", user + 1, item, rating.astype(int), time)
    rest = [[text] * len(ids) for text in ("", "", "url", FLAGS)]
    table(folder / "u.item", "|", ids, raw.items["title"], *rest)


def lastfm_2k(folder, raw, ids):
    user, item, _, time = ratings(raw, ids)
    days = (time + 7200).astype("datetime64[s]").astype("datetime64[D]").astype(str)
    day, month, year = ([d[cut] for d in days] for cut in (slice(8, 10), slice(5, 7), slice(4)))
    tag, header = raw.column("tag"), "userID\tartistID\ttagID\tday\tmonth\tyear"
    table(folder / "user_taggedartists.dat", "\t", user, item, tag, day, month, year, header=header)
    table(folder / "artists.dat", "\t", ids[:1], ["x"], header="id\tname")


def ratings(raw, ids):
    user, item, rating, time = (raw.column(c) for c in ("user", "item", "rating", "timestamp"))
    return user, ids[item], rating, time


WRITERS = {"ml-100k": ml_100k, "lastfm-2k": lastfm_2k}


@pytest.mark.data
@pytest.mark.parametrize(
    "name", [n if n == "ml-100k" else pytest.param(n, marks=slow) for n in WRITERS]
)
def test_interactions_written_as_published_give_the_same_digest(data_folder, tmp_path, name):
    raw = canonical.read_folder(data_folder / name)
    WRITERS[name](tmp_path, raw, raw.items.get("source_id"))
    again = assemble.from_publisher(entry(name), Files(tmp_path))
    assert assemble.dataset(entry(name), again).digest == load(name).digest


@pytest.mark.data
@pytest.mark.parametrize("name", ["cora", "citeseer", pytest.param("pubmed", marks=slow)])
def test_planetoid_files_give_the_same_digest(data_folder, tmp_path, name):
    data = load(name)
    known = int(np.flatnonzero(data.test_mask)[0])
    test = np.flatnonzero(data.test_mask)[::-1]  # out of order, as in the published files
    one_hot = np.eye(data.num_classes, dtype=np.int32)
    ends = np.searchsorted(data.edge_index[0], np.arange(len(data) + 1)).tolist()
    to = data.edge_index[1].tolist()
    parts = {
        "x": data.features[: int(data.train_mask.sum())],
        "y": one_hot[data.y[data.train_mask]],
        "allx": data.features[:known],
        "ally": one_hot[data.y[:known]],
        "tx": data.features[test],
        "ty": one_hot[data.y[test]],
        "graph": {node: to[ends[node] : ends[node + 1]] for node in range(len(data))},
    }
    for kind, value in parts.items():
        (tmp_path / f"ind.{name}.{kind}").write_bytes(pickle.dumps(value, protocol=2))
    (tmp_path / f"ind.{name}.test.index").write_text("\n".join(map(str, test)))
    assert assemble.from_publisher(entry(name), Files(tmp_path)).digest == data.digest


@pytest.mark.data
def test_the_heterophilous_file_gives_the_same_digest(data_folder, tmp_path):
    data = load("tolokers")
    start, end = data.edge_index
    np.savez(
        tmp_path / "tolokers.npz",
        node_features=data.features,
        node_labels=data.y,
        edges=data.edge_index[:, start < end].T,
        train_masks=data.train_mask.T,
        val_masks=data.valid_mask.T,
        test_masks=data.test_mask.T,
    )
    again = assemble.from_publisher(entry("tolokers"), Files(tmp_path / "tolokers.npz"))
    assert again.digest == data.digest
