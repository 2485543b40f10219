"""Attention in many tiles: values, derivatives, memory, and what a row that sees nothing gives."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.nn.attention import blockwise
from pullback.nn.attention.scaled import _attention
from pullback.nn.fused import fused
from pullback.runtime.cpu import native


def drawn(*shape: int, seed: int = 0, dtype: str = "float64") -> pb.Tensor:
    return pb.tensor(np.random.default_rng(seed).normal(size=shape).astype(dtype))


def attention(*arrays: Any, mask: Any = None, key: Any = None, p=0.0, causal=False, gqa=False):
    """A fresh compilation, with the tiles that are set now."""
    compiled = fused(_attention)

    def f(*xs: Any) -> Any:
        given = xs[3] if len(xs) > 3 else mask
        return compiled(*xs[:3], given, key, p, causal, None, gqa)

    return f


def plain(mask: Any = None, key: Any = None, p: float = 0.0, causal=False, gqa=False) -> Callable:
    """The same with the whole matrix of scores."""

    def f(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        if gqa:
            k, v = (pb.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
        s = q @ pb.matrix_transpose(k) * q.shape[-1] ** -0.5
        s = s if bias is None else s + bias
        s = s if mask is None else pb.where(mask, s, -np.inf)
        if causal:
            s = pb.where(pb.tensor(np.tri(*s.shape[-2:], dtype=bool)), s, -np.inf)
        e = pb.exp(s - s.detach().max(axis=-1, keepdims=True))
        w = e / e.sum(axis=-1, keepdims=True)
        if p:
            w = w * pb.tensor(kept(key, s.shape, p))
        return w @ v

    return f


def kept(key: Any, shape: tuple[int, ...], p: float) -> np.ndarray:
    """The factors of dropout, from the result on values that show each probability."""
    lead, columns = shape[:-1], shape[-1]
    zeros, ones = np.zeros((*lead, 1)), np.eye(columns)
    k = np.zeros((*lead[:-1], columns, 1))
    v = np.broadcast_to(ones, (*lead[:-1], columns, columns)).copy()
    q, k, v = (pb.tensor(x) for x in (zeros, k, v))
    return columns * pb.nn.scaled_dot_product_attention(q, k, v, None, p, dropout_key=key).numpy()


KEY = pb.random.key(7)
CASES = {
    "plain": ((2, 3, 10, 2), (2, 3, 12, 2), {}),
    "a rest in rows and columns": ((2, 3, 11, 2), (2, 3, 13, 2), {}),
    "no leading axes": ((11, 2), (13, 2), {}),
    "many heads": ((30, 5, 2), (30, 6, 2), {}),
    "causal": ((2, 11, 2), (2, 13, 2), {"causal": True}),
    "grouped heads": ((2, 4, 10, 2), (2, 2, 9, 2), {"gqa": True}),
    "dropout": ((2, 3, 11, 2), (2, 3, 13, 2), {"p": 0.3, "key": KEY}),
    "a mask": (
        (2, 3, 10, 2),
        (2, 3, 9, 2),
        {"mask": np.random.default_rng(1).random((10, 9)) < 0.7},
    ),
}
BIASES = [(13,), (11, 13), (11, 1), (3, 1, 13), (2, 1, 11, 13), (2, 3, 1, 1)]


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "TILE", 40)
    monkeypatch.setattr(blockwise, "SIDE", 4)


def compare(f: Callable, g: Callable, xs: list[Any], orders: int = 2) -> None:
    """Values and derivatives of two functions along a line, and their gradients."""
    vs = [drawn(*x.shape, seed=50 + i) for i, x in enumerate(xs)]
    w = drawn(*g(*xs).shape, seed=60)

    def along(h: Callable) -> Callable:
        def phi(t: Any) -> Any:
            y = h(*[x + t * v for x, v in zip(xs, vs, strict=True)])
            return (w * (y + y * y)).sum()

        return phi

    np.testing.assert_allclose(f(*xs).numpy(), g(*xs).numpy(), rtol=1e-12, atol=1e-13)
    places = tuple(range(len(xs)))
    ours = pb.grad(lambda *a: (f(*a) * w).sum(), places)(*xs)
    theirs = pb.grad(lambda *a: (g(*a) * w).sum(), places)(*xs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)
    one, other = along(f), along(g)
    zero = pb.tensor(0.0, dtype="float64")
    for _ in range(orders):
        one, other = pb.grad(one), pb.grad(other)
        np.testing.assert_allclose(one(zero).item(), other(zero).item(), rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_tiles_give_what_the_whole_matrix_gives(name: str, small_tiles: None):
    query, key, options = CASES[name]
    xs = [drawn(*query), drawn(*key, seed=1), drawn(*key[:-1], 3, seed=2)]
    compare(attention(**options), plain(**options), xs)


@pytest.mark.parametrize("shape", BIASES, ids=str)
def test_an_additive_mask_gets_its_gradient_from_all_tiles(shape: tuple, small_tiles: None):
    xs = [drawn(2, 3, 11, 2), drawn(2, 3, 13, 2, seed=1), drawn(2, 3, 13, 1, seed=2)]
    compare(attention(), plain(), [*xs, drawn(*shape, seed=3)])


def test_third_order_and_forward_mode_over_tiles(small_tiles: None):
    xs = [drawn(5, 2), drawn(9, 2, seed=1), drawn(9, 1, seed=2)]
    compare(attention(), plain(), xs, orders=3)
    f, g = attention(), plain()
    ours = pb.hvp(lambda *a: (f(*a) ** 2).sum(), xs, xs)
    theirs = pb.hvp(lambda *a: (g(*a) ** 2).sum(), xs, xs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10)


def test_dropout_omits_the_same_probabilities_whatever_the_tiles(monkeypatch: pytest.MonkeyPatch):
    xs = [drawn(2, 9, 2), drawn(2, 10, 2, seed=1), drawn(2, 10, 2, seed=2)]
    whole = attention(p=0.5, key=KEY)(*xs).numpy()
    monkeypatch.setattr(blockwise, "TILE", 12)
    monkeypatch.setattr(blockwise, "SIDE", 4)
    np.testing.assert_allclose(attention(p=0.5, key=KEY)(*xs).numpy(), whole, rtol=1e-12)
    other = attention(p=0.5, key=pb.random.key(8))(*xs).numpy()
    assert not np.allclose(other, whole)


def test_dropout_keeps_as_many_as_it_says_and_scales_them():
    factors = kept(KEY, (2, 100, 101), 0.3)
    np.testing.assert_allclose(np.unique(np.round(factors, 9)), [0.0, 1 / 0.7])
    assert abs((factors > 0).mean() - 0.7) < 0.01


@pytest.mark.parametrize("additive", [False, True])
def test_a_row_that_sees_nothing_gives_zero_and_finite_derivatives(
    additive: bool, small_tiles: None
):
    xs = [drawn(6, 2), drawn(9, 2, seed=1), drawn(9, 2, seed=2)]
    seen = np.ones((6, 9), bool)
    seen[2], seen[4, :5] = False, False
    mask = pb.tensor(np.where(seen, 0.0, -np.inf) if additive else seen)
    f = attention(mask=mask)
    assert (f(*xs).numpy()[2] == 0).all()

    def first(*a: Any) -> Any:
        return pb.grad(lambda *b: (f(*b) ** 2).sum(), (0, 1, 2))(*a)

    second = pb.grad(lambda *a: sum((g * g).sum() for g in first(*a)), (0, 1, 2))(*xs)
    assert all(np.isfinite(g.numpy()).all() for g in (*first(*xs), *second))
    assert (first(*xs)[0].numpy()[2] == 0).all()


def test_the_number_of_threads_does_not_matter(threads: Callable[[int], None]):
    xs = [drawn(4, 300, 16, seed=i, dtype="float32") for i in range(3)]
    gradient = pb.grad(lambda *a: (pb.nn.scaled_dot_product_attention(*a) ** 2).sum(), (0, 1, 2))
    seen = set()
    for n in (1, 2, 1):
        threads(n)
        seen.add(b"".join(g.numpy().tobytes() for g in gradient(*xs)))
    assert len(seen) == 1


# -- memory ----------------------------------------------------------------------------------------


def peak_bytes(f: Callable, *xs: Any) -> int:
    """Bytes that a call needs at most, beyond its arguments, once it is compiled."""
    f(*xs)
    gc.collect()
    native.release_cached()
    native.reset_peak()
    before = native.memory()["live"]
    f(*xs)
    return native.memory()["peak"] - before


@pytest.mark.parametrize("together", [1, 100, 1 << 20], ids=["one", "some", "all"])
@pytest.mark.parametrize("tile", [40, 16])
@pytest.mark.parametrize("bias", [(3, 4, 11, 13), (1, 4, 11, 1), (11, 13)], ids=str)
def test_heads_at_a_time_change_no_bit(
    bias: tuple[int, ...], tile: int, together: int, monkeypatch: pytest.MonkeyPatch
):
    """However many heads a device likes at a time, they have the rows of tiles without a wish."""
    monkeypatch.setattr(blockwise, "TILE", tile)
    monkeypatch.setattr(blockwise, "SIDE", 4)
    shapes = (3, 4, 11, 8), (3, 4, 13, 8), (3, 4, 13, 6), bias
    arrays = [drawn(*s, seed=i, dtype="float32") for i, s in enumerate(shapes)]

    def results() -> list[np.ndarray]:
        def loss(*given: Any) -> Any:
            return (pb.nn.scaled_dot_product_attention(*given) ** 2).sum()

        value, grads = pb.jit(pb.value_and_grad(loss, argnums=(0, 1, 2, 3)))(*arrays)
        return [value.numpy(), *(g.numpy() for g in grads)]

    runtime = type(arrays[0].device.runtime)
    monkeypatch.setattr(runtime, "tile_elements", 0)
    expected = results()
    monkeypatch.setattr(runtime, "tile_elements", together)
    for x, y in zip(results(), expected, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"p": 0.1, "key": KEY}], ids=str)
def test_memory_is_linear_in_the_length(options: dict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blockwise, "TILE", 1 << 10)
    monkeypatch.setattr(blockwise, "SIDE", 32)
    f = attention(**options)

    def first(*a: Any) -> Any:
        return pb.grad(lambda *b: (f(*b) ** 2).sum(), (0, 1, 2))(*a)

    def second(*a: Any) -> Any:
        return pb.grad(lambda *b: sum((g * g).sum() for g in first(*b)), (0, 1, 2))(*a)

    for g in (f, first, second):
        short, long = (
            peak_bytes(g, *[drawn(n, 8, seed=i, dtype="float32") for i in range(3)])
            for n in (512, 4096)  # between them some groups run side by side, and hold more at once
        )
        assert long < 8.4 * short  # the square of the length would be 64 times as much
        assert long < 4096 * 4096 * 4 / 16  # a small part of one matrix of scores


@pytest.mark.full
def test_a_sequence_of_32k_needs_less_than_a_gibibyte():
    xs = [drawn(1, 1, 32768, 64, seed=i, dtype="float32") for i in range(3)]
    value_and_grad = pb.value_and_grad(
        lambda *a: (pb.nn.scaled_dot_product_attention(*a) ** 2).sum(), (0, 1, 2)
    )
    native.release_cached()
    native.reset_peak()
    before = native.memory()["live"]
    _, gradients = value_and_grad(*xs)
    outputs = sum(g.nbytes for g in gradients)
    assert native.memory()["peak"] - before - outputs < 1 << 30


@pytest.mark.parametrize(("rows", "batch"), [(0, 2), (2, 0)])
@pytest.mark.parametrize("need_weights", [False, True])
def test_no_queries_or_an_empty_batch_give_an_empty_result(
    rows: int, batch: int, need_weights: bool
):
    x, y = pb.zeros((rows, batch, 4)), pb.ones((3, batch, 4))
    out, weights = pb.nn.multi_head_attention(
        x, y, y, 2, pb.ones((12, 4)), need_weights=need_weights
    )
    assert out.shape == (rows, batch, 4)
    assert not need_weights or weights.shape == (batch, rows, 3)


def test_several_heads_of_vectors_without_elements():
    x, w, b = pb.ones((3, 2, 0)), pb.ones((0, 0)), pb.ones(0)
    out, weights = pb.nn.multi_head_attention_forward(
        x, x, x, 0, 1, w, b, None, None, False, 0.0, w, b
    )
    assert out.shape == (3, 2, 0)
    assert weights.shape == (2, 3, 3)
