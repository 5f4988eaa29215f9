"""Graph files: published ones are read without running them, hostile ones are refused."""

import io
import pickle  # noqa: TID251  the tests write the files that the package must not run
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from rescind.data import assemble, load
from rescind.data.catalogue import entry
from rescind.data.sources import graphs, safe_pickle
from rescind.data.sources.archive import Files
from rescind.errors import DataError

# An array [[1, 2], [3, 4]] of int32 as Python 2 and its numpy wrote it, protocol 2.
PYTHON_2 = (
    b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87R"
    b"(K\x01K\x02K\x02\x86cnumpy\ndtype\nU\x02i4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff"
    b"J\xff\xff\xff\xffK\x00tb\x89U\x10" + struct.pack("<4i", 1, 2, 3, 4) + b"tb."
)


def old(value, protocol=2):
    """Return a pickle with the module names of old numpy and scipy."""
    data = pickle.dumps(value, protocol=protocol)
    for new, then in ((b"numpy._core.multiarray", b"numpy.core.multiarray"),):
        if protocol < 4:  # later protocols state the length of a name
            data = data.replace(new, then).replace(b"scipy.sparse._csr", b"scipy.sparse.csr")
    return data


def planetoid(folder):
    """Write Planetoid files of six nodes: one train, two test out of order, node 4 missing."""
    features = csr_matrix(np.asarray([[1, 0], [0, 1], [1, 1]], dtype=np.float32))
    test = csr_matrix(np.asarray([[0, 1], [1, 0]], dtype=np.float32))
    one_hot = np.eye(2, dtype=np.int32)
    parts = {
        "x": features[:1],
        "y": one_hot[[0]],
        "allx": features,
        "ally": one_hot[[0, 1, 1]],
        "tx": test,
        "ty": one_hot[[1, 0]],
        "graph": {0: [1, 1, 0], 1: [2], 2: [5], 3: [], 5: [2]},
    }
    folder.mkdir(exist_ok=True)
    for kind, value in parts.items():
        (folder / f"ind.cora.{kind}").write_bytes(old(value))
    (folder / "ind.cora.test.index").write_text("5\n3\n")
    return folder


def test_planetoid_files_become_a_graph(tmp_path):
    data = assemble.from_publisher(entry("cora"), Files(planetoid(tmp_path / "raw")))
    assert data.y.tolist() == [0, 1, 1, 0, -1, 1]
    dense = data.features.toarray()
    assert dense.tolist() == [[1, 0], [0, 1], [1, 1], [1, 0], [0, 0], [0, 1]]
    edges = data.edge_index.T.tolist()  # both directions, the repeat and the self-loop gone
    assert edges == [[0, 1], [1, 0], [1, 2], [2, 1], [2, 5], [5, 2]]
    assert np.flatnonzero(data.train_mask).tolist() == [0]
    assert np.flatnonzero(data.test_mask).tolist() == [3, 5]
    assert data.num_classes == 2


def test_a_graph_comes_back_from_disk(tmp_path):
    data = assemble.from_publisher(entry("cora"), Files(planetoid(tmp_path / "raw")))
    graphs.write_canonical(tmp_path / "out", data)
    again = graphs.read_canonical(tmp_path / "out" / "graph.npz", "cora")
    assert again.digest == data.digest


def test_heterophilous_files_become_a_graph(tmp_path):
    masks = np.asarray([[1, 0, 0], [0, 1, 0]], dtype=bool)
    np.savez(
        tmp_path / "tolokers.npz",
        node_features=np.ones((3, 4)),
        node_labels=np.asarray([0, 1, 1]),
        edges=np.asarray([[0, 1], [1, 2]]),
        train_masks=masks,
        val_masks=masks[::-1],
        test_masks=np.zeros((2, 3), dtype=bool),
    )
    for place in (tmp_path, tmp_path / "tolokers.npz"):
        data = assemble.from_publisher(entry("tolokers"), Files(place))
        assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
        assert data.train_mask.shape == (3, 2)
        assert data.features.dtype == np.float32


def test_an_array_written_by_python_2_is_read():
    assert safe_pickle.read(PYTHON_2, "x").tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_every_protocol_gives_the_same_values(protocol):
    matrix = csr_matrix(np.asarray([[0, 1.5], [2, 0]], dtype=np.float32))
    array = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    lists = {0: [1, 2], 1: []}
    assert safe_pickle.read(old(lists, protocol), "x") == lists
    if protocol < 5:  # 5 may carry arrays out of band, which no published file does
        assert safe_pickle.read(old(array, protocol), "x").tolist() == array.tolist()
        assert (safe_pickle.read(old(matrix, protocol), "x") != matrix).nnz == 0


