"""Versions of a table: each stays as it was, whatever is written later."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rescind.core import versions
from rescind.core.versions import LINKS, Version, Versions


@pytest.fixture(autouse=True, scope="module")
def _large():
    """Treat every table as a large one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "SMALL", 0)
        patch.setattr(versions, "FEW", 1)
        yield


steps = st.lists(
    st.tuples(
        st.integers(0, 200),  # which version is written
        st.lists(st.integers(0, 9), min_size=0, max_size=6, unique=True),
        st.sampled_from(["leave", "read", "whole"]),
    ),
    max_size=3 * LINKS,
)


@given(steps)
def test_every_version_is_what_a_copy_would_be(taken):
    first = torch.arange(20.0).reshape(10, 2)
    made, copies = [Version(first.clone())], [first]
    for number, (chosen, rows, then) in enumerate(taken):
        which, ids = chosen % len(made), torch.tensor(rows, dtype=torch.int64)
        value = torch.full((len(ids), 2), float(100 + number))
        made.append(made[which].write(ids, value))
        copies.append(copies[which].index_copy(0, ids, value))
        if then == "read":
            some = torch.tensor([3, 0, 9, 3])
            assert torch.equal(made[which].read(some), copies[which][some])
        if then == "whole":
            seen = made[which].whole()
            assert torch.equal(seen, copies[which])
    for version, copy in zip(made, copies, strict=True):
        assert torch.equal(version.read(torch.arange(10)), copy)
    for version, copy in zip(made, copies, strict=True):
        assert torch.equal(version.whole(), copy)


def test_a_tensor_that_somebody_has_seen_never_changes():
    values = Versions({"user": torch.zeros(10, 2)})
    for _ in range(3 * LINKS):
        seen = values["user"]
        before = seen.clone()
        values = values.write(torch.tensor([1, 4]), {"user": torch.rand(2, 2)}, 10)
        assert torch.equal(seen, before)


def test_the_newest_version_writes_into_the_table():
    values = Versions({"user": torch.zeros(1000, 2)})
    for _ in range(LINKS + 2):
        values = values.write(torch.tensor([1, 4]), {"user": torch.ones(2, 2)}, 1000)
    table = values._of["user"]._table
    after = values.write(torch.tensor([7]), {"user": torch.ones(1, 2)}, 1000)
    assert table is not None
    assert after._of["user"]._table is table
    assert values._of["user"]._table is None, "the older one knows what to undo"


def test_rows_take_the_type_of_their_table():
    values = Versions({"user": torch.zeros(4, 2)}).write(
        torch.tensor([1]), {"user": torch.ones(1, 2, dtype=torch.float64)}, 4
    )
    assert values.read(torch.tensor([1]))["user"].dtype == values["user"].dtype == torch.float32
