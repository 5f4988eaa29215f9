"""The vectors that Python and the browser share: Python's side. tests/browser has the other."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import page_vectors
from rescind.errors import RescindError
from rescind.methods.additive import _live_release as live_release
from rescind.methods.additive._live_sum import NOBODY, Items, LiveSum, added_up
from rescind.proof.notes import LOG, WITNESS, Key, Proof
from rescind.proof.tlog import extends, leaf_hash, root_of
from rescind.receipts.verify import verify

VECTORS = page_vectors.read()


def test_lists_are_those_of_the_file() -> None:
    data = page_vectors.bytes_of(VECTORS["lists"]["file"])
    weights, ids = live_release.read(data)
    assert weights.to_bytes(ids) == data
    for case in VECTORS["lists"]["cases"]:
        assert page_vectors.as_list(weights, case["own"], case["k"]) == case["list"]
    assert any(line["because"] for case in VECTORS["lists"]["cases"] for line in case["list"])


def test_trees_and_changes_are_those_of_the_file() -> None:
    assert page_vectors.trees() == VECTORS["trees"]
    assert page_vectors.changes() == VECTORS["changes"]
    trees = VECTORS["trees"]
    roots = [bytes.fromhex(one) for one in trees["roots"]]
    for one in trees["inclusions"]:
        leaf = leaf_hash(bytes.fromhex(trees["entries"][one["index"]]))
        path = [bytes.fromhex(each) for each in one["path"]]
        assert root_of(leaf, one["index"], one["size"], path) == roots[one["size"] - 1]
    for one in trees["growths"]:
        path = [bytes.fromhex(each) for each in one["path"]]
        old, size = one["old"], one["size"]
        assert extends(old, roots[old - 1], size, roots[size - 1], path)


def test_differences_are_those_of_gram() -> None:
    assert page_vectors.differences() == VECTORS["differences"]
    assert len(VECTORS["differences"]["weights"]) == page_vectors.MOST_KEPT + 1


def test_adding_a_difference_turns_one_sum_into_the_other() -> None:
    items = page_vectors.KEPT_ITEMS
    for case in VECTORS["differences"]["cases"]:
        before, after = (_part(case[name]) for name in ("sent", "kept"))
        live = LiveSum(items)
        live.change(b"somebody", NOBODY, before)
        live.change(b"somebody", _part(case["minus"]["items"]), _part(case["plus"]["items"]))
        assert live.digest() == added_up([after], items).digest()
        assert live.digest() != added_up([before], items).digest()  # control: it is a change
        for part in (case["minus"], case["plus"]):
            assert part["weight"] == VECTORS["differences"]["weights"][len(part["items"])]


def _part(items: list[int]) -> Items:
    return np.array(sorted(items), np.int32)


def holds(receipt: bytes, proof: bytes) -> bool:
    """Whether Python takes a receipt and its proof."""
    about = VECTORS["receipt"]
    if not verify(receipt, {about["receipts"]: "the operator"}).valid:
        return False
    log, witness = Key.parse(about["log"], LOG), Key.parse(about["witness"], WITNESS)
    try:
        entry = b"\x02" + hashlib.sha256(receipt).digest()
        Proof.parse(proof.decode()).check(entry, log, [witness])
    except (RescindError, UnicodeDecodeError):
        return False
    return True


EVERY_BYTE = pytest.param(1, marks=pytest.mark.service)


@pytest.mark.parametrize("step", [17, EVERY_BYTE])
@pytest.mark.parametrize("which", ["receipt", "proof"])
def test_every_changed_byte_is_refused(which: str, step: int) -> None:
    good = {name: page_vectors.bytes_of(VECTORS["receipt"][name]) for name in ("receipt", "proof")}
    assert holds(**good)
    taken = []
    for n in range(0, len(good[which]), step):
        changed = bytearray(good[which])
        changed[n] ^= (0x01, 0x20, 0x80)[n % 3]
        if holds(**{**good, which: bytes(changed)}):
            taken.append(n)
    assert taken == []
