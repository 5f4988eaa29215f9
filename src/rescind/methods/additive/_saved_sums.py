"""What a saved sum must be: of the items and clients that there are, before it is computed with."""

from __future__ import annotations

import torch
from torch import Tensor

from rescind.core.cohort import Lot
from rescind.core.params import Params
from rescind.core.saved import must, must_be_like
from rescind.core.state import ServerState
from rescind.core.world import Sizes, World
from rescind.methods.additive._exchange import _CLIENT, LOANS, Lent
from rescind.methods.additive._notes import Notes
from rescind.methods.additive._solving import half

FLAGS = ("counted", "owes", "lost")
"""What the server notes of each client; shorter where clients came later."""
SUMS = "gram/0"
"""Prefix of the sums of all pairs, by block."""


def check_sums(state: ServerState, start: ServerState, sizes: Sizes) -> None:
    """Raise `ValueError` unless sums, notes and loans of a file fit. start: as it would begin"""
    own = state.own
    loans = {name for name in start.own if name.startswith(LOANS)}
    must(not loans or bool(Lent.of(own).pieces), "loans are missing")
    for name, value in start.own.items():
        if name not in loans and not name.startswith(SUMS):
            grows = name in FLAGS or not len(value)
            must_be_like(name, own.get(name), value, None if grows else len(value))
    zeros = [value for name, value in start.own.items() if name.startswith(SUMS)]
    for name in own:
        if name.startswith(SUMS):
            must_be_like(name, own[name], zeros[0], len(zeros[0]))
    ordered = any(value.dim() > 1 for value in zeros)
    for name, value in start.public.items():
        there = state.public.get(name)
        if ordered and there is not None and there.dim() > value.dim():  # a table for each reach
            must(len(there) > 0, f"{name} is empty")
            there = there[0]
        must_be_like(name, there, value, len(value))
    _must_lie(state.public.get("neighbour", torch.zeros(0)), -1, sizes.items)
    _check_loans(own, sizes)


def _check_loans(own: Params, sizes: Sizes) -> None:
    """Raise `ValueError` unless loans and flags of a file fit the items and clients."""
    for piece in Lent.of(own).pieces:
        must(piece.dtype == torch.int64 and piece.dim() == 2, "loans are of another kind")
        client, item = piece[0] >> _CLIENT, piece[0] & (2**_CLIENT - 1)
        must(bool(((client >= 0) & (client < sizes.clients)).all()), "a lender is not there")
        must(bool((item < sizes.items).all()), "a lent item is not there")
        must(len(piece) == 2 and bool(((piece[1] >= 0) & (piece[1] < 2**15)).all()), "no block")
    for name in {*FLAGS} & own.keys():
        must(own[name].dim() == 1 and len(own[name]) <= sizes.clients, f"{name} is too long")
    if "gram/other" in own:  # neighbours of a large catalogue
        first, other = own["gram/first"], own["gram/other"]
        must(first.shape == (sizes.items + 1,) and not first[0], "rows do not begin at 0")
        must(bool((first.diff() >= 0).all()) and int(first[-1]) == len(other), "rows are cut")
        must(len(other) == len(own["gram/value"]), "values are cut")
        _must_lie(other, 0, sizes.items)
    if "gram/place" in own:
        _must_lie(own["gram/place"], 0, sizes.items**2)
        must(len(own["gram/place"]) == len(own["gram/value"]), "values are cut")
    must(len(own.get("inverse", ())) in (0, half(sizes.items)), "the inverse is cut")


def check_notes(kept: Params, notes: Notes, world: World) -> None:
    """Raise `ValueError` unless devices note items that there are; older notes may be narrower."""
    zero = torch.zeros(0, dtype=torch.int64)
    first = notes.of(Lot(zero, zero, 0), world.sizes.items)
    for name in kept:
        if name.startswith(("sent/", "late/")):
            table, wide = kept[name], first.shape[1]
            must(table.dtype == first.dtype and table.dim() == 2, f"{name} is of another kind")
            must(int(name[5:]) < world.block or table.shape[1] == wide, f"{name} is cut")
            must(table.shape[1] <= wide and notes.fit(table, world.sizes.items), f"{name} is wide")
            must(table.shape == kept.get(f"sent/{name[5:]}", first).shape, f"{name} stands alone")


def _must_lie(numbers: Tensor, low: int, below: int) -> None:
    inside = (numbers >= low) & (numbers < below)
    must(bool(inside.all()), f"numbers are not from {low} to {below}")
