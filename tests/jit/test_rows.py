"""Row kernels: what becomes one, and that it has the bits of its operations run one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from jit.graph_runs import arrays_of, assert_same_bits, check, compiled_run, eager_run
from pullback.compile.graph.passes import optimise
from pullback.compile.schedule.fusion import fuse
from pullback.compile.schedule.groups import FoldGroup, Grouped, MapGroup, SequenceGroup
from pullback.compile.schedule.row_kernel import row_plan

SHAPES = [(300, 128), (77, 500), (2050, 33), (40, 2048), (1024, 1040), (33, 4096)]


def numbers(*shape: int, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(0)
    if dtype.startswith("complex"):
        return pb.tensor(
            (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
        )
    return pb.astype(pb.tensor(rng.standard_normal(shape)), getattr(pb, dtype))


def grouped(f: Callable[..., Any], *arrays: Any) -> Grouped:
    return fuse(pb.trace(f)(*arrays), [a._aval for a in arrays])


def kernels(found: Grouped) -> list[SequenceGroup]:
    return [g for g in found.groups if isinstance(g, SequenceGroup) and g.length]


def normed(x: Any, weight: Any, bias: Any, axis: int = -1) -> Any:
    centred = x - pb.mean(x, axis=axis, keepdims=True)
    variance = pb.mean(centred * centred, axis=axis, keepdims=True)
    return centred / pb.sqrt(variance + 1e-5) * weight + bias


def normed_columns(x: Any, weight: Any, bias: Any) -> Any:
    return normed(x, weight, bias, 0)


def softmax(x: Any) -> Any:
    e = pb.exp(x - pb.max(x, axis=-1, keepdims=True))
    return e / pb.sum(e, axis=-1, keepdims=True)


def pulled(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function (cotangent, *args) -> (result, *cotangents)."""

    def both(cotangent: Any, *args: Any) -> Any:
        result, pull = pb.vjp(f, *args)
        return (result, *pull(cotangent))

    return both


# -- what becomes a kernel -------------------------------------------------------------------------


def test_a_normalisation_with_all_its_gradients_is_one_kernel() -> None:
    x, weight = numbers(300, 1024), numbers(1024)
    (group,) = grouped(pulled(normed), x, x, weight, weight).groups
    assert isinstance(group, SequenceGroup) and group.length == 1024
    columns = [m for m in group.members if isinstance(m, FoldGroup) and m.folded == (300,)]
    assert len(columns) == 2


def test_members_share_passes_over_the_row() -> None:
    x, weight = numbers(300, 1024), numbers(1024)
    (group,) = kernels(grouped(pulled(normed), x, x, weight, weight))
    local = [s for m in group.members for s in m.values_written() if not s.is_output]
    kernel = row_plan(group.members, group.lead, group.length, local).kernel
    assert len(kernel.passes) == 5  # mean; variance; forward and two sums; a sum; the gradient
    assert [s.kind for s in kernel.streams].count("buffer") == 1
    assert len([k for k, s in enumerate(kernel.streams) if s.kind == "unit"]) == 6


def test_independent_pipelines_are_kernels_of_their_own() -> None:
    found = grouped(lambda x, y: (softmax(x), softmax(y)), numbers(300, 512), numbers(512, 300))
    assert [g.lead for g in kernels(found)] == [(300,), (512,)]
    assert len(found.groups) == 2


def test_statistics_of_columns_share_passes() -> None:
    x, weight = numbers(512, 256), numbers(256)
    found = grouped(pulled(normed_columns), x, x, weight, weight)
    sizes = [len(k.members) for k in kernels(found)]
    assert sizes == [4, 2]
    assert not any(g.count == 256 for g in found.groups if isinstance(g, SequenceGroup))


def test_what_is_read_across_rows_stays_outside() -> None:
    def f(x: Any) -> Any:
        y = softmax(x)
        return y + y.T

    found = grouped(f, numbers(256, 256))
    (kernel,) = kernels(found)
    assert isinstance(found.groups[-1], MapGroup) and found.groups[-1] not in kernel.members


def test_very_long_bodies_are_not_joined() -> None:
    def f(x: Any) -> Any:
        for _ in range(12):
            x = pb.lgamma(x * x + 1.0) - pb.sum(x, axis=-1, keepdims=True)
        return x

    for group in kernels(grouped(f, numbers(128, 512))):
        assert len(group.members) < 24


