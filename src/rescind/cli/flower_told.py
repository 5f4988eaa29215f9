"""Tell the operator what a run over silos did, and what is left to do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rescind.core.words import count_of


def answers_before(run: Path) -> Sequence[Mapping[str, Any]]:
    """Return the answers in run.json. One that is not there or not readable has told of none."""
    with suppress(OSError, ValueError, AttributeError):
        answers: Sequence[Mapping[str, Any]] = json.loads(run.read_text("utf-8")).get("forgot", ())
        return answers
    return ()


def answers_told(
    forgot: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]], out: Path
) -> Iterator[str]:
    """Return in full what is new or went on, and how many requests were told by an earlier command.

    forgot, before: what is under "forgot" in run.json, now and before this command
    """
    from rescind.flower.run_request import silo_names
    from rescind.receipts.how_to_check import REQUEST

    earlier = [one for one in forgot if one in before]
    if earlier:
        names = ", ".join(Path(one["receipt"]).stem for one in earlier)
        receipts = "receipt" if len(earlier) == 1 else "receipts"
        yield f"earlier: {count_of(len(earlier), 'request')} ({receipts} {names})"
    for one in forgot:
        if one not in earlier:
            receipt = out / one["receipt"]
            yield answer_told(one, asked_by(receipt))
            until = f" (L0 until {silo_names(one['waiting'])} confirms)" if one["waiting"] else ""
            yield f"receipt: {receipt}{until}"
            yield (
                f"  to the requester: {receipt.name} with {receipt.stem}.html, {receipt.stem}.key "
                f"and {receipt.stem}{REQUEST}, which you then delete here"
            )
            yield from (f"  {line}" for line in rows_told(one))


def asked_by(receipt: Path) -> str:
    """Return whose request a receipt answers and what it names; "" if it is not known here."""
    from rescind.receipts.how_to_check import REQUEST

    with suppress(OSError, ValueError, KeyError):
        request = json.loads(receipt.with_suffix(REQUEST).read_text("utf-8"))
        users, items = request["user"], request.get("item", ())
        who = users if isinstance(users, str) else ", ".join(dict.fromkeys(users))
        named = [item for item in items if not item.startswith("#")]  # known by number only
        return f" of user {who}" + (f" ({', '.join(named)})" if named else "")
    return ""


def answer_told(one: Mapping[str, Any], of: str = "") -> str:
    """Return how a request was answered.

    one: an entry under "forgot" in run.json    of: whose request it is
    """
    nothing = not one["rounds"] and not one.get("in_model", True)
    why = ": nothing of theirs was in the model" if nothing else ""
    rounds = count_of(one["rounds"], "round")
    left = f", {one['traces']} traces left" if one["traces"] else ""
    return f"{one['event']}{of} answered by {one['by']}, {rounds}{why}{left}"


def refused_told(facts: Mapping[str, Any]) -> Iterator[str]:
    """Return which requests were refused and why, and which are still to be given again.

    facts: those of run.json
    """
    for one in facts.get("refused_requests", ()):
        yield f"{one['event']} was refused: {one['why']}"
    earlier = facts.get("refused_earlier", ())
    for one in earlier:
        yield f"{one['event']} was refused by an earlier command: {one['why']}"
    if earlier:
        yield "to give it again: the command with the same request and --resume"


def rows_told(one: Mapping[str, Any]) -> list[str]:
    """Return how the rows of a request are deleted from an imported table. one: as above"""
    from rescind.flower.run_request import silo_names

    if (table := one.get("imported")) is None:
        return []
    return [
        f"the imported table '{table['name']}' keeps the rows until you delete them. On the "
        f"machine of {silo_names(table['silos'])}, or of every silo if they joined without --own: "
        f"{table['command']}"
    ]


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
