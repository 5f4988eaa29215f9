"""Say what is wrong in the file of a night, before the night does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rescind.errors import RescindError
from rescind.night.config import Config, parsed


def problems(file: Path) -> list[str]:
    """Return all that is wrong: in the file, and with what it names."""
    config, wrong = parsed(file)
    return wrong or [
        line for try_it in (_data, _model, _lists, _witnesses) for line in try_it(config)
    ]


def _tried(work: Callable[[], Any]) -> Iterator[str]:
    try:
        work()
    except (RescindError, OSError) as error:
        yield str(error)


def _data(config: Config) -> Iterator[str]:
    from rescind.data.importing import imported_names
    from rescind.night.sources import queried

    day = datetime.now(UTC).date()
    for name, source in (("new", config.new), ("requests", config.requests)):
        if source.sql:
            ask = _asked(queried, source.sql, source.query, config.base, day)
            yield from (f"{name}: {line}" for line in _tried(ask))
        elif source.path:
            fixed = next(p for p in config.at(source.path).parents if not {*str(p)} & {*"*?["})
            if not fixed.is_dir():
                yield f"{name}.from: there is no folder {fixed}"
    if config.data.name not in imported_names() and not (config.new.path or config.new.sql):
        yield f"data.name: '{config.data.name}' is not imported, and [new] brings no rows"


def _asked(queried: Any, sql: str, query: str, base: Path, day: Any) -> Callable[[], Any]:
    return lambda: queried(sql, query, base, yesterday=day, today=day)


def _model(config: Config) -> Iterator[str]:
    from rescind.experiments.advice import recipe_for

    how = config.learn
    yield from _tried(lambda: recipe_for(config.data.name, how.method, how.settings).choose(None))


def _lists(config: Config) -> Iterator[str]:
    from rescind.night.sinks import sink_named
    from rescind.night.steps import listed_items

    yield from _tried(lambda: sink_named(config.export.sink))
    for given in (config.export.items, config.export.exclude):
        yield from _tried(lambda given=given: listed_items(config, given))  # type: ignore[misc]


def _witnesses(config: Config) -> Iterator[str]:
    from rescind.night.steps import witness_key

    for witness in config.log.witnesses:
        yield from _tried(lambda one=witness: witness_key(config, one))  # type: ignore[misc]
