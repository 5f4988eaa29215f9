"""Vectorised row arithmetic for compiled loops.

numba's own loops over a short row spend most of their time on run-time alias checks, and every
compiled function costs 0.1 s on first use. These operations are written as vector instructions,
which LLVM translates for the machine, and are inlined into their caller.

Arrays are flat; a row is a position in them, `dim` long. Rows are processed in pieces of 32, 4 and
1 numbers (lanes).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rescind.core.clock import _ID_STRIDE, _K_STRIDE, _MIX_1, _MIX_2

PIECES = (32, 4, 1)
AHEAD = 8
"""Number of rows to prefetch ahead; 4 is slower, 16 is not faster."""
_FREE = ("contract", "reassoc")  # a multiply and an add may become one; sums may be reordered
_I = types.intp
STEPS = 32  # of the table of powers of two between 1 and 2
_POWERS = [
    struct.unpack("<q", struct.pack("<d", 2.0 ** (i / STEPS)))[0] - (i << 47) for i in range(STEPS)
]
_CUBIC = tuple(
    map(float.fromhex, ("0x1.c6af84b912394p-5", "0x1.ebfce50fac4f3p-3", "0x1.62e42ff0c52d6p-1"))
)
"""Coefficients of r^3, r^2 and r of 2^r for |r| <= 1 / 64, those of the C library's `expf`."""


@dataclass(frozen=True)
class _Flat:
    """A flat array inside generated code: pointer to its data and bytes per number."""

    builder: Any
    data: Any
    bytes: int

    def _piece(self, at, lanes):
        place = self.builder.gep(self.data, [at])
        if lanes == 1:
            return place
        kind = ir.VectorType(self.data.type.pointee, lanes)
        return self.builder.bitcast(place, kind.as_pointer())

    def load(self, at, lanes=1):
        """Load `lanes` numbers from position `at`; one lane is a scalar."""
        value = self.builder.load(self._piece(at, lanes))
        value.align = self.bytes
        return value

    def store(self, value, at, lanes=1):
        self.builder.store(value, self._piece(at, lanes)).align = self.bytes

    def row(self, at, dim):
        """Return the position of the row whose number is at `at`."""
        number = self.load(at)
        if number.type != dim.type:
            number = self.builder.sext(number, dim.type)
        return self.builder.mul(number, dim)


def _arguments(context, builder, signature, given):
    """Return the arguments of generated code, arrays as `_Flat`."""
    found = []
    for kind, value in zip(signature.args, given, strict=True):
        if isinstance(kind, types.Array):
            width = context.get_abi_sizeof(context.get_data_type(kind.dtype))
            data = context.make_array(kind)(context, builder, value).data
            found.append(_Flat(builder, data, int(width)))
        else:
            found.append(value)
    return found


def _splat(builder, number, lanes):
    """Copy a number to all lanes of a vector."""
    if lanes == 1:
        return number
    empty = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    one = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(one, empty, places)


def _fma(builder, total, one, other):
    """Compute total + one * other."""
    return builder.fadd(total, builder.fmul(one, other, flags=_FREE), flags=_FREE)


def _reduced(builder, numbers, lanes, size):
    """Sum the lanes of a vector."""
    if lanes == 1:
        return numbers
    element = numbers.type.element
    name = f"llvm.vector.reduce.fadd.v{lanes}f{8 * size}"
    reduce = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(element, [element, numbers.type]), name
    )
    return builder.call(reduce, [ir.Constant(element, -0.0), numbers], fastmath=_FREE)


def _pieces(builder, dim, body, pieces=PIECES):
    """Generate body(offset, lanes) for every piece of a row."""
    begin = ir.Constant(dim.type, 0)
    for lanes in pieces:
        end = builder.and_(dim, ir.Constant(dim.type, -lanes))
        step = ir.Constant(dim.type, lanes)
        with cgutils.for_range_slice(builder, begin, end, step) as (offset, _):
            body(offset, lanes)
        begin = end


def _by_piece(body, dim=-1):
    """Return what generates body(builder, offset, lanes, *arguments) for every piece of a row.

    dim: the place of the row's length among the arguments
    """

    def generate(context, builder, signature, given):
        found = _arguments(context, builder, signature, given)
        _pieces(builder, given[dim], lambda f, lanes: body(builder, f, lanes, *found))
        return context.get_dummy_value()

    return generate


def _each(builder, count):
    """Generate a loop over 0 .. count-1; yields the index."""
    begin, step = (ir.Constant(count.type, n) for n in (0, 1))
    return cgutils.for_range_slice(builder, begin, count, step)


