"""The table of intrinsics: operands as the compiler has them, for the kernels that do the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pullback.compile.program.convolution import bad_places
from pullback.compile.program.fourier import NAMES as FOURIER
from pullback.compile.program.host_calls import host_routines
from pullback.compile.program.planes import NAMES as PLANES
from pullback.compile.program.target import Routine
from pullback.compile.program.windows import CONVOLUTIONS, EXTREMA
from pullback.core.avals import Aval
from pullback.runtime.webgpu.fourier import fourier_stages
from pullback.runtime.webgpu.host_calls import call_stages
from pullback.runtime.webgpu.matrices import NAMES as MATRICES
from pullback.runtime.webgpu.matrices import matrix_faults, matrix_stages
from pullback.runtime.webgpu.planes import plane_stages
from pullback.runtime.webgpu.products import product_stages
from pullback.runtime.webgpu.requirements import require_faults, require_stages
from pullback.runtime.webgpu.sorting import argsort_stages, search_stages
from pullback.runtime.webgpu.spectra import NAMES as SPECTRA
from pullback.runtime.webgpu.spectra import spectrum_stages
from pullback.runtime.webgpu.windows import convolution_stages, extremum_stages

__all__ = ["ROUTINES"]


def _is_heavy(avals: Sequence[Aval], out: Aval) -> bool:
    """Dispatches return at once: other Python threads need not be let in."""
    return False


ROUTINES: Mapping[str, Routine] = {
    "matmul": Routine(product_stages, _is_heavy),
    **{n: Routine(partial(fourier_stages, n), _is_heavy) for n in FOURIER},
    "argsort": Routine(argsort_stages, _is_heavy),
    "searchsorted": Routine(search_stages, _is_heavy),
    **{n: Routine(partial(convolution_stages, n), _is_heavy) for n in CONVOLUTIONS},
    **{n: Routine(partial(extremum_stages, n), _is_heavy) for n in EXTREMA},
    **{n: Routine(partial(plane_stages, n), _is_heavy, partial(bad_places, n)) for n in PLANES},
    **{
        n: Routine(partial(matrix_stages, n), _is_heavy, partial(matrix_faults, n))
        for n in MATRICES
    },
    **{
        n: Routine(partial(spectrum_stages, n), _is_heavy, partial(matrix_faults, n))
        for n in SPECTRA
    },
    "require": Routine(require_stages, _is_heavy, require_faults),
    **host_routines(call_stages, _is_heavy),
}
