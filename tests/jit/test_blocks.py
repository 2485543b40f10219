"""Compiled functions of many blocks of a few elements, and of short rows: written out or not, they
give what single operations give.
"""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.compile.kernel.forms import Map
from pullback.compile.program.nest import coalesce
from pullback.core import dtypes as dt
from pullback.ir.scalar import load
from pullback.runtime.cpu.loops import block_code, row_code

RNG = np.random.default_rng(21)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int64", "bool", "complex64")


def draw(*shape, dtype="float32"):
    return pb.astype(pb.tensor(RNG.integers(-50, 50, size=shape)), dtype)


def same(x, y):
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    assert x.numpy().tobytes() == y.numpy().tobytes()


def turned(x):
    return pb.where(x == x.mT, x, x.mT)


# On both sides of vectors, of four of them, and of the largest block.
SHAPES = ((2, 2), (3, 3), (4, 4), (3, 5), (5, 3), (1, 7), (5, 5), (17, 3), (8, 8), (9, 8), (15, 16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_transposed_matrices(dtype):
    for rows, columns in SHAPES:
        x = draw(2, 401, rows, columns, dtype=dtype)
        same(pb.jit(lambda x: pb.where(x.mT != 0, x.mT, x.mT))(x), x.mT.copy())
        if rows == columns:
            same(pb.jit(turned)(x), turned(x))
        apart = x[:, ::2]  # matrices that do not lie side by side
        same(pb.jit(lambda x: x.mT == x.mT[..., ::-1])(apart), apart.mT == apart.mT[..., ::-1])


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_of_three_axes_and_repeated_ones(threads):
    before = pb.get_num_threads()
    x, row, number = draw(9000, 2, 3, 2), draw(3, 2), draw(9000, 1, 1, 1)

    def f(x, row, number):
        return pb.permute_dims(x, (0, 3, 1, 2)) * number + pb.permute_dims(x * row, (0, 3, 1, 2))

    expected = f(x, row, number)
    pb.set_num_threads(threads)
    try:
        same(pb.jit(f)(x, row, number), expected)
    finally:
        pb.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "complex64"])
def test_sums_over_small_transposed_matrices(dtype):
    """The tree is that of single operations, whose blocks of 1024 elements cut matrices apart."""

    def total(x):
        return pb.sum(x.mT * x.mT), pb.sum(x.mT, axis=(0, 2, 3))

    def beside(x):  # what is summed is a result too
        cube = x.mT * x.mT * x.mT
        return pb.sum(cube), cube

    for rows, columns in SHAPES:
        for matrices in (113, 999):
            x = draw(3, matrices, rows, columns, dtype=dtype)
            for f in (total, beside, lambda x: (pb.sum(x.mT, axis=(2, 3)), pb.max(abs(x.mT)))):
                for got, own in zip(pb.jit(f)(x), f(x), strict=True):
                    same(got, own)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_matrices_that_are_folded_and_used_a_few_at_a_time(dtype):
    """Maps and folds of one matrix after the other, as the checks of linear algebra are."""

    def f(x):
        size = pb.max(abs(x.mT), axis=(1, 2), keepdims=True)
        large = abs(x.mT - x[:, :1, :1]) > size * 0.5
        return pb.any(large, axis=(1, 2)), pb.where(large, x.mT / size, 0)

    for rows, columns in SHAPES:
        x = draw(5001, rows, columns, dtype=dtype) + 0.25
        for got, own in zip(pb.jit(f)(x), f(x), strict=True):
            same(got, own)


def test_what_is_a_block():
    kernel = Map((dt.float32,), dt.float32, (load(0, dt.float32),))

    def inner(*shape):
        turned = (*shape[:-2], shape[-1], shape[-2])
        strides = np.empty(turned).strides
        own = [s // 2 for s in strides]
        own[-1], own[-2] = own[-2], own[-1]
        nest = coalesce(shape, [[s // 2 for s in np.empty(shape).strides], own])
        assert block_code.short_axes(nest, 0) == 0
        return block_code.inner_axes(kernel, nest)

    assert inner(1000, 3, 3) == 2
    assert inner(1000, 8, 8) == 2
    assert inner(1000, 8, 9) == 0  # more elements than LARGEST
    assert inner(1000, 2, 16) == 0  # fills vectors by itself
    assert inner(100, 3, 3) == 0  # too little to do


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_short_rows(dtype):
    def f(x):
        h = x - pb.max(x, axis=1, keepdims=True)
        e = pb.exp(h / 50)
        return e / pb.sum(e, axis=1, keepdims=True), pb.sum(h, axis=1), pb.argmax(x, axis=1)

    for length in (31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 79):
        assert row_code.Lengths.of(length).rest == (length % 16 if length <= row_code.SHORT else 0)
        x = draw(50, length, dtype=dtype)
        for got, own in zip(pb.jit(f)(x), f(x), strict=True):
            same(got, own)
