"""Run tasks here or on an executor of `concurrent.futures`; a Dask client gives one.

Tasks may run more than once and end in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any, TypeVar

from rescind.errors import ConfigError, DataError, RescindError

Made = TypeVar("Made")


def executor_of(engine: Any) -> Executor | None:
    """Return what runs tasks, None for this process, or raise."""
    if engine is None:
        return None
    made = engine.get_executor() if hasattr(engine, "get_executor") else engine
    if not hasattr(made, "submit") or not hasattr(made, "shutdown"):
        raise ConfigError(
            f"engine is a {type(engine).__name__}; give None, a dask.distributed.Client, or an "
            f"executor of concurrent.futures."
        )
    return made


def results(
    executor: Executor | None, work: Callable[..., Made], tasks: Sequence[tuple], most: int
) -> Iterator[Made]:
    """Yield work(*task) of every task, in the order in which they end.

    most: tasks that are with the engine at a time, so that results do not fill the memory
    """
    if executor is None:
        yield from (work(*task) for task in tasks)
        return
    left = list(reversed(tasks))
    running: set[Future[Made]] = set()
    try:
        while left or running:
            while left and len(running) < most:
                running.add(executor.submit(work, *left.pop()))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    except RescindError:
        raise
    except Exception as error:
        raise DataError(
            f"the engine gave up: {type(error).__name__}: {error}. Nothing was learnt. Fit with "
            f"engine=None."
        ) from error
    finally:
        for future in running:
            future.cancel()
