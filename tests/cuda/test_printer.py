"""Kernels as CUDA C: NVRTC compiles all of them, and run on the host they have the CPU's bits."""

from __future__ import annotations

import math
import os
from functools import cache

import numpy as np
import pytest

from cuda_emulator import COMPILER, Emulator
from kernel_walk import FLOATING, kernel_uses
from pullback.compile.kernel.forms import Accumulate, Map, MultiMap, Reduce
from pullback.compile.program.nest import Nest, coalesce
from pullback.core import dtypes as dt
from pullback.core.errors import ShapeError
from pullback.ir import scalar as s
from pullback.ir.lowering import Elementwise, Fold
from pullback.ir.op import REGISTRY, Op
from pullback.runtime.cuda import fold_walks, launch, nvrtc
from pullback.runtime.cuda.folds import fold_code
from pullback.runtime.cuda.kernels import name_of
from pullback.runtime.cuda.launch import Launches, map_plan, reduce_plan
from pullback.runtime.cuda.loops import source_of
from pullback.runtime.cuda.map_walks import map_walk, usual_walks
from pullback.runtime.cuda.printer import Source, literal
from pullback.runtime.cuda.scan_plans import scan_plan
from runtime.kernel_arrays import FLOATS, INTEGERS, array, buffer, check_bits, sample, steps
from runtime.programs import accumulate_program, map_program, reduce_program

FULL = os.environ.get("PULLBACK_FULL") == "1"
NUMBERS = FLOATS + INTEGERS
EVERY = (dt.bool_, *INTEGERS, dt.float16, dt.bfloat16, *FLOATS)
LENGTH = 501

needs_nvrtc = pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


def source_with(kernels):
    source = Source()
    for kernel in kernels:
        if isinstance(kernel, Reduce):
            fold_code(source, kernel)
        else:
            for walk in usual_walks(kernel):
                map_walk(source, kernel, walk)
    return source.text()


# Every instruction on every dtype that it takes.

BINARY = {
    "add": (lambda x, y: x + y, NUMBERS),
    "sub": (lambda x, y: x - y, NUMBERS),
    "mul": (lambda x, y: x * y, NUMBERS),
    "div": (lambda x, y: x / y, FLOATS),
    "quot": (s.quot, INTEGERS),
    "rem": (s.rem, INTEGERS),
    "copysign": (s.copysign, FLOATS),
    "and": (lambda x, y: x & y, (dt.bool_, *INTEGERS)),
    "or": (lambda x, y: x | y, (dt.bool_, *INTEGERS)),
    "xor": (lambda x, y: x ^ y, (dt.bool_, *INTEGERS)),
    "eq": (lambda x, y: x == y, (dt.bool_, *NUMBERS)),
    "ne": (lambda x, y: x != y, (dt.bool_, *NUMBERS)),
    "lt": (lambda x, y: x < y, (dt.bool_, *NUMBERS)),
    "le": (lambda x, y: x <= y, (dt.bool_, *NUMBERS)),
    "gt": (lambda x, y: x > y, (dt.bool_, *NUMBERS)),
    "ge": (lambda x, y: x >= y, (dt.bool_, *NUMBERS)),
    "fma": (lambda x, y: s.fma(x, y, x), FLOATS),
    "select": (lambda x, y: s.select(x < y, x, y), (dt.bool_, *NUMBERS)),
    "rare": (lambda x, y: s.rare(x < y, (x + y) * x, (x + y) - y), NUMBERS),
    "neg": (lambda x, y: -x, NUMBERS),
    "sqrt": (lambda x, y: s.sqrt(x), FLOATS),
    "abs": (lambda x, y: s.abs_(x), NUMBERS),
    "floor": (lambda x, y: s.floor(x), FLOATS),
    "ceil": (lambda x, y: s.ceil(x), FLOATS),
    "trunc": (lambda x, y: s.trunc(x), FLOATS),
    "rint": (lambda x, y: s.rint(x), FLOATS),
    "not": (lambda x, y: ~x, (dt.bool_, *INTEGERS)),
    "shl": (lambda x, y: x << 3, INTEGERS),
    "shr": (lambda x, y: x >> 3, INTEGERS),
    "index": (lambda x, y: s.index() + 1, (dt.int64,)),
    "const": (lambda x, y: s.select(x == y, _edge(x.dtype), x), NUMBERS),
}


def _edge(dtype):
    """A constant that is awkward to write down."""
    value = -5e-324 if dtype is dt.float64 else -1e-45
    return s.const(value, dtype) if dtype.is_float else s.const(_lowest(dtype), dtype)


def _lowest(dtype):
    return np.iinfo(dtype.numpy).min


