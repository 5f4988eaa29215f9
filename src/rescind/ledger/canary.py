"""The life of a planted person, and what somebody who takes every file can read of it.

A person with unmistakable records joins, lends, changes, is exported, is in a release, in a
generation, in a backup and in the copy of a crash, and leaves; then the next release is made.
Before and after, two attackers look: one searches all bytes of all files in every form, the other
has the keys on the disk, too, and tries each of them on each box, also of old copies.
"""

from __future__ import annotations

import secrets
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sqlalchemy import insert

from rescind.errors import ConfigError
from rescind.ledger import tables
from rescind.ledger.backup import back_up
from rescind.ledger.batch import Answer, Batch, Operation
from rescind.ledger.book import Ledger
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.contributing import Contribute, Part
from rescind.ledger.errors import NotThere
from rescind.ledger.jobs import LISTS, file_of
from rescind.ledger.jobs import bound as about_job
from rescind.ledger.kept_part import DEVICE_BYTES, KeptPart
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.keyslots import KeySlots, about
from rescind.ledger.lending import Join, Lend, TakeBack, member
from rescind.ledger.place import FILE
from rescind.ledger.release_steps import bound, path_of
from rescind.ledger.scanner import Canary, opened_boxes, scan, tried
from rescind.ledger.worker_io import read_apart
from rescind.methods.additive._live_sum import weight_of

ITEMS, RECORDS, OTHERS, ROUNDS = 500, 12, 6, 2
EXPORT = "what an export hands over"
WAIT = 60


@dataclass
class Story:
    """What was found of the planted person, by class: before they left, and after."""

    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    planted: int = 0
    """Forms and containers in which the scanner found its own canaries."""

    @property
    def holds(self) -> bool:
        """Whether every class was found before, and none after."""
        return all(self.before.values()) and not any(self.after.values())


@dataclass(frozen=True)
class _Credential:
    """Give a person a credential with a name of their own."""

    person: bytes
    name: bytes

    def carry_out(self, batch: Batch) -> Answer:
        slot = batch.slot(member(batch, self.person).account_key)
        box = batch.seal(slot, self.name, about(self.person, "credential", "box"))
        row = {"lookup": batch.keyed(b"canary", self.name), "person": self.person}
        batch.tx.execute(insert(tables.credential).values(kind="passkey", box=box, **row))
        return Answer(201)


def learn(ledger: Ledger) -> str:
    job = str(ledger.generations.start("FedShare", ROUNDS).body["job"])
    ledger.generations.wait()
    return job


