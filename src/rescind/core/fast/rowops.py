"""Vectorised row arithmetic for compiled loops.

numba's own loops over a short row spend most of their time on run-time alias checks, and every
compiled function costs 0.1 s on first use. These operations are written as vector instructions,
which LLVM translates for the machine, and are inlined into their caller.

Arrays are flat; a row is a position in them, `dim` long. Rows are processed in pieces of 32, 4 and
1 numbers (lanes).
"""

from __future__ import annotations

from collections.abc import Callable
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


@dataclass(frozen=True)
class _Flat:
    """A flat array inside generated code: pointer to its data and bytes per number."""

    builder: Any
    data: Any
    bytes: int

    @classmethod
    def of(cls, context: Any, builder: Any, kind: Any, array: Any) -> _Flat:
        width = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        return cls(builder, context.make_array(kind)(context, builder, array).data, int(width))

    def _piece(self, at: Any, lanes: int) -> Any:
        place = self.builder.gep(self.data, [at])
        if lanes == 1:
            return place
        kind = ir.VectorType(self.data.type.pointee, lanes)
        return self.builder.bitcast(place, kind.as_pointer())

    def load(self, at: Any, lanes: int = 1) -> Any:
        """Load `lanes` numbers from position `at`; one lane is a scalar."""
        value = self.builder.load(self._piece(at, lanes))
        value.align = self.bytes
        return value

    def store(self, value: Any, at: Any, lanes: int = 1) -> None:
        self.builder.store(value, self._piece(at, lanes)).align = self.bytes

    def row(self, at: Any, like: Any) -> Any:
        """Load the row number at `at`, in the integer width of `like`."""
        number = self.load(at)
        return number if number.type == like.type else self.builder.sext(number, like.type)


def _splat(builder: Any, number: Any, lanes: int) -> Any:
    """Copy a number to all lanes of a vector."""
    if lanes == 1:
        return number
    empty = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    one = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(one, empty, places)


def _fma(builder: Any, total: Any, one: Any, other: Any) -> Any:
    """Compute total + one * other."""
    return builder.fadd(total, builder.fmul(one, other, flags=_FREE), flags=_FREE)


def _reduced(builder: Any, numbers: Any, lanes: int, size: int) -> Any:
    """Sum the lanes of a vector."""
    if lanes == 1:
        return numbers
    element = numbers.type.element
    name = f"llvm.vector.reduce.fadd.v{lanes}f{8 * size}"
    reduce = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(element, [element, numbers.type]), name
    )
    return builder.call(reduce, [ir.Constant(element, -0.0), numbers], fastmath=_FREE)


def _pieces(builder: Any, dim: Any, body: Callable[[Any, int], None]) -> None:
    """Generate body(offset, lanes) for every piece of a row."""
    begin = ir.Constant(dim.type, 0)
    for lanes in PIECES:
        end = builder.and_(dim, ir.Constant(dim.type, -lanes))
        step = ir.Constant(dim.type, lanes)
        with cgutils.for_range_slice(builder, begin, end, step) as (offset, _):
            body(offset, lanes)
        begin = end


def _each(builder: Any, count: Any) -> Any:
    """Generate a loop over 0 .. count-1; yields the index."""
    begin, step = (ir.Constant(count.type, n) for n in (0, 1))
    return cgutils.for_range_slice(builder, begin, count, step)


