"""Sigmoids of flat arrays for compiled loops, as vector instructions; `rowops` says why."""

from __future__ import annotations

import math
import struct

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rescind.core.fast.rowops import INDEX, by_pieces, shared_function, splat

STEPS = 32  # of the table of powers of two between 1 and 2
_POWERS = [
    struct.unpack("<q", struct.pack("<d", 2.0 ** (i / STEPS)))[0] - (i << 47) for i in range(STEPS)
]
_CUBIC = tuple(
    map(float.fromhex, ("0x1.c6af84b912394p-5", "0x1.ebfce50fac4f3p-3", "0x1.62e42ff0c52d6p-1"))
)
"""Coefficients of r^3, r^2 and r of 2^r for |r| <= 1 / 64, those of the C library's `expf`."""


def _like(value, vector):
    """Return a constant of this type, the same in all lanes."""
    if isinstance(vector, ir.VectorType):
        return ir.Constant(vector, [value] * vector.count)
    return ir.Constant(vector, value)


def _exp(builder, power):
    """Compute e^power by the C library."""
    return builder.call(builder.module.declare_intrinsic("llvm.exp", [power.type]), [power])


def _expf(builder, power):
    """Compute e^power of float32: 2^(whole / STEPS) from a table, times a cubic of the rest.

    It computes in float64 what the C library's `expf` does for one number, so a round gives the
    same bits as with calls of it, and the same on every machine that multiplies and adds in one.
    """
    kind = power.type
    most, least = (_like(end, kind) for end in (89.0, -150.0))  # beyond: infinite, and 0
    power = builder.select(builder.fcmp_ordered(">", power, most), most, power)
    power = builder.select(builder.fcmp_ordered("<", power, least), least, power)
    power = builder.fpext(power, _shaped(ir.DoubleType(), kind))
    double, whole = power.type, _shaped(ir.IntType(64), power.type)
    lanes = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
    fuse = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(double, [double] * 3), f"llvm.fmuladd.{lanes}f64"
    )

    def fused(one, other, more):
        return builder.call(fuse, [one, other, more])

    def number(value):
        return _like(value, double)

    per_step = number(STEPS / math.log(2))
    shift = number(1.5 * 2.0**52)  # adding it rounds to a whole number, in the lower bits
    shifted = fused(per_step, power, shift)
    steps = builder.bitcast(shifted, whole)
    rest = fused(per_step, power, builder.fneg(builder.fsub(shifted, shift)))
    table = _table(builder, power.type, builder.and_(steps, _like(STEPS - 1, whole)))
    raised = builder.add(table, builder.shl(steps, _like(47, whole)))
    cubic, square, linear = (number(c / STEPS**n) for c, n in zip(_CUBIC, (3, 2, 1), strict=True))
    total = fused(linear, rest, number(1.0))
    total = fused(fused(cubic, rest, square), builder.fmul(rest, rest), total)
    return builder.fptrunc(builder.fmul(total, builder.bitcast(raised, double)), kind)


def _shaped(element, like):
    """Return the type of as many elements as `like` has."""
    return ir.VectorType(element, like.count) if isinstance(like, ir.VectorType) else element


def _table(builder, like, index):
    """Look up the bits of 2^(i / STEPS), minus i in the bits that `steps` adds."""
    lanes, element = getattr(like, "count", 0), ir.IntType(64)
    name = "rescind.powers_of_two"
    if (table := builder.module.globals.get(name)) is None:
        table = cgutils.global_constant(
            builder, name, ir.Constant(ir.ArrayType(element, STEPS), _POWERS)
        )
    zero = ir.Constant(ir.IntType(32), 0)

    def entry(place):
        return builder.load(builder.gep(table, [zero, place]))

    if not lanes:
        return entry(index)
    found = ir.Constant(index.type, ir.Undefined)
    for lane in range(lanes):
        at = ir.Constant(ir.IntType(32), lane)
        found = builder.insert_element(found, entry(builder.extract_element(index, at)), at)
    return found


@intrinsic
def sigmoids(typing, to, first, count, scale):
    """Compute to[first+m] = 1 / (1 + exp(-scale * to[first+m])) for every m < count."""

    def whole(builder, to, first, count, scale):
        single = to.bytes == 4

        def body(m, lanes):
            here = builder.add(first, m)
            power = builder.fmul(builder.fneg(to.load(here, lanes)), splat(builder, scale, lanes))
            one = _like(1.0, power.type)
            raised = (_expf if single else _exp)(builder, power)
            to.store(builder.fdiv(one, builder.fadd(one, raised)), here, lanes)

        by_pieces(builder, count, body, (8, 1) if single else (1,))

    return types.void(to, INDEX, INDEX, to.dtype), shared_function(whole, "sigmoids")