@intrinsic
def add(typing, to, at, row, place, factor, dim):
    """Compute to[at : at+dim] += factor * row[place : place+dim]"""

    def body(builder, f, lanes, to, at, row, place, factor, dim):
        here = builder.add(at, f)
        more = row.load(builder.add(place, f), lanes)
        done = _fma(builder, to.load(here, lanes), more, _splat(builder, factor, lanes))
        to.store(done, here, lanes)

    return types.void(to, _I, row, _I, to.dtype, _I), _by_piece(body)


@intrinsic
def multiply(typing, to, at, factor, dim):
    """Compute to[at : at+dim] *= factor."""

    def body(builder, f, lanes, to, at, factor, dim):
        here, by = builder.add(at, f), _splat(builder, factor, lanes)
        to.store(builder.fmul(to.load(here, lanes), by, flags=_FREE), here, lanes)

    return types.void(to, _I, to.dtype, _I), _by_piece(body)


@intrinsic
def dot(typing, left, at, right, place, dim):
    """Compute the inner product of left[at : at+dim] and right[place : place+dim]."""

    def generate(context, builder, signature, given):
        left, at, right, place, dim = _arguments(context, builder, signature, given)
        total = cgutils.alloca_once_value(builder, ir.Constant(left.data.type.pointee, 0.0))

        def body(f, lanes):
            one = left.load(builder.add(at, f), lanes)
            two = right.load(builder.add(place, f), lanes)
            more = _reduced(builder, builder.fmul(one, two, flags=_FREE), lanes, left.bytes)
            builder.store(builder.fadd(builder.load(total), more, flags=_FREE), total)

        _pieces(builder, dim, body)
        return builder.load(total)

    return left.dtype(left, _I, right, _I, _I), generate


@intrinsic
def dots(typing, out, begin, left, at, rows, places, first, count, dim):
    """Compute out[begin+m] = <left[at:], row places[first+m] of `rows`> for m < count."""

    def generate(context, builder, signature, given):
        found = _arguments(context, builder, signature, given)
        out, begin, left, at, rows, places, first, count, dim = found
        zero = ir.Constant(out.data.type.pointee, 0.0)
        with _each(builder, count) as (m, _):
            out.store(zero, builder.add(begin, m))

        def body(f, lanes):
            mine = left.load(builder.add(at, f), lanes)
            with _each(builder, count) as (m, _):
                place = places.row(builder.add(first, m), dim)
                products = builder.fmul(mine, rows.load(builder.add(place, f), lanes), flags=_FREE)
                more, here = _reduced(builder, products, lanes, out.bytes), builder.add(begin, m)
                out.store(builder.fadd(out.load(here), more, flags=_FREE), here)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return types.void(out, _I, left, _I, rows, places, _I, _I, _I), generate


def _gather(builder, f, lanes, to, at, rows, places, first, count, scale, dim, *factors):
    """Generate code that adds up rows of a table, optionally each times a factor."""
    here = builder.add(at, f)
    before = to.load(here, lanes)
    total = cgutils.alloca_once_value(builder, ir.Constant(before.type, None))
    with _each(builder, count) as (m, _):
        mth = builder.add(first, m)
        more = rows.load(builder.add(places.row(mth, dim), f), lanes)
        if factors:
            by = _splat(builder, factors[0].load(mth), lanes)
            done = _fma(builder, builder.load(total), more, by)
        else:
            done = builder.fadd(builder.load(total), more, flags=_FREE)
        builder.store(done, total)
    by = _splat(builder, scale, lanes)
    to.store(_fma(builder, before, builder.load(total), by), here, lanes)


@intrinsic
def gather(typing, to, at, rows, places, first, count, scale, dim, factors):
    """Compute to[at:] += scale * sum over m < count of factors[first+m] * rows[places[first+m]]."""
    signature = types.void(to, _I, rows, places, _I, _I, to.dtype, _I, factors)
    return signature, _by_piece(_gather, dim=7)


@intrinsic
def gather_plain(typing, to, at, rows, places, first, count, scale, dim):
    """Compute to[at:] += scale * sum over m < count of rows[places[first+m]]."""
    return types.void(to, _I, rows, places, _I, _I, to.dtype, _I), _by_piece(_gather, dim=7)


