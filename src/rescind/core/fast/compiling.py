"""How loops are compiled: numba, without what plain loops over flat arrays do not need.

A first call compiles, so its time is that of the compiler. Without reference counts and a callback
for C it takes two thirds. A fifth of the rest is left out with passes over the code that look for
what no loop here has: closures, `with`, array expressions, literal unrolling, dynamic raises. So
memory is made by the caller, and rows are walked by their numbers: numba takes seconds for each
slice that is assigned to, and for np.sort, np.cumsum and sums of arrays.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from numba.core import typed_passes, untyped_passes
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags

from rescind.core.fast.kept_code import njit

_NEEDLESS = {
    untyped_passes.WithLifting,
    untyped_passes.InlineClosureLikes,
    untyped_passes.RewriteDynamicRaises,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.InlineInlinables,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.LiteralUnroll,
    untyped_passes.LiteralPropagationSubPipelinePass,
    typed_passes.InlineOverloads,
    typed_passes.NopythonRewrites,
}


class _Same(Flags):
    """Settings of a compilation that are compared by what is set, not option by option.

    They are part of a key that numba looks up for each call in a loop, by tens of thousands.
    """

    def __eq__(self, other: object) -> Any:
        """Return whether the settings are the same."""
        if type(other) is _Same and self._values == other._values:
            return True
        return super().__eq__(other)

    def __hash__(self) -> int:
        """Return one number for all: the types of arguments tell keys apart."""
        return 1


class _Lean(CompilerBase):
    """numba's compiler with fewer passes; the code it makes is the same."""

    def __init__(self, *given: Any) -> None:
        """Begin, as numba does with the same arguments; the flags are the last but one."""
        *first, flags, types_of_locals = given
        super().__init__(*first, _Same(flags), types_of_locals)

    def define_pipelines(self) -> list[Any]:
        """Return the passes in order."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [one for one in passes.passes if one[0] not in _NEEDLESS]
        passes.finalize()
        return [passes]


compiled: Any = partial(
    njit,
    nogil=True,
    error_model="numpy",
    no_cfunc_wrapper=True,
    _nrt=False,
    pipeline_class=_Lean,
)
inner: Any = partial(compiled, no_cpython_wrapper=True)
"""For functions that only compiled ones call: what Python needs to call them is not made."""
