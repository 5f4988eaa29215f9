"""Shamir's sharing: enough shares give the secret, fewer fit every secret."""

from __future__ import annotations

import itertools

import pytest

from rescind.privacy.shamir import PRIME, join, split

SECRET = bytes(range(200, 232))


def test_any_three_of_five_give_the_secret_and_no_two_do() -> None:
    shares = split(SECRET, 3, [0, 1, 2, 7, 40])
    for count in (3, 4, 5):
        for some in itertools.combinations(shares.items(), count):
            assert join(dict(some)) == SECRET
    for some in itertools.combinations(shares.items(), 2):
        with pytest.raises(ValueError, match="belong together"):
            join(dict(some))


def test_two_of_three_shares_fit_every_secret() -> None:
    """For any other secret there is a third share that gives it. By hand, with a line's formula."""
    shares = split(SECRET, 3, [0, 1, 2])
    guess = 12345
    # The polynomial through 0, 1 and 2 has p(3) = p(0) - 3 p(1) + 3 p(2).
    third = (guess - 3 * shares[0] + 3 * shares[1]) % PRIME
    assert int.from_bytes(join({0: shares[0], 1: shares[1], 2: third}), "big") == guess


def test_a_changed_share_gives_another_number() -> None:
    shares = split(SECRET, 3, range(3))
    assert join({**shares, 1: shares[1] + 1}) != SECRET


def test_shares_are_new_every_time() -> None:
    assert not {*split(SECRET, 3, range(4)).values()} & {*split(SECRET, 3, range(4)).values()}