@intrinsic
def add(typing: Any, to: Any, at: Any, row: Any, place: Any, factor: Any, dim: Any) -> Any:
    """Compute to[at : at+dim] += factor * row[place : place+dim]"""
    signature = types.void(to, types.intp, row, types.intp, to.dtype, types.intp)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _, at, _, place, factor, dim = given
        to, row = (_Flat.of(context, builder, signature.args[n], given[n]) for n in (0, 2))

        def body(f: Any, lanes: int) -> None:
            here = builder.add(at, f)
            more = row.load(builder.add(place, f), lanes)
            done = _fma(builder, to.load(here, lanes), more, _splat(builder, factor, lanes))
            to.store(done, here, lanes)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def multiply(typing: Any, to: Any, at: Any, factor: Any, dim: Any) -> Any:
    """Compute to[at : at+dim] *= factor."""
    signature = types.void(to, types.intp, to.dtype, types.intp)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        array, at, factor, dim = given
        to = _Flat.of(context, builder, signature.args[0], array)

        def body(f: Any, lanes: int) -> None:
            here, by = builder.add(at, f), _splat(builder, factor, lanes)
            to.store(builder.fmul(to.load(here, lanes), by, flags=_FREE), here, lanes)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def dot(typing: Any, left: Any, at: Any, right: Any, place: Any, dim: Any) -> Any:
    """Compute the inner product of left[at : at+dim] and right[place : place+dim]."""
    signature = left.dtype(left, types.intp, right, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _, at, _, place, dim = given
        left, right = (_Flat.of(context, builder, signature.args[n], given[n]) for n in (0, 2))
        kind = left.data.type.pointee
        total = cgutils.alloca_once_value(builder, ir.Constant(kind, 0.0))

        def body(f: Any, lanes: int) -> None:
            one = left.load(builder.add(at, f), lanes)
            two = right.load(builder.add(place, f), lanes)
            more = _reduced(builder, builder.fmul(one, two, flags=_FREE), lanes, left.bytes)
            builder.store(builder.fadd(builder.load(total), more, flags=_FREE), total)

        _pieces(builder, dim, body)
        return builder.load(total)

    return signature, generate


@intrinsic
def dots(
    typing: Any, out: Any, begin: Any, left: Any, at: Any, rows: Any, places: Any, first: Any,
    count: Any, dim: Any,
) -> Any:  # fmt: skip
    """Compute out[begin+m] = <left[at:], row places[first+m] of `rows`> for m < count."""
    i = types.intp
    signature = types.void(out, i, left, i, rows, places, i, i, i)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _, begin, _, at, _, _, first, count, dim = given
        out, left, rows, places = (
            _Flat.of(context, builder, signature.args[n], given[n]) for n in (0, 2, 4, 5)
        )
        zero = ir.Constant(out.data.type.pointee, 0.0)
        with _each(builder, count) as (m, _):
            out.store(zero, builder.add(begin, m))

        def body(f: Any, lanes: int) -> None:
            mine = left.load(builder.add(at, f), lanes)
            with _each(builder, count) as (m, _):
                place = builder.mul(places.row(builder.add(first, m), dim), dim)
                products = builder.fmul(mine, rows.load(builder.add(place, f), lanes), flags=_FREE)
                more, here = _reduced(builder, products, lanes, out.bytes), builder.add(begin, m)
                out.store(builder.fadd(out.load(here), more, flags=_FREE), here)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return signature, generate


def _gather(weighted: bool) -> Callable[..., Any]:
    """Generate code that adds up rows of a table, optionally each times a factor."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _, at, _, _, first, count, scale, dim = given[:8]
        to, rows, places, *factors = (
            _Flat.of(context, builder, signature.args[n], given[n])
            for n in (0, 2, 3, *([8] if weighted else []))
        )

        def body(f: Any, lanes: int) -> None:
            here = builder.add(at, f)
            before = to.load(here, lanes)
            total = cgutils.alloca_once_value(builder, ir.Constant(before.type, None))
            with _each(builder, count) as (m, _):
                mth = builder.add(first, m)
                more = rows.load(builder.add(builder.mul(places.row(mth, dim), dim), f), lanes)
                if factors:
                    by = _splat(builder, factors[0].load(mth), lanes)
                    done = _fma(builder, builder.load(total), more, by)
                else:
                    done = builder.fadd(builder.load(total), more, flags=_FREE)
                builder.store(done, total)
            by = _splat(builder, scale, lanes)
            to.store(_fma(builder, before, builder.load(total), by), here, lanes)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return generate


@intrinsic
def gather(
    typing: Any, to: Any, at: Any, rows: Any, places: Any, first: Any, count: Any, scale: Any,
    dim: Any, factors: Any,
) -> Any:  # fmt: skip
    """Compute to[at:] += scale * sum over m < count of factors[first+m] * rows[places[first+m]]."""
    i = types.intp
    return types.void(to, i, rows, places, i, i, to.dtype, i, factors), _gather(True)


@intrinsic
def gather_plain(
    typing: Any, to: Any, at: Any, rows: Any, places: Any, first: Any, count: Any, scale: Any,
    dim: Any,
) -> Any:  # fmt: skip
    """Compute to[at:] += scale * sum over m < count of rows[places[first+m]]."""
    i = types.intp
    return types.void(to, i, rows, places, i, i, to.dtype, i), _gather(False)


def _prefetch(builder: Any, place: Any) -> None:
    """Prefetch the cache line of an address; an invalid address is ignored."""
    number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    how = [ir.Constant(number, n) for n in (0, 3, 1)]  # read, keep in cache, data
    builder.call(prefetch, [builder.bitcast(place, byte), *how])


def _prefetch_row(builder: Any, rows: _Flat, at: Any, lanes: int) -> None:
    """Prefetch all cache lines of `lanes` numbers."""
    for line in range(0, lanes, 64 // rows.bytes):
        _prefetch(builder, builder.gep(rows.data, [builder.add(at, ir.Constant(at.type, line))]))


@intrinsic
def prefetch(typing: Any, rows: Any, at: Any, dim: Any) -> Any:
    """Prefetch rows[at : at+dim]; does nothing for a short row."""
    signature = types.void(rows, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        array, at, dim = given
        rows = _Flat.of(context, builder, signature.args[0], array)

        def body(f: Any, lanes: int) -> None:
            if lanes == PIECES[0]:
                _prefetch_row(builder, rows, builder.add(at, f), lanes)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def layer(
    typing: Any, to: Any, at: Any, base: Any, share: Any, rows: Any, places: Any, factors: Any,
    first: Any, count: Any, scale: Any, dim: Any,
) -> Any:  # fmt: skip
    """Compute to[at:] = share * base[at:] + scale * sum_m factors[m] * rows[places[m]].

    m is first .. first+count-1. Rows are prefetched ahead of use, also those of the next sums:
    `places` must have AHEAD more numbers after the last one that is used.
    """
    i, number = types.intp, to.dtype
    signature = types.void(to, i, base, number, rows, places, factors, i, i, number, i)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _, at, _, share, _, _, _, first, count, scale, dim = given
        to, base, rows, places, factors = (
            _Flat.of(context, builder, signature.args[n], given[n]) for n in (0, 2, 4, 5, 6)
        )

        def row(mth: Any, f: Any) -> Any:
            return builder.add(builder.mul(places.row(mth, dim), dim), f)

        def body(f: Any, lanes: int) -> None:
            here = builder.add(at, f)
            total = cgutils.alloca_once_value(
                builder, ir.Constant(base.load(here, lanes).type, None)
            )
            with _each(builder, count) as (m, _):
                mth = builder.add(first, m)
                if lanes == PIECES[0]:
                    ahead = builder.add(mth, ir.Constant(mth.type, AHEAD))
                    _prefetch_row(builder, rows, row(ahead, f), lanes)
                by = _splat(builder, factors.load(mth), lanes)
                more = rows.load(row(mth, f), lanes)
                builder.store(_fma(builder, builder.load(total), more, by), total)
            mine = builder.fmul(base.load(here, lanes), _splat(builder, share, lanes), flags=_FREE)
            by = _splat(builder, scale, lanes)
            to.store(_fma(builder, mine, builder.load(total), by), here, lanes)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return signature, generate


def _scatter(context: Any, builder: Any, signature: Any, given: Any) -> Any:
    """Generate code that adds multiples of a row, and optionally of another, to table rows."""
    first, count, scale, at, dim = given[2:7]
    to, places, row, factors, *others = (
        _Flat.of(context, builder, signature.args[n], given[n])
        for n in (0, 1, *range(7, len(given)))
    )

    def body(f: Any, lanes: int) -> None:
        mine = row.load(builder.add(at, f), lanes)
        by = _splat(builder, scale, lanes)
        plain = [other.load(builder.add(at, f), lanes) for other in others]
        plain = [builder.fmul(one, by, flags=_FREE) for one in plain]
        with _each(builder, count) as (m, _):
            mth = builder.add(first, m)
            here = builder.add(builder.mul(places.row(mth, dim), dim), f)
            factor = builder.fmul(scale, factors.load(mth), flags=_FREE)
            done = _fma(builder, to.load(here, lanes), mine, _splat(builder, factor, lanes))
            for one in plain:
                done = builder.fadd(done, one, flags=_FREE)
            to.store(done, here, lanes)

    _pieces(builder, dim, body)
    return context.get_dummy_value()


@intrinsic
def scatter(
    typing: Any, to: Any, places: Any, first: Any, count: Any, scale: Any, at: Any, dim: Any,
    row: Any, factors: Any,
) -> Any:  # fmt: skip
    """Compute to[places[first+m]] += scale * factors[first+m] * row[at:] for every m < count."""
    i = types.intp
    return types.void(to, places, i, i, to.dtype, i, i, row, factors), _scatter


@intrinsic
def scatter_two(
    typing: Any, to: Any, places: Any, first: Any, count: Any, scale: Any, at: Any, dim: Any,
    row: Any, factors: Any, other: Any,
) -> Any:  # fmt: skip
    """Compute to[places[first+m]] += scale * (factors[first+m] * row[at:] + other[at:])."""
    i = types.intp
    return types.void(to, places, i, i, to.dtype, i, i, row, factors, other), _scatter


@intrinsic
def bits(typing: Any, key: Any, client: Any, k: Any) -> Any:
    """Compute the same 64 bits as `Clock.bits`."""
    signature = types.uint64(types.uint64, types.uint64, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        def number(value: int) -> Any:
            return ir.Constant(ir.IntType(64), value)

        x = given[0]
        for value, stride in ((given[1], _ID_STRIDE), (given[2], _K_STRIDE)):
            x = builder.add(x, builder.mul(value, number(stride)))
        for shift, mix in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
            x = builder.mul(builder.xor(x, builder.lshr(x, number(shift))), number(mix))
        return x

    return signature, generate