def instruction_kernels():
    """Kernels by a readable key."""
    found = {}
    for name, (build, dtypes) in BINARY.items():
        for d in dtypes:
            body = build(s.load(0, d), s.load(1, d))
            found[f"{name} {d.name}"] = Map((d, d), body.dtype, (body,))
    for d in INTEGERS:
        x = s.load(0, d)
        for divisor in (0, 1, 3) + ((-1, -3) if d.kind == "i" else ()):
            found[f"quot {divisor} {d.name}"] = Map((d,), d, (s.quot(x, divisor),))
            found[f"rem {divisor} {d.name}"] = Map((d,), d, (s.rem(x, divisor),))
    for a in EVERY:
        for b in EVERY:
            if a is not b:
                found[f"cast {a.name} {b.name}"] = Map((a,), b, (s.cast(s.load(0, a), b),))
            if a is not b and a.itemsize == b.itemsize and dt.bool_ not in (a, b):
                found[f"bitcast {a.name} {b.name}"] = Map((a,), b, (s.bitcast(s.load(0, a), b),))
    for d in EVERY:
        position = s.load(0, dt.uint8) & 3
        values = (1, 0, 1, 1) if d is dt.bool_ else (0, 1, 5, 7)
        found[f"table {d.name}"] = Map((dt.uint8,), d, (s.table(values, position, d),))
    for d in (dt.complex64, dt.complex128):
        x, y = (s.Complex(s.load(k, d.real, 0), s.load(k, d.real, 1)) for k in range(2))
        z = x * y - x.conj()
        found[f"complex {d.name}"] = Map((d, d), d, (z.re, z.im))
    return found


INSTRUCTIONS = instruction_kernels()


def test_every_instruction_is_tried():
    seen = {key.split()[0] for key in INSTRUCTIONS}
    assert seen - {"complex"} == set(s.INSTRUCTIONS) - {"load", "acc"}


@needs_nvrtc
@pytest.mark.parametrize("target", ["compute_75", "compute_90"])
def test_nvrtc_compiles_every_instruction(target):
    code = nvrtc.compile_source(source_with(INSTRUCTIONS.values()), target, nvrtc.QUICK)
    assert b".entry" in code


@pytest.fixture(scope="module")
def instructions():
    return Emulator(source_with(INSTRUCTIONS.values()))


def draw(rng, dtype, shape):
    n = int(np.prod(shape))
    if not dtype.is_complex:
        return sample(rng, dtype, n).reshape(shape)
    parts = np.stack([sample(rng, dtype.real, n), sample(rng, dtype.real, n)], axis=-1)
    return np.ascontiguousarray(parts).view(dtype.numpy).reshape(shape)


def cpu_map(kernel, shape, inputs):
    strides = [steps(np.broadcast_to(a, shape)) for a in inputs]
    program = map_program(kernel, shape, strides)
    return array(program(*map(buffer, inputs)), shape, kernel.output.numpy)


@needs_compiler
@pytest.mark.parametrize("key", INSTRUCTIONS)
def test_instructions_have_the_bits_of_the_cpu(instructions, key):
    kernel = INSTRUCTIONS[key]
    rng = np.random.default_rng(3)
    inputs = [draw(rng, d, (LENGTH,)) for d in kernel.inputs]
    got = np.zeros(LENGTH, kernel.output.numpy)
    instructions.run(map_plan(kernel, (LENGTH,), [(1,)] * len(inputs)), [got], inputs)
    check_bits(got, cpu_map(kernel, (LENGTH,), inputs))


# Walks over arrays.

X, Y = s.load(0, dt.float32), s.load(1, dt.float32)
INDEXED = Map(
    (dt.float32, dt.float32),
    dt.float64,
    (s.cast(X - Y, dt.float64) * s.cast(s.index(), dt.float64),),
)
PAIR = MultiMap((dt.float32, dt.float32), (dt.float32, dt.bool_), ((X * Y,), (X < Y,)))


def added(dtype, compute):
    """The sum, and the number of elements as a second accumulator."""
    x = s.cast(s.load(0, dtype), compute)
    one, a, b = s.const(1, dt.int32), s.acc("a", 1, dt.int32), s.acc("b", 1, dt.int32)
    total = s.acc("a", 0, compute)
    return (
        (dtype,),
        dtype,
        (s.const(0, compute), s.const(0, dt.int32)),
        (x, one),
        (total + s.acc("b", 0, compute), a + b),
        (total / s.cast(a, compute),),
    )


