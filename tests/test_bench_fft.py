"""`pullback bench fft`: the workloads agree across libraries, and are of the sizes promised."""

import numpy as np
import pytest

from benchmarks import rivals
from benchmarks.fft_workloads import FFT_LIBRARIES, FFT_WORKLOADS, fft_program
from benchmarks.libraries import LIBRARIES
from benchmarks.workloads import WORKLOADS


def outputs(library, name: str) -> list[np.ndarray]:
    arguments = library.prepared(name, FFT_WORKLOADS[name].arrays(quick=True))
    return [library.host(fft_program(library, name)(*arguments))]


@pytest.mark.parametrize("name", FFT_WORKLOADS)
def test_ours_agrees_with_numpy_and_scipy(ours, name):
    pytest.importorskip("scipy")
    found = {"pullback": outputs(ours, name)}
    found |= {n: outputs(LIBRARIES[n](1), name) for n in ("numpy", "scipy")}
    assert max(rivals.deviations(found).values()) < FFT_WORKLOADS[name].tolerance


def test_sizes_and_names():
    assert not set(FFT_WORKLOADS) & set(WORKLOADS)
    assert len(FFT_WORKLOADS) == 28
    (x,) = FFT_WORKLOADS["fft.c64.1009x1000"].inputs(np.random.default_rng(0), {"rows": 2, "n": 3})
    assert x.shape == (2, 3) and x.dtype == np.complex64
    for name in FFT_LIBRARIES:
        assert LIBRARIES[name].runs("fft.r32.2d")
    assert not LIBRARIES["scipy"].runs("chain")
