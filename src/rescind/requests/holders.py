"""Who has the data: imported tables and runs. Each can look for a request and erase it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rescind.errors import ConfigError
from rescind.home import Copy, Ledger, Refused, Request

if TYPE_CHECKING:
    from rescind.core.records import Event

Held = Mapping[str, frozenset[str]]
"""Items by user, as original ids: of the users of a request who are here at all."""


class Holder(ABC):
    """A copy of the data, or a model that was learnt from it."""

    model = False
    """Whether it is a model: its influence is unlearnt, where rows are deleted."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy

    @property
    @abstractmethod
    def there(self) -> bool:
        """Return whether it still exists: somebody may have deleted the folder."""

    @abstractmethod
    def held(self, request: Request) -> Held:
        """Return what it has of the people of a request: what could be named, not what is."""

    def event(self, request: Request) -> Event:
        """Return what a request means to a model, in its own numbers."""
        raise Refused("no-graph", f"'{request.dataset}' has no graph, so no {request.kind}.")

    @abstractmethod
    def unlearn(self, ledger: Ledger, request: Request, progress: Progress) -> dict[str, Any]:
        """Forget, killed at any moment and begun again; return the facts for the receipt."""

    def finish(self, known: dict[str, Any]) -> None:  # noqa: B027 - most have nothing to finish
        """Finish what `unlearn` had begun when it was killed. known: what it returned"""

    @abstractmethod
    def purge(self, request: Request) -> None:
        """Delete everything else that holds the records or was made with them."""

    def delete(self) -> None:
        """Delete a model that cannot forget."""
        raise CannotForget(f"{self.copy.address} is no model, and is not deleted as one.")

    def has(self, request: Request) -> bool:
        """Return whether it has some of what a request names."""
        return any(named(request, user, items) for user, items in self.held(request).items())


class CannotForget(ConfigError):
    """A model has no way to forget: no unlearner, or no history to train again."""


Progress = Callable[[str], Any]
"""Gets a line before work that takes long."""


def named(request: Request, user: str, items: frozenset[str]) -> frozenset[str]:
    """Return which of these items of a user a request names."""
    asked = request.records.get(user, ())
    return items if asked is None else items & {*asked}