def _prefetch(builder, rows, at, lanes):
    """Prefetch all cache lines of `lanes` numbers; an invalid address is ignored."""
    number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    how = [ir.Constant(number, n) for n in (0, 3, 1)]  # read, keep in cache, data
    for line in range(0, lanes, 64 // rows.bytes):
        place = builder.gep(rows.data, [builder.add(at, ir.Constant(at.type, line))])
        builder.call(prefetch, [builder.bitcast(place, byte), *how])


@intrinsic
def prefetch(typing, rows, at, dim):
    """Prefetch rows[at : at+dim]; does nothing for a short row."""

    def body(builder, f, lanes, rows, at, dim):
        if lanes == PIECES[0]:
            _prefetch(builder, rows, builder.add(at, f), lanes)

    return types.void(rows, _I, _I), _by_piece(body)


@intrinsic
def layer(typing, to, at, base, share, rows, places, factors, first, count, scale, dim):
    """Compute to[at:] = share * base[at:] + scale * sum_m factors[m] * rows[places[m]].

    m is first .. first+count-1. Rows are prefetched ahead of use, also those of the next sums:
    `places` must have AHEAD more numbers after the last one that is used.
    """

    def body(
        builder, f, lanes, to, at, base, share, rows, places, factors, first, count, scale, dim
    ):
        here = builder.add(at, f)
        zero = ir.Constant(base.load(here, lanes).type, None)
        total = cgutils.alloca_once_value(builder, zero)
        with _each(builder, count) as (m, _):
            mth = builder.add(first, m)
            if lanes == PIECES[0]:
                ahead = places.row(builder.add(mth, ir.Constant(mth.type, AHEAD)), dim)
                _prefetch(builder, rows, builder.add(ahead, f), lanes)
            by = _splat(builder, factors.load(mth), lanes)
            more = rows.load(builder.add(places.row(mth, dim), f), lanes)
            builder.store(_fma(builder, builder.load(total), more, by), total)
        mine = builder.fmul(base.load(here, lanes), _splat(builder, share, lanes), flags=_FREE)
        by = _splat(builder, scale, lanes)
        to.store(_fma(builder, mine, builder.load(total), by), here, lanes)

    number = to.dtype
    signature = types.void(to, _I, base, number, rows, places, factors, _I, _I, number, _I)
    return signature, _by_piece(body)


def _scatter(builder, f, lanes, to, places, first, count, scale, at, dim, row, factors, *others):
    """Generate code that adds multiples of a row, and optionally of another, to table rows."""
    mine = row.load(builder.add(at, f), lanes)
    by = _splat(builder, scale, lanes)
    plain = [other.load(builder.add(at, f), lanes) for other in others]
    plain = [builder.fmul(one, by, flags=_FREE) for one in plain]
    with _each(builder, count) as (m, _):
        mth = builder.add(first, m)
        here = builder.add(places.row(mth, dim), f)
        factor = builder.fmul(scale, factors.load(mth), flags=_FREE)
        done = _fma(builder, to.load(here, lanes), mine, _splat(builder, factor, lanes))
        for one in plain:
            done = builder.fadd(done, one, flags=_FREE)
        to.store(done, here, lanes)


@intrinsic
def scatter(typing, to, places, first, count, scale, at, dim, row, factors):
    """Compute to[places[first+m]] += scale * factors[first+m] * row[at:] for every m < count."""
    signature = types.void(to, places, _I, _I, to.dtype, _I, _I, row, factors)
    return signature, _by_piece(_scatter, dim=6)


@intrinsic
def scatter_two(typing, to, places, first, count, scale, at, dim, row, factors, other):
    """Compute to[places[first+m]] += scale * (factors[first+m] * row[at:] + other[at:])."""
    signature = types.void(to, places, _I, _I, to.dtype, _I, _I, row, factors, other)
    return signature, _by_piece(_scatter, dim=6)


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

    def generate(context, builder, signature, given):
        to, first, count, scale = _arguments(context, builder, signature, given)

        single = to.bytes == 4

        def body(m, lanes):
            here = builder.add(first, m)
            power = builder.fmul(builder.fneg(to.load(here, lanes)), _splat(builder, scale, lanes))
            one = _like(1.0, power.type)
            raised = (_expf if single else _exp)(builder, power)
            to.store(builder.fdiv(one, builder.fadd(one, raised)), here, lanes)

        _pieces(builder, count, body, (8, 1) if single else (1,))
        return context.get_dummy_value()

    return types.void(to, _I, _I, to.dtype), generate


@intrinsic
def bits(typing, key, client, k):
    """Compute the same 64 bits as `Clock.bits`."""

    def generate(context, builder, signature, given):
        def number(value):
            return ir.Constant(ir.IntType(64), value)

        x = given[0]
        for value, stride in ((given[1], _ID_STRIDE), (given[2], _K_STRIDE)):
            x = builder.add(x, builder.mul(value, number(stride)))
        for shift, mix in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
            x = builder.mul(builder.xor(x, builder.lshr(x, number(shift))), number(mix))
        return x

    return types.uint64(types.uint64, types.uint64, types.uint64), generate
