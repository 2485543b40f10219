"""Compiled graphs against the same graphs run equation by equation: they have equal bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from generated.matrix import (
    COMPLEX,
    FLOATS,
    Case,
    cases,
    differentiable_leaves,
    function_of,
    tensors,
)
from jit.graph_runs import assert_same_bits, check, compiled_run, eager_run
from pullback.core import pytrees
from pullback.ir.graph import Graph
from pullback.runtime.cpu import native
from pullback.runtime.cpu.graph_program import Executable

DTYPES = (*FLOATS, *COMPLEX)


def traced(case: Case) -> tuple[Graph, list[Any]] | None:
    """The sample as a graph of all its arrays, or None where it has none or takes no such dtype."""
    leaves, structure = pytrees.flatten((case.sample.args, case.sample.kwargs))
    where = [isinstance(a, np.ndarray) for a in leaves]
    arrays = [tensors(a) for a, own in zip(leaves, where, strict=True) if own]

    def f(*xs: Any) -> Any:
        rest = iter(xs)
        full = [next(rest) if own else a for a, own in zip(leaves, where, strict=True)]
        args, kwargs = pytrees.unflatten(structure, full)
        return case.entry.function(*args, **kwargs)

    graph = pb.trace(f)(*arrays)
    return (graph, arrays) if graph.outputs else None


@pytest.mark.parametrize("case", cases(DTYPES, compiled=True), ids=str)
def test_an_operation_has_the_bits_of_eager_mode(case: Case) -> None:
    try:
        found = traced(case)
    except (TypeError, ValueError, pb.PullbackError):
        pytest.skip("not for this dtype, or needs values to trace")
    if found is not None:
        assert_same_bits(compiled_run(*found), eager_run(*found))


def second_order(case: Case) -> tuple[Graph, list[Any]] | None:
    """The gradient of the squared gradient of an operation, as one graph of its floating arrays."""
    arrays = [tensors(a) for a in differentiable_leaves(case.sample)]
    f = function_of(case.entry, case.sample)
    positions = tuple(range(len(arrays)))

    def size(xs: Any) -> Any:
        total = pb.zeros((), dtype=pb.float64)
        for x in xs:
            square = pb.real(x * pb.conj(x)) if x.dtype.is_complex else x * x
            total = total + pb.astype(square.sum(), pb.float64)
        return total

    def first(*xs: Any) -> Any:
        return pb.grad(lambda *ys: size(f(*ys)), argnums=positions)(*xs)

    def second(*xs: Any) -> Any:
        return pb.grad(lambda *ys: size(first(*ys)), argnums=positions)(*xs)

    if not arrays:
        return None
    graph = pb.trace(lambda *xs: (*first(*xs), *second(*xs)))(*arrays)
    return graph, arrays


@pytest.mark.parametrize(
    "case", cases((pb.float64, pb.float16), derivative=True, compiled=True), ids=str
)
def test_derivatives_have_the_bits_of_eager_mode(case: Case) -> None:
    try:
        found = second_order(case)
    except (TypeError, ValueError, pb.PullbackError):
        pytest.skip("not for this dtype, or needs values to trace")
    if found is None:
        return
    try:
        expected = eager_run(*found)
    except pb.LinAlgError:  # there is no derivative at this point
        with pytest.raises(pb.LinAlgError):
            compiled_run(*found)
        return
    assert_same_bits(compiled_run(*found), expected)


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return pb.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def softmax(x: Any) -> Any:
    e = pb.exp(x - pb.max(x, axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x: Any) -> Any:
    c = x - x.mean(axis=-1, keepdims=True)
    return c / pb.sqrt((c * c).mean(axis=-1, keepdims=True) + 1e-5)


def chain(x: Any) -> Any:
    return pb.sin(x) * pb.exp(-x * x) + pb.log1p(x * x)


@pytest.mark.parametrize("f", [softmax, layer_norm, chain])
@pytest.mark.parametrize("shape", [(64, 1024), (100, 640), (3, 5, 7), (1, 70000), (40000, 3)])
def test_row_wise_functions_and_their_gradients(f: Any, shape: tuple[int, ...]) -> None:
    x, w = numbers(*shape), numbers(*shape, seed=1)
    check(lambda x, w: pb.value_and_grad(lambda x: (f(x) * w).sum())(x), x, w)
    check(f, x)


def test_half_precision_is_rounded_after_every_operation() -> None:
    x = numbers(1000, dtype="float16")
    check(lambda x: (x * 3.0 + 0.1) * x - x / 7.0, x)


def test_any_number_of_threads_gives_the_same_bits(threads: Any) -> None:
    x, w = numbers(512, 1024), numbers(512, 1024, seed=1)
    graph = pb.trace(pb.value_and_grad(lambda x, w: (softmax(x) * w).sum() + chain(x).sum()))(x, w)
    threads(1)
    alone = compiled_run(graph, [x, w])
    threads(4)
    assert_same_bits(compiled_run(graph, [x, w]), alone)


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[::-1, ::2], lambda x: x[1:]])
def test_inputs_may_have_any_strides(view: Any) -> None:
    x = view(numbers(6, 8))
    check(lambda x: (chain(x), pb.reshape(x, (-1,)), x.sum(axis=0), x @ x.T), x)


def test_outputs_may_be_inputs_constants_views_or_each_other() -> None:
    x, c = numbers(4, 5), numbers(3, seed=1)
    check(lambda x: (x, c, x, x.T, x[1:], pb.zeros((2, 2)), (x * 2.0)[1], pb.reshape(x, (20,))), x)


def test_an_output_may_be_a_view_of_what_others_compute_on_the_way() -> None:
    def f(x: Any) -> Any:
        y = x * 2.0
        part = y[1:3]
        return pb.exp(part) + part[::-1], part, y.sum()

    check(f, numbers(5))


def test_nothing_to_compute_and_empty_arrays() -> None:
    check(lambda x: x, numbers(3))
    check(lambda x: (x * 2.0, x.sum(axis=0), x.sum(), softmax(x)), numbers(0, 3))
    check(lambda x: pb.zeros((0,)) + 1.0, numbers(2))


def test_random_numbers_and_ranges_keep_their_index() -> None:
    def f(x: Any) -> Any:
        r = pb.astype(pb.arange(12), x.dtype) * x
        return (
            r.sum(),
            pb.reshape(r, (3, 4)).sum(axis=0),
            pb.reshape(r, (3, 4)).T * 2.0,
            r[3:] + r[:9],
        )

    check(f, pb.tensor(2.5))


def test_an_index_out_of_range_names_the_operation() -> None:
    x, i = numbers(5), pb.tensor([0, 7])
    graph = pb.trace(lambda x, i: pb.take(x, i, axis=0) * 2.0)(x, i)
    with pytest.raises(IndexError, match="index 7 is out of range for an axis of size 5"):
        compiled_run(graph, [x, i])


def test_temporaries_are_planned_into_little_memory() -> None:
    x = numbers(512, 1024)
    graph = pb.trace(pb.value_and_grad(lambda x: (softmax(x) * x).sum()))(x)
    executable = Executable(graph)
    assert executable.peak_bytes < 1.1 * 512 * 1024 * 4
    assert "sequence" in executable.describe()
    native.reset_peak()
    before = native.memory()["live"]
    out = executable([x._buf], [x._aval])
    assert native.memory()["peak"] - before < 1.1 * 512 * 1024 * 4
    del out


# -- control flow ----------------------------------------------------------------------------------

W, START, ROWS = (
    numbers(*s, dtype="float64", seed=k) for k, s in enumerate([(4, 4), (4,), (7, 4)])
)


def step(w: Any) -> Any:
    return lambda c, x: (pb.tanh(w @ c + x[::-1]), (c[1:3], c * x))


@pytest.mark.parametrize("reverse", [False, True])
def test_scans(reverse: bool) -> None:
    check(lambda w, c, xs: pb.scan(step(w), c, xs, reverse=reverse), W, START, ROWS)
    check(lambda w, c, xs: pb.scan(step(w), c, xs, reverse=reverse), W, START, ROWS[:0])
    check(lambda w, c, xs: pb.scan(step(w), c, xs.T[:, 1:5].T, reverse=reverse), W, START, ROWS)


def test_carries_that_change_places() -> None:
    check(
        lambda a, b, xs: pb.scan(lambda c, x: ((c[1], c[0]), c[0][1:]), (a, b), xs),
        START,
        numbers(4, dtype="float64", seed=9),
        ROWS,
    )


def test_derivatives_of_scans() -> None:
    def total(w: Any, c: Any, xs: Any) -> Any:
        last, (a, b) = pb.scan(step(w), c, xs)
        return last.sum() + (a * a).sum() + (b * b).sum()

    gradient = pb.grad(total, argnums=(0, 1, 2))
    check(gradient, W, START, ROWS)
    check(pb.grad(lambda w: (gradient(w, START, ROWS)[0] ** 2).sum()), W)


def test_scans_in_scans() -> None:
    def outer(w: Any, c: Any, xs: Any) -> Any:
        return pb.scan(
            lambda c, x: pb.scan(lambda d, r: (pb.sin(d * r[1] + x), d[2:]), c, w), c, xs
        )

    check(outer, W, START, ROWS)
    check(pb.grad(lambda w: outer(w, START, ROWS)[1].sum()), W)


def test_loops_and_branches() -> None:
    x = pb.tensor(0.3)
    check(
        lambda x, c: pb.while_loop(
            lambda s: s[0] < 10.0, lambda s: (s[0] + 1.5, s[1][::-1] * 1.1), (x, c)
        ),
        x,
        START,
    )
    check(lambda c: pb.fori_loop(0, 5, lambda i, c: c * 1.5 + pb.astype(i, c.dtype), c), START)
    for p in (x, -x):
        check(
            lambda p, c: pb.cond(p > 0, lambda c: (c * 2, c[1:]), lambda c: (c + 1, c[:3]), c),
            p,
            START,
        )
