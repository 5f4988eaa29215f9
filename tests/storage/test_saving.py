"""A save writes what changed, is whole or not there, and leaves nothing that was forgotten."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rescind import methods
from rescind.core import files, params
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.labels import Labels
from rescind.core.records import Erase, Event, Records, Share, Unshare, Withdraw
from rescind.core.table import PIECE
from rescind.errors import DataError
from rescind.forgetting.forget import forget
from rescind.storage import content
from rescind.storage.federations import load_federation, save_federation

PEOPLE, ITEMS, WHO = 5 * PIECE + 100, 40, 7
CANARY_TIME = 0x5A17_C0DE_CAFE_F00D
CANARY_NAME = "agnes-the-canary"


def big(method: str = "Gram") -> Federation:
    """More people than a piece has; one of them has a name and a time that nobody else has."""
    client = torch.arange(PEOPLE).repeat_interleave(4)
    item = (client * 7 + torch.arange(4).repeat(PEOPLE) * 5) % ITEMS
    time = torch.where(client == WHO, CANARY_TIME, client)
    held = Holdings.of(Records.of(client, item, time), torch.zeros(len(client)), PEOPLE, ITEMS)
    users = tuple(CANARY_NAME if n == WHO else f"person {n}" for n in range(PEOPLE))
    labels = Labels(users, tuple(f"item {n}" for n in range(ITEMS)))
    fed = Federation.start(held, getattr(methods, method)(), seed=3, labels=labels)
    return fed.apply(Share(held.records[held.records.item % 2 == 0])).run(1)


@pytest.fixture(scope="module")
def trained() -> Federation:
    return big()


def everything(fed: Federation) -> list[str]:
    """Digests of all that a federation is."""
    parts = [fed.world.digest(), fed.now.vault.holdings.digest(), str(tuple(fed.labels.users))]
    parts += [params.digest(fed.now.state.public), params.digest(fed.now.state.own)]
    parts += [params.digest(fed.now.vault.private), str(fed.events)]
    if fed.past is not None:
        parts += [fed.past.origin.digest(), str([e.digest() for _, e in fed.past.story])]
    return parts


def found(folder: Path) -> list[str]:
    """Files that hold the name of the person, or the time of their records."""
    number = CANARY_TIME.to_bytes(8, "little")
    marks = (CANARY_NAME.encode(), number)
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [p.name for p in paths if any(mark in p.read_bytes() for mark in marks)]


def written(folder: Path, fed: Federation) -> int:
    """Save; return the bytes of new files."""
    before = {path.name for path in folder.rglob("*")}
    save_federation(fed, folder)
    new = [p for p in folder.rglob("*") if p.is_file() and p.name not in before]
    return sum(path.stat().st_size for path in new)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def one_event(fed: Federation) -> Iterator[Event]:
    lent = fed.world.shared.of_clients(torch.tensor([WHO]))
    yield Unshare(lent[:1])
    yield Share(lent[:1])
    yield Erase(fed.now.vault.holdings.records.of_clients(torch.tensor([WHO]))[:1])
    yield Withdraw(WHO)


@pytest.mark.parametrize("method", ["Gram", "FedShare"])
def test_a_federation_comes_back_after_every_change(method: str, tmp_path: Path) -> None:
    fed = big(method)
    for event in one_event(fed):
        fed = fed.apply(event)
        assert everything(load_federation(save_federation(fed, tmp_path))) == everything(fed)
    fed = fed.run(1)
    assert everything(load_federation(save_federation(fed, tmp_path))) == everything(fed)


@pytest.mark.parametrize("loaded", [False, True], ids=["in memory", "loaded"])
def test_one_event_writes_a_few_files(trained: Federation, tmp_path: Path, loaded: bool) -> None:
    fed = load_federation(save_federation(trained, tmp_path)) if loaded else trained
    save_federation(fed, tmp_path)
    assert written(tmp_path, fed) == 0, "nothing changed"
    after = fed.apply(next(one_event(fed)))
    assert 0 < written(tmp_path, after) < size(tmp_path) / 4
    other = after.apply(Share(after.now.vault.holdings.records))  # the control: of everybody
    assert written(tmp_path, other) > size(tmp_path) / 8


def test_what_did_not_change_is_not_read_again(
    trained: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = load_federation(save_federation(trained, tmp_path))
    hashed: list[int] = []
    real = content.name_of
    monkeypatch.setattr(content, "name_of", lambda data: hashed.append(len(data)) or real(data))
    save_federation(fed.apply(next(one_event(fed))), tmp_path)
    assert sum(hashed) < size(tmp_path) / 4


@pytest.mark.parametrize("method", ["Gram", "FedShare"])
def test_nothing_of_somebody_who_left_stays_in_the_folder(method: str, tmp_path: Path) -> None:
    fed = big(method)
    save_federation(fed, tmp_path)
    assert len(found(tmp_path)) >= 3, "the control: records, loans and the name are there"
    after, _ = forget(fed, Withdraw(WHO), audits="none")
    save_federation(after, tmp_path)
    assert found(tmp_path) == []
    assert everything(load_federation(tmp_path)) == everything(after)


def test_without_the_sweep_it_would_stay(
    trained: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_federation(trained, tmp_path)
    monkeypatch.setattr(content.Store, "sweep", lambda store: None)
    after, _ = forget(trained, Withdraw(WHO), audits="none")
    save_federation(after, tmp_path)
    assert found(tmp_path) != [], "the control"
    monkeypatch.undo()
    save_federation(after, tmp_path)
    assert found(tmp_path) == [], "the next save removes what an interrupted one left"


def test_a_save_that_is_cut_off_leaves_the_old_or_the_new(
    trained: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after, _ = forget(trained, Withdraw(WHO), audits="none")
    kept = save_federation(trained, tmp_path / "kept")
    shutil.copytree(kept, tmp_path / "counted")
    touches = _touches(after, tmp_path / "counted", monkeypatch)
    head = touches.index("replace server.safetensors")
    old, new = everything(trained), everything(after)
    seen = []
    for at in sorted({0, *range(1, len(touches), 8), head, head + 1, len(touches) - 1}):
        folder = shutil.copytree(kept, tmp_path / str(at))
        with pytest.raises(KeyboardInterrupt):
            _touches(after, folder, monkeypatch, die_at=at)
        seen.append(everything(load_federation(folder)))
        assert seen[-1] == (old if at <= head else new), touches[at]
    assert old in seen
    assert new in seen
    save_federation(after, folder)
    assert everything(load_federation(folder)) == new
    assert found(folder) == []


def _touches(
    fed: Federation, folder: Path, monkeypatch: pytest.MonkeyPatch, die_at: int | None = None
) -> list[str]:
    """Save, and return what touched the disk; or die before one of these touches."""
    touches: list[str] = []

    def noted(name: str) -> None:
        real = getattr(os, name)

        def touch(*given: Any, **more: Any) -> Any:
            if len(touches) == die_at:
                raise KeyboardInterrupt
            touches.append(f"{name} {Path(str(given[-1])).name}")
            return real(*given, **more)

        monkeypatch.setattr(os, name, touch)

    for name in ("replace", "unlink", "fsync"):
        noted(name)
    try:
        save_federation(fed, folder)
    finally:
        monkeypatch.undo()
    return touches


def test_files_that_no_list_names_are_told(
    trained: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_federation(trained, tmp_path)
    load_federation(tmp_path)
    assert not caplog.records, "the control"
    (tmp_path / "devices" / "stray.safetensors").write_bytes(b"left")
    load_federation(tmp_path)
    assert "1 files that no list names" in caplog.text


@pytest.mark.parametrize("side", ["server", "devices", "labels"])
def test_a_changed_or_missing_file_is_named(trained: Federation, tmp_path: Path, side: str) -> None:
    save_federation(trained, tmp_path)
    path = sorted((tmp_path / side).iterdir())[0]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DataError, match=path.name):
        load_federation(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=path.name):
        load_federation(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(
    trained: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save_federation(trained, tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left on device"):
        save_federation(trained.apply(Withdraw(WHO)), tmp_path)
    monkeypatch.undo()
    assert everything(load_federation(tmp_path)) == everything(trained)


def test_two_saves_at_once_are_refused(trained: Federation, tmp_path: Path) -> None:
    said = rf"in use .*\(process {os.getpid()}\)\. End it"
    with files.locked(tmp_path), pytest.raises(DataError, match=said):
        save_federation(trained, tmp_path)
