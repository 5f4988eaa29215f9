"""Row arithmetic for compiled loops, sixteen numbers at a time.

numba's own loops over a short row spend most of their time on run-time alias checks. These
operations are written as vector instructions, which LLVM turns into whatever the machine has.
Arrays are flat; a row is a place in them. What is left of a row past a multiple of sixteen is done
one number at a time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

WIDTH = 32
_FREE = ("contract", "reassoc")  # a multiply and an add may become one; sums may be reordered


def _vector(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """A pointer to sixteen numbers of a flat array, from place `at` on."""
    data = context.make_array(kind)(context, builder, array).data
    element = context.get_data_type(kind.dtype)
    return builder.bitcast(builder.gep(data, [at]), ir.VectorType(element, WIDTH).as_pointer())


def _load(builder: Any, pointer: Any, align: int) -> Any:
    value = builder.load(pointer)
    value.align = align
    return value


def _spread(builder: Any, number: Any) -> Any:
    """Sixteen copies of a number."""
    kind = ir.VectorType(number.type, WIDTH)
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(one, nothing, places)


def _bytes(context: Any, kind: Any) -> int:
    return int(context.get_abi_sizeof(context.get_data_type(kind.dtype)))


@intrinsic
def _add16(typing: Any, to: Any, at: Any, row: Any, place: Any, factor: Any) -> Any:
    signature = types.void(to, types.intp, row, types.intp, to.dtype)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        to, at, row, place, factor = given
        align = _bytes(context, signature.args[0])
        target = _vector(context, builder, signature.args[0], to, at)
        source = _vector(context, builder, signature.args[2], row, place)
        more = builder.fmul(_load(builder, source, align), _spread(builder, factor), flags=_FREE)
        done = builder.fadd(_load(builder, target, align), more, flags=_FREE)
        builder.store(done, target).align = align
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _add16_two(
    typing: Any, to: Any, at: Any, one: Any, two: Any, place: Any, first: Any, second: Any
) -> Any:
    signature = types.void(to, types.intp, one, two, types.intp, to.dtype, to.dtype)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        to, at, one, two, place, first, second = given
        align = _bytes(context, signature.args[0])
        target = _vector(context, builder, signature.args[0], to, at)
        done = _load(builder, target, align)
        for kind, row, factor in (
            (signature.args[2], one, first),
            (signature.args[3], two, second),
        ):
            source = _load(builder, _vector(context, builder, kind, row, place), align)
            more = builder.fmul(source, _spread(builder, factor), flags=_FREE)
            done = builder.fadd(done, more, flags=_FREE)
        builder.store(done, target).align = align
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _gather16(
    typing: Any,
    to: Any,
    at: Any,
    rows: Any,
    places: Any,
    factors: Any,
    first: Any,
    offset: Any,
    dim: Any,
) -> Any:
    """to[at:] += sum of factors[first+m] * rows[places[first+m] * dim + offset :], m = 0..3"""
    signature = types.void(
        to, types.intp, rows, places, factors, types.intp, types.intp, types.intp
    )

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        to, at, rows, places, factors, first, offset, dim = given
        align = _bytes(context, signature.args[0])
        target = _vector(context, builder, signature.args[0], to, at)
        done = _load(builder, target, align)
        where = context.make_array(signature.args[3])(context, builder, places).data
        by = context.make_array(signature.args[4])(context, builder, factors).data
        for m in range(4):
            here = builder.add(first, ir.Constant(first.type, m))
            place = builder.add(builder.mul(builder.load(builder.gep(where, [here])), dim), offset)
            source = _load(
                builder, _vector(context, builder, signature.args[2], rows, place), align
            )
            factor = _spread(builder, builder.load(builder.gep(by, [here])))
            done = builder.fadd(done, builder.fmul(source, factor, flags=_FREE), flags=_FREE)
        builder.store(done, target).align = align
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _dot16(typing: Any, left: Any, at: Any, right: Any, place: Any) -> Any:
    signature = left.dtype(left, types.intp, right, types.intp)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        left, at, right, place = given
        align = _bytes(context, signature.args[0])
        one = _load(builder, _vector(context, builder, signature.args[0], left, at), align)
        two = _load(builder, _vector(context, builder, signature.args[2], right, place), align)
        products = builder.fmul(one, two, flags=_FREE)
        element = products.type.element
        name = f"llvm.vector.reduce.fadd.v{WIDTH}f{8 * align}"
        reduce = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(element, [element, products.type]), name
        )
        return builder.call(reduce, [ir.Constant(element, -0.0), products], fastmath=_FREE)

    return signature, generate


@njit(cache=True)
def add(to, at, row, place, factor, dim):
    """to[at : at+dim] += factor * row[place : place+dim]"""
    whole = dim - dim % WIDTH
    for f in range(0, whole, WIDTH):
        _add16(to, at + f, row, place + f, factor)
    for f in range(whole, dim):
        to[at + f] += factor * row[place + f]


@njit(cache=True)
def gather(to, at, rows, places, factors, first, many, dim):
    """to[at : at+dim] += sum over m < many of factors[first+m] * row places[first+m] of `rows`."""
    fours = many - many % 4 if dim % WIDTH == 0 else 0
    for m in range(0, fours, 4):
        for f in range(0, dim, WIDTH):
            _gather16(to, at + f, rows, places, factors, first + m, f, dim)
    for m in range(fours, many):
        add(to, at, rows, places[first + m] * dim, factors[first + m], dim)


@njit(cache=True)
def add_two(to, at, one, two, place, first, second, dim):
    """to[at : at+dim] += first * one[place : place+dim] + second * two[place : place+dim]"""
    whole = dim - dim % WIDTH
    for f in range(0, whole, WIDTH):
        _add16_two(to, at + f, one, two, place + f, first, second)
    for f in range(whole, dim):
        to[at + f] += first * one[place + f] + second * two[place + f]


@njit(cache=True)
def dot(left, at, right, place, dim):
    """The inner product of left[at : at+dim] and right[place : place+dim]."""
    whole = dim - dim % WIDTH
    total = left.dtype.type(0)
    for f in range(0, whole, WIDTH):
        total += _dot16(left, at + f, right, place + f)
    for f in range(whole, dim):
        total += left[at + f] * right[place + f]
    return total
