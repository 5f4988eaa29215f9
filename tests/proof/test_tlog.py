"""The tree of a log, against a naive oracle and published vectors."""

from __future__ import annotations

import inspect
import re
import sys
from base64 import b64decode
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rescind.errors import ConfigError, DataError
from rescind.proof import notes, tlog
from rescind.proof.notes import LOG, WITNESS, Checkpoint, Key, Proof
from rescind.service.log_files import read_tile_path

# The entries and hashes with which implementations of RFC 6962 have long been tested.
ENTRIES = [
    bytes.fromhex(text)
    for text in (
        *("", "00", "10", "2021", "3031", "40414243", "5051525354555657"),
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
A, B, C = (
    "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
    "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
    "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
)
D = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0"


def naive(entries: list[bytes]) -> bytes:
    """RFC 6962, 2.1, word for word."""
    if not entries:
        return sha256(b"").digest()
    if len(entries) == 1:
        return sha256(b"\x00" + entries[0]).digest()
    k = 1
    while 2 * k < len(entries):
        k *= 2
    return sha256(b"\x01" + naive(entries[:k]) + naive(entries[k:])).digest()


def tree_of(entries: list[bytes]) -> tlog.Tree:
    tree = tlog.Tree()
    for entry in entries:
        tree.append(entry)
    return tree


def hexes(hashes: list[bytes]) -> list[str]:
    return [one.hex() for one in hashes]


def test_published_vectors() -> None:
    tree = tree_of(ENTRIES)
    assert [tree.root(n).hex() for n in range(1, 9)] == list(ROOTS)
    assert tree.root(0) == sha256(b"").digest()
    assert hexes(tree.inclusion(0, 8)) == [A, B, C]
    sixth = "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"
    assert hexes(tree.inclusion(5, 8)) == [sixth, D, ROOTS[3]]
    assert hexes(tree.consistency(1, 8)) == [A, B, C]
    whole = "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a"
    assert hexes(tree.consistency(6, 8)) == [whole, D, ROOTS[3]]


def test_every_root_and_proof_up_to_33_leaves_agrees_with_the_naive_tree() -> None:
    entries = [bytes([n, 7]) for n in range(33)]
    tree = tlog.Tree()
    for size, entry in enumerate(entries, 1):
        assert tree.append(entry) == size - 1
        root = tree.root()
        assert root == naive(entries[:size])
        for n in range(size):
            path = tree.inclusion(n)
            assert tlog.root_of(tlog.leaf_hash(entries[n]), n, size, path) == root
            wrong = tlog.root_of(tlog.leaf_hash(b"another"), n, size, path)
            assert wrong != root
            beside = tlog.root_of(tlog.leaf_hash(entries[n]), (n + 1) % size, size, path)
            assert beside != root or size == 1
        for old in range(size + 1):
            path = tree.consistency(old)
            old_root = naive(entries[:old])
            assert tlog.extends(old, old_root, size, root, path)
            if old:
                assert not tlog.extends(old, naive([b"fork", *entries[1:old]]), size, root, path)
                assert not tlog.extends(old, old_root, size, naive([b"fork"]), path)
            assert not tlog.extends(old, old_root, size, root, [*path, root])
            if path:
                assert not tlog.extends(old, old_root, size, root, path[:-1])


def test_a_swapped_or_dropped_leaf_gives_another_history() -> None:
    entries = [bytes([n]) for n in range(20)]
    old = tree_of(entries[:12])
    swapped = [*entries[:3], entries[4], entries[3], *entries[5:]]
    for forged in (swapped, [*entries[1:], b"new"], [*entries[:11], b"other", *entries[12:]]):
        new = tree_of(forged)
        assert not tlog.extends(12, old.root(), len(new), new.root(), new.consistency(12))
    honest = tree_of(entries)
    assert tlog.extends(12, old.root(), 20, honest.root(), honest.consistency(12))


def test_a_tree_from_stored_leaves_goes_on_as_the_first_one() -> None:
    whole, start = tree_of([bytes([n]) for n in range(100)]), tlog.Tree()
    for n in range(57):
        start.append(bytes([n]))
    stored = b"".join(start.tile(0, 0, 57)[32 * n : 32 * n + 32] for n in range(57))
    again = tlog.Tree(stored)
    for n in range(57, 100):
        again.append(bytes([n]))
    assert again.root() == whole.root()
    assert again.inclusion(3) == whole.inclusion(3)


def test_tiles_of_seventy_thousand_leaves_are_those_of_the_specification() -> None:
    tree = tree_of([n.to_bytes(3) for n in range(70_000)])
    assert len(tree.tile(0, 272)) == len(tree.tile(1, 0)) == 8192
    assert len(tree.tile(0, 273, 112)) == 112 * 32
    assert tree.tile(1, 0)[:32] == naive([n.to_bytes(3) for n in range(256)])
    assert tree.tile(1, 1, 17)[-32:] == naive([n.to_bytes(3) for n in range(272 * 256, 273 * 256)])
    assert tree.tile(2, 0, 1) == tree.root(65_536)
    for level, index, width in ((0, 273, 113), (1, 1, 18), (2, 0, 2), (3, 0, 1), (0, 274, 1)):
        with pytest.raises(DataError, match="no tile"):
            tree.tile(level, index, width)


def test_paths_of_tiles() -> None:
    assert tlog.tile_path(0, 1234067) == "tile/0/x001/x234/067"
    assert tlog.tile_path("entries", 5, 17) == "tile/entries/005.p/17"
    for path, told in (
        ("tile/0/x001/x234/067", (0, 1234067, 256)),
        ("tile/entries/005.p/17", (None, 5, 17)),
        ("tile/63/000", (63, 0, 256)),
    ):
        assert read_tile_path(path) == told
    for path in (
        *("tile/64/000", "tile/00/000", "tile/0/0", "tile/0/x000/000", "tile/0/001.p/256"),
        *("tile/0/001.p/0", "tile/0/001.p/017", "tile/0/../1", "tile/x/001", "tile/0/x1/001"),
    ):
        with pytest.raises(DataError, match="no tile"):
            read_tile_path(path)
    assert tlog.bundle([b"ab", b""]) == b"\0\2ab\0\0"


def test_a_published_signed_note() -> None:
    # The example of the package golang.org/x/mod/sumdb/note.
    key = Key.parse("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW", LOG)
    text = (
        b"If you think cryptography is the answer to your problem,\n"
        b"then you don't know what your problem is.\n"
    )
    raw = b64decode(
        "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
    )
    assert raw[:4] == key.id
    assert key.holds(raw[4:], text)
    assert not key.holds(raw[4:], text + b"!")


@pytest.fixture
def signers() -> tuple[Ed25519PrivateKey, Ed25519PrivateKey, Key, Key]:
    log, witness = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
    public = [one.public_key().public_bytes_raw() for one in (log, witness)]
    return log, witness, Key("example.org/log", public[0]), Key("silo-0", public[1], WITNESS)


def a_proof(log: Ed25519PrivateKey, witness: Ed25519PrivateKey, n: int = 5) -> Proof:
    tree = tree_of([bytes([k]) * 33 for k in range(11)])
    point = Checkpoint("example.org/log", 11, tree.root())
    line = notes.signature_line(str(point), "silo-0", witness, WITNESS, 1_700_000_000)
    return Proof(n, tuple(tree.inclusion(n)), notes.signed(point, log) + line)


def test_a_proof_is_read_as_it_is_written_and_says_who_saw_it(signers) -> None:
    log, witness, log_key, witness_key = signers
    proof = a_proof(log, witness)
    again = Proof.parse(str(proof))
    assert again == proof
    assert len(str(proof)) < 1_100
    point, seen = again.check(bytes([5]) * 33, log_key, [witness_key])
    assert (point.origin, point.size, seen) == ("example.org/log", 11, {witness_key: 1_700_000_000})
    with pytest.raises(DataError, match="not at this place"):
        proof.check(bytes([6]) * 33, log_key, [witness_key])
    stranger = Key("silo-1", witness_key.public, WITNESS)
    with pytest.raises(DataError, match="not cosigned by silo-1"):
        proof.check(bytes([5]) * 33, log_key, [stranger])
    other = Key("example.org/log", witness_key.public)
    with pytest.raises(DataError, match="not signed by the log"):
        proof.check(bytes([5]) * 33, other, [])


def test_every_byte_of_a_proof_counts(signers) -> None:
    log, witness, log_key, witness_key = signers
    good = str(a_proof(log, witness)).encode()
    entry = bytes([5]) * 33
    Proof.parse(good.decode()).check(entry, log_key, [witness_key])
    passed = []
    for at in range(len(good)):
        for flip in (0x20, 0xFF):
            bad = good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :]
            try:
                Proof.parse(bad.decode("utf-8", "replace")).check(entry, log_key, [witness_key])
            except DataError:
                continue
            passed.append((at, flip))
    assert passed == []


def test_keys_are_written_in_one_way(signers) -> None:
    _, _, log_key, witness_key = signers
    assert Key.parse(f"{log_key}\n", LOG) == log_key
    assert Key.parse(str(witness_key), WITNESS) == witness_key
    for text, kind in (
        (str(log_key), WITNESS),
        (str(witness_key), LOG),
        (str(log_key)[:-2], LOG),
        ("", LOG),
        ("a+b", LOG),
        ("ed25519:00", LOG),
    ):
        with pytest.raises(ConfigError, match="NAME\\+ID\\+KEY"):
            Key.parse(text, kind)


def test_questions_that_a_log_cannot_answer_are_refused() -> None:
    tree = tree_of(ENTRIES)
    for ask in (
        lambda: tree.root(9),
        lambda: tree.inclusion(8),
        lambda: tree.inclusion(-1),
        lambda: tree.consistency(9),
        lambda: tree.inclusion(5, 5),
    ):
        with pytest.raises(DataError):
            ask()


def test_the_log_stands_on_hashlib_and_cryptography() -> None:
    sources = [inspect.getsource(module) for module in (tlog, notes)]
    outside = set(re.findall(r"^(?:from|import) (\w+)", "\n".join(sources), re.MULTILINE))
    assert outside - set(sys.stdlib_module_names) == {"cryptography", "rescind"}
