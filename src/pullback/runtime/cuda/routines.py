"""The table of intrinsics: operands as the compiler has them, for the kernels that do the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pullback.compile.program.target import Routine
from pullback.core.avals import Aval
from pullback.runtime.cuda.products import product_stages
from pullback.runtime.cuda.sorting import argsort_stages, search_stages

__all__ = ["ROUTINES"]


def _is_heavy(avals: Sequence[Aval], out: Aval) -> bool:
    """Launches return at once: other Python threads need not be let in."""
    return False


ROUTINES: Mapping[str, Routine] = {
    "matmul": Routine(product_stages, _is_heavy),
    "argsort": Routine(argsort_stages, _is_heavy),
    "searchsorted": Routine(search_stages, _is_heavy),
}