def first_largest():
    """The position of the largest element: an accumulator that depends on `index()`."""
    (va, pa), (vb, pb) = ((s.acc(t, 0, dt.float32), s.acc(t, 1, dt.int64)) for t in "ab")
    later = (vb > va) | ((vb == va) & (pb < pa))
    chosen = (s.select(later, vb, va), s.select(later, pb, pa))
    init = (s.const(-np.inf, dt.float32), s.const(2**62, dt.int64))
    return Reduce((dt.float32,), dt.int64, init, (s.load(0, dt.float32), s.index()), chosen, (pa,))


def dot():
    a, b = s.acc("a", 0, dt.float64), s.acc("b", 0, dt.float64)
    x, y = s.load(0, dt.float64), s.load(1, dt.float64)
    return Reduce(
        (dt.float64,) * 2, dt.float64, (s.const(0.0, dt.float64),), (x * y,), (a + b,), (a,)
    )


REDUCTIONS = {
    "float32": Reduce(*added(dt.float32, dt.float32)),
    "float64": Reduce(*added(dt.float64, dt.float64)),
    "float16": Reduce(*added(dt.float16, dt.float32)),
    "argmax": first_largest(),
    "dot": dot(),
}
RUNNING = Accumulate(*added(dt.float32, dt.float32))


@pytest.fixture(scope="module")
def walks():
    return Emulator(source_with([PAIR, RUNNING]))


@cache
def function_of(kernel, function):
    return Emulator(source_of(kernel, (function,)))


def run(kernel, plan, outs, inputs):
    """Run a plan; returns the walks that it took."""
    scratch = [np.empty(n, np.uint8) for n in plan.scratch]
    for one in plan.launches:
        function_of(kernel, one.function).run(Launches([one]), outs, inputs, scratch)
    return [one.function.removeprefix(name_of(kernel))[1:] for one in plan.launches]


def check_map(kernel, shape, inputs, aligned=True):
    """Compare with the CPU; returns the walk."""
    got = np.zeros(shape, kernel.output.numpy)
    strides = [steps(np.broadcast_to(a, shape)) for a in inputs]
    (walk,) = run(kernel, map_plan(kernel, shape, strides, aligned=aligned), [got], inputs)
    check_bits(got, cpu_map(kernel, shape, inputs))
    return walk


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "walk"),
    [((5, 7, 3), "packs_uzu1"), ((5, 3, 12), "packs_uzu2"), ((600, 8), "packs_uzu2"),
     ((1, 9), "dense_uzu2"), ((1, 2049), "dense_uzu2")],
)  # fmt: skip
def test_neighbours_are_read_at_once_and_rows_have_elements_of_their_own(shape, walk):
    rng = np.random.default_rng(4)
    x, y = draw(rng, dt.float32, (*shape[:-1], 1)), draw(rng, dt.float32, shape)
    assert check_map(INDEXED, shape, [x, y]) == walk
    assert "s" in check_map(INDEXED, shape, [x, y], aligned=False) or walk.endswith("1")


@needs_compiler
@pytest.mark.parametrize("shape", [(40, 50), (3, 33, 16), (16, 2, 100), (2, 3, 32, 32)])
def test_what_lies_across_is_turned_in_tiles(shape):
    rng = np.random.default_rng(4)
    layout = [*range(1, len(shape)), 0] if shape[0] >= 16 else [*range(len(shape) - 2), -1, -2]
    turned = draw(rng, dt.float32, [shape[d] for d in layout])
    turned = turned.transpose(np.argsort(np.array(layout) % len(shape)))
    y = draw(rng, dt.float32, shape[-1:])
    assert check_map(INDEXED, shape, [turned, y]) == "tiles_utn"
    assert check_map(INDEXED, shape, [y, turned]) == "tiles_unt"


@needs_compiler
def test_a_strided_map_finds_its_elements():
    rng = np.random.default_rng(4)
    x, y = draw(rng, dt.float32, (5, 7, 3)).transpose(2, 0, 1), draw(rng, dt.float32, (5, 1))
    assert check_map(INDEXED, (3, 5, 7), [x, y]) == "strided"
    x = draw(rng, dt.float32, (40, 100))[:, ::2]
    assert check_map(INDEXED, (40, 50), [x, y[:1]]) == "strided"


@needs_compiler
@pytest.mark.parametrize("shape", [(64,), (61,), (3, 5)])
def test_a_map_may_have_several_outputs(walks, shape):
    rng = np.random.default_rng(5)
    x, y = (draw(rng, dt.float32, shape) for _ in range(2))
    product, less = np.zeros(shape, np.float32), np.zeros(shape, bool)
    walks.run(map_plan(PAIR, shape, [steps(x), steps(y)]), [product, less], [x, y])
    with np.errstate(all="ignore"):
        check_bits(product, x * y)
    check_bits(less, x < y)


