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
from numba.core.compiler import CompilerBase, DefaultPassBuilder

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


class _Lean(CompilerBase):
    """numba's compiler with fewer passes; the code it makes is the same."""

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
