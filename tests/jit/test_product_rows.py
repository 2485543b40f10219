"""Chains of small products by rows, and groups side by side: what is formed, and its bits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import pullback as pb
from jit.graph_runs import arrays_of, assert_same_bits, check, compiled_run, eager_run
from pullback.compile.schedule.fusion import fuse
from pullback.compile.schedule.groups import CallGroup, Grouped, ParallelGroup, SequenceGroup
from pullback.compile.schedule.memory import plan_memory


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return pb.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype) / 8)


def grouped(f: Callable[..., Any], *args: Any) -> Grouped:
    arrays = arrays_of(args)
    return fuse(pb.trace(f)(*args), [a._aval for a in arrays])


def network(layers: Any, x: Any) -> Any:
    for w, b in layers[:-1]:
        x = pb.tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def loss(layers: Any, x: Any, y: Any) -> Any:
    error = network(layers, x) - y
    return (error * error).mean()


def layers_of(widths: list[int], dtype: str = "float32") -> list[tuple[Any, Any]]:
    return [
        (numbers(m, n, seed=k, dtype=dtype), numbers(n, seed=k, dtype=dtype))
        for k, (m, n) in enumerate(pairwise(widths))
    ]


STEP = pb.value_and_grad(loss)


def test_a_network_is_a_chain_and_groups_side_by_side() -> None:
    layers = layers_of([64] * 5)
    x = numbers(32, 64)
    found = grouped(STEP, layers, x, x)
    chain, beside, *rest = found.groups
    assert isinstance(chain, SequenceGroup) and chain.count == 32
    assert len([m for m in chain.members if isinstance(m, CallGroup)]) == 4 + 3
    assert isinstance(beside, ParallelGroup)
    assert len([m for m in beside.members if isinstance(m, CallGroup)]) == 4
    assert not any(isinstance(g, CallGroup) for g in rest)
    plan_memory(found).verify()


def test_side_by_side_groups_have_memory_of_their_own() -> None:
    layers = layers_of([64] * 5)
    x = numbers(32, 64)
    found = grouped(STEP, layers, x, x)
    plan = plan_memory(found)
    (beside,) = (g for g in found.groups if isinstance(g, ParallelGroup))
    spans = sorted(
        (plan.places[s].area, plan.places[s].offset, s.nbytes) for s in beside.values_written()
    )
    for a, b in pairwise(spans):
        assert a[0] != b[0] or a[1] + a[2] <= b[1]


def test_what_is_small_or_large_stays_as_it_is() -> None:
    few = grouped(STEP, layers_of([16] * 3), numbers(8, 16), numbers(8, 16))
    large = grouped(STEP, layers_of([512] * 3), numbers(64, 512), numbers(64, 512))
    for found in (few, large):
        assert not any(isinstance(g, ParallelGroup) for g in found.groups)
        assert not any(isinstance(g, SequenceGroup) and g.has_products for g in found.groups)


def test_products_of_what_the_chain_makes_are_not_part_of_it() -> None:
    def f(x: Any, w: Any) -> Any:
        h = pb.tanh(pb.tanh(x @ w) @ w)
        return h @ (h.T @ h) @ w

    check(f, numbers(64, 64), numbers(64, 64, seed=1))
    found = grouped(f, numbers(64, 64), numbers(64, 64, seed=1))
    (first, *_) = found.groups
    assert isinstance(first, SequenceGroup)
    assert len([m for m in first.members if isinstance(m, CallGroup)]) == 2


@pytest.mark.parametrize("batch", [17, 32, 61])
@pytest.mark.parametrize("widths", [[64] * 4, [40, 96, 72, 7], [130, 100, 50]], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits(batch: int, widths: list[int], dtype: str, threads: Any) -> None:
    args = (layers_of(widths, dtype), numbers(batch, widths[0], dtype=dtype),
            numbers(batch, widths[-1], dtype=dtype))  # fmt: skip
    graph = pb.trace(STEP)(*args)
    arrays = arrays_of(args)
    expected = eager_run(graph, arrays)
    for n in (1, 2, 4):
        threads(n)
        assert_same_bits(compiled_run(graph, arrays), expected)


def test_second_order(threads: Any) -> None:
    layers, x = layers_of([48] * 4), numbers(40, 48)
    direction = layers_of([48] * 4)

    def product(layers: Any, direction: Any) -> Any:
        return pb.hvp(lambda p: loss(p, x, x), (layers,), (direction,))

    jitted = pb.jit(product)
    expected = [np.asarray(v) for v in arrays_of(product(layers, direction))]
    threads(1)
    alone = [np.asarray(v) for v in arrays_of(jitted(layers, direction))]
    threads(3)
    shared = [np.asarray(v) for v in arrays_of(jitted(layers, direction))]
    assert_same_bits(alone, shared)
    for a, b in zip(alone, expected, strict=True):
        assert np.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_in_a_loop() -> None:
    layers, x = layers_of([32] * 6), numbers(64, 32)

    def f(layers: Any, x: Any) -> Any:
        def step(h: Any, _: Any) -> Any:
            h = network(layers, h)
            return h, h.sum()

        return pb.scan(step, x, pb.zeros(5))

    final, sums = pb.jit(f)(layers, x)
    expected, other = f(layers, x)
    assert np.allclose(final.numpy(), expected.numpy(), atol=1e-6)
    assert np.allclose(sums.numpy(), other.numpy(), atol=1e-4)


def test_parts_of_one_value_keep_their_order(threads: Any) -> None:
    """The frame of a padded array is written before what is inside of it."""

    def f(x: Any, w: Any) -> Any:
        a, b, c, d = x @ w, x.T @ w, x @ w.T, x.T @ w.T
        padded = pb.pad(a + 1.0, ((3, 3), (2, 2)))
        return padded, pb.concat([a, b, c, d]), padded.sum(axis=0), d.sum()

    args = numbers(96, 96), numbers(96, 96, seed=1)
    assert any(isinstance(g, ParallelGroup) for g in grouped(f, *args).groups)
    threads(3)
    for _ in range(5):
        check(f, *args)
