"""Vectorised row arithmetic for compiled loops.

numba's own loops over a short row spend most of their time on run-time alias checks, and every
compiled function costs 0.1 s on first use. These operations are written as vector instructions,
which LLVM translates for the machine. Those with loops are one function each, which all calls in a
kernel share: inlined, they were most of what LLVM had to translate.

Arrays are flat; a row is a position in them, `dim` long. Rows are processed in pieces of 32, 4 and
1 numbers (lanes).
"""

from __future__ import annotations

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
INDEX = types.intp


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


def shared_function(body, name):
    """Return what generates a call of the function that body(builder, *arguments) makes.

    The module of a kernel has it once for each kind of arguments; arrays are `_Flat` in it.
    """

    def generate(context, builder, signature, given):
        values = list(given)
        for n, kind in enumerate(signature.args):
            if isinstance(kind, types.Array):
                values[n] = context.make_array(kind)(context, builder, given[n]).data
        kinds = [value.type for value in values]
        full = ".".join(("rescind", name, *(str(kind).replace("*", "s") for kind in kinds)))
        made = builder.module.globals.get(full)
        if made is None:
            void = signature.return_type == types.void
            result = ir.VoidType() if void else context.get_value_type(signature.return_type)
            made = ir.Function(builder.module, ir.FunctionType(result, kinds), full)
            made.linkage = "internal"
            made.attributes.add("noinline")
            inside = ir.IRBuilder(made.append_basic_block("entry"))
            found = [
                _Flat(inside, one, int(context.get_abi_sizeof(context.get_data_type(kind.dtype))))
                if isinstance(kind, types.Array)
                else one
                for one, kind in zip(made.args, signature.args, strict=True)
            ]
            answer = body(inside, *found)
            inside.ret_void() if answer is None else inside.ret(answer)
        answer = builder.call(made, values)
        return context.get_dummy_value() if signature.return_type == types.void else answer

    return generate


def splat(builder, number, lanes):
    """Copy a number to all lanes of a vector."""
    if lanes == 1:
        return number
    empty = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    one = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(one, empty, places)


def fma(builder, total, one, other):
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


def by_pieces(builder, dim, body, pieces=PIECES):
    """Generate body(offset, lanes) for every piece of a row."""
    begin = ir.Constant(dim.type, 0)
    for lanes in pieces:
        end = builder.and_(dim, ir.Constant(dim.type, -lanes))
        step = ir.Constant(dim.type, lanes)
        with cgutils.for_range_slice(builder, begin, end, step) as (offset, _):
            body(offset, lanes)
        begin = end


def _by_piece(body, name, dim=-1):
    """Return what generates body(builder, offset, lanes, *arguments) for every piece of a row.

    dim: the place of the row's length among the arguments
    """

    def whole(builder, *found):
        by_pieces(builder, found[dim], lambda f, lanes: body(builder, f, lanes, *found))

    return shared_function(whole, name)


def each(builder, count):
    """Generate a loop over 0 .. count-1; yields the index."""
    begin, step = (ir.Constant(count.type, n) for n in (0, 1))
    return cgutils.for_range_slice(builder, begin, count, step)


@intrinsic
def add(typing, to, at, row, place, factor, dim):
    """Compute to[at : at+dim] += factor * row[place : place+dim]"""

    def body(builder, f, lanes, to, at, row, place, factor, dim):
        here = builder.add(at, f)
        more = row.load(builder.add(place, f), lanes)
        done = fma(builder, to.load(here, lanes), more, splat(builder, factor, lanes))
        to.store(done, here, lanes)

    return types.void(to, INDEX, row, INDEX, to.dtype, INDEX), _by_piece(body, "add")


@intrinsic
def multiply(typing, to, at, factor, dim):
    """Compute to[at : at+dim] *= factor."""

    def body(builder, f, lanes, to, at, factor, dim):
        here, by = builder.add(at, f), splat(builder, factor, lanes)
        to.store(builder.fmul(to.load(here, lanes), by, flags=_FREE), here, lanes)

    return types.void(to, INDEX, to.dtype, INDEX), _by_piece(body, "multiply")


@intrinsic
def dot(typing, left, at, right, place, dim):
    """Compute the inner product of left[at : at+dim] and right[place : place+dim]."""

    def whole(builder, left, at, right, place, dim):
        total = cgutils.alloca_once_value(builder, ir.Constant(left.data.type.pointee, 0.0))

        def body(f, lanes):
            one = left.load(builder.add(at, f), lanes)
            two = right.load(builder.add(place, f), lanes)
            more = _reduced(builder, builder.fmul(one, two, flags=_FREE), lanes, left.bytes)
            builder.store(builder.fadd(builder.load(total), more, flags=_FREE), total)

        by_pieces(builder, dim, body)
        return builder.load(total)

    return left.dtype(left, INDEX, right, INDEX, INDEX), shared_function(whole, "dot")


