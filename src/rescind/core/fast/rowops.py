"""Row arithmetic for compiled loops, many numbers at a time.

numba's own loops over a short row spend most of their time on run-time alias checks, and every
compiled function costs a tenth of a second on first use. These operations are written as vector
instructions, which LLVM turns into whatever the machine has, and become part of their caller.

Arrays are flat; a row is a place in them, `dim` long. Rows are worked in pieces of 32 numbers, of
4, and one number at a time, whatever their length asks for.
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
"""How many rows before its use a row is called into the cache; 4 gains less, 16 no more."""
_FREE = ("contract", "reassoc")  # a multiply and an add may become one; sums may be reordered


@dataclass(frozen=True)
class _Flat:
    """A flat array inside code that is being written: where its numbers lie, and of what kind."""

    builder: Any
    data: Any
    bytes: int

    @classmethod
    def of(cls, context: Any, builder: Any, kind: Any, array: Any) -> _Flat:
        width = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        return cls(builder, context.make_array(kind)(context, builder, array).data, int(width))

    def _piece(self, at: Any, many: int) -> Any:
        place = self.builder.gep(self.data, [at])
        if many == 1:
            return place
        kind = ir.VectorType(self.data.type.pointee, many)
        return self.builder.bitcast(place, kind.as_pointer())

    def load(self, at: Any, many: int = 1) -> Any:
        """`many` numbers from place `at` on; one is a scalar."""
        value = self.builder.load(self._piece(at, many))
        value.align = self.bytes
        return value

    def store(self, value: Any, at: Any, many: int = 1) -> None:
        self.builder.store(value, self._piece(at, many)).align = self.bytes

    def row(self, at: Any, like: Any) -> Any:
        """The number at `at` as a place, in the width of another one."""
        number = self.load(at)
        return number if number.type == like.type else self.builder.sext(number, like.type)


def _spread(builder: Any, number: Any, many: int) -> Any:
    """Copies of a number side by side."""
    if many == 1:
        return number
    nothing = ir.Constant(ir.VectorType(number.type, many), ir.Undefined)
    one = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), many), [0] * many)
    return builder.shuffle_vector(one, nothing, places)


def _plus(builder: Any, total: Any, one: Any, other: Any) -> Any:
    """total + one * other"""
    return builder.fadd(total, builder.fmul(one, other, flags=_FREE), flags=_FREE)


def _folded(builder: Any, numbers: Any, many: int, size: int) -> Any:
    """The sum of numbers side by side."""
    if many == 1:
        return numbers
    element = numbers.type.element
    name = f"llvm.vector.reduce.fadd.v{many}f{8 * size}"
    reduce = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(element, [element, numbers.type]), name
    )
    return builder.call(reduce, [ir.Constant(element, -0.0), numbers], fastmath=_FREE)


def _pieces(builder: Any, dim: Any, body: Callable[[Any, int], None]) -> None:
    """Write body(offset, width) for every piece of a row."""
    begin = ir.Constant(dim.type, 0)
    for many in PIECES:
        end = builder.and_(dim, ir.Constant(dim.type, -many))
        step = ir.Constant(dim.type, many)
        with cgutils.for_range_slice(builder, begin, end, step) as (offset, _):
            body(offset, many)
        begin = end


def _each(builder: Any, many: Any) -> Any:
    """A loop over 0 .. many-1; gives the index."""
    begin, step = (ir.Constant(many.type, n) for n in (0, 1))
    return cgutils.for_range_slice(builder, begin, many, step)


@intrinsic
def add(typing: Any, to: Any, at: Any, row: Any, place: Any, factor: Any, dim: Any) -> Any:
    """to[at : at+dim] += factor * row[place : place+dim]"""
    signature = types.void(to, types.intp, row, types.intp, to.dtype, types.intp)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _, at, _, place, factor, dim = given
        to, row = (_Flat.of(context, builder, signature.args[n], given[n]) for n in (0, 2))

        def body(f: Any, many: int) -> None:
            here = builder.add(at, f)
            more = row.load(builder.add(place, f), many)
            done = _plus(builder, to.load(here, many), more, _spread(builder, factor, many))
            to.store(done, here, many)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def multiply(typing: Any, to: Any, at: Any, factor: Any, dim: Any) -> Any:
    """to[at : at+dim] *= factor"""
    signature = types.void(to, types.intp, to.dtype, types.intp)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        array, at, factor, dim = given
        to = _Flat.of(context, builder, signature.args[0], array)

        def body(f: Any, many: int) -> None:
            here, by = builder.add(at, f), _spread(builder, factor, many)
            to.store(builder.fmul(to.load(here, many), by, flags=_FREE), here, many)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def dot(typing: Any, left: Any, at: Any, right: Any, place: Any, dim: Any) -> Any:
    """The inner product of left[at : at+dim] and right[place : place+dim]."""
    signature = left.dtype(left, types.intp, right, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _, at, _, place, dim = given
        left, right = (_Flat.of(context, builder, signature.args[n], given[n]) for n in (0, 2))
        kind = left.data.type.pointee
        total = cgutils.alloca_once_value(builder, ir.Constant(kind, 0.0))

        def body(f: Any, many: int) -> None:
            one = left.load(builder.add(at, f), many)
            two = right.load(builder.add(place, f), many)
            more = _folded(builder, builder.fmul(one, two, flags=_FREE), many, left.bytes)
            builder.store(builder.fadd(builder.load(total), more, flags=_FREE), total)

        _pieces(builder, dim, body)
        return builder.load(total)

    return signature, generate


@intrinsic
def dots(
    typing: Any, out: Any, begin: Any, left: Any, at: Any, rows: Any, places: Any, first: Any,
    many: Any, dim: Any,
) -> Any:  # fmt: skip
    """out[begin+m] = inner product of left[at:] and row places[first+m] of `rows`, m < many"""
    i = types.intp
    signature = types.void(out, i, left, i, rows, places, i, i, i)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _, begin, _, at, _, _, first, count, dim = given
        out, left, rows, places = (
            _Flat.of(context, builder, signature.args[n], given[n]) for n in (0, 2, 4, 5)
        )
        nothing = ir.Constant(out.data.type.pointee, 0.0)
        with _each(builder, count) as (m, _):
            out.store(nothing, builder.add(begin, m))

        def body(f: Any, many: int) -> None:
            mine = left.load(builder.add(at, f), many)
            with _each(builder, count) as (m, _):
                place = builder.mul(places.row(builder.add(first, m), dim), dim)
                products = builder.fmul(mine, rows.load(builder.add(place, f), many), flags=_FREE)
                more, here = _folded(builder, products, many, out.bytes), builder.add(begin, m)
                out.store(builder.fadd(out.load(here), more, flags=_FREE), here)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return signature, generate


def _gather(weighted: bool) -> Callable[..., Any]:
    """Code that adds up many rows of a table, each times a factor of its own or not."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _, at, _, _, first, count, scale, dim = given[:8]
        to, rows, places, *factors = (
            _Flat.of(context, builder, signature.args[n], given[n])
            for n in (0, 2, 3, *([8] if weighted else []))
        )

        def body(f: Any, many: int) -> None:
            here = builder.add(at, f)
            before = to.load(here, many)
            total = cgutils.alloca_once_value(builder, ir.Constant(before.type, None))
            with _each(builder, count) as (m, _):
                mth = builder.add(first, m)
                more = rows.load(builder.add(builder.mul(places.row(mth, dim), dim), f), many)
                if factors:
                    by = _spread(builder, factors[0].load(mth), many)
                    done = _plus(builder, builder.load(total), more, by)
                else:
                    done = builder.fadd(builder.load(total), more, flags=_FREE)
                builder.store(done, total)
            by = _spread(builder, scale, many)
            to.store(_plus(builder, before, builder.load(total), by), here, many)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return generate