def check_reduction(kind, shape, axes, layout=None, aligned=True):
    """Compare with the CPU; returns the walks. `layout`: axes as they lie in memory."""
    kernel = REDUCTIONS[kind]
    rng = np.random.default_rng(6)
    layout = layout or tuple(range(len(shape)))
    inputs = []
    for d in kernel.inputs:
        a = np.zeros(math.prod(shape) + 1, d.numpy)[1 - aligned :][: math.prod(shape)]
        a = a.reshape([shape[k] for k in layout])
        a[...] = rng.standard_normal(a.shape)
        inputs.append(a.transpose(np.argsort(layout)))
    kept = [d for d in range(len(shape)) if d not in axes]
    sizes = tuple(shape[d] for d in kept), tuple(shape[d] for d in axes)
    strides = [tuple(steps(a)[d] for d in (*kept, *axes)) for a in inputs]
    program = reduce_program(kernel, *sizes, strides)
    bases = [np.ascontiguousarray(a.transpose(layout)) for a in inputs]
    want = array(program(*map(buffer, bases)), sizes[0], kernel.output.numpy)
    got = np.zeros(sizes[0], kernel.output.numpy)
    plan = reduce_plan(kernel, *sizes, strides, aligned)
    taken = run(kernel, plan, [got], inputs)
    check_bits(got, want)
    return taken


@needs_compiler
@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "axes", "walk"),
    [((0,), (0,), "sequence"), ((31,), (0,), "sequence"), ((32,), (0,), "wide"),
     ((1025,), (0,), "small"), ((3, 1040), (1,), "small"), ((70_001,), (0,), "small"),
     ((40, 33), (1,), "wide"), ((3, 5000), (1,), "small"), ((2000, 3), (0,), "rows"),
     ((70, 1025), (1,), "wide"), ((66, 2100), (1,), "wide"), ((256,), (0,), "small"),
     ((17_000,), (0,), ""),  # by the instructions of an element
     ((5000, 35), (0,), "columns"), ((33, 40), (0,), "columns"), ((2, 1100, 64), (1,), "columns"),
     ((20, 6, 30), (0, 2), "rows"), ((20, 6, 3), (0, 2), "rows"), ((40, 3, 1, 31), (0, 3), "rows"),
     ((17_000, 8), (0,), "columns")],
)  # fmt: skip
def test_reductions_have_the_tree_of_the_cpu(kind, shape, axes, walk):
    taken = check_reduction(kind, shape, axes)
    assert taken[0].startswith(walk)


@needs_compiler
@pytest.mark.parametrize("kind", ["float32", "dot"])
@pytest.mark.parametrize("shape", [(70, 1100), (70, 1028), (70, 1025)])
def test_arrays_that_start_anywhere_are_read_one_by_one(kind, shape):
    for aligned in (True, False):
        (walk,) = check_reduction(kind, shape, (len(shape) - 1,), aligned=aligned)
        assert walk.startswith("wide_u") is (aligned and shape != (70, 1025))
    columns = check_reduction(kind, (40, 64), (0,), aligned=False)
    assert columns[0].startswith("columns_s")


@needs_compiler
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_sums_of_columns_take_several_side_by_side_where_there_are_enough(kind, monkeypatch):
    single = check_reduction(kind, (1500, 40), (0,))
    monkeypatch.setattr(launch, "COLUMN_THREADS", 0)
    assert single != check_reduction(kind, (1500, 40), (0,))


@needs_compiler
def test_what_is_the_same_for_a_row_is_read_once():
    kernel, x = REDUCTIONS["dot"], np.random.default_rng(7).standard_normal((9, 2000))
    for strides in ([(2000, 1), (2000, 0)], [(1, 9), (0, 9)]):
        want = reduce_program(kernel, (9,), (2000,), strides)(buffer(x), buffer(x))
        got = np.zeros(9)
        run(kernel, reduce_plan(kernel, (9,), (2000,), strides), [got], [x, x])
        check_bits(got, array(want, (9,), got.dtype))


@needs_compiler
def test_partial_results_are_merged_in_several_rounds(monkeypatch):
    def clear():
        function_of.cache_clear()
        source_of.cache_clear()

    monkeypatch.setattr(fold_walks, "MERGE", 512)
    monkeypatch.setattr(launch, "MERGE", 512)
    clear()
    kernel, n = REDUCTIONS["float64"], 9_000_000
    x = np.random.default_rng(7).standard_normal(n)
    plan = reduce_plan(kernel, (), (n,), [(1,)])
    assert [one.function.rpartition("_")[2] for one in plan.launches] == ["u2", "merge", "merge"]
    got = np.zeros(())
    run(kernel, plan, [got], [x])
    clear()
    want = array(reduce_program(kernel, (), (n,), [(1,)])(buffer(x)), (), got.dtype)
    check_bits(got, want)


