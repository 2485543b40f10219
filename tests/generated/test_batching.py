"""Every operation under vmap, over each operand and over all of them, against a loop.

The rows of a batch have the bits that they have alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matrix import (
    COMPLEX,
    FLOATS,
    FULL,
    Case,
    accepts,
    arrays_of,
    cases,
    determined,
    tensors,
    weights,
)

import pullback as pb
from pullback.core import pytrees
from pullback.ir.graph import Graph, trace
from pullback.ir.samples import Draw

EXAMPLES = 3


def variants(case: Case) -> tuple[list[list[np.ndarray]], Callable[..., list[Any]]]:
    """The arrays of a sample drawn several times, and the operation as a function of them."""
    seed = zlib.crc32(case.entry.name.encode())
    drawn = []
    with np.errstate(all="ignore"):
        for k in range(EXAMPLES):
            sample = case.entry.samples(Draw(seed + k, case.dtype.numpy))[case.position]
            drawn.append(pytrees.flatten((sample.args, sample.kwargs)))
    leaves, structure = drawn[0]
    places = [i for i, a in enumerate(leaves) if isinstance(a, np.ndarray)]
    rows = [[d[0][i] for i in places] for d in drawn]
    for row in rows[1:]:
        for k, (a, b) in enumerate(zip(rows[0], row, strict=True)):
            if a.shape != b.shape or a.dtype != b.dtype:
                row[k] = a  # the draw decides about shapes too

    def f(*xs: Any) -> list[Any]:
        full = list(leaves)
        for i, x in zip(places, xs, strict=True):
            full[i] = x
        args, kwargs = pytrees.unflatten(structure, full)
        return arrays_of(case.entry.function(*args, **kwargs))

    return rows, f


def given(case: Case) -> tuple[list[list[Any]], Callable[..., list[Any]]]:
    if not accepts(case.entry, case.dtype):
        pytest.skip("the record does not accept this dtype")
    rows, f = variants(case)
    if not rows[0]:
        pytest.skip("no array in this sample")
    try:
        traced(f, tensors(rows[0]))
    except (pb.DTypeError, pb.TraceError):
        pytest.skip("the operation needs the values of its operands")
    return [tensors(row) for row in rows], f


def traced(f: Callable[..., list[Any]], arrays: list[Any]) -> Graph:
    return trace(f)(*arrays)


def stacked(rows: list[list[Any]], chosen: set[int]) -> list[Any]:
    """The operands, with those that are chosen as examples along the first axis."""
    columns = list(zip(*rows, strict=True))
    return [pb.stack(list(c)) if k in chosen else c[0] for k, c in enumerate(columns)]


def mixed(rows: list[list[Any]], chosen: set[int], k: int) -> list[Any]:
    """The operands of one example."""
    return [rows[k][i] if i in chosen else rows[0][i] for i in range(len(rows[0]))]


def choices(count: int) -> list[set[int]]:
    """Each operand by itself, and all of them."""
    single = [{k} for k in range(count)]
    return single if count == 1 else [*single, set(range(count))]


def bits(x: Any) -> bytes:
    array = np.array(x.detach().numpy())
    if array.dtype.kind not in "biu":
        array[array != array] = np.nan  # every NaN is as good as another
    return array.tobytes()


@pytest.mark.parametrize("case", cases(FLOATS[:2] + COMPLEX[:1]), ids=str)
def test_vmap_gives_the_bits_of_a_loop(case: Case):
    rows, f = given(case)
    for chosen in choices(len(rows[0])):
        axes = tuple(0 if k in chosen else None for k in range(len(rows[0])))
        found = pb.vmap(f, in_axes=axes)(*stacked(rows, chosen))
        for k in range(EXAMPLES):
            for out, alone in zip(found, f(*mixed(rows, chosen, k)), strict=True):
                assert (out[k].shape, out[k].dtype) == (alone.shape, alone.dtype)
                assert bits(out[k]) == bits(alone), f"operands {chosen}, example {k}"


# -- derivatives -----------------------------------------------------------------------------------


def floating(case: Case) -> tuple[list[list[Any]], Callable[..., Any]]:
    """The floating operands of several draws, and a real function of them."""
    rows, f = given(case)
    if case.sample.order == 0:
        pytest.skip("not differentiable here")
    places = [k for k, x in enumerate(rows[0]) if x.dtype.is_inexact]
    fixed = rows[0]

    def of_floats(*xs: Any) -> list[Any]:
        full = list(fixed)
        for k, x in zip(places, xs, strict=True):
            full[k] = x
        outputs = determined(case.entry, pb, f(*full))
        return [o for o in outputs if o.dtype.is_inexact]

    moving = [[row[k] for k in places] for row in rows]
    outs = of_floats(*moving[0]) if places else []
    if not outs:
        pytest.skip("nothing to differentiate in this sample")
    ws = weights(outs, 7)

    def phi(*xs: Any) -> Any:
        total = pb.zeros((), dtype=pb.float64)
        for w, out in zip(ws, of_floats(*xs), strict=True):
            product = (w * out + w * out * out * 0.25).sum()
            total = total + (pb.real(product) if product.dtype.is_complex else product)
        return total

    return moving, phi


def every(count: int) -> tuple[int, ...]:
    return tuple(range(count))


def close_to(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        scale = max(float(np.max(np.abs(b.numpy()), initial=0.0, where=~np.isnan(b.numpy()))), 1.0)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-10 * scale)


@pytest.mark.parametrize(
    "case", cases((pb.float64, pb.complex128), derivative=True, compiled=True), ids=str
)
def test_vmap_of_grad_and_grad_of_vmap_are_the_gradients_of_a_loop(case: Case):
    rows, phi = floating(case)
    count = len(rows[0])
    gradient = pb.grad(phi, every(count))
    for chosen in choices(count):
        axes = tuple(0 if k in chosen else None for k in every(count))
        batch = stacked(rows, chosen)
        alone = [gradient(*mixed(rows, chosen, k)) for k in range(EXAMPLES)]
        expected = [pb.stack(list(column)) for column in zip(*alone, strict=True)]
        close_to(pb.vmap(gradient, in_axes=axes)(*batch), expected)
        total = pb.grad(lambda *xs, a=axes: pb.vmap(phi, in_axes=a)(*xs).sum(), every(count))
        summed = [e if k in chosen else e.sum(axis=0) for k, e in enumerate(expected)]
        close_to(total(*batch), summed)
        along = pb.jvp(pb.vmap(phi, in_axes=axes), batch, batch)[1]
        pairs = [mixed(rows, chosen, k) for k in range(EXAMPLES)]
        close_to([along], [pb.stack([pb.jvp(phi, p, p)[1] for p in pairs])])


@pytest.mark.parametrize("case", cases((pb.float64,), derivative=True, compiled=True), ids=str)
def test_second_derivatives_through_vmap_are_those_of_a_loop(case: Case):
    rows, phi = floating(case)
    if case.sample.order < 2:
        pytest.skip("not differentiable twice here")
    count = len(rows[0])

    def slope(*xs: Any) -> Any:
        found = pb.grad(phi, every(count))(*xs)
        return sum((g * g.detach()).sum() for g in found)

    batch = stacked(rows, set(every(count)))
    second = pb.grad(slope, every(count))
    alone = [second(*rows[k]) for k in range(EXAMPLES)]
    expected = [pb.stack(list(column)) for column in zip(*alone, strict=True)]
    close_to(pb.vmap(second)(*batch), expected)
    close_to(pb.grad(lambda *xs: pb.vmap(slope)(*xs).sum(), every(count))(*batch), expected)


def first_of_each() -> list[Case]:
    found = cases((pb.float64,), derivative=True, compiled=True)
    return found if FULL else [c for c in found if c.position == 0]


@pytest.mark.parametrize("case", first_of_each(), ids=str)
def test_compiled_maps_and_their_gradients_are_those_of_a_loop(case: Case):
    rows, phi = floating(case)
    count = len(rows[0])
    batch = stacked(rows, set(every(count)))
    both = pb.value_and_grad(phi, every(count))
    found = pb.jit(pb.vmap(both))(*batch)
    alone = [both(*row) for row in rows]
    close_to([found[0]], [pb.stack([value for value, _ in alone])])
    close_to(found[1], [pb.stack(list(c)) for c in zip(*[g for _, g in alone], strict=True)])
