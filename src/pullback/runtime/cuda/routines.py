"""The table of intrinsics: operands as the compiler has them, for the kernels that do the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pullback.compile.program import matrices
from pullback.compile.program.convolution import bad_places
from pullback.compile.program.fourier import NAMES as FOURIER
from pullback.compile.program.host_calls import host_routines
from pullback.compile.program.planes import NAMES as PLANES
from pullback.compile.program.target import Fault, Routine
from pullback.compile.program.windows import CONVOLUTIONS, EXTREMA
from pullback.core.avals import Aval
from pullback.runtime.cuda.attention.attention_stages import NAMES as ATTENTION
from pullback.runtime.cuda.attention.attention_stages import (
    attention_stages,
    has_units,
    shared_bytes,
)
from pullback.runtime.cuda.fft.fft_stages import fourier_stages
from pullback.runtime.cuda.host_calls import call_stages
from pullback.runtime.cuda.linalg.linalg_stages import NAMES as MATRICES
from pullback.runtime.cuda.linalg.linalg_stages import linalg_stages
from pullback.runtime.cuda.planes import plane_stages
from pullback.runtime.cuda.products import Products
from pullback.runtime.cuda.sorting import argsort_stages, search_stages
from pullback.runtime.cuda.windows import convolution_stages, extremum_stages

__all__ = ["routines_of"]


def _is_heavy(avals: Sequence[Aval], out: Aval) -> bool:
    """Launches return at once: other Python threads need not be let in."""
    return False


def _failures(
    name: str, avals: Sequence[Aval], static: Mapping[str, Any], out: Aval
) -> list[tuple[str, Fault]]:
    """What is wrong with a matrix."""
    return [matrices.failure(name, avals, static, out)]


def routines_of(products: Products, architecture: str) -> Mapping[str, Routine]:
    """The intrinsics of a GPU that has these products, of an architecture like "sm_90"."""
    convolve = partial(convolution_stages, products)
    attend = partial(attention_stages, shared_bytes(architecture))
    attention = ATTENTION if has_units(architecture) else ()
    return {
        "matmul": Routine(products.stages, _is_heavy, ended=products.ended),
        "argsort": Routine(argsort_stages, _is_heavy),
        "searchsorted": Routine(search_stages, _is_heavy),
        **{n: Routine(partial(convolve, n), _is_heavy) for n in CONVOLUTIONS},
        **{n: Routine(partial(plane_stages, n), _is_heavy, partial(bad_places, n)) for n in PLANES},
        **{n: Routine(partial(fourier_stages, n), _is_heavy) for n in FOURIER},
        **{
            n: Routine(partial(linalg_stages, products, n), _is_heavy, partial(_failures, n))
            for n in MATRICES
        },
        **{n: Routine(partial(attend, n), _is_heavy) for n in attention},
        **host_routines(call_stages, _is_heavy),
        **{n: Routine(partial(extremum_stages, n), _is_heavy) for n in EXTREMA},
    }
