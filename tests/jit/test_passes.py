"""Passes on arithmetic and constants: each rule keeps every bit."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import pullback as pb
from jit.pass_checks import SPECIAL, bits, names, optimised, run, special
from pullback.compile.graph import passes
from pullback.compile.graph.passes.algebra import exactly_holds
from pullback.compile.graph.passes.rewriter import Rewriter
from pullback.core import dtypes
from pullback.ir.graph import Graph
from pullback.ir.op import bind

# -- arithmetic ------------------------------------------------------------------------------------

X = SPECIAL
Z = np.array([1 + 2j, -0.0 + 1j, np.inf + 0j, 3 - 1j], np.complex64)
WHOLE = np.array([3, -4, 0, 127], np.int8)

RULES = {
    "times one": (lambda x: x * 1.0, X, []),
    "one times": (lambda x: 1.0 * x, X, []),
    "times ones": (lambda x: x * pb.ones(x.shape), X, []),
    "times minus one": (lambda x: x * -1.0, X, ["negative"]),
    "over one": (lambda x: x / 1.0, X, []),
    "over minus one": (lambda x: x / -1.0, X, ["negative"]),
    "over a power of two": (lambda x: x / 32.0, X, ["multiply"]),
    "over another number": (lambda x: x / 3.0, X, ["divide"]),
    "minus zero": (lambda x: x - 0.0, X, []),
    "plus zero keeps -0.0 right": (lambda x: x + 0.0, X, ["add"]),
    "plus -0.0": (lambda x: x + -0.0, X, []),
    "minus -0.0": (lambda x: x - -0.0, X, ["subtract"]),
    "-0.0 minus": (lambda x: -0.0 - x, X, ["negative"]),
    "0.0 minus": (lambda x: 0.0 - x, X, ["subtract"]),
    "plus zero after exp": (lambda x: pb.exp(x) + 0.0, X, ["exp"]),
    "plus zero after a square": (lambda x: x * x + 0.0, X, ["multiply"]),
    "plus zero after 1 - x": (lambda x: (1.0 - x) + 0.0, X, ["subtract"]),
    "times zero stays": (lambda x: x * 0.0, X, ["multiply"]),
    "integer zero": (lambda x: x * 0, WHOLE, []),
    "integer plus zero": (lambda x: x + 0, WHOLE, []),
    "twice negated": (lambda x: pb.negative(-x), X, []),
    "plus negated": (lambda x: pb.exp(x) + -x, X, ["exp", "subtract"]),
    "negated plus": (lambda x: -x + pb.exp(x), X, ["exp", "subtract"]),
    "minus negated": (lambda x: pb.exp(x) - -x, X, ["exp", "add"]),
    "negated times negated": (lambda x: (-x) * (-pb.exp(x)), X, ["exp", "multiply"]),
    "negated over negated": (lambda x: (-x) / (-pb.exp(x)), X, ["exp", "divide"]),
    "negated inside a product": (
        lambda x: -((-x * pb.sin(x)) / pb.exp(x)), X, ["sin", "multiply", "exp", "divide"],
    ),
    "negated times a number": (lambda x: (-x) * 3.0, X, ["multiply"]),
    "negated product with a number": (lambda x: -(x * 3.0), X, ["multiply"]),
    "x + x": (lambda x: x + x, X, ["multiply"]),
    "-(x + x)": (lambda x: -(x + x), X, ["multiply"]),
    "positive": (lambda x: +x, X, []),
    "square": (lambda x: pb.square(x) - x * x, X, ["multiply", "subtract"]),
    "first power": (lambda x: pb.primitive.integer_power(x, 1), X, []),
    "second power": (lambda x: pb.primitive.integer_power(x, 2), X, ["multiply"]),
    "zeroth power": (lambda x: pb.primitive.integer_power(x, 0), X, []),
    "power -1": (lambda x: pb.primitive.integer_power(x, -1), X, ["reciprocal"]),
    "abs of abs": (lambda x: pb.abs(pb.abs(x)), X, ["abs"]),
    "abs of negated": (lambda x: pb.abs(-x), X, ["abs"]),
    "maximum of one": (lambda x: pb.maximum(x, x), X, []),
    "where true": (lambda x: pb.where(True, x, pb.exp(x)), X, []),
    "where false": (lambda x: pb.where(pb.zeros(x.shape, dtype=pb.bool), pb.exp(x), x), X, []),
    "where of one": (lambda x: pb.where(x > 0, x, x), X, []),
    "where in where": (
        lambda x: pb.where(x > 0, pb.where(x > 0, x, 1.0), 2.0), X, ["greater", "where"],
    ),
    "where else where": (
        lambda x: pb.where(x > 0, 2.0, pb.where(x > 0, 1.0, x)), X, ["greater", "where"],
    ),
    "not not": (lambda x: pb.logical_not(pb.logical_not(x > 0)), X, ["greater"]),
    "and true": (lambda x: pb.logical_and(x > 0, pb.ones(9, dtype=pb.bool)), X, ["greater"]),
    "and false": (lambda x: (x > 0) & pb.zeros(9, dtype=pb.bool), X, []),
    "or true": (lambda x: (x > 0) | pb.ones(9, dtype=pb.bool), X, []),
    "or false": (lambda x: pb.logical_or(pb.zeros(9, dtype=pb.bool), x > 0), X, ["greater"]),
    "and of one": (lambda x: (x > 0) & (x > 0), X, ["greater"]),
    "exp of log stays": (lambda x: pb.exp(pb.log(x)), X, ["log", "exp"]),
    "two factors stay": (lambda x: (x * 3.0) * 5.0, X, ["multiply", "multiply"]),
    "cast and back": (lambda x: pb.astype(pb.astype(x, pb.float64), pb.float32), X, []),
    "cast through wider": (
        lambda x: pb.astype(pb.astype(x, pb.float64), pb.float16), X, ["astype"],
    ),
    "narrowing cast stays": (
        lambda x: pb.astype(pb.astype(x, pb.float16), pb.float32), X, ["astype", "astype"],
    ),
    "integer through float": (
        lambda x: pb.astype(pb.astype(x, pb.float32), pb.int32), WHOLE, ["astype"],
    ),
    "saturating cast stays": (
        lambda x: pb.astype(pb.astype(x, pb.float32), pb.uint8), WHOLE, ["astype", "astype"],
    ),
    "conj of conj": (lambda z: pb.conj(pb.conj(z)), Z, []),
    "conj of real": (lambda x: pb.conj(x), X, []),
    "real of conj": (lambda z: pb.real(pb.conj(z)), Z, ["real"]),
    "real of a real": (lambda x: pb.real(pb.astype(x, pb.complex64)), X, []),
    "imag of a real": (lambda x: pb.imag(pb.astype(x, pb.complex64)), X, []),
    "complex times one stays": (lambda z: z * 1.0, Z, ["multiply"]),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_arithmetic_keeps_every_bit(name):
    f, x, wanted = RULES[name]
    assert names(optimised(f, x)) == wanted


def extremes(dtype: Any) -> np.ndarray:
    """Numbers that a narrower dtype can't hold."""
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        return np.array([limits.min, limits.max, limits.max // 3], dtype.numpy)
    if dtype is dtypes.bool_:
        return np.array([False, True])
    part = dtype.real.numpy
    largest = {"float16": 65504.0, "bfloat16": 3.3895314e38}.get(part.name) or np.finfo(part).max
    values = np.array([largest, np.nextafter(part.type(1.0), part.type(2.0)), -0.0, np.nan], part)
    return values.astype(dtype.numpy)


@pytest.mark.parametrize("narrow", dtypes.ALL, ids=lambda d: d.name)
def test_table_of_exact_casts(narrow):
    x = pb.tensor(extremes(narrow))
    for wide in dtypes.ALL:
        back = pb.astype(pb.astype(x, wide), narrow).numpy()
        if exactly_holds(wide, narrow):
            assert bits(back) == bits(x.numpy()), wide
    assert exactly_holds(narrow, dtypes.bool_)
    assert exactly_holds(dtypes.complex128, narrow) == (narrow not in (dtypes.int64, dtypes.uint64))


# -- constants -------------------------------------------------------------------------------------


def knowing(f: Any, *known: Any) -> Graph:
    """The graph of `f(x, *known)` for a vector x, with the other arguments as constants."""
    graph = pb.trace(f)(pb.ones(3), *known)
    for var, array in zip(graph.inputs[1:], known, strict=True):
        var.constant = (array._buf, array._aval, array._node)
    graph.constants = [*graph.inputs[1:], *graph.constants]
    graph.inputs = graph.inputs[:1]
    graph.verify()
    return graph


def folded(f: Any, *known: Any) -> Graph:
    graph = knowing(f, *known)
    result = passes.optimise(graph)
    x = pb.tensor([1.0, -2.0, 0.5])
    assert [bits(a) for a in run(graph, x)] == [bits(a) for a in run(result, x)]
    return result


def test_constants_are_folded():
    c = pb.tensor(np.arange(3.0, dtype=np.float32))
    assert names(folded(lambda x, c: x + pb.exp(c * 2.0 + 1.0) @ pb.ones((3, 3)), c)) == ["add"]


@pytest.mark.parametrize("dtype", [pb.float32, pb.float64, pb.float16, pb.bfloat16, pb.int32])
def test_uniform_values_are_folded_through_one_element(dtype):
    def f(x, c):
        wide = pb.broadcast_to(c, (500, 400))
        y = (wide * 3 - wide) * (wide + 7) - -wide
        y = y if dtype is pb.int32 else pb.exp(y / 1000.0) / 3.0
        return x + pb.astype(y[3, :3], pb.float32)

    graph = folded(f, pb.astype(pb.tensor(1.7), dtype))
    assert names(graph) == ["add"]
    assert [v.aval.shape for v in graph.constants] == [()]


def test_large_results_are_not_computed_at_compile_time():
    c = pb.tensor(np.arange(1 << 15, dtype=np.float64))
    graph = folded(lambda x, c: x + pb.astype(pb.exp(c * 1e-5).sum(), pb.float32), c)
    assert "exp" in names(graph)


def test_views_of_constants_are_free():
    c = pb.tensor(np.arange(1 << 16, dtype=np.float64).reshape(256, 256))
    graph = folded(lambda x, c: pb.concat([c.T[5:, ::2], x[0] * c[5:, ::2]]), c)
    assert not {"slice", "permute_dims"} & set(names(graph)) - {"slice"}
    assert "permute_dims" not in names(graph)


def test_repeated_constant_keeps_one_copy():
    row = pb.broadcast_to(pb.tensor([1.0, 2.0]), (300, 2))
    graph = optimised(lambda x: x + row, np.ones((300, 2), np.float32))
    assert names(graph) == ["add"]
    assert [v.aval.shape for v in graph.constants] == [(2,)]


def test_uniform_constants_of_equal_value_are_one():
    def f(x):
        return x * pb.full((3,), 2.5) + pb.tensor(np.full((4, 3), 2.5, np.float32))

    graph = optimised(f, np.ones((4, 3), np.float32))
    assert names(graph) == ["multiply", "add"]
    assert len(graph.constants) == 1


def test_views_of_uniform_values_are_uniform():
    def f(x):
        ones = pb.permute_dims(pb.reshape(pb.ones((6, 4)), (4, 6)), (1, 0))[1:4]
        return x * pb.concat([ones, ones])

    assert names(optimised(f, special(6, 4))) == []


def test_uniform_outputs_cost_nothing():
    graph = optimised(lambda x: (x, pb.zeros(x.shape) + 1.0), special(3, 4))
    assert names(graph) == []
    assert graph.outputs[1].constant is not None


def test_index_error_belongs_to_the_run():
    graph = knowing(lambda x, t, i: x + pb.take(t, i), pb.tensor([1.0, 2.0]), pb.tensor([7]))
    result = passes.optimise(graph)
    with pytest.raises(IndexError):
        result.run(pb.ones(3), bind=bind)


def test_tracked_constants_stay():
    w = pb.tensor([2.0, 3.0, 4.0], requires_grad=True)
    graph = passes.optimise(knowing(lambda x, w: x * (w * 2.0), w))
    assert names(graph) == ["multiply", "multiply"]
    (out,) = graph.run(pb.tensor([1.0, 10.0, 100.0]), bind=bind)
    out.sum().backward()
    assert w.grad.tolist() == [2.0, 20.0, 200.0]


@pytest.mark.parametrize("value", [1.0, 0.1, -0.0, np.inf, np.nan, 3.0])
def test_sum_of_a_uniform_value(value):
    graph = optimised(lambda x: x + pb.full((37, 5), value).sum(axis=0), np.ones(5, np.float32))
    assert "sum" not in names(graph)


# -- common subexpressions and dead code -----------------------------------------------------------


def test_common_subexpressions():
    graph = optimised(
        lambda x, y: (x * y + pb.sin(x)) - (y * x + pb.sin(x)), special(9), special(9)
    )
    assert names(graph) == ["multiply", "sin", "add", "subtract"]


def test_operands_of_what_does_not_commute_tell_apart():
    graph = optimised(lambda x, y: pb.exp(x - y) + pb.exp(y - x), X[2:4], X[2:4] * 3)
    assert names(graph).count("subtract") == 2


def test_zeros_of_both_signs_are_two_parameters():
    graph = pb.trace(pb.sin)(pb.ones(3))
    rewriter = Rewriter(graph)
    rewriter.run()
    (eq,) = graph.equations
    zeros = [
        rewriter.append(eq.op, tuple(rewriter.graph.inputs), {"at": zero}, [eq.out.aval])
        for zero in (0.0, -0.0, 0.0)
    ]
    assert zeros[0] is zeros[2] and zeros[0] is not zeros[1]


def test_static_parameters_tell_apart():
    graph = optimised(lambda x: x.sum(axis=0) * x.sum(axis=1), np.ones((3, 3), np.float32))
    assert names(graph).count("sum") == 2


def test_dead_code():
    def f(x):
        pb.exp(x) @ x
        return pb.sin(x)

    graph = pb.trace(f)(pb.ones((3, 3)))
    assert names(passes.without_dead(graph)) == ["sin"]
    assert names(passes.without_repeats(graph)) == ["exp", "matmul", "sin"]


# -- cost ------------------------------------------------------------------------------------------


def test_long_graphs_take_linear_time():
    def f(x):
        for _ in range(20_000):
            x = pb.sin(x) + -x * 1.0
        return x.sum()

    graph = pb.trace(f)(pb.ones(3))
    began = time.perf_counter()
    result = passes.optimise(graph)
    assert len(result.equations) == 40_001
    assert time.perf_counter() - began < 30.0


def test_places_that_a_window_has_found_need_no_check():
    x = np.arange(12.0, dtype=np.float32).reshape(1, 1, 12)

    def f(x: Any, size: int) -> Any:
        found = pb.primitive.window_argmax(x, kernel=3, stride=3)
        y = pb.primitive.window_max(x, kernel=3, stride=3)
        pb.primitive.place(y, found, size=size)
        pb.primitive.pick(x, found)
        return x * 2.0

    assert names(optimised(lambda x: f(x, 12), x)) == ["multiply"]
    assert "place" in names(optimised(lambda x: f(x, 13), x))
