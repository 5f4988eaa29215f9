"""Read arrays from a pickle, and nothing else. The only module that reads pickles.

The Planetoid graphs are published as Python 2 pickles. A pickle is a small program, so this
reader does not run it: the few constructors that arrays need are replaced by the harmless
placeholders below, all other names and instructions are refused, and the buffers are converted to
arrays here, for plain numeric types of the stated size only.
"""

from __future__ import annotations

import io
import pickle  # noqa: TID251  the opcode reader only; no class or function of a file is looked up
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rescind.errors import DataError

_LARGEST = 2**28  # bytes of a file; PubMed, the largest, has 11 MB


class _Dtype:
    """Placeholder for a numpy dtype: `dtype('f4', 0, 1)`."""

    def __init__(self, *arguments: Any) -> None:
        self.code = arguments[0] if arguments else ""
        self.order = "="

    def set(self, state: Any) -> None:
        self.order = state[1]  # version, byte order, ...

    def read(self, buffer: Any) -> NDArray[Any]:
        """Return a buffer as an array, if the type is a plain number."""
        order: Any = self.order if self.order in ("<", ">") else "="
        kind = np.dtype(str(self.code)).newbyteorder(order)
        if kind.kind not in "biuf":
            raise DataError(f"an array of type '{self.code}'; only numbers are allowed")
        data = buffer.encode("latin-1") if isinstance(buffer, str) else bytes(buffer)
        return np.frombuffer(data, dtype=kind)


class _Array:
    """Placeholder for a numpy array."""

    def __init__(self) -> None:
        self.value: NDArray[Any] | None = None

    def set(self, state: Any) -> None:
        _version, shape, kind, fortran, buffer = state
        self.value = kind.read(buffer).reshape(shape, order="F" if fortran else "C")


class _Matrix:
    """Placeholder for a scipy CSR matrix: its attributes, by name."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}

    def set(self, state: Any) -> None:
        self.parts = dict(state)


class _Name:
    """Placeholder for a class or function named in the file; `make` returns its placeholder."""

    def __init__(self, make: Any) -> None:
        self.make = make


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise DataError(f"text in the encoding '{encoding}'; only latin1 is allowed")
    return text.encode("latin-1")


_ALLOWED = {
    ("copy_reg", "_reconstructor"): lambda kind, *_: kind.make(),
    ("numpy", "multiarray._reconstruct"): lambda *_: _Array(),
    ("numpy", "multiarray.scalar"): lambda kind, buffer: kind.read(buffer)[0],
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("scipy.sparse", "csr_matrix"): _Matrix,
    ("collections", "defaultdict"): lambda *_: {},
    ("builtins", "object"): object,
    ("builtins", "list"): list,
    ("_codecs", "encode"): _encode,
}
_MODULES = {
    "copyreg": "copy_reg",
    "__builtin__": "builtins",
    "numpy.core.multiarray": "numpy.multiarray",
    "numpy._core.multiarray": "numpy.multiarray",
    "scipy.sparse.csr": "scipy.sparse",
    "scipy.sparse._csr": "scipy.sparse",
}
# Instructions that only push data, build containers, or store them.
_PLAIN = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE",
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT",
    "SETITEM", "SETITEMS", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET",
    "LONG_BINGET",
)  # fmt: skip


class _Reader(pickle._Unpickler):
    """The pure Python reader with a short list of instructions."""

    dispatch: ClassVar[dict[int, Any]] = {
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
        for name in (*_PLAIN, "GLOBAL", "STACK_GLOBAL")  # names, by `find_class`
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return placeholders for names that arrays need; refuse all others."""
        known = _MODULES.get(module, module)
        if known == "numpy.multiarray":
            known, name = "numpy", f"multiarray.{name}"
        if (known, name) not in _ALLOWED:
            raise DataError(f"it uses '{module}.{name}'; only arrays are allowed")
        return _Name(_ALLOWED[known, name])

    def load_call(self) -> None:
        """Run REDUCE and NEWOBJ: create a placeholder."""
        arguments = self.stack.pop()  # type: ignore[attr-defined]
        name = self.stack.pop()  # type: ignore[attr-defined]
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise DataError("it calls something that is not an array constructor")
        self.stack.append(name.make(*arguments))  # type: ignore[attr-defined]

    def load_state(self) -> None:
        """Run BUILD: pass a state to a placeholder."""
        state = self.stack.pop()  # type: ignore[attr-defined]
        target = self.stack[-1]  # type: ignore[attr-defined]
        if not isinstance(target, (_Dtype, _Array, _Matrix)):
            raise DataError("it changes something that is not an array")
        target.set(state)

    dispatch[pickle.REDUCE[0]] = dispatch[pickle.NEWOBJ[0]] = load_call
    dispatch[pickle.BUILD[0]] = load_state


def read(data: bytes, file: str) -> Any:
    """Read the array, CSR matrix or dictionary of lists in a file.

    Anything else is an error that names the file. A matrix is returned as scipy CSR.
    """
    if len(data) > _LARGEST:
        raise DataError(f"{file}: {len(data)} bytes, more than the {_LARGEST} allowed.")
    try:
        return _unwrap(_Reader(io.BytesIO(data), encoding="latin1").load())
    except DataError as error:
        raise DataError(
            f"{file}: refused: {error}. Nothing in it was run. Use the publisher's own file."
        ) from None
    except Exception as error:  # a damaged file can raise any exception
        why = f"{type(error).__name__}: {error}"
        raise DataError(f"{file}: not a readable file of arrays ({why}). Get it again.") from None


def _unwrap(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, _Matrix):
        from scipy.sparse import csr_matrix

        shape = value.parts.get("_shape", value.parts.get("shape"))
        data, indices, pointers = (_unwrap(value.parts[k]) for k in ("data", "indices", "indptr"))
        matrix = csr_matrix((data, indices, pointers), shape=shape)
        matrix.check_format(full_check=True)
        return matrix
    if isinstance(value, dict):
        for key, items in value.items():
            if type(key) is not int or not all(type(item) is int for item in items):
                raise DataError("a dictionary that does not map numbers to lists of numbers")
        return value
    raise DataError(f"it holds a {type(value).__name__}, not arrays")