def story(folder: Path, *, forget: bool = True, learnt: Callable[[Ledger], str] = learn) -> Story:
    """Play the life in an empty folder.

    forget: False leaves the keys (the control of a test)    learnt: makes the generation
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty. The story needs a folder of its own.")
    state, told = folder / "state", Story()
    name = f"canary-{secrets.token_hex(16)}"
    places, kept = _planted()
    with _opened(state) as ledger:
        person = _life(ledger, name.encode(), places, kept)
        release = ledger.releases.make().number
        ledger.roster.publish()
        receipt_key = _done(ledger, TakeBack(person, "unshare", places[:1])).body["receipt_key"]
        job = learnt(ledger)  # after it: a take-back ends a generation
        told.before[EXPORT] = _exported(ledger, person, places)
        _copy_of_a_crash(state, folder / "crash")
        back_up(state, _backup(folder))
    secret = {
        "loans": struct.pack(f"<{len(places) - 1}i", *places[1:]),
        "what the browser keeps and has sent": kept.to_bytes(),
        "credential": name.encode(),
        "key of a receipt": bytes.fromhex(receipt_key),
    }
    canaries = [
        Canary("the credential's name", name.encode()),
        Canary("the records", numbers=places[1:]),
        Canary("the kept records", numbers=tuple(kept.items.tolist())),
        Canary("the names of the records", ",".join(f"item-{n}" for n in places[1:]).encode()),
        Canary("the key of the receipt", bytes.fromhex(receipt_key)),
    ]
    told.before |= _taken(folder, secret, release, job)
    with _opened(state) as ledger:
        if forget:
            _done(ledger, TakeBack(person, "leave"))
            ledger.releases.make()  # what is served forgets now, and receipts are issued
            ledger.roster.publish()
        told.after[EXPORT] = _exported(ledger, person, places)
    told.after |= _taken(folder, secret, release, job)
    looked = scan([folder], canaries)
    told.after["bytes of all files, in every form"] = len(looked.found)
    told.planted = looked.planted
    return told


def _copy_of_a_crash(state: Path, target: Path) -> None:
    """Copy all files but the keys, as they are now. The ledger is open: see `worker_io`."""
    with read_apart() as read:

        def copy(source: str, copied: str) -> None:
            Path(copied).write_bytes(read(Path(source)))
            shutil.copymode(source, copied)

        without = shutil.ignore_patterns(KEYS)
        shutil.copytree(state, target, ignore=without, copy_function=copy)


def _planted() -> tuple[tuple[int, ...], KeptPart]:
    drawn = secrets.SystemRandom().sample(range(ITEMS), 2 * RECORDS)
    kept = np.sort(np.array(drawn[RECORDS:], np.int32))
    return tuple(sorted(drawn[:RECORDS])), KeptPart(secrets.token_bytes(DEVICE_BYTES), kept)


def _life(ledger: Ledger, name: bytes, places: tuple[int, ...], kept: KeptPart) -> bytes:
    """Let others lend, and the planted person join, lend, change what they lend, and help."""
    for number in range(OTHERS):
        other = bytes.fromhex(_done(ledger, Join()).body["person"])
        _done(ledger, Lend(other, tuple(range(number, number + 5))))
    person = bytes.fromhex(_done(ledger, Join()).body["person"])
    _done(ledger, _Credential(person, name))
    _done(ledger, Lend(person, places[:4]))
    _done(ledger, Lend(person, places))
    items = tuple(kept.items.tolist())
    _done(ledger, Contribute(person, kept.device, Part((), 0), Part(items, weight_of(len(items)))))
    return person


def _exported(ledger: Ledger, person: bytes, places: tuple[int, ...]) -> int:
    try:
        found = ledger.reading.export(person)
    except NotThere:
        return 0
    names = {f"item-{n}" for n in places}
    return sum(one["id"] in names for one in found.items)


def _taken(folder: Path, secret: dict[str, bytes], release: int, job: str) -> dict[str, int]:
    """Count what all keys on the disk open in the ledger and in old copies of it."""
    keys = KeySlots(folder / "state" / KEYS)
    try:
        found = {}
        for where, path in (
            ("ledger", folder / "state" / FILE),
            ("copy of a crash", folder / "crash" / FILE),
            ("backup", _backup(folder)),
        ):
            boxes = list(opened_boxes(path, keys).values())
            for what, data in secret.items():
                found[f"{what}, in the {where}"] = boxes.count(data)
        for where in ("state", "crash"):
            sealed = {
                "release made with them": (path_of(folder / where, release), bound(release)),
                "generation that learnt from them": (
                    file_of(folder / where, job, LISTS),
                    about_job(job, LISTS),
                ),
            }
            for what, (path, about_it) in sealed.items():
                box = path.read_bytes() if path.exists() else b""
                opened = tried(keys, box, about_it) is not None
                found[f"{what}, in the folder '{where}'"] = int(opened)
        return found
    finally:
        keys.close()


def _backup(folder: Path) -> Path:
    return folder / "backup.db"


def _done(ledger: Ledger, operation: Operation) -> Answer:
    return ledger.submit(operation).result(WAIT)


@contextmanager
def _opened(state: Path) -> Iterator[Ledger]:
    ledger = Ledger.open(state, catalogue=Catalogue([f"item-{n}" for n in range(ITEMS)]))
    try:
        yield ledger
    finally:
        ledger.close()
