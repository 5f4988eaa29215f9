"""Loading: the order of sources, digests, arguments, helpful errors."""

import subprocess
import sys

import numpy as np
import pytest

from rescind.data import describe, load, names
from rescind.data.catalogue import ENTRIES, expected_digests
from rescind.errors import ConfigError, DataError

WITH_DIGEST = [name for name in ENTRIES if name in expected_digests() and name != "synthetic"]


@pytest.mark.data
@pytest.mark.parametrize("name", WITH_DIGEST)
def test_real_data_has_the_expected_digest(data_folder, name):
    data = load(name)
    assert data.digest == expected_digests()[name]
    assert data.source == "RESCIND_DATA"
    assert data.terms


def test_the_catalogue_knows_all_twelve():
    assert len(names()) >= 12
    for name in ENTRIES:
        assert describe(name)["terms"]


def test_an_unknown_name_gives_the_closest_one():
    with pytest.raises(ConfigError, match="did you mean 'ml-100k'"):
        load("ml100k")


def test_if_no_source_has_the_data_the_error_lists_all_sources(offline):
    with pytest.raises(DataError) as error:
        load("ml-100k")
    text = str(error.value)
    for word in ("RESCIND_DATA: not set", "cache", "publisher", "wheel recbole", "--from"):
        assert word in text


def test_importing_the_package_imports_no_heavy_library():
    code = (
        "import sys, rescind.data;"
        "print([m for m in ('pyarrow', 'pandas', 'scipy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_select_keeps_numbers_and_compact_gives_new_ones(rows):
    data = rows((2, 1, 5), (0, 0, 6), (2, 3, 7))
    kept = data.select(data.user == 2)
    assert kept.user.tolist() == [2, 2]
    small = kept.compact()
    assert (small.user.tolist(), small.item.tolist()) == ([0, 0], [0, 1])
    assert (small.users.tolist(), small.items.tolist()) == (["u2"], ["i1", "i3"])
    seen = data.compact("appearance")
    assert seen.user.tolist() == [0, 1, 0]
    assert seen.users.tolist() == ["u2", "u0"]


def test_the_digest_covers_every_value_but_not_the_name(rows):
    one = rows((0, 0, 1), (1, 1, 2))
    assert one.digest == rows((0, 0, 1), (1, 1, 2), name="other").digest
    assert one.digest != rows((0, 0, 1), (1, 1, 3)).digest
    assert one.digest != one.select(np.asarray([1, 0])).digest
    assert one.digest.startswith("sha256:")


def test_columns_must_fit_each_other(rows):
    data = rows((0, 0, 1), (1, 1, 2))
    with pytest.raises(DataError, match="equally long"):
        type(data)("bad", data.user, data.item[:1], None, data.time, data.users, data.items)
    with pytest.raises(DataError, match="Indexes must lie"):
        type(data)("bad", data.user, data.item + 5, None, data.time, data.users, data.items)
