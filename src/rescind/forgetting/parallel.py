"""Run jobs on one federation and one request, here or in worker processes of one thread each.

Workers read the saved federation and the request from files. A job saves its own result, so that
a stopped batch can resume.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
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
from rescind.core.method import Unlearner
from rescind.core.records import Event
from rescind.errors import ConfigError
from rescind.methods._own_file import files_of, load_file
from rescind.storage.events import pack_event, unpack_event
from rescind.storage.federations import load_federation, save_federation
from rescind.storage.packing import as_notes
from rescind.storage.run_folder import FOR_WORKERS


class Work(Protocol):
    """A job on a federation and a request, which saves its own result."""

    def __call__(self, before: Federation, event: Event, job: int, /) -> None: ...


def spread(
    before: Federation,
    event: Event,
    jobs: Sequence[int],
    workers: int,
    work: Work,
    scratch: Path | None = None,
) -> Iterator[int]:
    """Run jobs here or in worker processes; yield each when it is finished.

    scratch: where the federation and the request are saved for workers. Default: the system's
    folder for temporary files
    """
    if workers < 1:
        raise ConfigError(f"an audit needs at least one worker, got {workers}.")
    if workers == 1 or len(jobs) < 2:
        for job in jobs:
            work(before, event, job)
            yield job
        return
    with TemporaryDirectory(prefix=FOR_WORKERS, dir=scratch) as folder:
        save_federation(before, Path(folder) / "before")
        tensors, facts = pack_event(event)
        params.save(Path(folder) / "event.safetensors", tensors, as_notes(facts))
        with worker_pool(min(workers, len(jobs)), before.method) as pool:
            futures = {pool.submit(_in_worker, folder, before.executor, work, j): j for j in jobs}
            for done in as_completed(futures):
                done.result()
                yield futures[done]


@contextmanager
def worker_pool(workers: int, method: Unlearner) -> Iterator[ProcessPoolExecutor]:
    """Make a pool of processes that end with the block, and with this process, however it ends.

    After an error or an interrupt they are not waited for: a job may take minutes, and saves its
    result only at its end.

    They are spawned, because running threads of torch do not survive a fork. They know the method
    of the federation and all methods of files that were loaded here.
    """
    about = (os.getpid(), files_of(method))
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _prepare, about)
    try:
        yield pool
    except BaseException:
        for process in (getattr(pool, "_processes", None) or {}).copy().values():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare(parent: int, methods: Sequence[Path]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent ends its workers
    _end_with_parent(parent)
    for path in methods:
        load_file(path)


def _end_with_parent(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _in_worker(folder: str, executor: Executor, work: Work, job: int) -> None:
    before, event = _read(folder, cast(Hashable, executor))
    work(before, event, job)


@functools.lru_cache(maxsize=1)
def _read(folder: str, executor: Hashable) -> tuple[Federation, Event]:
    """Read the input of the jobs, once per worker."""
    before = load_federation(Path(folder) / "before", cast(Executor, executor))
    tensors, notes = params.load(Path(folder) / "event.safetensors")
    return before, unpack_event(tensors, json.loads(notes["facts"]))


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, so that every process gives the same sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