PAIRED = Accumulate(*added(dt.float16, dt.float32))


@needs_compiler
@pytest.mark.parametrize("kernel", [RUNNING, PAIRED], ids=["float32", "float16"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "walk"),
    [((9, 40), 1, "lines_turned"), ((3, 9000), 1, "lines_turned"), ((400, 40), 1, "lines_turned"),
     ((9, 40), 0, "scan"), ((700, 50), 0, "lines_straight"), ((40, 8), 0, "scan"),
     ((3, 33, 20), 1, "lines_straight"), ((5, 7), 1, "scan")],
)  # fmt: skip
def test_running_folds_have_the_bits_of_the_cpu(kernel, shape, axis, walk, reverse):
    x = np.random.default_rng(8).standard_normal(shape).astype(kernel.inputs[0].numpy)
    order = [*(d for d in range(len(shape)) if d != axis), axis]
    own = tuple(steps(x)[d] for d in order)
    kept = tuple(shape[d] for d in order[:-1])
    arguments = (kernel, kept, shape[axis], [own], own, reverse)
    got = np.zeros_like(x)
    assert run(kernel, scan_plan(*arguments), [got], [x]) == [walk]
    program = accumulate_program(*arguments)
    check_bits(got, array(program(buffer(x)), x.shape, x.dtype))


# The registry's kernels.


@pytest.fixture(scope="module")
def uses():
    dtypes = (*FLOATING, dt.int32) if not FULL else (*FLOATING, *INTEGERS)
    return kernel_uses(dtypes)


def test_the_walk_meets_every_operation_that_has_a_kernel(uses):
    lowered = {
        e.name
        for e in REGISTRY.values()
        if isinstance(e, Op) and isinstance(e.lowering, (Elementwise, Fold))
    }
    assert lowered - {u.op.name for u in uses.values()} == set()


@needs_nvrtc
@pytest.mark.parametrize("target", ["compute_75", "compute_90"])
def test_nvrtc_compiles_every_kernel_of_the_registry(uses, target):
    kernels = [u.kernel for u in uses.values()]
    for start in range(0, len(kernels), 64):
        batch = kernels[start : start + 64]
        code = nvrtc.compile_source(source_with(batch), target, nvrtc.QUICK)
        assert code.count(b".entry") >= len(batch)


# Errors and small parts.


@needs_nvrtc
def test_a_source_that_does_not_compile_is_reported_with_its_line():
    with pytest.raises(nvrtc.CudaCompileError, match=r"kernels\.cu\(1\): error"):
        nvrtc.compile_source("int f() { return undeclared; }", "compute_75")


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(nvrtc, "_candidates", lambda: ["libnvrtc-that-is-not-there.so"])
    nvrtc._library.cache_clear()
    try:
        assert not nvrtc.is_available()
        with pytest.raises(nvrtc.CudaCompileError, match="pip install nvidia-cuda-nvrtc"):
            nvrtc.compile_source("", "compute_75")
    finally:
        nvrtc._library.cache_clear()


def test_axes_that_can_be_merged_are():
    assert coalesce((2, 1, 3, 4), [(12, 99, 4, 1), (0, 0, 0, 0)]) == Nest((24,), ((1,), (0,)))
    assert coalesce((3, 4), [(4, 1), (1, 3)]) == Nest((3, 4), ((4, 1), (1, 3)))


def test_too_many_axes_are_refused():
    shape = (2,) * 18
    strides = tuple(3**d for d in range(18))
    with pytest.raises(ShapeError, match="at most 8 axes"):
        map_plan(INDEXED, shape, [strides, strides])


def test_nothing_is_launched_for_no_elements():
    assert map_plan(INDEXED, (0, 3), [(3, 1)] * 2) == Launches([])
    assert reduce_plan(dot(), (0,), (5,), [(5, 1)] * 2) == Launches([])


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [(-(2**63), dt.int64, "(-9223372036854775807LL - 1)"),
     (0.1, dt.float64, "0x1.999999999999ap-4"),
     (-0.0, dt.float32, "(-0x0.0p+0f)"), (1e40, dt.float32, "__int_as_float((int)(2139095040))"),
     (True, dt.bool_, "true"), (1.0, dt.bfloat16, "(unsigned short)16256")],
)  # fmt: skip
def test_literals_lose_nothing(value, dtype, text):
    assert literal(value, dtype) == text
