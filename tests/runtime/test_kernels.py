"""Instructions and Map kernels on the CPU, against NumPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pullback.compile.kernel.forms import Map
from pullback.core import dtypes as dt
from pullback.ir import scalar as s
from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm import printer
from pullback.runtime.cpu.loops import map_stages
from runtime.kernel_arrays import FLOATS, INTEGERS, array, buffer, check_bits, sample, steps
from runtime.programs import map_program

LENGTHS = (0, 1, 3, 15, 16, 17, 33, 100)
NUMBERS = FLOATS + INTEGERS
EVERY = (dt.bool_, *INTEGERS, dt.float16, dt.bfloat16, *FLOATS)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def run_map(kernel, *inputs):
    shape = np.broadcast_shapes(*(a.shape for a in inputs))
    strides = [steps(np.broadcast_to(a, shape)) for a in inputs]
    program = map_program(kernel, shape, strides)
    return array(program(*map(buffer, inputs)), shape, kernel.output.numpy)


def truncated_quotient(a, b):
    ints = [0 if y == 0 else int(math.copysign(1, x) * math.copysign(1, y)) * (abs(x) // abs(y))
            for x, y in zip(a.tolist(), b.tolist(), strict=True)]  # fmt: skip
    return wrapped(ints, a.dtype)


def truncated_remainder(a, b):
    ints = [0 if y == 0 else (abs(x) % abs(y)) * (-1 if x < 0 else 1)
            for x, y in zip(a.tolist(), b.tolist(), strict=True)]  # fmt: skip
    return wrapped(ints, a.dtype)


def wrapped(ints, dtype):
    bits = 8 * dtype.itemsize
    return np.array([v % 2**bits for v in ints], np.uint64).astype(f"u{dtype.itemsize}").view(dtype)


def exact_fma(a, b, c):
    wide = np.longdouble if a.dtype == np.float64 else np.float64
    return (a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(a.dtype)


def compared(name):
    return {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
            "gt": np.greater, "ge": np.greater_equal}[name]  # fmt: skip


OPERATIONS = {
    "add": (lambda x, y: x + y, np.add, NUMBERS),
    "sub": (lambda x, y: x - y, np.subtract, NUMBERS),
    "mul": (lambda x, y: x * y, np.multiply, NUMBERS),
    "neg": (lambda x, y: -x, lambda x, y: np.negative(x), NUMBERS),
    "div": (lambda x, y: x / y, np.divide, FLOATS),
    "quot": (s.quot, truncated_quotient, INTEGERS),
    "rem": (s.rem, truncated_remainder, INTEGERS),
    "sqrt": (lambda x, y: s.sqrt(x), lambda x, y: np.sqrt(x), FLOATS),
    "abs": (lambda x, y: s.abs_(x), lambda x, y: np.abs(x), NUMBERS),
    "copysign": (s.copysign, np.copysign, FLOATS),
    "floor": (lambda x, y: s.floor(x), lambda x, y: np.floor(x), FLOATS),
    "ceil": (lambda x, y: s.ceil(x), lambda x, y: np.ceil(x), FLOATS),
    "trunc": (lambda x, y: s.trunc(x), lambda x, y: np.trunc(x), FLOATS),
    "rint": (lambda x, y: s.rint(x), lambda x, y: np.rint(x), FLOATS),
    "and": (lambda x, y: x & y, np.bitwise_and, (dt.bool_, *INTEGERS)),
    "or": (lambda x, y: x | y, np.bitwise_or, (dt.bool_, *INTEGERS)),
    "xor": (lambda x, y: x ^ y, np.bitwise_xor, (dt.bool_, *INTEGERS)),
    "not": (lambda x, y: ~x, lambda x, y: np.invert(x), (dt.bool_, *INTEGERS)),
    "shl": (lambda x, y: x << 3, lambda x, y: np.left_shift(x, x.dtype.type(3)), INTEGERS),
    "shr": (lambda x, y: x >> 3, lambda x, y: np.right_shift(x, x.dtype.type(3)), INTEGERS),
    "select": (lambda x, y: s.select(x < y, x, y), lambda x, y: np.where(x < y, x, y), EVERY[:9]),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", OPERATIONS)
def test_instruction(name, rng):
    build, reference, dtypes = OPERATIONS[name]
    for dtype in dtypes:
        kernel = Map((dtype, dtype), dtype, (build(s.load(0, dtype), s.load(1, dtype)),))
        for n in LENGTHS:
            x, y = sample(rng, dtype, n), sample(rng, dtype, n)
            check_bits(run_map(kernel, x, y), reference(x, y).astype(dtype.numpy))


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparison(name, rng):
    for dtype in (dt.bool_, *NUMBERS):
        build = {"eq": s.Expr.__eq__, "ne": s.Expr.__ne__, "lt": s.Expr.__lt__,
                 "le": s.Expr.__le__, "gt": s.Expr.__gt__, "ge": s.Expr.__ge__}[name]  # fmt: skip
        kernel = Map((dtype, dtype), dt.bool_, (build(s.load(0, dtype), s.load(1, dtype)),))
        for n in LENGTHS:
            x, y = sample(rng, dtype, n), sample(rng, dtype, n)
            check_bits(run_map(kernel, x, y), compared(name)(x, y))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_fma_rounds_once_and_nothing_else_is_fused(dtype, rng):
    x, y, z = (s.load(k, dtype) for k in range(3))
    a, b, c = (rng.standard_normal(100).astype(dtype.numpy) for _ in range(3))
    fused = run_map(Map((dtype,) * 3, dtype, (s.fma(x, y, z),)), a, b, c)
    if dtype is dt.float32:
        check_bits(fused, exact_fma(a, b, c))
    check_bits(run_map(Map((dtype,) * 3, dtype, (x * y + z,)), a, b, c), a * b + c)
    assert (fused != a * b + c).any()


def converted(x, target):
    """NumPy's conversion, with our answers where C has none."""
    if target is dt.bool_:
        return x.astype(np.float64) != 0
    if x.dtype.kind in "fV" and target.is_integer:
        info = np.iinfo(target.numpy)
        ints = [0 if math.isnan(v) else info.max if v >= info.max else info.min if v <= info.min
                else int(v) for v in x.astype(np.float64).tolist()]  # fmt: skip
        return np.array(ints, target.numpy)
    return x.astype(target.numpy)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("source", EVERY, ids=lambda d: d.name)
