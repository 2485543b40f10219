"""The kernel forms on the CPU, instruction by instruction, against NumPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pullback.compile.kernel import Accumulate, Gather, Map, Reduce, Scatter
from pullback.core import dtypes as dt
from pullback.ir import scalar as s
from pullback.runtime.cpu import index_kernels, map_kernels, native, printer, reduce_kernels

LENGTHS = (0, 1, 3, 15, 16, 17, 33, 100)
FLOATS = (dt.float32, dt.float64)
INTEGERS = tuple(d for d in dt.ALL if d.is_integer)
SIGNED = tuple(d for d in INTEGERS if d.kind == "i")
NUMBERS = FLOATS + INTEGERS
EVERY = (dt.bool_, *INTEGERS, dt.float16, dt.bfloat16, *FLOATS)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1e-3, 3e4, -7e4, 1e10, -1e19, 1e30, 1e-41]
SPECIAL += [math.inf, -math.inf, math.nan, 65519.0, 65520.0, 6e-8, 2.0**31, 2.0**63, 3.0000001]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def threads():
    before = native.get_threads()
    yield native.set_threads
    native.set_threads(before)


def buffer(a):
    return native.wrap(a.__array_interface__["data"][0], a.nbytes, a)


def array(buf, shape, dtype):
    """The result as an array; error words pass through."""
    if isinstance(buf, tuple):
        return buf
    size = math.prod(shape)
    if size == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(buf, np.uint8)[: size * dtype.itemsize].view(dtype).reshape(shape)


def steps(a):
    return tuple(n // a.itemsize for n in a.strides)


def run_map(kernel, *inputs):
    shape = np.broadcast_shapes(*(a.shape for a in inputs))
    strides = [steps(np.broadcast_to(a, shape)) for a in inputs]
    program = map_kernels.map_program(kernel, shape, strides)
    return array(program(*map(buffer, inputs)), shape, kernel.output.numpy)


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


def check_bits(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype.kind in "fcV":
        both = np.isnan(got.astype("c16")) & np.isnan(want.astype("c16"))
        got, want = np.where(both, 0, got), np.where(both, 0, want)
    bad = got.view(np.uint8) != want.view(np.uint8) if got.ndim else got != want
    assert not bad.any(), (got, want)


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
    map_kernels._code.cache_clear()
    yield
    map_kernels._code.cache_clear()


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


def test_boxes_of_one_output(rng):
    kernel = Map((dt.int16,), dt.int16, (s.load(0, dt.int16),))
    a, b = (rng.integers(0, 99, shape).astype(np.int16) for shape in ((4, 5), (4, 7)))
    stages = [
        map_kernels.map_stage(kernel, (4, 5), 0, 0, (12, 1), [1], [steps(a)]),
        map_kernels.map_stage(kernel, (4, 7), 0, 5, (12, 1), [2], [steps(b)]),
    ]
    program = native.program(2, 4 * 12 * 2, (), stages, False)
    got = array(program(buffer(a), buffer(b)), (4, 12), np.dtype(np.int16))
    check_bits(got, np.concatenate([a, b], 1))


def sum_of(dtype, form=Reduce, out=None):
    wide = dt.float32 if dtype.itemsize == 2 else dtype
    a, b = s.acc("a", 0, wide), s.acc("b", 0, wide)
    parts = (s.const(0, wide),), (s.cast(s.load(0, dtype), wide),), (a + b,), (a,)
    return form((dtype,), out or dtype, *parts)


def argmax_of(dtype):
    (a, b), (i, j) = ([s.acc(side, k, d) for side in "ab"] for k, d in enumerate((dtype, dt.int64)))
    later = (b > a) | ((b == a) & (j < i))
    combine = (s.select(later, b, a), s.select(later, j, i))
    init = (s.const(-math.inf, dtype), s.const(2**62, dt.int64))
    return Reduce((dtype,), dt.int64, init, (s.load(0, dtype), s.index()), combine, (i,))


def run_reduce(kernel, x, axes):
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = tuple(x.shape[d] for d in kept)
    own = steps(x)
    program = reduce_kernels.reduce_program(
        kernel, shape, tuple(x.shape[d] for d in axes), [tuple(own[d] for d in (*kept, *axes))]
    )
    return array(program(buffer(x)), shape, kernel.output.numpy)


SHAPES = [(5,), (0,), (31,), (32,), (33,), (1024,), (1025,), (5000,), (3, 40, 50), (40, 3, 60),
          (100, 17), (17, 100), (2000, 33), (0, 3), (3, 0), (2, 3, 4, 5, 6), (33, 34, 35)]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reduce_has_the_same_bits_in_every_layout(shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    kernel = sum_of(dt.float32)
    for count in range(1, x.ndim + 1):
        for axes in itertools.combinations(range(x.ndim), count):
            got = run_reduce(kernel, x, axes)
            want = x.sum(axes, np.float64)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
            last = (
                np.moveaxis(x, axes, range(-count, 0)).reshape((*want.shape, -1)) if x.size else x
            )
            if x.size:
                dense = np.ascontiguousarray(last)
                first = np.moveaxis(np.ascontiguousarray(np.moveaxis(dense, -1, 0)), 0, -1)
                backwards = np.ascontiguousarray(dense[..., ::-1])[..., ::-1]
                for other in (dense, first, backwards):
                    check_bits(run_reduce(kernel, other, (want.ndim,)), got)


@pytest.mark.parametrize("shape", [(1,), (50,), (3000,), (40, 70), (70, 40), (3, 50, 20)], ids=str)
def test_argmax(shape, rng):
    for dtype in FLOATS:
        x = rng.integers(0, 50, shape).astype(dtype.numpy)
        for axis in range(x.ndim):
            check_bits(run_reduce(argmax_of(dtype), x, (axis,)), x.argmax(axis))


def test_reduce_of_other_dtypes(rng):
    for dtype in (dt.int8, dt.int32, dt.uint64, dt.float64):
        x = sample(rng, dtype, 3000) if dtype.is_integer else rng.standard_normal(3000)
        x = x.reshape(60, 50)
        for axes in ((0,), (1,), (0, 1)):
            got, want = run_reduce(sum_of(dtype), x, axes), x.sum(axes, dtype.numpy)
            if dtype.is_integer:
                check_bits(got, want)
            np.testing.assert_allclose(got, want, rtol=1e-10)
    half = rng.standard_normal((70, 80)).astype(np.float16)
    for axis in (0, 1):
        want = half.astype(np.float64).sum(axis).astype(np.float16)
        np.testing.assert_allclose(run_reduce(sum_of(dt.float16), half, (axis,)), want, rtol=1e-3)
    a, b = s.acc("a", 0, dt.bool_), s.acc("b", 0, dt.bool_)
    parts = (s.const(False, dt.bool_),), (s.load(0, dt.bool_),), (a | b,), (a,)
    flags = rng.random((100, 64)) < 0.02
    for axis in (0, 1):
        got = run_reduce(Reduce((dt.bool_,), dt.bool_, *parts), flags, (axis,))
        check_bits(got, flags.any(axis))


def test_complex_reduce_and_two_inputs(rng):
    z = (rng.standard_normal((70, 90)) + 1j * rng.standard_normal((70, 90))).astype(np.complex64)
    f4 = dt.float32
    a, b = ([s.acc(side, k, f4) for k in range(2)] for side in "ab")
    kernel = Reduce((dt.complex64,), dt.complex64, (s.const(0, f4),) * 2,
                    (s.load(0, f4, 0), s.load(0, f4, 1)), (a[0] + b[0], a[1] + b[1]), tuple(a))  # fmt: skip
    for axis in (0, 1):
        np.testing.assert_allclose(run_reduce(kernel, z, (axis,)), z.sum(axis), rtol=1e-4)
    x, y = (rng.standard_normal((70, 90)).astype(np.float32) for _ in range(2))
    dot = Reduce((f4, f4), f4, (s.const(0, f4),), (s.load(0, f4) * s.load(1, f4),),
                 (a[0] + b[0],), (a[0],))  # fmt: skip
    program = reduce_kernels.reduce_program(dot, (70,), (90,), [(90, 1), (0, 1)])
    got = array(program(buffer(x), buffer(y)), (70,), np.dtype(np.float32))
    np.testing.assert_allclose(got, x @ y[0], rtol=1e-4, atol=1e-4)


def test_sum_is_accurate_and_independent_of_threads(rng, threads):
    x = (rng.standard_normal(3_000_000) + 10).astype(np.float32)
    exact = math.fsum(x.tolist())
    results = []
    for count in (1, 2, 5):
        threads(count)
        whole = run_reduce(sum_of(dt.float32), x, (0,))
        assert abs(float(whole) - exact) / exact < 3e-7
        wide, tall = x.reshape(20, -1), x.reshape(-1, 20)
        parts = [whole, run_reduce(sum_of(dt.float32), wide, (1,)),
                 run_reduce(sum_of(dt.float32), wide, (0,)),
                 run_reduce(sum_of(dt.float32), tall, (0,)),
                 run_reduce(sum_of(dt.float32), tall, (1,))]  # fmt: skip
        results.append(b"".join(p.tobytes() for p in parts))
    assert results[0] == results[1] == results[2]
    # one output alone, and the same data as one output among many
    many = np.repeat(x[:200_000, None], 20, 1)
    alone = run_reduce(sum_of(dt.float32), x[:200_000], (0,))
    assert (run_reduce(sum_of(dt.float32), many, (0,)) == alone).all()
    assert (run_reduce(sum_of(dt.float32), np.ascontiguousarray(many.T), (1,)) == alone).all()


@pytest.mark.parametrize("reverse", [False, True])
def test_accumulate(reverse, rng):
    kernel = sum_of(dt.float32, Accumulate)
    for shape in ((0,), (1,), (100,), (7, 50), (50, 7), (30, 600), (4, 20, 30), (3, 0), (0, 3)):
        x = rng.standard_normal(shape).astype(np.float32)
        for view, axis in itertools.product((x, x.T), range(x.ndim)):
            order = [d for d in range(x.ndim) if d != axis] + [axis]
            dense = steps(np.empty(view.shape, np.int8))
            own = steps(view)
            program = reduce_kernels.accumulate_program(
                kernel, [view.shape[d] for d in order[:-1]], view.shape[axis],
                [tuple(own[d] for d in order)], tuple(dense[d] for d in order), reverse,
            )  # fmt: skip
            want = np.flip(view, axis) if reverse else view
            want = np.cumsum(want, axis, np.float32)
            want = np.flip(want, axis) if reverse else want
            got = array(program(buffer(view)), view.shape, np.dtype(np.float32))
            np.testing.assert_array_equal(got, want)


def run_gather(x, indices, dtype=dt.float32):
    n, lead = len(indices), indices[0].ndim
    shape = indices[0].shape + x.shape[n:]
    kernel = Gather(dtype, tuple(dt.as_dtype(i.dtype) for i in indices))
    program = index_kernels.gather_program(
        kernel, shape, (0,) * lead + steps(x)[n:],
        [steps(i) + (0,) * (x.ndim - n) for i in indices],
        list(zip(x.shape[:n], steps(x)[:n], strict=True)),
    )  # fmt: skip
    return array(program(buffer(x), *map(buffer, indices)), shape, x.dtype)


def run_scatter(x, indices, updates, combine="add", dtype=dt.float32):
    n, lead = len(indices), indices[0].ndim
    wide = dt.float32 if dtype.itemsize == 2 else dtype
    a, b = s.acc("a", 0, wide), s.acc("b", 0, wide)
    body = {"add": a + b, "set": b, "max": s.select(a > b, a, b)}[combine]
    kernel = Scatter(dtype, tuple(dt.as_dtype(i.dtype) for i in indices), (body,))
    dense = steps(np.empty(x.shape, np.int8))
    program = index_kernels.scatter_program(
        kernel, x.shape, steps(x), updates.shape, (0,) * lead + dense[n:],
        [steps(i) + (0,) * (x.ndim - n) for i in indices], steps(updates),
        list(zip(x.shape[:n], dense[:n], strict=True)),
    )  # fmt: skip
    bufs = [buffer(a) for a in (x, *indices, updates)]
    return array(program(*bufs), x.shape, x.dtype)


@pytest.mark.parametrize("index", (np.int8, np.int32, np.int64, np.uint8, np.uint64), ids=str)
@pytest.mark.parametrize("shape", ((10,), (10, 3), (10, 40), (10, 5, 6)), ids=str)
def test_gather_and_scatter(shape, index, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    low = 0 if np.dtype(index).kind == "u" else -10
    i = rng.integers(low, 10, (7, 9)).astype(index)
    check_bits(run_gather(x, [i]), x[i.astype(np.int64)])
    updates = rng.standard_normal((7, 9, *shape[1:])).astype(np.float32)
    signed = i.astype(np.int64)
    for view in (x, x[::-1]):
        for name, at in (("add", np.add.at), ("max", np.maximum.at)):
            want = view.copy()
            at(want, signed, updates)
            check_bits(run_scatter(view, [i], updates, name), want)
    want = x.copy()
    for k in np.ndindex(7, 9):
        want[signed[k]] = updates[k]
    check_bits(run_scatter(x, [i], updates, "set"), want)
    if len(shape) > 1:
        j = rng.integers(0, shape[1], (7, 9))
        check_bits(run_gather(x, [i, j]), x[signed, j])
        want = x.copy()
        np.add.at(want, (signed, j), updates[:, :, 0])
        check_bits(run_scatter(x, [i, j], updates[:, :, 0]), want)


def test_gather_moves_every_dtype(rng):
    i = rng.integers(0, 5, 20)
    for dtype in dt.ALL:
        x = rng.integers(0, 2, (5, 37)).astype(dtype.numpy)
        check_bits(run_gather(x, [i], dtype), x[i])
        check_bits(run_gather(x.T[:5], [i], dtype), x.T[:5][i])


def test_scatter_of_halves_rounds_once(rng):
    i = rng.integers(0, 3, 4000)
    for dtype in (dt.float16, dt.bfloat16):
        updates = rng.random(4000).astype(dtype.numpy)
        want = np.zeros(3, np.float32)
        np.add.at(want, i, updates.astype(np.float32))
        got = run_scatter(np.zeros(3, dtype.numpy), [i], updates, dtype=dtype)
        check_bits(got, want.astype(dtype.numpy))


def test_an_index_out_of_range_is_reported(threads):
    x = np.zeros((10, 4), np.float32)
    for bad in (10, -11, 1 << 40):
        i = np.zeros((3, 5), np.int64)
        i[1, 2] = bad
        j = np.zeros((3, 5), np.int64)
        assert run_gather(x, [i]) == (1, 28, bad)
        assert run_gather(x, [j, i]) == (2, 7, bad)
        assert run_scatter(x, [j, i], np.zeros((3, 5), np.float32)) == (2, 7, bad)
        assert run_scatter(x, [i], np.zeros((3, 5, 4), np.float32)) == (1, 28, bad)
    assert run_gather(np.zeros(0, np.float32), [np.zeros(3, np.int64)]) == (1, 0, 0)
    many = np.zeros(300_000, np.int64)
    many[[150_000, 250_000]] = 77, 78
    for count in (1, 2, 5):
        threads(count)
        assert run_gather(x[:, 0].copy(), [many]) == (1, 150_000, 77)
        updates = np.zeros(300_000, np.float32)
        assert run_scatter(x[:, 0].copy(), [many], updates) == (1, 150_000, 77)


def test_scatter_is_independent_of_threads(rng, threads):
    x = np.zeros((50, 40), np.float32)
    i = rng.integers(0, 50, 100_000)
    rows = rng.standard_normal((100_000, 40)).astype(np.float32)
    want, single = x.copy(), x[:, 0].copy()
    np.add.at(want, i, rows)
    np.add.at(single, i, rows[:, 0])
    for count in (1, 2, 5):
        threads(count)
        check_bits(run_scatter(x, [i], rows), want)
        check_bits(run_scatter(x[:, 0].copy(), [i], rows[:, 0]), single)
    # indices that change along an axis which destinations share with the updates
    j = rng.integers(0, 40, (3000, 50))
    updates = rng.standard_normal((3000, 50)).astype(np.float32)
    kernel = Scatter(
        dt.float32, (dt.int64,), (s.acc("a", 0, dt.float32) + s.acc("b", 0, dt.float32),)
    )
    want = x.copy()
    np.add.at(want, (np.broadcast_to(np.arange(50), j.shape), j), updates)
    for count in (1, 2, 5):
        threads(count)
        program = index_kernels.scatter_program(
            kernel, (50, 40), (40, 1), (3000, 50), (0, 40), [steps(j)], steps(updates), [(40, 1)]
        )
        check_bits(array(program(buffer(x), buffer(j), buffer(updates)), (50, 40), x.dtype), want)