@intrinsic
def dots(typing, out, begin, left, at, rows, places, first, count, dim):
    """Compute out[begin+m] = <left[at:], row places[first+m] of `rows`> for m < count."""

    def whole(builder, out, begin, left, at, rows, places, first, count, dim):
        zero = ir.Constant(out.data.type.pointee, 0.0)
        with each(builder, count) as (m, _):
            out.store(zero, builder.add(begin, m))

        def body(f, lanes):
            mine = left.load(builder.add(at, f), lanes)
            with each(builder, count) as (m, _):
                place = places.row(builder.add(first, m), dim)
                products = builder.fmul(mine, rows.load(builder.add(place, f), lanes), flags=_FREE)
                more, here = _reduced(builder, products, lanes, out.bytes), builder.add(begin, m)
                out.store(builder.fadd(out.load(here), more, flags=_FREE), here)

        by_pieces(builder, dim, body)

    return types.void(out, INDEX, left, INDEX, rows, places, INDEX, INDEX, INDEX), shared_function(
        whole, "dots"
    )


def _gather(builder, f, lanes, to, at, rows, places, first, count, scale, dim, *factors):
    """Generate code that adds up rows of a table, optionally each times a factor."""
    here = builder.add(at, f)
    before = to.load(here, lanes)
    total = cgutils.alloca_once_value(builder, ir.Constant(before.type, None))
    with each(builder, count) as (m, _):
        mth = builder.add(first, m)
        more = rows.load(builder.add(places.row(mth, dim), f), lanes)
        if factors:
            by = splat(builder, factors[0].load(mth), lanes)
            done = fma(builder, builder.load(total), more, by)
        else:
            done = builder.fadd(builder.load(total), more, flags=_FREE)
        builder.store(done, total)
    by = splat(builder, scale, lanes)
    to.store(fma(builder, before, builder.load(total), by), here, lanes)


@intrinsic
def gather(typing, to, at, rows, places, first, count, scale, dim, factors):
    """Compute to[at:] += scale * sum over m < count of factors[first+m] * rows[places[first+m]]."""
    signature = types.void(to, INDEX, rows, places, INDEX, INDEX, to.dtype, INDEX, factors)
    return signature, _by_piece(_gather, "gather", dim=7)


@intrinsic
def gather_plain(typing, to, at, rows, places, first, count, scale, dim):
    """Compute to[at:] += scale * sum over m < count of rows[places[first+m]]."""
    signature = types.void(to, INDEX, rows, places, INDEX, INDEX, to.dtype, INDEX)
    return signature, _by_piece(_gather, "gather_plain", dim=7)


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

    return types.void(rows, INDEX, INDEX), _by_piece(body, "prefetch")


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
        with each(builder, count) as (m, _):
            mth = builder.add(first, m)
            if lanes == PIECES[0]:
                ahead = places.row(builder.add(mth, ir.Constant(mth.type, AHEAD)), dim)
                _prefetch(builder, rows, builder.add(ahead, f), lanes)
            by = splat(builder, factors.load(mth), lanes)
            more = rows.load(builder.add(places.row(mth, dim), f), lanes)
            builder.store(fma(builder, builder.load(total), more, by), total)
        mine = builder.fmul(base.load(here, lanes), splat(builder, share, lanes), flags=_FREE)
        by = splat(builder, scale, lanes)
        to.store(fma(builder, mine, builder.load(total), by), here, lanes)

    number = to.dtype
    signature = types.void(
        to, INDEX, base, number, rows, places, factors, INDEX, INDEX, number, INDEX
    )
    return signature, _by_piece(body, "layer")


def _scatter(builder, f, lanes, to, places, first, count, scale, at, dim, row, factors, *others):
    """Generate code that adds multiples of a row, and optionally of another, to table rows."""
    mine = row.load(builder.add(at, f), lanes)
    by = splat(builder, scale, lanes)
    plain = [other.load(builder.add(at, f), lanes) for other in others]
    plain = [builder.fmul(one, by, flags=_FREE) for one in plain]
    with each(builder, count) as (m, _):
        mth = builder.add(first, m)
        here = builder.add(places.row(mth, dim), f)
        factor = builder.fmul(scale, factors.load(mth), flags=_FREE)
        done = fma(builder, to.load(here, lanes), mine, splat(builder, factor, lanes))
        for one in plain:
            done = builder.fadd(done, one, flags=_FREE)
        to.store(done, here, lanes)


@intrinsic
def scatter(typing, to, places, first, count, scale, at, dim, row, factors):
    """Compute to[places[first+m]] += scale * factors[first+m] * row[at:] for every m < count."""
    signature = types.void(to, places, INDEX, INDEX, to.dtype, INDEX, INDEX, row, factors)
    return signature, _by_piece(_scatter, "scatter", dim=6)


@intrinsic
def scatter_two(typing, to, places, first, count, scale, at, dim, row, factors, other):
    """Compute to[places[first+m]] += scale * (factors[first+m] * row[at:] + other[at:])."""
    signature = types.void(to, places, INDEX, INDEX, to.dtype, INDEX, INDEX, row, factors, other)
    return signature, _by_piece(_scatter, "scatter_two", dim=6)


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
