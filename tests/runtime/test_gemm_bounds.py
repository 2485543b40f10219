"""Products write their own elements and nothing beside them."""

import itertools

import numpy as np
import pytest

from pullback.core import dtypes as dt
from pullback.runtime.cpu import native
from pullback.runtime.cpu.gemm import copy_code, matmul
from runtime.kernel_arrays import buffer, steps
from runtime.programs import arena_program

MARGIN = 256
SIZES = (1, 2, 3, 5, 8, 13, 16, 17, 33)
SHAPES = [s for i, s in enumerate(itertools.product(SIZES, repeat=3)) if i % 5 == 0]


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.complex64], ids=lambda d: d.name)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_nothing_is_written_beside_the_output(dtype, layout):
    rng = np.random.default_rng(0)
    for m, n, k in [(2, 3, 16), *SHAPES]:
        a = rng.standard_normal((m, k)).astype(dtype.numpy)
        b = rng.standard_normal((k, n)).astype(dtype.numpy)
        a = np.asfortranarray(a) if layout[0] == "t" else a
        b = np.asfortranarray(b) if layout[1] == "t" else b
        nbytes = m * n * dtype.itemsize
        total = nbytes + 2 * MARGIN
        sizes: list[int] = []

        def take(size: int, sizes: list[int] = sizes) -> int:
            sizes.append(size)
            return 4 + len(sizes)  # 0 output, 1 and 2 inputs, 3 arena, 4 the place of the product

        body = matmul.matmul_stages(dtype, (), m, n, k, 1, steps(a), 2, steps(b), 4, take)
        clear = copy_code.zero_stage(0, total)
        places = [(3, sum(sizes[:i])) for i in range(len(sizes))]
        program = arena_program(2, total, sum(sizes), [(0, MARGIN), *places], [clear, *body])
        result = program(buffer(a), buffer(b))
        assert isinstance(result, native.Buffer)
        found = np.frombuffer(memoryview(result), np.uint8)
        assert not found[:MARGIN].any() and not found[MARGIN + nbytes :].any(), (m, n, k)
        product = found[MARGIN : MARGIN + nbytes].view(dtype.numpy).reshape(m, n)
        np.testing.assert_allclose(product, a @ b, rtol=1e-4, atol=1e-4)
