"""Graph passes: every rule fires where it should, and what it leaves computes the same."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pullback as pb
from generated import matrix
from pullback.compile import passes
from pullback.compile.passes.algebra import exactly_holds
from pullback.core import dtypes, pytrees
from pullback.core.errors import TraceError
from pullback.ir.graph import Graph
from pullback.ir.op import bind

SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-45, 3e38], np.float32)


def run(graph: Graph, *arrays: Any) -> list[np.ndarray]:
    return [r.numpy() for r in graph.run(*arrays, bind=bind)]


def names(graph: Graph) -> list[str]:
    return [eq.op.name for eq in graph.equations]


def bits(x: np.ndarray) -> bytes:
    """The contents with all NaN alike."""
    if x.dtype.kind in "fc" or x.dtype.name == "bfloat16":
        x = np.where(np.isnan(x), np.full_like(x, np.nan), x)
    return np.ascontiguousarray(x).tobytes()


def optimised(f: Any, *args: Any, exact: bool = True, tolerance: float = 2e-6) -> Graph:
    """The optimised graph of `f`, whose results were compared with those of the graph as traced."""
    args = matrix.tensors(args)
    graph = pb.trace(f)(*args)
    before = repr(graph)
    result = passes.optimise(graph)
    passes.optimise(graph, exact=True).verify()
    assert repr(graph) == before, "a pass changed its input"
    result.verify()
    leaves = [x for x in pytrees.leaves(args) if isinstance(x, pb.Tensor)]
    for wanted, found in zip(run(graph, *leaves), run(result, *leaves), strict=True):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        if exact:
            assert bits(found) == bits(wanted)
        else:
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    return result


def special(*shape: int) -> np.ndarray:
    return np.resize(SPECIAL, shape)


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


# -- views -----------------------------------------------------------------------------------------

A = special(4, 6)
B = special(3, 4, 5)
VIEWS = {
    "reshape of reshape": (lambda x: x.reshape(24).reshape(3, 8), A, ["reshape"]),
    "reshape back": (lambda x: x.reshape(24).reshape(4, 6), A, []),
    "identity permutation": (lambda x: pb.permute_dims(x, (0, 1)), A, []),
    "permute of permute": (
        lambda x: pb.permute_dims(pb.permute_dims(x, (1, 2, 0)), (1, 2, 0)), B, ["permute_dims"],
    ),
    "permute back": (lambda x: pb.permute_dims(pb.permute_dims(x, (1, 2, 0)), (2, 0, 1)), B, []),
    "permute of units": (
        lambda x: pb.permute_dims(x.reshape(4, 1, 6), (1, 0, 2)), A, ["reshape"],
    ),
    "broadcast of broadcast": (
        lambda x: pb.broadcast_to(pb.broadcast_to(x, (2, 4, 6)), (3, 2, 4, 6)), A, ["broadcast_to"],
    ),
    "broadcast to itself": (lambda x: pb.broadcast_to(x, (4, 6)), A, []),
    "broadcast of a new axis": (
        lambda x: pb.broadcast_to(x.reshape(1, 4, 6), (3, 4, 6)), A, ["broadcast_to"],
    ),
    "reshape of broadcast": (
        lambda x: pb.broadcast_to(x, (3, 4, 6)).reshape(3, 1, 4, 6) * 3.0, A,
        ["multiply", "broadcast_to"],
    ),
    "elementwise of broadcast": (
        lambda x: pb.exp(pb.broadcast_to(x, (7, 4, 6))), A, ["exp", "broadcast_to"],
    ),
    "operand of broadcast": (
        lambda x: pb.broadcast_to(x, (7, 4, 6)) * pb.ones((7, 1, 1)), A, ["broadcast_to"],
    ),
    "elementwise of permuted": (lambda x: (pb.exp(x.T) * 2.0).T, A, ["exp", "multiply"]),
    "elementwise of reshaped": (
        lambda x: pb.exp(x.reshape(3, 8)).reshape(4, 6), A, ["exp"],
    ),
    "slice of elementwise": (
        lambda x: pb.exp(x * x[0])[1:3, 2], A, ["slice", "slice", "multiply", "exp"],
    ),
    "whole slice": (lambda x: x[:, :], A, []),
    "slice of slice": (lambda x: x[1:, ::2][::2, ::-1], A, ["slice"]),
    "row of slice": (lambda x: x[1:, ::2][1][2], A, ["slice"]),
    "slice of new axis": (lambda x: x[:, None][2:, 0, 1:4], A, ["slice"]),
    "slice of broadcast": (
        lambda x: pb.broadcast_to(x, (5, 4, 6))[1:3, 2], A, ["slice", "broadcast_to"],
    ),
    "slice of permuted": (lambda x: x.T[1:3, 2], A, ["slice"]),
    "slice of concat": (lambda x: pb.concat([pb.exp(x), x])[4:6], A, ["slice"]),
    "slice of embed": (
        lambda x: pb.primitive.embed(pb.tensor(0.0), x, (6, 8), (1, 1))[1:5, 1:7], A, [],
    ),
    "slice beside embed": (
        lambda x: pb.primitive.embed(pb.tensor(0.0), x, (6, 8), (1, 1))[5:] * 1.0, A, [],
    ),
    "embed everything": (lambda x: pb.primitive.embed(pb.tensor(0.0), x, (4, 6), (0, 0)), A, []),
    "embed twice": (
        lambda x: pb.primitive.embed(
            pb.primitive.embed(pb.tensor(1.0), pb.exp(x), (9, 9), (2, 1)), x, (9, 9), (2, 1)
        ), A, ["embed"],
    ),
    "concat of one": (lambda x: pb.concat([x]), A, []),
    "concat of concat": (
        lambda x: pb.concat([pb.concat([x, pb.exp(x)]), x]), A, ["exp", "concat"],
    ),
    "split and joined": (lambda x: pb.concat([x[:1], x[1:3], x[3:]]), A, []),
    "sum over one element": (lambda x: pb.abs(x)[None].sum(axis=0), A, ["abs"]),
    "sum with and without axes": (
        lambda x: pb.exp(x - x.sum(axis=1, keepdims=True)) + x.sum(axis=1)[:, None],
        np.ones((4, 6), np.float32), ["sum", "subtract", "exp", "add"],
    ),
    "reduction keeps wanted axes": (
        lambda x: x / x.sum(axis=1)[:, None], np.ones((4, 6), np.float32), ["sum", "divide"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views_keep_every_bit(name):
    f, x, wanted = VIEWS[name]
    assert names(optimised(f, x)) == wanted


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


PRODUCTS = {
    "sum of broadcast": (
        lambda x: pb.broadcast_to(x, (50, 4, 6)).sum(axis=0), [random(4, 6)], ["multiply"],
    ),
    "sum of partly broadcast": (
        lambda x: pb.broadcast_to(x, (50, 4, 6)).sum(axis=(0, 1)), [random(4, 6)],
        ["sum", "multiply", "reshape"],
    ),
    "outer product": (lambda x, y: x @ y, [random(5, 1), random(1, 3)], ["multiply"]),
    "transposed product": (
        lambda x, y: (x @ y).T, [random(5, 4), random(4, 3)],
        ["permute_dims", "permute_dims", "matmul"],
    ),
    "transposed sum of products": (
        lambda x, y: (x.T @ y + y.T @ x).T, [random(5, 4), random(5, 4)],
        ["permute_dims", "permute_dims", "matmul", "matmul", "add"],
    ),
    "equal rows": (
        lambda x, y: pb.broadcast_to(x, (9, 4)) @ y, [random(4), random(4, 3)],
        ["reshape", "matmul", "broadcast_to"],
    ),
    "equal columns": (
        lambda x: pb.ones((3, 50)) @ x, [random(50, 4)], ["sum", "broadcast_to"],
    ),
    "equal inner rows": (
        lambda x, y: x @ pb.broadcast_to(y, (50, 3)), [random(7, 50), random(3)],
        ["sum", "multiply"],
    ),
    "x**0.5": (lambda x: x ** pb.tensor(0.5), [random(7) ** 2], ["sqrt"]),
    "x**1.5": (lambda x: x ** pb.tensor(1.5), [random(7) ** 2], ["sqrt", "multiply"]),
    "x**-2.5": (
        lambda x: x ** pb.tensor(-2.5), [random(7) ** 2 + 0.1],
        ["multiply", "sqrt", "multiply", "reciprocal"],
    ),
    "x**0.3 stays": (lambda x: x ** pb.tensor(0.3), [random(7) ** 2], ["power"]),
    "derivative of x**1.5": (
        pb.grad(lambda x: (x ** pb.tensor(1.5)).sum()), [random(7) ** 2], ["sqrt", "multiply"],
    ),
    "column of a product": (
        lambda x, y: (x @ y)[:, 1], [random(7, 5), random(5, 3)], ["slice", "matmul", "reshape"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_rules_that_round_otherwise(name):
    f, args, wanted = PRODUCTS[name]
    assert Counter(names(optimised(f, *args, exact=False))) == Counter(wanted)


BATCHES = [((), ()), ((5,), ()), ((), (5,)), ((2, 1), (3,)), ((5,), (5,))]


@pytest.mark.parametrize("dtype", [pb.float32, pb.float16, pb.complex64], ids=lambda d: d.name)
@pytest.mark.parametrize("batches", BATCHES, ids=str)
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("side", [0, 1])
def test_products_of_repeated_matrices(batches, axis, side, dtype):
    shapes = [[*batches[0], 3, 4], [*batches[1], 4, 2]]
    small = list(shapes[side])
    small[axis] = 1

    def f(x, y):
        pair = [x, y]
        pair[side] = pb.broadcast_to(pair[side], shapes[side])
        return pair[0] @ pair[1]

    shapes_in = [small if k == side else s for k, s in enumerate(shapes)]
    args = [pb.astype(pb.tensor(random(*s)), dtype) for s in shapes_in]
    optimised(f, *args, exact=False, tolerance=4e-3 if dtype is pb.float16 else 1e-5)
    optimised(lambda x, y: pb.matrix_transpose(f(x, y)), *args, exact=False, tolerance=4e-3)


# -- sums of parts ---------------------------------------------------------------------------------


def parts_gradient(f: Any, x: np.ndarray, exact: bool = True) -> Graph:
    return optimised(pb.grad(f), x, exact=exact)


def test_gradient_of_slices_is_one_concatenation():
    def f(z):
        return (pb.sin(z[:, :2]) * pb.exp(z[:, 2:4]) + pb.cos(z[:, 4:6])).sum()

    graph = parts_gradient(f, random(3, 6))
    assert names(graph).count("concat") == 1
    assert not {"embed", "add"} & set(names(graph)) - {"add"} and "embed" not in names(graph)


def test_gradient_of_some_slices_is_filled_up():
    graph = parts_gradient(lambda z: pb.exp(z[1] * z[3]), random(6))
    assert names(graph).count("concat") == 1 and "embed" not in names(graph)


def test_gradient_of_interleaved_slices():
    graph = parts_gradient(lambda z: (pb.exp(z[::2]) * pb.sin(z[1::2])).sum(), random(8))
    assert "add" not in names(graph)


def test_gradient_of_overlapping_slices_is_added():
    graph = parts_gradient(lambda z: (pb.exp(z[1:]) * pb.sin(z[:-1])).sum(), random(8))
    assert "add" in names(graph)


def test_gradient_of_slices_read_twice():
    def f(z):
        return (pb.exp(z[:3]) * pb.sin(z[3:]) + pb.cos(z[:3])).sum()

    assert names(parts_gradient(f, random(6))).count("concat") == 1


def test_many_parts_in_linear_time():
    def f(z):
        total = z[0]
        for i in range(1, 400):
            total = total + pb.sin(z[i])
        return total

    graph = parts_gradient(f, random(400))
    assert names(graph).count("concat") == 1 and "embed" not in names(graph)


# -- products with a common factor -----------------------------------------------------------------


def test_products_with_a_common_factor():
    def f(a, b, c, d):
        return (a @ b + d) + (a @ c + d @ b)

    arrays = [random(16, 16) + k for k in range(4)]
    graph = optimised(f, *arrays, exact=False, tolerance=1e-4)
    assert names(graph).count("matmul") == 2
    graph = optimised(lambda a, b, c, d: (b @ a + c @ a) @ d, *arrays, exact=False, tolerance=1e-3)
    assert names(graph).count("matmul") == 2


def test_products_that_are_used_elsewhere_stay():
    def f(a, b, c):
        p, q = a @ b, a @ c
        return p + q, p, q

    assert names(optimised(f, random(16, 16), random(16, 16) + 1, random(16, 16) + 2)) == [
        "matmul", "matmul", "add",
    ]  # fmt: skip


# -- control flow ----------------------------------------------------------------------------------


def inner(graph: Graph, name: str = "body") -> Graph:
    """The graph inside the only equation that has one."""
    (found,) = [eq.static[name] for eq in graph.equations if name in eq.static]
    return found


def test_scan_body_is_optimised_and_keeps_no_constants():
    def f(x, xs):
        return pb.scan(lambda c, x: (c * 1.0 + -x * 3.0, pb.square(c) - c * c), x, xs)

    graph = optimised(f, random(3), random(5, 3))
    body = inner(graph)
    assert "negative" not in names(body) and names(body).count("multiply") == 2
    assert not body.constants


def test_scan_loses_what_nobody_uses():
    def f(x, xs, ys):
        def step(c, row):
            a, b, same, dead = c
            x, y = row
            return (a + x * same, b, same, dead * 2.0 + a), (pb.exp(y), pb.sin(a), x)

        (a, _, same, _), (_, sines, rows) = pb.scan(step, (x, x + 1.0, x + 2.0, x + 3.0), (xs, ys))
        return a, same, sines, rows

    graph = optimised(f, random(3), random(5, 3), random(5, 3) + 1)
    (scan,) = [eq for eq in graph.equations if eq.op.name == "scan"]
    assert scan.static["carries"] == 1 and len(scan.outs) == 2
    assert "exp" not in names(inner(graph))
    assert graph.inputs[2] not in scan.inputs


def test_scan_knows_uniform_inputs():
    def f(x, xs):
        one, rows = pb.ones(3), pb.ones((5, 3))
        return pb.scan(lambda c, r: (c * one * r[1] + r[0], None), x, (xs, rows))[0]

    assert names(inner(optimised(f, random(3), random(5, 3)))) == ["add"]


def test_scan_takes_a_constant_once():
    def f(x, y):
        def step(c, _):
            return (y[:, None] * c[0] + y[:, None], y[:, None] * c[1]), None

        return pb.scan(step, (x, x + 1.0), None, length=4)[0]

    graph = optimised(f, random(3, 2), random(3))
    (scan,) = [eq for eq in graph.equations if eq.op.name == "scan"]
    assert scan.static["constants"] == 1


def test_while_body_and_test():
    def f(x):
        def body(c):
            n, x, same, dead = c
            return n + 1, x * 1.0 * same + 0.5, same, dead + x

        init = (pb.tensor(0), x, x + 1.0, x)
        return pb.while_loop(lambda c: c[0] * 1 < 5, body, init)[1]

    graph = optimised(f, random(3))
    (loop,) = [eq for eq in graph.equations if eq.op.name == "while"]
    assert loop.static["carries"] == 2
    assert "multiply" not in names(inner(graph, "test"))


def test_cond_branches():
    def f(x):
        return pb.cond(
            x.sum() > 0, lambda x: (x * 1.0, pb.exp(x)), lambda x: (pb.negative(-x), x), x
        )[0]

    graph = optimised(f, random(3))
    assert not names(inner(graph, "then")) and not names(inner(graph, "otherwise"))


def test_cond_with_a_known_predicate_is_inlined():
    graph = pb.trace(lambda p, x: pb.cond(p, pb.sin, pb.exp, x))(pb.tensor(True), pb.ones(3))
    predicate = graph.inputs.pop(0)
    array = pb.tensor(True)
    predicate.constant = (array._buf, array._aval, None)
    graph.constants.append(predicate)
    assert names(passes.optimise(graph)) == ["sin"]


def recurrent(weights, bias, h, xs):
    def step(h, x):
        h = pb.tanh(x @ weights[0] + h @ weights[1] + bias)
        return h, h

    return (pb.scan(step, h, xs)[1] ** 2).sum()


def test_products_leave_the_loop():
    weights = (random(4, 8), random(8, 8))
    args = (weights, random(8), random(3, 8), random(6, 3, 4))
    f = pb.value_and_grad(recurrent, argnums=(0, 1))
    graph = optimised(f, *args, exact=False, tolerance=1e-4)
    scans = [eq for eq in graph.equations if eq.op.name == "scan"]
    assert [names(eq.static["body"]).count("matmul") for eq in scans] == [1, 1]
    assert names(graph).count("matmul") == 3


def test_sums_of_products_with_a_carry_leave_the_loop():
    """The product reads the carry as it comes into each step: its rows are then kept."""

    def f(h, xs):
        def step(c, x):
            h, total = c
            return (pb.tanh(h + x), total + x.T @ h), None

        return pb.scan(step, (h, pb.zeros((4, 4))), xs)[0]

    drawn = np.random.default_rng(0)
    h, xs = (drawn.normal(size=s).astype("float32") for s in ((3, 4), (5, 3, 4)))
    g = optimised(f, h, xs, exact=False)
    (scan,) = [eq for eq in g.equations if eq.op.name == "scan"]
    assert "matmul" not in names(scan.static["body"])
    assert names(g).count("matmul") == 1


def test_derivatives_of_loops_of_second_order():
    weights = (random(4, 8), random(8, 8))
    args = (weights, random(8), random(3, 8), random(6, 3, 4))

    def second(w, *rest):
        grads = pb.grad(recurrent)(w, *rest)
        return sum((g * g).sum() for g in grads)

    optimised(pb.grad(second), *args, exact=False, tolerance=1e-3)


def test_loops_in_loops():
    def f(x, xs):
        def outer(c, x):
            return pb.scan(lambda c, _: (c * 1.0 + pb.sin(x) * 0.5, None), c, None, length=3)[0], c

        return pb.scan(outer, x, xs)

    optimised(f, random(3), random(5, 3), exact=False)
    optimised(
        pb.grad(lambda x, xs: f(x, xs)[0].sum(), argnums=(0, 1)),
        random(3),
        random(5, 3),
        exact=False,
    )


# -- random graphs ---------------------------------------------------------------------------------

UNARY = [
    pb.negative,
    pb.abs,
    pb.square,
    pb.exp,
    lambda x: x * 1.0,
    lambda x: x + 0.0,
    lambda x: x * 2.0,
    lambda x: x * 0.0,
    lambda x: x / 4.0,
    lambda x: x - x,
    lambda x: x.T,
    lambda x: x.reshape(-1, 2),
    lambda x: x.reshape(1, *x.shape)[0],
    lambda x: x[::-1],
    lambda x: x[:, 1:],
    lambda x: x.sum(axis=0, keepdims=True),
    lambda x: x.sum(axis=1)[:, None],
    lambda x: pb.max(x, axis=1),
    lambda x: pb.broadcast_to(x.sum(axis=0), x.shape),
    lambda x: pb.concat([x, -x]),
    lambda x: pb.concat([x[:1], x[1:]], axis=0),
    lambda x: pb.where(x > 0, x, 0.0),
    lambda x: pb.astype(pb.astype(x, pb.float64), pb.float32),
    lambda x: pb.zeros(x.shape) + x,
    lambda x: pb.ones(x.shape) * x,
    lambda x: x @ pb.ones((x.shape[1], 2)),
]
BINARY = [
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, pb.maximum,
    lambda x, y: pb.where(x > y, x, y), lambda x, y: -x + y, lambda x, y: x + x * y,
]  # fmt: skip


def matrices(x: Any) -> Any:
    """Any array as a matrix of at least 2 x 2 elements, an even number of them."""
    x = x if x.ndim == 2 else pb.broadcast_to(x.reshape(x.shape[-1] if x.ndim else 1), (2, x.size))
    return pb.broadcast_to(x[:1, :1], (2, 2)) if min(x.shape) < 2 else x


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
        max_size=12,
    ),
    st.integers(0, 3),
)
def test_random_graphs(steps, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 6)).astype(np.float32)
    x.flat[rng.integers(0, 24, 4)] = SPECIAL[rng.integers(0, len(SPECIAL), 4)]

    def f(x):
        values = [x]
        for unary, which, a, b in steps:
            p, q = matrices(values[a % len(values)]), matrices(values[b % len(values)])
            if unary:
                values.append(UNARY[which % len(UNARY)](p))
            else:
                q = q if q.shape == p.shape else pb.broadcast_to(q[:1, :1], p.shape)
                values.append(BINARY[which % len(BINARY)](p, q))
        return values[-1], values[len(values) // 2]

    tensor = pb.tensor(x)
    graph = pb.trace(f)(tensor)
    exact = passes.optimise(graph, exact=True)
    assert [bits(a) for a in run(exact, tensor)] == [bits(a) for a in run(graph, tensor)]
    result = passes.optimise(graph)
    with np.errstate(all="ignore"):
        for wanted, found in zip(run(graph, tensor), run(result, tensor), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=3e-5, atol=1e-6)


# -- every operation -------------------------------------------------------------------------------

CASES = matrix.cases(matrix.FLOATS)


def check_equal(graph: Graph, arrays: list[Any], tolerance: float) -> None:
    exact = passes.optimise(graph, exact=True)
    assert [bits(a) for a in run(exact, *arrays)] == [bits(a) for a in run(graph, *arrays)]
    result = passes.optimise(graph)
    for wanted, found in zip(run(graph, *arrays), run(result, *arrays), strict=True):
        assert found.dtype == wanted.dtype
        if found.dtype.kind in "biu":
            np.testing.assert_array_equal(found, wanted)
        else:
            wide = np.complex128 if found.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(
                found.astype(wide), wanted.astype(wide), rtol=tolerance, atol=tolerance
            )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_operation(case):
    sample = case.sample
    leaves, structure = pytrees.flatten((sample.args, sample.kwargs))
    arrays = [pb.tensor(a) for a in leaves if isinstance(a, np.ndarray)]
    if not arrays:
        pytest.skip("takes no arrays")

    def f(*xs):
        rest = iter(xs)
        full = [next(rest) if isinstance(a, np.ndarray) else a for a in leaves]
        args, kwargs = pytrees.unflatten(structure, full)
        return matrix.arrays_of(case.entry.function(*args, **kwargs))

    try:
        graph = pb.trace(f)(*arrays)
    except (pb.DTypeError, TraceError):
        pytest.skip("needs values, or does not take the dtype")
    check_equal(graph, arrays, 1e-2 if case.dtype.itemsize == 2 else 1e-5)


@pytest.mark.parametrize("case", matrix.cases((pb.float64,), derivative=True), ids=str)
def test_derivatives_of_every_operation(case):
    sample = case.sample
    f = matrix.function_of(case.entry, sample)
    arrays = [pb.tensor(a) for a in matrix.differentiable_leaves(sample)]
    if not arrays:
        pytest.skip("has nothing to differentiate by")

    def loss(*xs):
        outs = [pb.real(o) if o.dtype.is_complex else o for o in f(*xs)]
        return sum(((o * o).sum() for o in outs), pb.zeros((), dtype=pb.float64))

    def first(*xs):
        return pb.grad(loss, argnums=tuple(range(len(xs))))(*xs)

    def second(*xs):
        grads = [pb.real(g) if g.dtype.is_complex else g for g in first(*xs)]
        return sum(((g * g).sum() for g in grads), pb.zeros((), dtype=pb.float64))

    order = min(sample.order, 2)
    if order == 0:
        return
    try:
        graph = pb.trace(first if order == 1 else pb.grad(second))(*arrays)
    except (pb.DTypeError, pb.GradientError, TraceError):
        pytest.skip("needs values")
    check_equal(graph, arrays, 1e-9)


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
