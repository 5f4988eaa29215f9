"""What a federation is started with: a dataset and a method of the same task."""

from __future__ import annotations

from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.errors import BoundaryError, ConfigError


def check_kinds(data: object, method: object) -> None:
    """Raise an error that says how to make data and a method, if something else was given."""
    if not isinstance(data, Holdings) and not hasattr(data, "on_devices"):
        given = f"the text '{data}'" if isinstance(data, str) else f"a {type(data).__name__}"
        load = f"rs.load({data!r})" if isinstance(data, str) else "rs.load('ml-100k')"
        raise ConfigError(
            f"Federation.start wants a dataset first, got {given}. Make one: {load} loads data by "
            f"its name, rs.from_frame(frame) takes a frame."
        )
    if isinstance(method, Method):
        return
    if isinstance(method, type) and issubclass(method, Method):
        wrong, make = f"the class {method.__name__}", f"{method.__name__}()"
    elif isinstance(method, str):
        wrong, make = f"the text '{method}'", f"rs.methods.{method}()"
    else:
        wrong, make = f"a {type(method).__module__}.{type(method).__name__}", "rs.methods.Gram()"
    raise ConfigError(
        f"Federation.start wants a method, got {wrong}. Give an instance, with its settings: {make}"
    )


def check_task(method: Method, holdings: Holdings) -> None:
    """Raise an error if a method, or its model, is for another task than the data."""
    task = "ranking" if holdings.task == "next_item" else holdings.task
    if task not in method.tasks or task != method.model.task:
        raise BoundaryError(
            f"{type(method).__name__} with {type(method.model).__name__} works on "
            f"{method.model.task}, but this data is for {holdings.task}. "
            f"Choose another method, model or dataset."
        )
