"""Read graphs: the canonical `graph.npz`, Planetoid files and heterophilous npz files."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data.arrays import Ints, both_directions
from rescind.data.canonical import write_atomically
from rescind.data.dataset import GraphDataset
from rescind.data.sources import safe_pickle
from rescind.data.sources.archive import DAMAGE, Files, check_members
from rescind.data.sources.text_columns import decode, whole
from rescind.errors import DataError

_VALID = 500  # nodes after the training ones, as in the Planetoid paper


def read_npz(data: bytes, file: str) -> dict[str, NDArray[Any]]:
    """Read the arrays of an npz file; a file with pickled objects is refused."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            check_members(Path(file), archive.infolist())
        with np.load(io.BytesIO(data), allow_pickle=False) as parts:
            return {name: parts[name] for name in parts.files}
    except (*DAMAGE, KeyError, MemoryError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{file}: not a readable npz file of plain arrays ({why}). Delete it and get it again."
        ) from error


def read_canonical(path: Path, name: str) -> GraphDataset:
    """Read a `graph.npz`."""
    parts = read_npz(path.read_bytes(), str(path))
    wanted = {"edge_index", "y", "train_mask", "val_mask", "test_mask", "num_classes"}
    wanted |= {"x"} if "x" in parts else {"x_data", "x_indices", "x_indptr", "x_shape"}
    missing = sorted(wanted - set(parts))
    if missing:
        raise DataError(f"{path}: the array '{missing[0]}' is missing. Delete it and get it again.")
    try:
        features = parts["x"].astype(np.float32) if "x" in parts else _sparse(parts)
        edges, y = parts["edge_index"].astype(np.int64), parts["y"].astype(np.int64)
        masks = (parts[f"{part}_mask"].astype(np.bool_) for part in ("train", "val", "test"))
        train, valid, test = masks
        return GraphDataset(name, edges, features, y, train, valid, test, int(parts["num_classes"]))
    except (ValueError, TypeError) as error:
        why = f"its arrays do not fit together ({error})"
        raise DataError(f"{path}: {why}. Get it again.") from error


def write_canonical(folder: Path, graph: GraphDataset) -> None:
    """Write a `graph.npz` into a folder that appears only when complete."""
    parts: dict[str, Any] = {
        "edge_index": graph.edge_index.astype(np.int32),
        "y": graph.y.astype(np.int16),
        "train_mask": graph.train_mask,
        "val_mask": graph.valid_mask,
        "test_mask": graph.test_mask,
        "num_classes": np.int16(graph.num_classes),
    }
    if isinstance(graph.features, np.ndarray):
        parts["x"] = graph.features
    else:
        parts["x_data"], parts["x_shape"] = graph.features.data, np.asarray(graph.features.shape)
        parts["x_indices"], parts["x_indptr"] = graph.features.indices, graph.features.indptr
    write_atomically(folder, lambda target: np.savez_compressed(target / "graph.npz", **parts))


def read_planetoid(files: Files, name: str) -> GraphDataset:
    """Read the eight files `ind.NAME.*` of Planetoid.

    Test nodes are stored out of order and CiteSeer lacks 15 of them; these become nodes without
    features and label. Edges: both directions, no self-loops, no duplicates, sorted.
    """

    def part(kind: str) -> Any:
        file = f"ind.{name}.{kind}"
        return safe_pickle.read(files.read(file), files.label(file))

    index_file = f"ind.{name}.test.index"
    label = files.label(index_file)
    order = whole(decode(files.read(index_file), label, "utf-8").split(), label, "node")
    known, unseen, labels = part("allx"), part("tx"), np.concatenate((part("ally"), part("ty")))
    if len(order) == 0 or len(order) != unseen.shape[0]:
        raise DataError(f"{label}: {len(order)} test nodes, but {unseen.shape[0]} feature rows.")
    nodes = max(int(order.max()) + 1, known.shape[0])
    index = np.concatenate((np.arange(known.shape[0]), order))
    if len(labels) != len(index):
        raise DataError(f"{label}: {len(labels)} labels for {len(index)} nodes. Get it again.")
    y = np.full(nodes, -1, dtype=np.int64)
    y[index] = np.where(labels.sum(axis=1) > 0, labels.argmax(axis=1), -1)
    count, numbers = part("y").shape[0], np.arange(nodes)
    pairs = [(one, other) for one, row in part("graph").items() for other in row]
    start, end = np.asarray(pairs, dtype=np.int64).reshape(-1, 2).T
    return GraphDataset(
        name=name,
        edge_index=_both_directions(start, end, nodes, files.label(f"ind.{name}.graph")),
        features=_stack(known, unseen, index, nodes),
        y=y,
        train_mask=numbers < count,
        valid_mask=(numbers >= count) & (numbers < count + _VALID),
        test_mask=np.isin(numbers, order),
        num_classes=int(labels.shape[1]),
    )


def _stack(known: Any, unseen: Any, index: Ints, nodes: int) -> Any:
    """Stack both feature matrices as sorted CSR, each row at its node's index."""
    from scipy import sparse

    rows = sparse.coo_matrix(sparse.vstack((known, unseen)))
    features = sparse.csr_matrix(
        (rows.data.astype(np.float32), (index[rows.row], rows.col)), shape=(nodes, rows.shape[1])
    )
    features.eliminate_zeros()
    features.sort_indices()
    return features


def read_heterophilous(files: Files, name: str) -> GraphDataset:
    """Read one npz file of Platonov et al. 2023: features, labels, each edge once, ten splits."""
    file = f"{name}.npz"
    if files.has(file):
        parts = read_npz(files.read(file), files.label(file))
    else:  # the npz file itself was given, so `files` lists its arrays
        parts = read_npz(files.path.read_bytes(), str(files.path))
    wanted = ("node_features", "node_labels", "edges", "train_masks", "val_masks", "test_masks")
    missing = [key for key in wanted if key not in parts]
    if missing:
        raise DataError(f"{files.label(file)}: the array '{missing[0]}' is missing. Get it again.")
    labels = parts["node_labels"].astype(np.int64)
    start, end = parts["edges"].astype(np.int64)[:, :2].T
    edges = _both_directions(start, end, len(labels), files.label(file))
    features = parts["node_features"].astype(np.float32)
    masks = (parts[f"{part}_masks"].T.astype(np.bool_) for part in ("train", "val", "test"))
    train, valid, test = masks
    return GraphDataset(name, edges, features, labels, train, valid, test, int(labels.max()) + 1)


def _sparse(parts: dict[str, NDArray[Any]]) -> Any:
    from scipy.sparse import csr_matrix

    shape = tuple(int(size) for size in parts["x_shape"])
    indices, pointers = parts["x_indices"].astype(np.int64), parts["x_indptr"].astype(np.int64)
    matrix = csr_matrix((parts["x_data"].astype(np.float32), indices, pointers), shape=shape)
    matrix.check_format(full_check=True)
    return matrix


def _both_directions(start: Ints, end: Ints, nodes: int, label: str) -> Ints:
    """Return sorted edges in both directions, without self-loops and duplicates. [2, E]"""
    if len(start) and (min(start.min(), end.min()) < 0 or max(start.max(), end.max()) >= nodes):
        raise DataError(f"{label}: an edge has a node outside 0..{nodes - 1}. Get it again.")
    return both_directions(start, end, nodes)
