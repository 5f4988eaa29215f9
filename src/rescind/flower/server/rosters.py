"""Publishes a roster whose lines the devices made: the server has no seed, and can make up none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rescind.core.federation import Federation
from rescind.core.files import write_atomically
from rescind.errors import ConfigError, DataError, RescindError
from rescind.experiments.recipe import Cell
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.remote_holdings import remote_holdings
from rescind.flower.server.requests import vault_request
from rescind.flower.wire.messages import Letter
from rescind.forgetting.roster import (
    Seeds,
    adds_up,
    next_number,
    state_sum,
    sums_of,
    weights_digest,
)
from rescind.methods.additive.gram import Gram
from rescind.privacy import keys
from rescind.proof.log_folder import LogFolder
from rescind.proof.roster import Public, Stated, digest, split
from rescind.proof.signed_lines import FILE, Signed, written
from rescind.proof.sum_hash import LENGTH, hash_of, hidden
from rescind.receipts.log import open_log

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LENT = (
    "devices make the lines of what they keep, and here some records are lent to the server, which "
    "would have to make those lines itself. Use a recipe without [sharing]."
)


def check_possible(cell: Cell, masked: bool) -> None:
    """Refuse before training what `publish` would refuse after it."""
    method = (cell.forget.learner if cell.forget else None) or cell.method
    if type(method) is not Gram:
        raise ConfigError(f"--roster needs the sum of Gram; this cell has {type(method).__name__}.")
    if masked:
        raise ConfigError("--roster does not go with --secure: use one of them.")
    if cell.sharing is not None:
        raise ConfigError(LENT)


def publish_in(folder: Path, fed: Federation, log: Path | None) -> dict[str, Any]:
    """Publish the roster of a run and write its folder. Return the facts, or why there is none.

    A run is finished without its roster, too: a later command with --resume asks again.
    """
    try:
        public, signed = publish(fed, open_log(log), keys.log_key())
        public.write(folder)
        write_atomically(folder / FILE, written(signed))
        if not adds_up(public):
            raise DataError(
                f"{folder}: the lines of the devices do not add up to the server's sum, as when a "
                f"reply was lost. Strangers will find it. Train the run again."
            )
    except RescindError as error:
        return {"folder": str(folder), "why": str(error)}
    stated = Stated.parse(public.stated)
    return {"folder": str(folder), "number": stated.number, "lines": stated.lines}


def publish(
    fed: Federation, log: LogFolder, private: Ed25519PrivateKey
) -> tuple[Public, list[Signed]]:
    """Ask every silo for the lines of its devices, and state the sum that the run uses.

    All lines are new each time, and those before are revoked: nobody sees who changed something.
    """
    if len(fed.world.shared):
        raise ConfigError(LENT)
    small, lines, signed = np.zeros((3, LENGTH), np.int64), list[bytes](), list[Signed]()
    for silo, reply in sorted(_asked(fed, log).items()):
        made = split(reply.tensors["lines"].numpy().astype("<i8").tobytes())
        small += reply.tensors["small"].numpy()
        names = tuple(digest(line) for line in made)
        facts = reply.facts
        signed.append(Signed(silo, names, str(facts["time"]), str(facts["signature"])))
        lines += made
    seeds = Seeds.of(log)  # its key alone: the seeds are the devices'
    seeds.write()
    total = hash_of(sums_of(fed)) + hidden(small)
    weights = weights_digest(fed, seeds.key)
    stated = state_sum(
        log, private, sorted(lines, key=digest), total, fed.world.sizes.items, weights
    )
    return stated, signed


def _asked(fed: Federation, log: LogFolder) -> dict[int, Letter]:
    executor, vault = fed.executor, fed.now.vault
    if not isinstance(executor, FlowerExecutor):
        raise ConfigError("this run has no silos. Use rescind roster publish.")
    about = {"origin": log.checkpoint.origin, "number": next_number(log)}
    requests = {
        silo: vault_request(executor.run, "lines", fed.method, vault, silo, fed.clock, about, {})
        for silo in range(remote_holdings(vault).silos)
    }
    replies, why = executor.line.ask(requests)
    if why:
        silo = min(why)
        raise DataError(
            f"silo {silo} sent no lines: {why[silo]}. A roster needs every silo: try again later."
        )
    return replies