def test_cast(source, rng):
    for target in EVERY:
        kernel = Map((source,), target, (s.cast(s.load(0, source), target),))
        for n in LENGTHS:
            x = sample(rng, source, n)
            check_bits(run_map(kernel, x), converted(x, target))


@pytest.fixture(params=["hardware", "bits"])
def half_conversion(request, monkeypatch):
    """Both ways to convert float16: by instruction where the host has one, and by integer code."""
    if request.param == "bits":
        monkeypatch.setattr(printer, "HARDWARE_HALF", False)
    map_stages._code.cache_clear()
    yield
    map_stages._code.cache_clear()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_half_conversion(half_conversion, rng):
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    up = Map((dt.float16,), dt.float32, (s.cast(s.load(0, dt.float16), dt.float32),))
    down = Map((dt.float32,), dt.float16, (s.cast(s.load(0, dt.float32), dt.float16),))
    wide = run_map(up, every)
    check_bits(wide, every.astype(np.float32))
    check_bits(run_map(down, wide), every)
    for n in LENGTHS:
        x = sample(rng, dt.float32, n)
        check_bits(run_map(down, x), x.astype(np.float16))


def test_float64_to_half_rounds_once():
    # just above the middle of two halves; float32 would round it to the middle, and then down
    x = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, -(1 + 2.0**-11 + 2.0**-40)] * 7)
    kernel = Map((dt.float64,), dt.float16, (s.cast(s.load(0, dt.float64), dt.float16),))
    check_bits(run_map(kernel, x), x.astype(np.float16))


