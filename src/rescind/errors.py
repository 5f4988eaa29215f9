"""Exceptions, grouped by who has to act.

    RescindError
      ConfigError      the experimenter: a setting is unknown or out of range
      DataError        the data owner: a file or record is not as described
      ConsentError     the requester: the record of events does not allow this
      BoundaryError    the method's author: server code tried to read client data

A message states what was given, what is allowed, and what to do next. The command line prints it
without a traceback and exits with code 2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from difflib import get_close_matches


class RescindError(Exception):
    """Base class of all errors that a user can fix."""

    code = "error"
    """What programs and tests compare: it stays, where a sentence may change."""


class ConfigError(RescindError):
    """A setting is unknown or out of range."""

    code = "setting"


class DataError(RescindError):
    """A file or a record is not as described."""

    code = "data"


class NotCosigned(DataError):
    """A witness that was named has not signed a log's checkpoint: mostly, not yet."""

    def __init__(self, witnesses: Collection[str]) -> None:
        super().__init__(
            f"the checkpoint is not cosigned by {', '.join(witnesses)}. This witness has not "
            f"signed this checkpoint yet, or did so with another key than the one that you gave. "
            f"Ask the operator for a newer proof (they give rescind log cosign, then rescind log "
            f"prove); of a roster, for its newer folder (rescind log cosign with --public)."
        )


class ConsentError(RescindError):
    """The request does not fit what was lent. `client` and `item` are indices, if known."""

    code = "not-allowed"

    def __init__(self, text: str, client: int | None = None, item: int | None = None) -> None:
        super().__init__(text)
        self.client, self.item = client, item


class BoundaryError(RescindError):
    """Server code tried to read client data, or a method was given the wrong task."""

    code = "boundary"


def how_to_install(extra: str) -> str:
    """Return the command that adds an extra, with the versions of constraints.txt.

    No index has rescind, so it is given in a clone. A clone that is used in place stays so.
    """
    from importlib import metadata

    stated = None
    with suppress(metadata.PackageNotFoundError):
        stated = metadata.distribution("rescind").read_text("direct_url.json")
    editable = json.loads(stated or "{}").get("dir_info", {}).get("editable", False)
    words = f"{'--editable ' if editable else ''}'.[{extra}]'"
    return f"in your clone of rescind, {sys.executable} install.py {words}"


_WIDTH = ("dim", "hidden", "model.dim")
_USUAL = {
    **dict.fromkeys(("lr", "learning_rate", "eta", "step_size"), ("rate",)),
    **dict.fromkeys(("embedding_dim", "embedding_size", "emb_dim", "factors", "n_factors"), _WIDTH),
    **dict.fromkeys(("latent_dim", "hidden_dim", "hidden_size", "dim"), _WIDTH),
    **dict.fromkeys(("reg", "l2", "l2_reg", "regularization", "reg_weight", "weight_decay", "wd"),
                    ("ridge", "weight_decay")),
    **dict.fromkeys(("n_epochs", "num_epochs", "epochs", "local_epochs"), ("epochs", "rounds")),
    **dict.fromkeys(("n_rounds", "num_rounds", "iterations", "n_iter", "max_iter"), ("rounds",)),
    **dict.fromkeys(("n_neg", "num_neg", "neg_samples", "num_negatives"), ("negatives",)),
    **dict.fromkeys(("clients", "client_fraction", "fraction_fit"), ("clients_per_round",)),
    **dict.fromkeys(("topk", "top_k", "cutoff", "cutoffs"), ("k",)),
    **dict.fromkeys(("metric", "valid_metric"), ("measure",)),
    **dict.fromkeys(("early_stopping", "stopping_step"), ("patience",)),
}  # fmt: skip
"""Names of settings as other projects have them, and ours, the first that there is."""


def usual(given: str, allowed: Collection[str]) -> str | None:
    """Return our name of a setting that other projects call so, if it is allowed."""
    ours = _USUAL.get(given.lower(), ())
    return next((name for name in ours if name.partition(".")[0] in allowed), None)


def suggest(given: str, allowed: Iterable[str]) -> str:
    """Return a hint: the allowed name that was meant, and all allowed names."""
    names = sorted(set(allowed))
    shown = [f"'{name}'" if "," in name else name for name in names]
    return f"{did_you_mean(given, names)}Allowed: {', '.join(shown) or 'nothing'}."


def did_you_mean(given: str, names: Collection[str]) -> str:
    """Return a question with our usual name for it, or the name closest to it; '' if none is."""
    near = get_close_matches(given.lower(), [name.lower() for name in names], n=1, cutoff=0.6)
    close = (name for name in names if near and name.lower() == near[0])
    meant = usual(given, names) or next(close, None)
    return f"did you mean '{meant}'? " if meant else ""