class _Command:
    def __reduce__(self):
        import os

        return os.system, ("touch hacked",)


HOSTILE = {
    "a command": pickle.dumps(_Command()),
    "a command, protocol 0": pickle.dumps(_Command(), protocol=0),
    "eval": b"c__builtin__\neval\n(S'1+1'\ntR.",
    "an old instance": b"(S'touch hacked'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'touch hacked'\no.",
    "a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0cdtype.__base\x93.",
    "numpy's own loader": b"cnumpy\nload\n(S'/etc/passwd'\ntR.",
    "an object array": pickle.dumps(np.asarray([_Command()], dtype=object), protocol=2),
    "a constructor of lists": b"cnumpy\nndarray\n(cos\nsystem\ntR.",
    "state for a dictionary": b"}(S'a'\nI1\ntb.",
    "state for a name": b"cnumpy\ndtype\n}b.",
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent id": b"Pfoo\n.",
    "a huge memo": b"\x80\x02]r\xff\xff\xff\x7f.",
    "a string": pickle.dumps("text"),
    "cut off": PYTHON_2[:-20],
    "too few bytes": PYTHON_2.replace(b"K\x02K\x02\x86", b"K\x09K\x09\x86"),
    "nothing": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_and_not_run(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"ind\.cora\.x") as error:
        safe_pickle.read(data, "ind.cora.x")
    assert "again" in str(error.value) or "publisher's own" in str(error.value)
    assert list(tmp_path.glob("hacked")) == []


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(PYTHON_2) - 1), st.integers(0, 255)), max_size=6))
def test_damaged_files_give_an_array_or_an_error(changes):
    data = bytearray(PYTHON_2)
    for at, value in changes:
        data[at] = value
    try:
        result = safe_pickle.read(bytes(data), "x")
    except DataError:
        return
    assert result is None or isinstance(result, np.ndarray | dict)


def test_only_one_module_reads_pickles():
    from pathlib import Path

    import rescind

    found = [
        path.name
        for path in Path(rescind.__file__).parent.rglob("*.py")
        if "import pickle" in path.read_text() or "pickletools" in path.read_text()
    ]
    assert found == ["safe_pickle.py"]


def npz(**parts):
    buffer = io.BytesIO()
    np.savez(buffer, **parts)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pickle.dumps({"edge_index": 1}), "not a readable npz"),
        (npz(edge_index=np.asarray([_Command()], dtype=object)), "not a readable npz"),
        (npz(edge_index=np.zeros((2, 1))), "is missing"),
        (b"", "not a readable npz"),
    ],
    ids=["a pickle disguised", "objects inside", "arrays missing", "empty"],
)
def test_a_bad_graph_file_is_refused(tmp_path, monkeypatch, data, why):
    monkeypatch.setenv("RESCIND_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cora").mkdir()
    (tmp_path / "cora" / "graph.npz").write_bytes(data)
    with pytest.raises(DataError, match=why) as error:
        load("cora")
    assert "graph.npz" in str(error.value)
    assert list(tmp_path.glob("hacked")) == []


def test_a_graph_whose_parts_do_not_fit_is_refused(tmp_path, monkeypatch):
    good = {
        "edge_index": np.asarray([[0, 1], [1, 0]]),
        "x": np.ones((2, 3)),
        "y": np.asarray([0, 1]),
        "train_mask": np.ones(2, dtype=bool),
        "val_mask": np.ones(2, dtype=bool),
        "test_mask": np.ones(2, dtype=bool),
        "num_classes": np.int16(2),
    }
    for part, value in (
        ("edge_index", np.asarray([[0, 7], [1, 0]])),
        ("edge_index", np.asarray([0, 1])),
        ("x", np.ones((5, 3))),
        ("test_mask", np.ones(9, dtype=bool)),
        ("y", np.asarray([0, 4])),
    ):
        (tmp_path / "graph.npz").write_bytes(npz(**{**good, part: value}))
        with pytest.raises(DataError, match="x"):
            graphs.read_canonical(tmp_path / "graph.npz", "x")


@pytest.mark.parametrize("position", range(8))
def test_a_damaged_npz_is_a_data_error(tmp_path, position):
    data = bytearray(npz(edge_index=np.zeros((2, 4), dtype=int)))
    data[4 + position] ^= 0xFF  # version, flags, method and time of the first member
    central = data.index(b"PK\x01\x02")
    data[central + 6 + position] ^= 0xFF
    (tmp_path / "graph.npz").write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"graph\.npz"):
        graphs.read_canonical(tmp_path / "graph.npz", "x")
