"""Arrays in and out of kernels: what the kernel tests share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.core import dtypes as dt
from pullback.runtime.cpu import native
from pullback.runtime.cpu.loops import map_stages

FLOATS = (dt.float32, dt.float64)
INTEGERS = tuple(d for d in dt.ALL if d.is_integer)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1e-3, 3e4, -7e4, 1e10, -1e19, 1e30, 1e-41]
SPECIAL += [math.inf, -math.inf, math.nan, 65519.0, 65520.0, 6e-8, 2.0**31, 2.0**63, 3.0000001]


def buffer(a):
    return native.wrap(a.__array_interface__["data"][0], a.nbytes, a)


def array(buf, shape, dtype) -> Any:
    """The result as an array; error words pass through."""
    if isinstance(buf, tuple):
        return buf
    size = math.prod(shape)
    if size == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(buf, np.uint8)[: size * dtype.itemsize].view(dtype).reshape(shape)


def steps(a):
    return tuple(n // a.itemsize for n in a.strides)


def sample(rng, dtype, n):
    """Ordinary and awkward values of a dtype."""
    if dtype is dt.bool_:
        return rng.integers(0, 2, n).astype(bool)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        awkward = [info.min, info.max, 0, 1, 2, 3, info.max - 1, info.min + 1]
        values = rng.integers(info.min, info.max, n, dtype.numpy, endpoint=True)
        small = rng.integers(max(info.min, -5), 6, n).astype(dtype.numpy)
        values = np.where(rng.random(n) < 0.5, values, small)
        return np.where(rng.random(n) < 0.2, rng.choice(np.array(awkward, dtype.numpy), n), values)
    with np.errstate(over="ignore", invalid="ignore"):
        values = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)).astype(dtype.numpy)
        awkward = np.array(SPECIAL).astype(dtype.numpy)
    return np.where(rng.random(n) < 0.3, awkward[rng.integers(0, len(awkward), n)], values)


def check_bits(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype.kind in "fcV":
        both = np.isnan(got.astype("c16")) & np.isnan(want.astype("c16"))
        got, want = np.where(both, 0, got), np.where(both, 0, want)
    bad = got.view(np.uint8) != want.view(np.uint8) if got.ndim else got != want
    assert not bad.any(), (got, want)


def dense(kernel, n, outs, ins, rows=0):
    """Stages of a map over `n` elements in a row."""
    return map_stages.map_stages(
        kernel, (n,), outs, [(1,)] * len(outs), ins, [(1,)] * len(ins), rows
    )


def floats(result, dtype: npt.DTypeLike = np.float64, offset=0, count=-1):
    assert isinstance(result, native.Buffer)
    return np.frombuffer(memoryview(result), dtype, count, offset).copy()
