"""Passes on views, on products, and on sums of parts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import pullback as pb
from jit.pass_checks import names, optimised, random, special
from pullback.ir.graph import Graph

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
    "permute of another permute": (
        lambda x: pb.permute_dims(pb.permute_dims(x, (1, 2, 0)), (1, 0, 2)), B, ["permute_dims"],
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
    "slice across parts of concat": (
        lambda x: pb.concat([pb.exp(x), x])[2:5], A, ["exp", "concat", "slice"],
    ),
    "slice across embed": (
        lambda x: pb.primitive.embed(pb.tensor(0.0), x, (6, 8), (1, 1))[:3], A, ["embed", "slice"],
    ),
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


PRODUCTS = {
    "sum of broadcast": (
        lambda x: pb.broadcast_to(x, (50, 4, 6)).sum(axis=0), [random(4, 6)],
        ["multiply", "add"],
    ),
    "sum of partly broadcast": (
        lambda x: pb.broadcast_to(x, (50, 4, 6)).sum(axis=(0, 1)), [random(4, 6)],
        ["sum", "multiply", "reshape"],
    ),
    "sum of broadcast with a new axis of size 1": (
        lambda x: pb.broadcast_to(x, (1, 50, 4, 6)).sum(axis=(0, 1)), [random(4, 6)],
        ["multiply", "add"],
    ),
    "sum of one broadcast number": (
        lambda x: pb.broadcast_to(x, (1, 50)).sum(), [random()], ["multiply", "add"],
    ),
    "outer product": (lambda x, y: x @ y, [random(5, 1), random(1, 3)], ["multiply", "add"]),
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
        ["sum", "multiply", "add"],
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


ZEROS = np.array([[-0.0], [0.0], [-1.0], [2.0]], np.float32)
SUMS = {
    "sum over size 1": (lambda x: x.sum(axis=1), [ZEROS]),
    "mean over size 1": (lambda x: x.mean(axis=1, keepdims=True), [ZEROS]),
    "product over size 1": (lambda x: x.prod(axis=1), [ZEROS]),
    "sum of narrow numbers": (lambda x: x.sum(axis=1), [ZEROS.astype(np.float16)]),
    "sum of complex numbers": (lambda x: x.sum(axis=1), [ZEROS * np.complex64(-1j)]),
    "sum of broadcast": (lambda x: pb.broadcast_to(x, (4, 50)).sum(axis=1), [ZEROS]),
    "sum of sums": (lambda x: x.sum(axis=1).reshape(4, 1).sum(axis=1), [ZEROS]),
    "sum of squares": (lambda x: (x * x).sum(axis=1), [ZEROS]),
    "outer product": (lambda x, y: x @ y, [ZEROS, ZEROS.T]),
    "batches of outer products": (lambda x, y: x @ y, [np.stack([ZEROS] * 2), ZEROS.T]),
    "equal inner rows": (lambda x, y: x @ pb.broadcast_to(y, (4, 4)), [ZEROS.T, ZEROS.T]),
    "equal inner columns": (lambda x, y: pb.broadcast_to(x, (4, 4)) @ y, [ZEROS, ZEROS]),
    "gradient of a broadcast": (
        pb.grad(lambda x: (pb.broadcast_to(x, (4, 8)) * -0.0).sum()), [ZEROS],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_sums_and_their_like_have_no_negative_zero(name):
    f, args = SUMS[name]
    optimised(f, *args, exact=True)


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
