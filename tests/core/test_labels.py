"""Original ids in and out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rescind.core.labels import Labels
from rescind.errors import DataError

NAMED = Labels(("alice", "bob", "7"), ("i1", "i2"), ("Alien", "Brazil"))


def test_an_original_id_finds_its_index_and_back():
    for index, name in enumerate(NAMED.users):
        assert NAMED.client(name, 3) == index
        assert NAMED.user_id(index) == name
    assert NAMED.client(7, 3) == 2  # a number is read as the id that looks like it
    assert NAMED.item("i2", 2) == 1
    assert NAMED.item_id(1) == "i2"
    assert (NAMED.title(0), NAMED.title(5)) == ("Alien", "")


def test_without_names_an_index_is_its_own_name():
    bare = Labels()
    assert bare.client(3, 5) == bare.client("3", 5) == 3
    assert bare.item_id(4) == "4"
    assert bare.title(0) == ""


@pytest.mark.parametrize("user", [5, "-1", "²"])
def test_an_unknown_index_is_answered_with_the_range(user):
    with pytest.raises(DataError, match="numbered 0 to 4 here"):
        Labels().client(user, 5)


def test_what_stands_for_a_removed_item_is_not_offered():
    with pytest.raises(DataError, match=r"among 1 items\. .*such as i2\."):
        NAMED.without_items([0]).item("i9", 2)
    with pytest.raises(DataError, match=r"among 2 items.*such as i1, i2"):
        NAMED.item("i9", 2)  # control


def test_an_unknown_item_is_answered_with_the_nearest():
    near = NAMED.items[0] + "e"
    with pytest.raises(DataError, match=rf"no item '{near}'.*Did you mean '{NAMED.items[0]}'\?"):
        NAMED.item(near, len(NAMED.items))


@pytest.mark.parametrize("user", ["alicee", "zzzzzzzz"])
def test_an_unknown_user_is_not_told_who_is_here(user):
    with pytest.raises(DataError, match=f"no user '{user}' among 3 users") as caught:
        NAMED.client(user, 3)
    assert not any(f"'{name}'" in str(caught.value) for name in NAMED.users)


@pytest.mark.parametrize(
    ("there", "asked", "told"),
    [
        ("Jos\u00e9", "JOSE\u0301 ", True),
        ("815", "\uff10\uff18\uff11\uff15", True),
        ("K-04", "K\u201104", True),  # the hyphen of a text program
        ("K-09", "k9", True),
        ("K-09", "K-90", False),
        ("1-12", "11-2", False),
        ("--", "-", False),
        ("Jos\u00e9", "Jos\u00e8", False),
    ],
)
def test_an_id_that_looks_the_same_is_told_without_naming_it(there, asked, told):
    with pytest.raises(DataError, match="no user") as caught:
        Labels((there, "ben")).client(asked, 2)
    assert ("One whose id differs in" in str(caught.value)) == told
    assert f"'{there}'" not in str(caught.value)


def test_whoever_left_is_not_here():
    with pytest.raises(DataError, match=r"among 2 users\. 1 place is empty") as caught:
        NAMED.without_user(0).client("ALICE", 3)
    assert "One whose id" not in str(caught.value)


def test_names_are_not_indices_where_there_are_names():
    with pytest.raises(DataError):
        NAMED.client(0, 3)


def test_a_newcomers_name_is_nobody_elses():
    # ml-100k's ids are 1..943 at indices 0..942; the next client has index 943.
    labels = Labels(tuple(str(n) for n in range(1, 944)))
    assert labels.user_id(943) != labels.user_id(942)


def test_a_newcomer_is_found_by_the_name_it_is_shown_under():
    labels = Labels(("alice", "bob"))
    assert labels.client(labels.user_id(2), 3) == 2


def test_names_come_from_a_dataset_as_text():
    dataset = SimpleNamespace(users=[10, 20], items=["a"], titles=None)
    assert Labels.of(dataset) == Labels(("10", "20"), ("a",), ())
    dataset.titles = ["Alien"]
    assert Labels.of(dataset).title(0) == "Alien"
