"""Many small positive definite systems, solved eight at a time, one in each lane of a vector.

LAPACK reaches a fifth of the processor's speed on a matrix of 200 rows. Here the number (i, j) of
eight matrices is one vector, and no sum runs across lanes: a system's solution does not depend on
its neighbours. Number (i, j) of a group stands at (i * size + j) * LANES, j <= i; `size` is a
multiple of 4, and what is added is an identity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rescind.core.fast.compiling import compiled
from rescind.core.fast.rowops import INDEX, each, fma, shared_function

LANES = 8
TILE = 4


def _place(builder, row, column, size):
    inside = builder.add(builder.mul(row, size), column)
    return builder.mul(inside, ir.Constant(inside.type, LANES))


def _plus(builder, number, more):
    return builder.add(number, ir.Constant(number.type, more))


def _tile(builder, group, row, column, size):
    """Load a tile. Returns [4][4] of (place, vector)"""
    found = []
    for r in range(TILE):
        first = _place(builder, _plus(builder, row, r), column, size)
        places = [_plus(builder, first, c * LANES) for c in range(TILE)]
        found.append([(at, group.load(at, LANES)) for at in places])
    return found


@intrinsic
def _subtract(typing, group, row, column, count, size):
    """Subtract the sum over k < count of group[row, k] group[column, k] from a tile."""

    def whole(builder, group, row, column, count, size):
        tile = _tile(builder, group, row, column, size)
        sums = [[cgutils.alloca_once_value(builder, v) for _, v in line] for line in tile]
        with each(builder, count) as (k, _):
            rows = [
                group.load(_place(builder, _plus(builder, row, r), k, size), LANES)
                for r in range(TILE)
            ]
            rows = [builder.fneg(one) for one in rows]
            others = [
                group.load(_place(builder, _plus(builder, column, c), k, size), LANES)
                for c in range(TILE)
            ]
            for line, one in zip(sums, rows, strict=True):
                for total, other in zip(line, others, strict=True):
                    builder.store(fma(builder, builder.load(total), one, other), total)
        for line, into in zip(sums, tile, strict=True):
            for total, (at, _) in zip(line, into, strict=True):
                group.store(builder.load(total), at, LANES)

    signature = types.void(group, INDEX, INDEX, INDEX, INDEX)
    return signature, shared_function(whole, "subtract_tile")


@intrinsic
def _divide(typing, group, row, column, size, inverse):
    """Divide a tile by the factor of the diagonal tile of its columns: X L^T = tile."""

    def whole(builder, group, row, column, size, inverse):
        factor = _tile(builder, group, column, column, size)
        by = [
            inverse.load(
                builder.mul(_plus(builder, column, c), ir.Constant(column.type, LANES)), LANES
            )
            for c in range(TILE)
        ]
        for line in _tile(builder, group, row, column, size):
            done: list[Any] = []
            for c, (at, begin) in enumerate(line):
                value = begin
                for d, known in enumerate(done):
                    value = fma(builder, value, builder.fneg(known), factor[c][d][1])
                done.append(builder.fmul(value, by[c]))
                group.store(done[-1], at, LANES)

    return types.void(group, INDEX, INDEX, INDEX, inverse), shared_function(whole, "divide_tile")


@intrinsic
def _factor(typing, group, column, size, inverse):
    """Replace a diagonal tile by its Cholesky factor; keep 1 / its diagonal in `inverse`."""

    def whole(builder, group, column, size, inverse):
        tile = _tile(builder, group, column, column, size)
        vector = tile[0][0][1].type
        name = f"llvm.sqrt.v{LANES}f{8 * group.bytes}"
        root = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(vector, [vector]), name
        )
        one = ir.Constant(vector, [1.0] * LANES)
        low: list[list[Any]] = [[] for _ in range(TILE)]
        for c in range(TILE):
            value = tile[c][c][1]
            for known in low[c]:
                value = fma(builder, value, builder.fneg(known), known)
            diagonal = builder.call(root, [value])
            by = builder.fdiv(one, diagonal)
            at = builder.mul(_plus(builder, column, c), ir.Constant(column.type, LANES))
            inverse.store(by, at, LANES)
            for r in range(c + 1, TILE):
                value = tile[r][c][1]
                for mine, other in zip(low[r], low[c], strict=False):
                    value = fma(builder, value, builder.fneg(mine), other)
                low[r].append(builder.fmul(value, by))
                group.store(low[r][-1], tile[r][c][0], LANES)

    return types.void(group, INDEX, INDEX, inverse), shared_function(whole, "factor_tile")


@intrinsic
def _take(typing, to, begin, group, at, count, by, place):
    """Compute to[begin + m] -= group[at + m] * by[place] for m < count; all are vectors."""

    def whole(builder, to, begin, group, at, count, by, place):
        factor = builder.fneg(by.load(place, LANES))
        with each(builder, count) as (m, _):
            step = builder.mul(m, ir.Constant(m.type, LANES))
            here = builder.add(begin, step)
            more = group.load(builder.add(at, step), LANES)
            to.store(fma(builder, to.load(here, LANES), more, factor), here, LANES)

    signature = types.void(to, INDEX, group, INDEX, INDEX, to, INDEX)
    return signature, shared_function(whole, "take_line")


@compiled()
def _fill(squares, sides, first, size, group):
    """Copy eight systems, from the upper halves of `squares`, flat, with their sides as a last row.

    Lanes for which no system is left repeat the last one.
    """
    systems, n = sides.shape
    half = n * (n + 1) // 2
    more = systems - 1 - first
    begin = 0
    while begin < n:  # a line of the cache is read once
        end = min(begin + LANES, n)
        for j in range(end):
            for i in range(max(begin, j), end):
                at = first * half + j * n - j * (j + 1) // 2 + i
                to = (i * size + j) * LANES
                for lane in range(LANES):
                    group[to + lane] = squares[at]
                    at += half if lane < more else 0
        begin = end
    for j in range(n):
        for lane in range(LANES):
            k = min(first + lane, systems - 1)
            group[(size * size + j) * LANES + lane] = sides[k, j]
    for i in range(n, size):
        for j in range(size):
            for lane in range(LANES):
                group[(i * size + j) * LANES + lane] = 1.0 if i == j else 0.0


@compiled()
def _solve(squares, sides, size, group, inverse, found):
    """Fill in the solutions.

    group: [(size + TILE) * size * LANES] zeros    inverse: [size * LANES]
    """
    systems, n = sides.shape
    side = size * size * LANES  # the row below the matrix: sides, then L^-1 sides, then solutions
    for first in range(0, systems, LANES):
        _fill(squares, sides, first, size, group)
        for column in range(0, size, TILE):
            for row in range(column, size + TILE, TILE):
                _subtract(group, row, column, column, size)
            _factor(group, column, size, inverse)
            for row in range(column + TILE, size + TILE, TILE):
                _divide(group, row, column, size, inverse)
        for j in range(size - 1, -1, -1):
            for lane in range(LANES):
                group[side + j * LANES + lane] *= inverse[j * LANES + lane]
            _take(group, side, group, j * size * LANES, j, group, side + j * LANES)
        for lane in range(min(LANES, systems - first)):
            for j in range(n):
                found[first + lane, j] = group[side + j * LANES + lane]


def solutions(squares: Any, sides: Any) -> Any:
    """Return x of squares[k] x = sides[k] for every k; NaN where a square is not positive definite.

    squares: [systems, n (n + 1) / 2] float64, upper halves line by line    sides: [systems, n]
    """
    found = np.empty_like(sides)
    size = -(-sides.shape[1] // TILE) * TILE
    group = np.zeros((size + TILE) * size * LANES)
    _solve(squares.reshape(-1), sides, size, group, np.empty(size * LANES), found)
    return found
