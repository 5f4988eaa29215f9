"""Releases of an additive learner: what is published, what it promises, when the next is due.

Its sum forgets at once; what devices are sent is a release, which may be older than the sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rescind.core.federation import Federation
from rescind.errors import ConfigError
from rescind.methods.additive.gram import Gram
from rescind.privacy.accountant import epsilon_of

FORMS = {
    "dense": "all weights",
    "neighbours": "the {size} largest weights of each item",
    "factors": "weights of rank {size}",
}


def published(fed: Federation) -> dict[str, Any] | None:
    """The dial of an additive learner as it stands, for run.json; None for other methods."""
    method = fed.method
    if not isinstance(method, Gram):
        return None
    often, since = released(fed)
    return {
        "what": what(method),
        "servers": method.servers,
        "releases": often,
        "people_since": since,
        "next": "due" if not waiting(fed) else f"when {method.release_every - since} more changed",
        **promise(fed),
    }


def released(fed: Federation) -> tuple[int, int]:
    """How many releases were made, and how many people changed something since the last."""
    own = fed.now.state.own
    if "released" not in own:  # saved before releases were counted
        return int(fed.now.state.round > 0), 0
    often, since = own["released"].tolist()
    return often, since


def what(method: Gram) -> str:
    """What a release holds, in words."""
    said = FORMS[method.release].format(size=method.release_size)
    if method.min_count:
        said += f", of items that {method.min_count:,} people or more have"
    if method.longest_history:
        said += f", histories counting as {method.longest_history:,} items at most"
    noise = f"noise of {method.noise:g} times what one person can change" if method.noise else ""
    return f"{said}; {noise or 'no noise'}"


def promise(fed: Federation) -> dict[str, Any]:
    """Epsilon of all releases up to now together; nothing where there is no noise.

    Everybody counted is in every release, so each release is one more Gaussian mechanism.
    """
    method = fed.method
    if not isinstance(method, Gram) or not method.noise:
        return {}
    often, _ = released(fed)
    return {
        "epsilon": epsilon_of(method.noise, method.delta, often),
        "delta": method.delta,
        "noise_multiplier": method.noise,
        "sensitivity": method.server_reach(fed.world),
        "protects": (
            f"Each person's whole contribution (user level), lent and kept: {often} releases of "
            f"the weights, with that person and without. Central: the server holds the exact sum, "
            f"adds the noise and must show nobody a sum without it. What a person lent is seen by "
            f"the server itself."
        ),
    }


def waiting(fed: Federation) -> int:
    """How many people more must change before devices get a release without what was forgotten.

    0 where the release is as new as the sum.
    """
    method = fed.method
    if not isinstance(method, Gram):
        return 0
    _, since = released(fed)
    return method.release_every - since if since else 0


def release_now(fed: Federation) -> Federation:
    """The same federation with a new release, for whoever publishes at given times."""
    method = fed.method
    if not isinstance(method, Gram):
        raise ConfigError(
            f"{type(method).__name__} publishes its model in every round; releases by schedule "
            f"belong to Gram."
        )
    if not released(fed)[0]:
        raise ConfigError("nobody has been counted yet, so nothing can be released. Run a round.")
    state = method.server_published(fed.now.state, fed.world, method.release_every)
    return replace(fed, now=replace(fed.now, state=state))
