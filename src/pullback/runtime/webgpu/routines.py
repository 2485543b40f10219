"""The table of intrinsics: operands as the compiler has them, for the kernels that do the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pullback.compile.program.target import Routine
from pullback.core.avals import Aval
from pullback.runtime.webgpu.host_calls import (
    effect_faults,
    effect_stages,
    host_faults,
    host_stages,
)

__all__ = ["ROUTINES"]


def _is_heavy(avals: Sequence[Aval], out: Aval) -> bool:
    """Dispatches return at once: other Python threads need not be let in."""
    return False


ROUTINES: Mapping[str, Routine] = {
    "host": Routine(host_stages, _is_heavy, host_faults, calls_python=True),
    "effect": Routine(effect_stages, _is_heavy, effect_faults, calls_python=True),
}
