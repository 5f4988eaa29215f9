"""Named tensors: arithmetic, digest, and files that are whole or not there."""

from __future__ import annotations

import errno
import math
import os

import pytest
import torch

from rescind.core import params
from rescind.errors import DataError
from worlds import randoms

ONE = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])}
TWO = {"a": torch.tensor([10.0, 20.0]), "c": torch.tensor(5.0)}


def test_adding_works_name_by_name_and_a_missing_name_counts_as_zero():
    total = params.add(ONE, TWO, scale=-0.5)
    assert {n: v.tolist() for n, v in total.items()} == {"a": [-4.0, -8.0], "b": [[3.0]], "c": -2.5}
    assert ONE["a"].tolist() == [1.0, 2.0]


def test_whole_numbers_stay_exact_when_added():
    total = params.add({"n": torch.tensor([2**53 + 1])}, {"n": torch.tensor([2])})
    assert total["n"].tolist() == [2**53 + 3]


def test_times_dot_norm_and_bytes_by_hand():
    assert params.times(ONE, 3)["a"].tolist() == [3.0, 6.0]
    assert params.dot(ONE, TWO) == 1 * 10 + 2 * 20
    assert params.norm(ONE) == pytest.approx(math.sqrt(1 + 4 + 9))
    assert params.nbytes({**ONE, "n": torch.zeros(3, dtype=torch.int64)}) == 3 * 4 + 3 * 8


@pytest.mark.parametrize(
    "other",
    [
        {"b": torch.tensor([1.0, 2.0])},
        {"a": torch.tensor([1.0, 2.5])},
        {"a": torch.tensor([[1.0, 2.0]])},
        {"a": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"a": torch.tensor([2.0, 1.0])},
        {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])},
        {},
    ],
    ids=["name", "value", "shape", "type", "order", "cut", "nothing"],
)
def test_a_digest_sees_names_types_shapes_and_values(other):
    assert params.digest({"a": torch.tensor([1.0, 2.0])}) != params.digest(other)


def test_a_digest_sees_the_sign_of_zero_and_nothing_of_order_or_layout():
    square = randoms(3, 3)
    assert params.digest({"a": torch.tensor(0.0)}) != params.digest({"a": torch.tensor(-0.0)})
    assert params.digest({"x": square, **ONE}) == params.digest({**ONE, "x": square})
    turned = square.T.contiguous().T
    assert not turned.is_contiguous()
    assert params.digest({"x": turned}) == params.digest({"x": square.requires_grad_()})


@pytest.mark.parametrize("kind", [torch.bool, torch.int8, torch.int64, torch.bfloat16])
def test_every_kind_of_tensor_survives_the_disk(tmp_path, kind):
    given = {"x": torch.tensor([[0, 1, 1]]).to(kind), "none": torch.zeros(0, 3, dtype=kind)}
    params.save(tmp_path / "deep" / "er" / "file", given, {"round": "3"})
    back, notes = params.load(tmp_path / "deep" / "er" / "file")
    assert notes["round"] == "3"
    assert back["x"].dtype == kind
    assert back["x"].tolist() == given["x"].tolist()
    assert back["none"].shape == (0, 3)


def test_not_a_number_and_the_smallest_bits_survive_the_disk(tmp_path):
    values = torch.tensor([math.nan, math.inf, -0.0, 5e-324, 0.1], dtype=torch.float64)
    params.save(tmp_path / "file", {"x": values})
    back = params.load(tmp_path / "file")[0]["x"]
    assert torch.equal(back.view(torch.int64), values.view(torch.int64))


def test_one_tensor_under_two_names_can_be_saved(tmp_path):
    # A server that remembers the current table has it twice: as public and as a snapshot.
    table = torch.ones(3)
    params.save(tmp_path / "file", {"public": table, "memory": table})
    assert params.load(tmp_path / "file")[0]["memory"].tolist() == [1.0, 1.0, 1.0]


def test_a_file_torn_at_any_place_is_a_data_error(tmp_path):
    path = tmp_path / "file"
    params.save(path, ONE, {"round": "3"})
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"no whole safetensors file|digest"):
            params.load(path)


def test_any_altered_value_is_a_data_error(tmp_path):
    path = tmp_path / "file"
    params.save(path, ONE)
    whole = path.read_bytes()
    for place in range(len(whole) - params.nbytes(ONE), len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError, match="digest"):
            params.load(path)


def test_an_altered_note_is_a_data_error(tmp_path):
    path = tmp_path / "file"
    params.save(path, ONE, {"round": "3"})
    whole = path.read_bytes()
    path.write_bytes(whole.replace(rb"\"round\": \"3\"", rb"\"round\": \"4\""))
    assert path.read_bytes() != whole
    with pytest.raises(DataError):
        params.load(path)


@pytest.mark.parametrize("content", [b"", b"not a tensor file, only some words in a row"])
def test_a_file_of_another_kind_or_none_at_all_is_a_data_error(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    for path in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(DataError, match="Use an older copy"):
            params.load(path)


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    params.save(path, ONE)
    monkeypatch.setattr(os, call, full)
    with pytest.raises(DataError, match=r"No space left on device.*old file is unchanged"):
        params.save(path, TWO)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert params.load(path)[0].keys() == ONE.keys()


def test_one_model_has_one_file(tmp_path):
    """Whoever compares digests of files must not see a difference where there is none."""
    notes = {f"note {n}": f"text {n}" for n in range(8)}
    for n in range(6):
        params.save(
            tmp_path / f"{n}.safetensors", ONE, dict(reversed(notes.items())) if n else notes
        )
    assert len({(tmp_path / f"{n}.safetensors").read_bytes() for n in range(6)}) == 1
    assert params.load(tmp_path / "0.safetensors")[1] == notes
    assert params.from_bytes(params.to_bytes(ONE, notes))[1] == notes
    params.save(tmp_path / "other.safetensors", ONE, notes | {"note 1": "another"})
    assert (tmp_path / "other.safetensors").read_bytes() != (
        tmp_path / "0.safetensors"
    ).read_bytes()
