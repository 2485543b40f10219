"""The emulator: sources that are loaded side by side know nothing of each other's names."""

import numpy as np
import pytest

from cuda_emulator import ALONE, COMPILER, Emulator

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

SOURCE = """
template <typename T> struct Shared {{ T values[{size}]; }};
static int pb_commit() {{ return {size}; }}  // the emulator has one too
template <typename T> T* cells() {{ static Shared<T> all; return all.values; }}
extern "C" __global__ void fill(long long* out) {{
  out[0] = (long long)cells<long long>();
  out[1] = pb_commit();
}}
"""


def test_each_source_has_names_of_its_own():
    outs = []
    for size in (1, 64):
        out = np.zeros(2, np.int64)
        emulator = Emulator(SOURCE.format(size=size))
        emulator.launch("fill", (1, 1), 1, 0, [out.ctypes.data], ALONE)
        outs.append(out)
    assert [out[1] for out in outs] == [1, 64]
    assert outs[0][0] != outs[1][0]
