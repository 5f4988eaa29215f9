"""`rescind forget` killed at every touch of the disk, raced and repeated.

A receipt may lie on the disk only where the records are gone, and whatever was begun is finished by
the same command or by any other on either folder: one request, one receipt.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import killing
from killing import TINY, Nursery, files, nursery, saved
from rescind.privacy import keys
from rescind.receipts.verify import verify
from rescind.storage.federations import load_federation

USER = "7"
WORDS = ["forget", "cut", "--withdraw", USER, "--audits", "none"]


@dataclass(frozen=True)
class Scene:
    """A finished run, what forgetting makes of it, and how often that touches the disk."""

    nurse: Nursery
    secrets: Path
    model: dict[str, str]
    left: list[str]
    touches: list[tuple[str, str]]

    @property
    def here(self) -> Path:
        return self.nurse.here

    def fresh(self) -> None:
        """Put a copy of the run in place, and nothing else."""
        for path in self.here.glob("*cut*"):
            shutil.rmtree(path)
        shutil.copytree(self.here / "base", self.here / "cut")

    def signed(self) -> list[Path]:
        """Every valid receipt below the folder, wherever it lies."""
        own = {keys.public_key(str(self.secrets / "signing.pub")): "us"}
        found = []
        for path in self.here.glob("*cut*/**/*"):
            read = path.is_file() and path.suffix != ".safetensors"
            if read and verify(path.read_bytes(), own).valid:
                found.append(path)
        return found

    def held(self) -> list[str]:
        """Models below the folder that still hold the person's records."""
        found = []
        for path in self.here.glob("*cut*/model/server.safetensors"):
            try:
                fed = load_federation(path.parent)
            except Exception:  # half of a model is as bad as a whole one
                found.append(str(path.parent))
                continue
            if USER in fed.labels.users:
                found.append(str(path.parent))
        return found

    def check_struck(self) -> None:
        """Fail if a receipt lies beside the records."""
        if self.signed():
            assert self.held() == [], "a valid receipt, and the records are still there"

    def check_done(self) -> None:
        """Fail unless the request is answered once and nothing else is left."""
        assert self.held() == []
        assert [str(p.relative_to(self.here)) for p in self.signed()] == [
            "cut-forgot-1/receipt.json"
        ]
        assert sorted(p.name for p in self.here.glob("*cut*")) == ["cut", "cut-forgot-1"]
        assert [n for c in ("cut", "cut-forgot-1") for n in files(self.here / c)] == self.left
        assert saved(self.here / "cut-forgot-1") == self.model


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    here = tmp_path_factory.mktemp("forget-killed")
    (here / "small.toml").write_text(TINY)
    secrets = tmp_path_factory.mktemp("keys")  # outside: making keys is not what is killed here
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(killing.ENVIRONMENT, "RESCIND_KEYS", str(secrets))
        with nursery(here) as nurse:
            assert nurse.run("run", "small.toml", "--out", "base").code == 0
            shutil.copytree(here / "base", here / "cut")
            book = here.with_name(f"{here.name}-book")
            ended = nurse.run(*WORDS, how="never", book=str(book))
            assert ended.code == 0, ended.err
            touched = [tuple(line.split(" ", 1)) for line in book.read_text().splitlines()]
            model = saved(here / "cut-forgot-1")
            assert model is not None
            left = [n for c in ("cut", "cut-forgot-1") for n in files(here / c)]
            yield Scene(nurse, secrets, model, left, touched)


def strike(scene: Scene, at: int, how: str, then: list[str]) -> None:
    scene.fresh()
    scene.nurse.run(*WORDS, at=at, how=how)
    scene.check_struck()
    scene.nurse.run(*then)
    scene.check_struck()
    again = scene.nurse.run(*WORDS)
    assert again.code == 0, f"touch {at} {how}: {again.err}"
    scene.check_done()


def chosen(scene: Scene, kinds: tuple[str, ...], number: int) -> list[int]:
    """A few touches of some kinds, spread over the command."""
    found = [n for n, (kind, _) in enumerate(scene.touches, 1) if kind in kinds]
    return found[:: max(1, len(found) // number)]


def test_killed_at_a_few_touches_it_is_finished_by_the_same_command(scene: Scene) -> None:
    assert len(scene.touches) > 40
    for at in chosen(scene, ("replace", "unlink"), 3):
        strike(scene, at, "after", WORDS)


def test_killed_it_is_finished_by_any_other_command_on_either_folder(scene: Scene) -> None:
    last = [n for n, (kind, _) in enumerate(scene.touches, 1) if kind == "replace"]
    for at, folder in ((last[-3], "cut"), (last[-1], "cut-forgot-1")):
        scene.fresh()
        scene.nurse.run(*WORDS, at=at, how="before")
        scene.check_struck()
        scene.nurse.run("recommend", folder, "--user", "3")
        scene.check_done()


WAYS = ("before", "after", "half")
THEN = ["recommend", "cut", "--user", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_killed_at_every_touch_of_the_disk(scene: Scene, part: int) -> None:
    """Each touch in one of the three ways, the next touch in another."""
    for at in range(1 + part, len(scene.touches) + 1, 4):
        strike(scene, at, WAYS[at % 3], THEN)


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_killed_at_every_touch_in_every_way(scene: Scene, how: str) -> None:
    """Takes half an hour, so `make test-slow` has it and `make test-security` does not."""
    for at in range(1, len(scene.touches) + 1):
        strike(scene, at, how, THEN)


def test_a_request_that_came_second_is_not_taken_for_the_first(scene: Scene) -> None:
    scene.fresh()
    renamed = [
        n for n, (kind, path) in enumerate(scene.touches, 1)
        if kind == "replace" and path.endswith("cut-forgot-1")
    ]  # fmt: skip
    scene.nurse.run(*WORDS, at=renamed[0], how="after")
    other = scene.nurse.run("forget", "cut", "--withdraw", "9", "--audits", "none")
    assert other.code == 2
    assert "cut-forgot-1" in other.err
    scene.check_done()


def test_two_at_once_are_told_apart(scene: Scene) -> None:
    scene.fresh()
    first = killing.command(scene.here, *WORDS)
    (scene.here / "second").mkdir(exist_ok=True)
    second = killing.command(
        scene.here / "second", "forget", "../cut", "--withdraw", "9", "--audits", "none"
    )
    codes = sorted((first.wait(), second.wait()))
    assert codes == [0, 2], (scene.here / "stderr").read_text()
    said = (scene.here / "second" / "stderr").read_text() + (scene.here / "stderr").read_text()
    assert "in use" in said or "cut-forgot-1, the run without it" in said
    (new,) = scene.here.glob("cut-forgot-*")
    moved = json.loads((scene.here / "cut" / "moved.json").read_text())
    assert Path(moved["to"]).name == new.name
    users = load_federation(new / "model").labels.users
    assert (USER in users) != ("9" in users), "one was answered, with a model that fits"
    shutil.rmtree(scene.here / "second")
