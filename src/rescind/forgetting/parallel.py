"""Jobs on one federation and one request, in this process or in fresh ones with one thread each.

What travels goes through files: the federation as it is saved, the request as safetensors. A job
writes down what it makes by itself, so that a stopped batch goes on.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, cast

import torch

from rescind.core import params
from rescind.core.executor import Executor
from rescind.core.federation import Federation
from rescind.core.records import Event
from rescind.errors import ConfigError
from rescind.storage.events import pack_event, unpack_event
from rescind.storage.federations import load_federation, save_federation
from rescind.storage.packing import as_notes


class Work(Protocol):
    """One job on a federation and a request; what it makes it writes down itself."""

    def __call__(self, before: Federation, event: Event, job: int, /) -> None: ...


def spread(
    before: Federation, event: Event, jobs: Sequence[int], workers: int, work: Work
) -> Iterator[int]:
    """Jobs as they are finished, in this process or in fresh ones with one thread each."""
    if workers < 1:
        raise ConfigError(f"an audit needs one worker or more; got {workers}.")
    if workers == 1 or len(jobs) < 2:
        for job in jobs:
            work(before, event, job)
            yield job
        return
    with TemporaryDirectory(prefix="rescind-audit-") as given:
        save_federation(before, Path(given) / "before")
        tensors, facts = pack_event(event)
        params.save(Path(given) / "event.safetensors", tensors, as_notes(facts))
        # Fresh processes: threads that torch has running do not survive a fork.
        pool = ProcessPoolExecutor(min(workers, len(jobs)), get_context("spawn"))
        try:
            asked = {pool.submit(_in_worker, given, before.executor, work, j): j for j in jobs}
            for done in as_completed(asked):
                done.result()
                yield asked[done]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _in_worker(given: str, executor: Executor, work: Work, job: int) -> None:
    before, event = _given(given, cast(Hashable, executor))
    work(before, event, job)


@functools.lru_cache(maxsize=1)
def _given(folder: str, executor: Hashable) -> tuple[Federation, Event]:
    """Read once by a worker, however many jobs it does."""
    before = load_federation(Path(folder) / "before", cast(Executor, executor))
    tensors, notes = params.load(Path(folder) / "event.safetensors")
    return before, unpack_event(tensors, json.loads(notes["facts"]))


@contextmanager
def one_thread() -> Iterator[None]:
    """The same arithmetic in every process, whatever else the machine does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