# -- bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_normalisations(shape: tuple[int, int], threads: Any) -> None:
    x, weight = numbers(*shape), numbers(shape[1])
    for f in (normed, normed_columns):
        graph = pb.trace(pulled(f))(x + 1.0, x, weight, weight * 2.0)
        arrays = [x + 1.0, x, weight, weight * 2.0]
        expected = eager_run(graph, arrays)
        for n in (1, 2, 3):
            threads(n)
            assert_same_bits(compiled_run(graph, arrays), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_and_losses(shape: tuple[int, int], threads: Any) -> None:
    def loss(x: Any) -> Any:
        return (softmax(x) * x).sum() + pb.logsumexp(x, axis=-1).mean()

    x = numbers(*shape)
    graph = pb.trace(pb.value_and_grad(loss))(x)
    expected = eager_run(graph, [x])
    for n in (1, 3):
        threads(n)
        assert_same_bits(compiled_run(graph, [x]), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_dtypes(dtype: str) -> None:
    def f(x: Any, weight: Any) -> Any:
        y = x / (1.0 + pb.mean(pb.abs(x), axis=-1, keepdims=True))
        return y * weight, pb.sum(y, axis=0), pb.sum(y * x, axis=-1)

    check(f, numbers(200, 320, dtype=dtype), numbers(320, dtype=dtype))


def test_positions_and_flags() -> None:
    def f(x: Any) -> Any:
        top = pb.max(x, axis=-1, keepdims=True)
        return pb.argmax(x, axis=-1), x == top, pb.sum(x == top, axis=0)

    x = numbers(70, 3000)
    check(f, pb.round(x))
    check(lambda x: pb.where(x != x, x, f(x)[1]), pb.tensor(np.array([[np.nan, 1.0] * 800] * 40)))


def test_rows_along_several_axes() -> None:
    x = numbers(6, 50, 192)
    check(pulled(softmax), x, x * 2.0)
    check(pulled(lambda x: normed(x, 1.0, 0.0)), x, x[:, ::-1] * 2.0)


def test_results_over_temporaries_that_later_passes_read() -> None:
    """The product is dropped in the sequence: its place may be taken while passes still read it."""

    def f(x: Any) -> Any:
        t = x @ x
        a = t * 2.0 + 1.0
        s = pb.sum(pb.tanh(t), axis=-1, keepdims=True)
        b = pb.exp(t - s)
        r = pb.sum(b, axis=-1, keepdims=True)
        return a, b / r, pb.sum(t * r, axis=0)

    check(f, numbers(256, 256))


def test_empty_lanes_of_the_last_block() -> None:
    """The last block of 1024 rows has three: the other lanes hold nothing."""
    x = numbers(1027, 64)
    check(lambda x: (pb.sum(softmax(x), axis=0), pb.max(x * 2.0, axis=0)), x)
    check(lambda x: (pb.prod(x, axis=0), pb.sum(x * x, axis=0), x + 1.0), x * 0.1)


def test_values_that_are_needed_later() -> None:
    def f(x: Any) -> Any:
        m = pb.mean(x, axis=-1, keepdims=True)
        y = x - m
        return y @ y.T, m * 2.0, pb.sum(m)

    graph = pb.trace(f)(numbers(256, 256))
    arrays = arrays_of(numbers(256, 256))
    for a, b in zip(compiled_run(graph, arrays), eager_run(graph, arrays), strict=True):
        assert np.allclose(a, b)


def test_flags_are_not_divided_one_by_one() -> None:
    def shares(x: Any) -> Any:
        flags = pb.astype(x == pb.max(x, axis=-1, keepdims=True), pb.float32)
        return flags / pb.sum(flags, axis=-1, keepdims=True)

    x = pb.round(numbers(60, 700))
    graph = optimise(pb.trace(shares)(x))
    sizes = [eq.out.aval.size for eq in graph.equations if eq.op.name == "divide"]
    assert sizes and max(sizes) == 60
    expected = eager_run(pb.trace(shares)(x), [x])
    assert_same_bits(compiled_run(graph, [x]), expected)


@pytest.mark.parametrize("n", [181, 182, 256])
def test_sums_of_columns_are_not_numbers_of_rows(n: int) -> None:
    """In a square array both have one shape."""
    x, y = numbers(n, n, dtype="float64"), numbers(n, dtype="float64")
    check(lambda x, y: pb.std(x, axis=0) * y, x, y)
    check(lambda x, y: pb.sum(pb.exp(x), axis=0) + pb.sum(pb.exp(x), axis=1) * y, x, y)
    check(pb.grad(lambda b, x: pb.mean(pb.tanh(x + b) ** 2) + pb.sum(b * b)), y, x)
