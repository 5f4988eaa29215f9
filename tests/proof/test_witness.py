"""A witness signs one history only, also after a restart; so does whoever kept a checkpoint."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from shutil import copytree

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rescind.cli.witness import open_witness
from rescind.core.files import locked
from rescind.errors import ConfigError, DataError
from rescind.proof import notes
from rescind.proof.log_folder import CHANGE, CHECKPOINT, ENTRIES, LogFolder, entry_of
from rescind.proof.notes import Checkpoint, Key
from rescind.proof.tlog import Tree
from rescind.proof.witness import SEEN, Reply, Witness, request_body
from rescind.proof.witness_http import Cosigning, ask, server

PRIVATE = Ed25519PrivateKey.from_private_bytes(b"l" * 32)
NAME = "example.org/log"
LOG = Key(NAME, PRIVATE.public_key().public_bytes_raw())


def entries(*numbers: int) -> list[bytes]:
    return [entry_of(CHANGE, bytes([n])) for n in numbers]


@pytest.fixture
def log(tmp_path: Path) -> LogFolder:
    log = LogFolder.make(tmp_path / "log", NAME, PRIVATE)
    log.append(entries(*range(7)), PRIVATE)
    return log


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "witness"


def opened(state: Path) -> Witness:
    return open_witness(state, "silo-0", [LOG])


def send(witness: Witness, tree: Tree, old: int, size: int | None = None) -> Reply:
    size = len(tree) if size is None else size
    note = notes.signed(Checkpoint(NAME, size, tree.root(size)), PRIVATE)
    path = tree.consistency(old, size) if old <= size else []
    return witness.add_checkpoint(request_body(old, path, note))


def forged(*numbers: int) -> Tree:
    tree = Tree()
    for entry in entries(*numbers):
        tree.append(entry)
    return tree


def test_it_signs_a_log_that_grows_and_says_when(log: LogFolder, state: Path) -> None:
    witness = opened(state)
    assert send(witness, log.tree, 0).status == 200
    log.append(entries(7, 8), PRIVATE)
    reply = send(opened(state), log.tree, 7)
    assert reply.status == 200
    assert log.cosigned(reply.body, witness.key) > 1.7e9
    assert list(log.check(LOG, [witness.key])) == [witness.key]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("tree", "old", "status"),
    [
        (forged(0, 1, 2, 9, 4, 5, 6, 7), 7, 422),  # a fork
        (forged(0, 1, 3, 2, 4, 5, 6, 7), 7, 422),  # two leaves swapped
        (forged(0, 1, 2, 3, 4, 5, 9), 7, 409),  # another log of the same length
        (forged(0, 1, 2, 3, 4), 5, 409),  # rolled back
        (forged(0, 1, 2, 3, 4), 0, 409),  # the same, as if nothing had been signed
        (forged(0, 1, 2, 3, 4), 7, 400),  # truncated
        (forged(1, 2, 3, 4, 5, 6, 7, 8), 7, 422),  # the first leaf dropped
    ],
)
def test_it_refuses_another_history_also_after_a_restart(
    log: LogFolder, state: Path, tree: Tree, old: int, status: int, restarted: bool
) -> None:
    witness = opened(state)
    assert send(witness, log.tree, 0).status == 200
    before = (state / SEEN).read_bytes()
    witness = opened(state) if restarted else witness
    assert send(witness, tree, old).status == status
    assert (state / SEEN).read_bytes() == before
    log.append(entries(7), PRIVATE)
    assert send(witness, log.tree, 7).status == 200  # the control: the true log goes on


def test_a_witness_without_memory_would_sign_a_fork(log: LogFolder, state: Path) -> None:
    # The control of the test above: the state is what refuses, so losing it must stop a witness.
    assert send(opened(state), log.tree, 0).status == 200
    (state / SEEN).write_text("{}\n")
    assert send(opened(state), forged(9, 8, 7), 0).status == 200
    (state / SEEN).unlink()
    with pytest.raises(DataError, match="Restore it"):
        opened(state)
    (state / SEEN).write_text("[1")
    with pytest.raises(DataError, match="cannot be read"):
        opened(state)


def test_the_state_is_written_before_the_answer(
    log: LogFolder, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = opened(state)

    def full(*_: object, **__: object) -> None:
        raise DataError("cannot write: no space left")

    with monkeypatch.context() as patched:
        patched.setattr("rescind.proof.witness.write_atomically", full)
        reply = send(witness, log.tree, 0)
    assert reply.status != 200
    assert "\u2014" not in reply.body
    assert witness.seen(NAME).size == 0
    assert send(witness, log.tree, 0).status == 200
    assert json.loads((state / SEEN).read_text())[NAME][0] == 7


def test_what_it_does_not_know_or_cannot_read_is_refused(log: LogFolder, state: Path) -> None:
    witness, stranger = opened(state), Ed25519PrivateKey.from_private_bytes(b"s" * 32)
    point = log.checkpoint
    other = notes.signed(Checkpoint("other/log", 7, point.root), PRIVATE)
    assert witness.add_checkpoint(request_body(0, [], other)).status == 404
    unsigned = notes.signed(point, stranger)
    assert witness.add_checkpoint(request_body(0, [], unsigned)).status == 403
    broken = log.note.replace("\u2014 example.org/log ", "\u2014 example.org/log A", 1)
    assert witness.add_checkpoint(request_body(0, [], broken)).status in (400, 403)
    for body in (b"", b"old 0\n", b"old 00\n\n" + log.note.encode(), b"\xff", b"x" * 100_000):
        assert witness.add_checkpoint(body).status == 400, body[:20]


def test_over_http_another_history_is_told_in_words_on_both_sides(
    log: LogFolder, state: Path, tmp_path: Path
) -> None:
    other = LogFolder.make(tmp_path / "other", NAME, PRIVATE)
    other.append(entries(0, 1, 2, 3, 4, 5, 9), PRIVATE)
    witness, told = opened(state), list[str]()
    with server(witness, "127.0.0.1", 0, told.append) as door:
        thread = threading.Thread(target=door.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{door.server_port}"
            for _ in range(2):
                ask(url, witness.key, log)
            assert told == [], "control: to be asked what it saw is no refusal"
            said = "has signed 7 entries of another history of this log"
            with pytest.raises(DataError, match=said):
                ask(url, witness.key, other)
            not_shown = "entries that were not shown to continue the 7 signed here"
            assert told == [f"refused: {NAME} signed 7 {not_shown}"]
            other.append(entries(7), PRIVATE)
            with pytest.raises(DataError, match="a second history"):
                ask(url, witness.key, other)
            assert "signed 8 entries" in told[1]
        finally:
            door.shutdown()
            thread.join()


def test_over_http_a_log_asks_and_a_rolled_back_one_is_told(
    log: LogFolder, state: Path, tmp_path: Path
) -> None:
    witness = opened(state)
    with server(witness, "127.0.0.1", 0) as door:
        thread = threading.Thread(target=door.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{door.server_port}"
            early = (log.folder / ENTRIES).read_bytes(), log.note
            ask(url, witness.key, log)
            log.append(entries(7, 8, 9), PRIVATE)
            ask(url, witness.key, log)
            assert witness.key in log.check(LOG, [witness.key])
            ask(url, witness.key, log)  # twice is no harm
            (log.folder / ENTRIES).write_bytes(early[0])
            (log.folder / CHECKPOINT).write_text(early[1])
            back = LogFolder(log.folder)
            with pytest.raises(DataError, match="rolled back"):
                ask(url, witness.key, back)
            back.append(entries(20, 21, 22, 23), PRIVATE)
            with pytest.raises(DataError, match="second history"):
                ask(url, witness.key, back)
        finally:
            door.shutdown()
            thread.join()
    with pytest.raises(DataError, match="cannot be reached"):
        ask(url, witness.key, log)


def test_a_service_asks_all_its_witnesses_and_keeps_what_they_signed(
    log: LogFolder, tmp_path: Path
) -> None:
    one, two = (open_witness(tmp_path / name, name, [LOG]) for name in ("silo-0", "silo-1"))
    with server(one, "127.0.0.1", 0) as first, server(two, "127.0.0.1", 0) as second:
        threads = [threading.Thread(target=door.serve_forever) for door in (first, second)]
        for thread in threads:
            thread.start()
        try:
            urls = [f"http://127.0.0.1:{door.server_port}" for door in (first, second)]
            places = {urls[0]: one.key, urls[1]: two.key, "http://127.0.0.1:9": two.key}
            cosigning = Cosigning(places, lambda: log.note, log.tree, places)
            assert cosigning.note_with(0) is None
            problems = cosigning.ask_all()
            assert list(problems) == ["http://127.0.0.1:9"]
            note = cosigning.note_with(6)
            assert note is not None
            _, found = notes.opened(note, [LOG, one.key, two.key])
            assert len(found) == 3
            assert cosigning.note_with(7) is None  # not signed yet
            wrong = Cosigning({urls[0]: two.key}, lambda: log.note, log.tree, urls)
            assert "no signature of silo-1" in wrong.ask_all()[urls[0]]
            fork = forged(9, 8, 7, 6, 5, 4, 3, 2, 1)
            other = notes.signed(Checkpoint(NAME, 9, fork.root()), PRIVATE)
            told = Cosigning({urls[0]: one.key}, lambda: other, fork, urls).ask_all()
            assert "second history" in told[urls[0]]
        finally:
            for door in (first, second):
                door.shutdown()
            for thread in threads:
                thread.join()


def test_whoever_kept_a_checkpoint_finds_every_other_history(
    log: LogFolder, tmp_path: Path
) -> None:
    kept = log.note
    log.append(entries(7, 8), PRIVATE)
    log.check(LOG, since=kept)
    fork, cut = "TWO HISTORIES", "and your checkpoint.*has fewer, the log was cut"
    for number, (tree, told) in enumerate(
        (
            ([0, 1, 2, 3, 4, 5, 9, 7, 8], fork),
            ([0, 2, 1, 3, 4, 5, 6, 7, 8], fork),
            ([0, 1, 2, 3, 4, 5, 9], fork),
            ([0, 1, 2, 3, 4, 5], cut),
            ([1, 2], cut),
        )
    ):
        other = LogFolder.make(tmp_path / str(number), NAME, PRIVATE)
        other.append(entries(*tree), PRIVATE)
        other.check(LOG)
        with pytest.raises(DataError, match=told):
            other.check(LOG, since=kept)
    with pytest.raises(DataError, match="not cosigned by silo-0"):
        log.check(LOG, [Key("silo-0", b"w" * 32, notes.WITNESS)])


def test_an_honest_older_copy_is_not_called_a_second_history(
    log: LogFolder, tmp_path: Path
) -> None:
    copy = Path(copytree(log.folder, tmp_path / "copy"))
    log.append(entries(7, 8, 9), PRIVATE)
    with pytest.raises(DataError, match="Fetch it again") as told:
        LogFolder(copy).check(LOG, since=log.note)
    assert "TWO HISTORIES" not in str(told.value)
    assert "7 entries and your checkpoint 10" in str(told.value)


def test_a_changed_entry_is_found_when_the_log_is_opened(log: LogFolder) -> None:
    whole = (log.folder / ENTRIES).read_bytes()
    swapped = whole[33:66] + whole[:33] + whole[66:]
    for data in (swapped, whole[:-33], b"\1" + whole[:-1], whole[:40] + b"!" + whole[41:]):
        (log.folder / ENTRIES).write_bytes(data)
        with pytest.raises(DataError, match="Restore the folder"):
            LogFolder(log.folder)
    (log.folder / ENTRIES).write_bytes(whole)
    assert len(LogFolder(log.folder).entries) == 7


def test_a_killed_append_is_finished_by_the_next(log: LogFolder) -> None:
    with open(log.folder / ENTRIES, "ab") as file:
        file.write(entries(7)[0] + entries(8)[0][:10])
    again = LogFolder(log.folder)
    assert again.checkpoint.size == 7
    assert again.append(entries(9), PRIVATE) == [8]
    assert again.append(entries(9, 0), PRIVATE) == [8, 0]  # nothing twice
    assert LogFolder(log.folder).entries == entries(0, 1, 2, 3, 4, 5, 6, 7, 9)


def test_two_commands_that_append_at_once_wait_for_each_other(
    log: LogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LogFolder(log.folder)
    with locked(log.folder):
        waiting = threading.Thread(target=lambda: other.append(entries(30), PRIVATE))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join()
    assert log.append(entries(31), PRIVATE) == [8]
    monkeypatch.setattr("rescind.proof.log_folder.PATIENCE", 0.05)
    with locked(log.folder), pytest.raises(DataError, match="in use"):
        log.append(entries(32), PRIVATE)


def test_a_log_is_not_signed_by_another_key_or_named_badly(log: LogFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="another key"):
        log.append(entries(50), Ed25519PrivateKey.generate())
    assert len(LogFolder(log.folder).entries) == 7
    with pytest.raises(ConfigError, match="cannot name a log"):
        LogFolder.make(tmp_path / "bad", "two words", PRIVATE)
    with pytest.raises(ConfigError, match="no log"):
        LogFolder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="33 bytes"):
        log.append([b"short"], PRIVATE)
