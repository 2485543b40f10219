"""Gather and scatter on the emulated GPU: the device, and calls of scatter on copies."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

import cuda_fake
import pullback.runtime.cuda.scatter as sc
from cuda_fake_driver import FakeDriver
from pullback.runtime.cuda import driver, gpu, modules
from pullback.runtime.cuda.scatter import buckets, chunks, executor, ordered

__all__ = [
    "COMPLEX",
    "EXACT",
    "INTEGERS",
    "REALS",
    "device",
    "draw",
    "late",
    "reference",
    "same_bits",
    "scattered",
]

REALS = ("float32", "float64", "float16", "bfloat16")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
EXACT = ("float32", "float16", "bfloat16")
CACHES = (
    gpu.cupy_module,
    gpu._gpu,
    executor.shared_limit,
    executor.capability,
    executor.program,
    sc._prepared,
    sc.reading,
)


@pytest.fixture
def device(monkeypatch):
    """Small thread blocks and grids: what is emulated is the logic, not the size."""
    library = FakeDriver()
    monkeypatch.setitem(sys.modules, "cupy", cuda_fake)
    monkeypatch.setattr(driver, "library", lambda: library)
    monkeypatch.setattr(modules, "machine_code", lambda source, target: source)
    by_places = {"THREADS": {1: 64, 2: 64, 4: 64}, "TILE": {1: 1024, 2: 1024, 4: 512}}
    small = by_places | {"ADDERS": 64, "SHARERS": 32, "PROCESSORS": 3}
    for name, value in small.items():
        monkeypatch.setattr(buckets, name, value)
    small = {"THREADS": 64, "ADDERS": 64, "PLANNERS": 64, "LEAST": 128, "STRIP": 16}
    for name, value in (small | {"PROCESSORS": 3}).items():
        monkeypatch.setattr(chunks, name, value)
    monkeypatch.setattr(ordered, "THREADS", 512)
    monkeypatch.setattr(ordered, "PROCESSORS", 6)
    for cache in CACHES:
        cache.cache_clear()
    executor.StreamWords._own.__dict__.clear()
    cuda_fake.launched.clear()
    yield
    for cache in CACHES:
        cache.cache_clear()
    executor.StreamWords._own.__dict__.clear()


def draw(dtype, n, rows, width=1, index="int64", seed=0):
    rng = np.random.default_rng(seed)
    low = 0 if index.startswith("u") else -rows
    indices = rng.integers(low, rows, n).astype(index)

    def numbers(count):
        shape = (count,) if width == 1 else (count, width)
        if dtype in INTEGERS:
            return rng.integers(0, 100, shape).astype(dtype)
        a = rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 3, shape)
        a = a + 1j * rng.standard_normal(shape) if dtype in COMPLEX else a
        return a.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    return indices, numbers(n), numbers(rows)


def scattered(indices, values, out, *arguments, **options):
    """The result of a scatter into a copy of `out`."""
    carrier = [a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a for a in (values, out)]
    if values.dtype == ml_dtypes.bfloat16:
        options["dtype"] = "bfloat16"
    i, v, o = map(cuda_fake.asarray, (indices, *carrier))
    if options.pop("planned", False):
        options["plan"] = sc.make_plan(i, len(out))
    sc.scatter(i, v, o, *arguments, **options).raise_if_bad()
    return o.get().view(out.dtype)


def late(a):
    """A copy that does not begin at a multiple of 16 bytes."""
    raw = cuda_fake.empty(a.size + 1, a.dtype)
    raw[1:] = a.reshape(-1)
    return raw[1:].reshape(a.shape)


def same_bits(a, b):
    np.testing.assert_array_equal(a.view(np.uint8), np.ascontiguousarray(b).view(np.uint8))


def reference(indices, values, out, ufunc=np.add):
    wide = out.astype({"c": np.clongdouble, "f": np.longdouble, "V": np.longdouble}[out.dtype.kind])
    ufunc.at(wide, indices.astype(np.int64), values.astype(wide.dtype))
    return wide