def test_bitcast_table_and_index(rng):
    x = rng.standard_normal(100).astype(np.float32)
    bits = Map((dt.float32,), dt.uint32, (s.bitcast(s.load(0, dt.float32), dt.uint32),))
    check_bits(run_map(bits, x), x.view(np.uint32))
    values = (1.5, -2.0, 3.25, 0.1)
    position = s.load(0, dt.int32) & 3
    for dtype in FLOATS:
        kernel = Map((dt.int32,), dtype, (s.table(values, position, dtype),))
        i = rng.integers(0, 100, 37).astype(np.int32)
        check_bits(run_map(kernel, i), np.array(values, dtype.numpy)[i & 3])
    counted = Map((dt.int64,), dt.int64, (s.index() + s.load(0, dt.int64),))
    check_bits(run_map(counted, np.zeros((5, 21, 1), np.int64)), np.arange(105).reshape(5, 21, 1))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_rare_branch_joins_lanes(dtype, rng):
    x = s.load(0, dtype)
    shared = x * 2.0
    inner = s.rare(x > 5.0, shared + 100.0, x - s.load(1, dtype))
    kernel = Map((dtype, dtype), dtype, (s.rare(x > 3.0, inner * shared, s.sqrt(x)) + inner,))
    for n, share in itertools.product(LENGTHS, (0.0, 0.1, 1.0)):
        a = rng.random(n)
        a = np.where(rng.random(n) < share, 3.0 + a * 4, a).astype(dtype.numpy)
        b = rng.random(n).astype(dtype.numpy)
        i = np.where(a > 5, a * 2 + dtype.numpy.type(100), a - b)
        check_bits(run_map(kernel, a, b), np.where(a > 3, i * (a * 2), np.sqrt(a)) + i)


@pytest.mark.parametrize("dtype", (dt.complex64, dt.complex128), ids=lambda d: d.name)
def test_complex_map(dtype, rng):
    x, y = (s.Complex(s.load(k, dtype.real, 0), s.load(k, dtype.real, 1)) for k in range(2))
    product = x * y
    kernel = Map((dtype, dtype), dtype, (product.re, product.im))
    for n in LENGTHS:
        a, b = ((rng.standard_normal((2, n)) + 1j * rng.standard_normal((2, n))).astype(dtype.numpy)
                for _ in range(2))  # fmt: skip
        for p, q in ((a[0], b[0]), (a[:, ::-1], b), (a.T, b.T), (a[:, :1], b)):
            want = np.empty(np.broadcast_shapes(p.shape, q.shape), dtype.numpy)
            want.real = p.real * q.real - p.imag * q.imag
            want.imag = p.real * q.imag + p.imag * q.real
            check_bits(run_map(kernel, p, q), want)


def test_map_layouts(rng):
    kernel = Map((dt.float32, dt.float32), dt.float32,
                 (s.load(0, dt.float32) - s.load(1, dt.float32),))  # fmt: skip
    x = rng.standard_normal((6, 35, 20)).astype(np.float32)
    for view in (
        x,
        x.T,
        x[::-1],
        x[:, ::-2, 3:],
        x.transpose(1, 0, 2),
        x[:, :1],
        x[..., :1],
        x[0, 0],
    ):
        for other in (view, np.float32(2.5).reshape(1), view[..., ::-1], view[:1]):
            want = view - other
            check_bits(run_map(kernel, view, other), want)
    check_bits(run_map(kernel, np.array(3, np.float32), np.array(1, np.float32)),
               np.array(2, np.float32))  # fmt: skip


def test_transposed_copies(rng):
    kernel = Map((dt.int32,), dt.int32, (s.load(0, dt.int32),))
    for shape in ((64, 64), (100, 77), (3, 1000), (1000, 3), (5, 130, 70), (2, 33, 40, 41)):
        x = rng.integers(0, 1 << 30, shape).astype(np.int32)
        for axes in itertools.permutations(range(len(shape))):
            check_bits(run_map(kernel, x.transpose(axes)), np.ascontiguousarray(x.transpose(axes)))


def test_index_counts_in_row_major_order_whatever_the_visit(rng):
    kernel = Map((dt.int64,), dt.int64, (s.index() * 2 + s.load(0, dt.int64),))
    for shape in ((100, 77), (1000, 3), (5, 130, 70)):
        x = rng.integers(0, 1 << 30, shape[::-1]).T
        check_bits(run_map(kernel, x), np.arange(x.size).reshape(shape) * 2 + x)


def test_boxes_of_one_output(rng):
    kernel = Map((dt.int16,), dt.int16, (s.load(0, dt.int16),))
    a, b = (rng.integers(0, 99, shape).astype(np.int16) for shape in ((4, 5), (4, 7)))
    stages = [
        map_stages.map_stage(kernel, (4, 5), 0, 0, (12, 1), [1], [steps(a)]),
        map_stages.map_stage(kernel, (4, 7), 0, 5, (12, 1), [2], [steps(b)]),
    ]
    program = native.program(2, 4 * 12 * 2, (), stages, False)
    got = array(program(buffer(a), buffer(b)), (4, 12), np.dtype(np.int16))
    check_bits(got, np.concatenate([a, b], 1))