@intrinsic
def gather(
    typing: Any, to: Any, at: Any, rows: Any, places: Any, first: Any, many: Any, scale: Any,
    dim: Any, factors: Any,
) -> Any:  # fmt: skip
    """to[at:] += scale * sum over m < many of factors[first+m] * row places[first+m] of `rows`"""
    i = types.intp
    return types.void(to, i, rows, places, i, i, to.dtype, i, factors), _gather(True)


@intrinsic
def gather_plain(
    typing: Any, to: Any, at: Any, rows: Any, places: Any, first: Any, many: Any, scale: Any,
    dim: Any,
) -> Any:  # fmt: skip
    """to[at:] += scale * sum over m < many of row places[first+m] of `rows`"""
    i = types.intp
    return types.void(to, i, rows, places, i, i, to.dtype, i), _gather(False)


def _call_in(builder: Any, place: Any) -> None:
    """Ask for the cache line of a place; a place that is not there does no harm."""
    number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    how = [ir.Constant(number, n) for n in (0, 3, 1)]  # to read, to keep, data
    builder.call(ask, [builder.bitcast(place, byte), *how])


def _call_row(builder: Any, rows: _Flat, at: Any, many: int) -> None:
    """Ask for all cache lines of `many` numbers."""
    for line in range(0, many, 64 // rows.bytes):
        _call_in(builder, builder.gep(rows.data, [builder.add(at, ir.Constant(at.type, line))]))


@intrinsic
def call_in(typing: Any, rows: Any, at: Any, dim: Any) -> Any:
    """Ask for rows[at : at+dim], which will be used soon; of a short row, nothing."""
    signature = types.void(rows, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        array, at, dim = given
        rows = _Flat.of(context, builder, signature.args[0], array)

        def body(f: Any, many: int) -> None:
            if many == PIECES[0]:
                _call_row(builder, rows, builder.add(at, f), many)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def layer(
    typing: Any, to: Any, at: Any, base: Any, share: Any, rows: Any, places: Any, factors: Any,
    first: Any, many: Any, scale: Any, dim: Any,
) -> Any:  # fmt: skip
    """to[at:] = share * base[at:] + scale * sum over m < many of factors[m] * row places[m]

    m counts from `first`. Rows lie anywhere, so they are called in ahead of their use, those of the
    next sums too: `places` must go on for AHEAD numbers behind the last one that is used.
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

        def body(f: Any, many: int) -> None:
            here = builder.add(at, f)
            total = cgutils.alloca_once_value(
                builder, ir.Constant(base.load(here, many).type, None)
            )
            with _each(builder, count) as (m, _):
                mth = builder.add(first, m)
                if many == PIECES[0]:
                    ahead = builder.add(mth, ir.Constant(mth.type, AHEAD))
                    _call_row(builder, rows, row(ahead, f), many)
                by = _spread(builder, factors.load(mth), many)
                more = rows.load(row(mth, f), many)
                builder.store(_plus(builder, builder.load(total), more, by), total)
            mine = builder.fmul(base.load(here, many), _spread(builder, share, many), flags=_FREE)
            by = _spread(builder, scale, many)
            to.store(_plus(builder, mine, builder.load(total), by), here, many)

        _pieces(builder, dim, body)
        return context.get_dummy_value()

    return signature, generate


def _scatter(context: Any, builder: Any, signature: Any, given: Any) -> Any:
    """Write code that adds multiples of a row, and perhaps of another, to many rows of a table."""
    first, count, scale, at, dim = given[2:7]
    to, places, row, factors, *others = (
        _Flat.of(context, builder, signature.args[n], given[n])
        for n in (0, 1, *range(7, len(given)))
    )

    def body(f: Any, many: int) -> None:
        mine = row.load(builder.add(at, f), many)
        by = _spread(builder, scale, many)
        plain = [other.load(builder.add(at, f), many) for other in others]
        plain = [builder.fmul(one, by, flags=_FREE) for one in plain]
        with _each(builder, count) as (m, _):
            mth = builder.add(first, m)
            here = builder.add(builder.mul(places.row(mth, dim), dim), f)
            factor = builder.fmul(scale, factors.load(mth), flags=_FREE)
            done = _plus(builder, to.load(here, many), mine, _spread(builder, factor, many))
            for one in plain:
                done = builder.fadd(done, one, flags=_FREE)
            to.store(done, here, many)

    _pieces(builder, dim, body)
    return context.get_dummy_value()


@intrinsic
def scatter(
    typing: Any, to: Any, places: Any, first: Any, many: Any, scale: Any, at: Any, dim: Any,
    row: Any, factors: Any,
) -> Any:  # fmt: skip
    """Row places[first+m] of `to` += scale * factors[first+m] * row[at:], for every m < many"""
    i = types.intp
    return types.void(to, places, i, i, to.dtype, i, i, row, factors), _scatter


@intrinsic
def scatter_two(
    typing: Any, to: Any, places: Any, first: Any, many: Any, scale: Any, at: Any, dim: Any,
    row: Any, factors: Any, other: Any,
) -> Any:  # fmt: skip
    """Row places[first+m] of `to` += scale * (factors[first+m] * row[at:] + other[at:])"""
    i = types.intp
    return types.void(to, places, i, i, to.dtype, i, i, row, factors, other), _scatter


@intrinsic
def bits(typing: Any, key: Any, client: Any, k: Any) -> Any:
    """The 64 bits that `Clock.bits` gives."""
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
