"""Tell the operator what a run over silos did, and what is left to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def answers_told(requests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return what each request came to, and which file goes to whom.

    requests: as in run.json
    """
    from rescind.home.request import OUTCOMES

    for one in requests:
        why = one["reason"] or OUTCOMES.get(one["outcome"], "")
        yield f"{one['id']}  {one['outcome']}  {why}"
        if one["papers"]:
            yield f"  Send this file to the person, then delete it: {one['papers']}"


def exit_code(requests: Sequence[Mapping[str, Any]]) -> int:
    """Return 20 if a request is refused or late, 10 if one waits, else 0. requests: as above"""
    still = [one for one in requests if not one["answered"]]
    if any(one["outcome"] == "REFUSED" or one["late"] for one in still):
        return 20
    return 10 if still else 0


def silos_told(silos: Mapping[str, Any]) -> list[str]:
    """Return which silos are waited for, are not in the model, or would refuse a request.

    silos: as in run.json
    """
    from rescind.flower.run_request import silo_names

    lines, waiting = [], silos["waiting"]
    if waiting:
        lines.append(
            f"not confirmed yet by {silo_names(waiting)}. Start what is away, then: --resume"
        )
    if missing := silos.get("not_in_model"):
        lines.append(
            f"the model has no data of {silo_names(missing)}. To train it again, with all silos "
            f"there{', when they have confirmed' if waiting else ''}: the same command without "
            f"requests and without --resume"
        )
    if refusing := silos.get("would_refuse"):
        lines.append(
            f"{silo_names(refusing)} joined without --single-updates and would refuse a "
            f"withdrawal with this method. Before the first one, join again with it"
        )
    return lines
