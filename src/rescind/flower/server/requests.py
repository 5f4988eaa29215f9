"""Build the server's requests to silos, with what each silo has missed."""

from __future__ import annotations

from rescind.core.clock import Clock
from rescind.core.executor import Vault
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.settings import to_table
from rescind.flower.server.remote_holdings import RemoteHoldings, remote_holdings
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.payloads import of_silo, packed_letters, packed_steps, unpacked_letters
from rescind.flower.wire.steps import MOMENT
from rescind.storage.events import pack_events
from rescind.storage.packing import Facts


def request(
    run: str,
    verb: str,
    clock: Clock,
    extra: Facts | None = None,
    tensors: Params | None = None,
    epoch: int = 0,
) -> Letter:
    """Build a request of a run."""
    facts = {"verb": verb, "run": run, "seed": clock.seed, "round": clock.round, "epoch": epoch}
    return Letter({**facts, **(extra or {})}, dict(tensors or {}))


def open_request(
    run: str, method: Method, holdings: RemoteHoldings, silo: int, clock: Clock
) -> Letter:
    """Build the request to start again from holdings, without the records to leave out."""
    tensors, left_out = pack_events("never", of_silo(holdings.left_out, silo))
    owed, steps = packed_steps("owed", holdings.owed, silo)
    missed, letters = packed_letters(holdings.missed(silo))
    extra = {**left_out, **owed, **missed, "clients": holdings.clients, "items": holdings.items}
    extra |= {"held": int(holdings.moment[silo]), "method": to_table(method)}
    return request(run, "open", clock, extra, {**tensors, **steps, **letters}, holdings.epoch)


def vault_request(
    run: str,
    verb: str,
    method: Method,
    vault: Vault,
    silo: int,
    clock: Clock,
    extra: Facts,
    tensors: Params,
) -> Letter:
    """Build a request about a silo's devices, with the steps and letters it has not answered."""
    held = remote_holdings(vault)
    owed, steps = packed_steps("owed", held.owed, silo)
    letters = held.missed(silo)
    if verb == "keep" and letters and letters[-1].facts["verb"] == "keep":
        letters = unpacked_letters(letters[-1].facts, letters[-1].tensors)  # it takes its place
    missed, packed = packed_letters(letters)
    facts: Facts = {
        "method": to_table(method),
        "held": int(held.moment[silo]),
        "private": int(vault.private[MOMENT][silo]),
        **owed,
        **missed,
        **extra,
    }
    return request(run, verb, clock, facts, {**steps, **packed, **tensors}, held.epoch)
