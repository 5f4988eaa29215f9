"""Cases beside the matrix: two mouths after each other, dates, other runs, another settings folder.

Each returns what is recorded of it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.golden.matrix import OTHER, WHO, Ask, Mouth, bare, first_items
from tests.golden.shop import CELL, REQUESTS, RUN, ByForget, ByQueue, of_model, reply_of
from tests.golden.silos import OverSilos

from flower.served import SHOP
from flower.silo_shop import asks
from rescind.experiments.cell import Cell, DataSettings, RunSettings
from rescind.experiments.learning_run import run_cell
from rescind.methods.additive.gram import Gram

LEAVE = Ask("leave", (WHO,), {WHO: first_items(WHO)})
ERASE = Ask("erase all", (WHO,), {WHO: first_items(WHO)})
MOUTHS = {"forget": ByForget, "queue": ByQueue}


def _after_each_other(first: str, second: str, ask: Ask) -> dict[str, Any]:
    """Ask the same by two mouths on the command line."""
    with tempfile.TemporaryDirectory() as folder:
        shop = MOUTHS[first](Path(folder))
        try:
            shop.start(lending=False)
            replies = [bare(shop.ask(ask))]
            shop.__class__ = MOUTHS[second]
            replies.append(bare(shop.ask(ask)))
            return {"replies": replies, "after": bare(shop.after(WHO))}
        finally:
            shop.close()


def _in(make: type[Mouth], play: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        mouth = make(Path(folder))
        try:
            mouth.start(lending=False)
            return play(mouth)
        finally:
            mouth.close()


def another_settings_folder() -> dict[str, Any]:
    """Learn in another home, after somebody left: does it learn them again?"""

    def play(shop: ByForget) -> dict[str, Any]:
        reply = shop.ask(LEAVE)
        with patch.dict(os.environ, {"RESCIND_HOME": str(shop.folder / "other")}):
            told = shop.rescind("run", "--data", "shop", "--method", "Gram", "--out", "elsewhere")
            lists = shop.rescind("recommend", "elsewhere", "--user", WHO, "--json")
        codes = [reply_of(one, "").code for one in (told, lists)]
        known = of_model(Path("elsewhere"), WHO)[1] if Path("elsewhere/model").is_dir() else None
        return {"reply": bare(reply), "codes": codes, "learnt": known}

    return _in(ByForget, play)


def _dated(**days: int) -> dict[str, Any]:
    """Put a request with dates, in days from today, into the folder."""

    def play(shop: ByQueue) -> dict[str, Any]:
        now = datetime.now(UTC)
        dates = {name: f"{now + timedelta(days=by):%Y-%m-%d}" for name, by in days.items()}
        REQUESTS.mkdir()
        (REQUESTS / "dated.json").write_text(json.dumps({"leave": WHO, **dates}))
        shop.rescind("request", "add", "--folder", REQUESTS)
        told = shop.rescind("request", "answer")
        listed = shop.rescind("request", "list", "--open", "--json")
        still = [(row["outcome"], row["late"]) for row in json.loads(listed.stdout)]
        return {"code": told.exit_code, "open": still, "standing": of_model(RUN, WHO)[1]}

    return _in(ByQueue, play)


def _other_runs(mouth: type[ByForget] | type[ByQueue]) -> dict[str, Any]:
    """Ask while another run has learnt from the same rows, then ask that run, too."""

    def play(shop: Any) -> dict[str, Any]:
        run_cell(CELL, Path("second"))
        replies = [bare(shop.ask(LEAVE))]
        between = of_model(Path("second"), WHO)[1]
        told = shop.rescind("forget", "second", "--user", WHO)
        after = of_model(Path("second"), WHO)[1]
        return {"replies": replies, "other run": between, "code": told.exit_code, "then": after}

    return _in(mouth, play)


def public_data() -> dict[str, Any]:
    """Forget somebody of data that nobody imported: a later run learns them again."""
    data = DataSettings(name="synthetic", users=20, items=30, interactions=200)
    cell = Cell("c", data, None, Gram(), RunSettings(rounds=1, evaluate_every=1))

    def play(shop: ByForget) -> dict[str, Any]:
        run_cell(cell, Path("public"))
        told = shop.rescind("forget", "public", "--user", "3")
        run_cell(cell, Path("again"))
        return {
            "code": told.exit_code,
            "standing": of_model(Path("public"), "3"),
            "new run": of_model(Path("again"), "3"),
        }

    return _in(ByForget, play)


class Trained(OverSilos):
    """Silos whose model is trained in rounds: without one of them the others go on."""

    recipe = SHOP


def silo_is_away() -> dict[str, Any]:
    """Ask, and ask again, while the silo of who asks is away; somebody else asks; it is back."""

    def play(silos: Trained) -> dict[str, Any]:
        away = [silos.silo_of(WHO)]
        replies = {
            "first": bare(silos.served(*asks(leave=[WHO]), away=away)),
            "again": bare(silos.served(*asks(leave=[WHO]), away=away)),
            "somebody else": bare(silos.served(*asks(leave=[OTHER]), away=away)),
            "all are there": bare(silos.served(resume=True)),
        }
        return {"replies": replies, "after": bare(silos.after(WHO))}

    return _in(Trained, play)


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "another settings folder": another_settings_folder,
    "received tomorrow": lambda: _dated(received=1),
    "due in four months": lambda: _dated(due=125),
    "due yesterday": lambda: _dated(received=-5, due=-1),
    "received forty days ago": lambda: _dated(received=-40),
    "other runs / forget": lambda: _other_runs(ByForget),
    "other runs / queue": lambda: _other_runs(ByQueue),
    "public data": public_data,
    "a silo is away": silo_is_away,
    **{
        f"{first} then {second} / {ask.kind}": lambda f=first, s=second, a=ask: _after_each_other(
            f, s, a
        )
        for first in MOUTHS
        for second in MOUTHS
        for ask in (LEAVE, ERASE)
        if first != second
    },
}
