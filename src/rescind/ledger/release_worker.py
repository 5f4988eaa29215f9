"""Makes a release in a process of its own: LAPACK holds the interpreter's lock for a second.

    python -m rescind.ledger.release_worker < copy > made

A copy goes in and the release comes out by pipes, so nothing is written to a disk. A catalogue of
few items is solved in milliseconds, and in the process that asks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rescind.audits.finding import Finding
from rescind.errors import DataError, RescindError
from rescind.ledger import worker_io
from rescind.ledger.errors import Closing
from rescind.ledger.options import Options
from rescind.ledger.release_audit import audited
from rescind.methods.additive._live_release import Form, Weights, read, release_of
from rescind.methods.additive._live_sum import NOBODY, Items, Totals, added_up
from rescind.methods.additive._noised_release import Noise, noised_release

HERE = 1000
"""Items up to which a release is made in this process: 20 ms of a core."""
NICE = 10
HIDDEN = "not told: a release with noise tells nothing exact"
"""Stands where the digest of the sum would: whoever guesses a sum could test the guess with it."""


@dataclass(frozen=True)
class Copy:
    """The ledger's loans of one moment, without anybody's id."""

    sums: Totals
    kept: tuple[Items, ...]
    gone: tuple[Items, ...]
    """What the same people took back since the last release."""
    left_out: tuple[int, ...] = ()
    """Places of people whom the noise does not cover any more."""
    lost: int | None = 0
    """How many records were taken back before a start, at most; None: that was not counted."""

    @classmethod
    def of(
        cls,
        sums: Totals,
        loans: Mapping[bytes, Items],
        gone: Mapping[bytes, Items],
        left_out: Collection[bytes] = (),
        lost: int | None = 0,
    ) -> Copy:
        """Line up what people lend with what they took back."""
        people = sorted({*loans, *gone})
        kept = tuple(loans.get(person, NOBODY) for person in people)
        out = tuple(n for n, person in enumerate(people) if person in left_out)
        return cls(sums, kept, tuple(gone.get(person, NOBODY) for person in people), out, lost)


@dataclass(frozen=True)
class Made:
    """A release before it has a number."""

    file: bytes
    sum_digest: str
    findings: tuple[Finding, ...]

    @property
    def weights(self) -> Weights:
        return read(self.file)[0]


def make(copy: Copy, ids: Sequence[str], form: Form, noise: Noise | None = None) -> Made:
    """Solve, cut and audit; in another process if that takes long."""
    here = len(ids) <= HERE
    return make_here(copy, ids, form, noise) if here else _make_there(copy, ids, form, noise)


def make_here(copy: Copy, ids: Sequence[str], form: Form, noise: Noise | None = None) -> Made:
    digest = copy.sums.digest(form.min_count)
    if added_up(copy.kept, copy.sums.items).digest(form.min_count) != digest:
        raise DataError(
            "the sum in memory is not that of the loans, so no release is made of it. "
            "Start the service again: it adds the sum up from the ledger."
        )
    if noise is not None:
        return _with_noise(copy, ids, form, noise)
    file = release_of(copy.sums, form).to_bytes(ids)
    # What is audited is what people get: read back from the file.
    findings = audited(read(file)[0], copy.kept, copy.gone, form, copy.lost)
    exact = Finding(
        "exactness",
        "SHOWN",
        note="The platform added up the remaining loans: it is the sum, bit for bit.",
    )
    return Made(file, digest, (*findings, exact))


def warm_up(kind: Any, options: Options, form: Form) -> None:
    """Compile before anybody asks: play a few people on a sum of its own. kind: of the sum"""
    live = kind(24, min_count=options.min_count)
    nothing = np.empty(0, np.int32)
    loans = [np.sort((np.arange(8) * 3 + n) % 24).astype(np.int32) for n in range(12)]
    for n, items in enumerate(loans):
        live.change(bytes([n]), nothing, items)
    live.change(b"\x00", loans[0], loans[0][1:].copy())
    live.change(b"\x00", loans[0][1:].copy(), loans[0][2:].copy())
    if options.instant:
        live.ready().recommend(loans[1], 5)
        return
    made = make_here(Copy.of(*live.settle()), list(map(str, range(24))), form)
    made.weights.reasoned(loans[1], 5)
    made.weights.recommend(loans[1], 5)


def _with_noise(copy: Copy, ids: Sequence[str], form: Form, noise: Noise) -> Made:
    """Make a release with noise. It tells nothing exact: no digest of the sum, no audit."""
    out = set(copy.left_out)
    kept = [part for n, part in enumerate(copy.kept) if n not in out]
    file = noised_release(kept, len(ids), noise, form).to_bytes(ids)
    note = "Noise hides each person; an audit would tell exact numbers about them."
    return Made(file, HIDDEN, (Finding("audit", "UNAUDITED", note=note),))


def _make_there(copy: Copy, ids: Sequence[str], form: Form, noise: Noise | None = None) -> Made:
    settings: dict[str, Any] = {
        "form": asdict(form),
        "ids": list(ids),
        "left_out": list(copy.left_out),
        "lost": copy.lost,
    }
    settings["noise"] = None if noise is None else asdict(noise)
    arrays: dict[str, Any] = {"total": copy.sums.total, "owners": copy.sums.owners}
    for name, parts in (("kept", copy.kept), ("gone", copy.gone)):
        arrays |= worker_io.joined(name, parts)
    sent = worker_io.written(settings, arrays)
    done = subprocess.run(
        **worker_io.command(__name__), input=sent, capture_output=True, check=False
    )
    if -done.returncode in (signal.SIGINT, signal.SIGTERM):  # as the service, a moment ago
        raise Closing("the release was not made: its process was told to end.")
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise DataError(f"the release was not made: {last[0]}. The one in service stays.")
    facts, found = worker_io.read(done.stdout)
    findings = tuple(finding_of(one) for one in facts["findings"])
    return Made(found["made"].tobytes(), facts["sum_digest"], findings)


def finding_of(facts: dict[str, Any]) -> Finding:
    return Finding(**{**facts, "interval": facts["interval"] and tuple(facts["interval"])})


def main() -> int:
    os.nice(NICE)
    settings, arrays = worker_io.read(sys.stdin.buffer.read())
    kept = worker_io.parts_of(arrays, "kept")
    sums = Totals(arrays["total"], arrays["owners"], len(kept), len(arrays["kept_item"]))
    gone, left_out = worker_io.parts_of(arrays, "gone"), tuple(settings["left_out"])
    copy = Copy(sums, kept, gone, left_out, settings["lost"])
    noise = Noise(**settings["noise"]) if settings["noise"] else None
    try:
        made = make_here(copy, settings["ids"], Form.of(settings["form"]), noise)
    except RescindError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    facts = {"sum_digest": made.sum_digest, "findings": [one.facts() for one in made.findings]}
    sys.stdout.buffer.write(worker_io.written(facts, {"made": np.frombuffer(made.file, np.uint8)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
