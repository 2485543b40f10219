"""Values and derivatives where a sample of the generated tests can't look: kinks, ends, zeros."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import pullback as pb


@pytest.mark.parametrize("ord", [-inf, -2.5, -1, 0, 0.1, 0.5, 1, 1.5, 2, 3, 4.5, inf])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_gradient_of_a_norm_at_zeros_is_zero(ord, dtype):
    f = lambda v: pb.linalg.vector_norm(v, ord=ord)  # noqa: E731
    zeros = pb.zeros(3, dtype=dtype)
    assert f(zeros).item() == 0.0
    mixed = pb.tensor([0.0, 3.0, 4.0], dtype=dtype)
    for wrap in (lambda g: g, pb.jit):
        assert wrap(pb.grad(f))(zeros).tolist() == [0.0, 0.0, 0.0]
        found = wrap(pb.grad(f))(mixed)
        assert found[0].item() == 0.0
        assert pb.all(pb.isfinite(found)).item()
    if ord not in (-inf, 0, inf):
        expected = np.sum(np.array([3.0, 4.0]) ** ord) ** (1 / ord) if ord > 0 else 0.0
        np.testing.assert_allclose(f(mixed).item(), expected, rtol=1e-14)


def test_a_norm_of_negative_order_without_finite_elements():
    assert pb.linalg.vector_norm(pb.tensor([inf, inf]), ord=-1).item() == inf
    assert np.isnan(pb.linalg.vector_norm(pb.tensor([0.0, np.nan]), ord=-1).item())


def test_cosine_similarity_repeats_before_it_measures():
    one, three = pb.tensor([[2.0]]), pb.tensor([[5.0, 5.0, 5.0]])
    assert pb.nn.cosine_similarity(one, three).item() == pytest.approx(1.0, rel=1e-6)
    assert pb.nn.cosine_similarity(three, one).item() == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("q", "value", "slope"), [(0.0, 1, 3), (0.25, 1.75, 3), (0.5, 3.5, 9), (1.0, 9, 12)]
)
def test_a_quantile_is_differentiated_by_its_fraction(q, value, slope, compiled):
    x = pb.tensor([9.0, 1.0, 5.0, 2.0], dtype="float64")
    both = pb.value_and_grad(lambda q: pb.quantile(x, q))
    found = (pb.jit(both) if compiled else both)(pb.tensor(q, dtype="float64"))
    assert [a.item() for a in found] == [value, slope]


def test_fractions_of_a_quantile():
    ends = pb.tensor([-inf, 1.0, inf])
    fractions = pb.tensor([0.0, 0.5, 1.0])
    assert pb.quantile(ends, fractions).tolist() == [-inf, 1.0, inf]
    assert pb.quantile(pb.tensor([3.0]), fractions).tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(pb.ShapeError, match=r"between 0 and 1, got 1\.5"):
        pb.quantile(ends, pb.tensor([0.5, 1.5]))
    t = pb.tensor(0.5, requires_grad=True)
    pb.sum(pb.quantile(pb.tensor([0.0, 4.0]), [0.25, t])).backward()
    assert t.grad.item() == 4.0


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "uint64", "bool"])
@pytest.mark.parametrize(
    "shape,axis", [((5,), 0), ((40,), 0), ((3000,), 0), ((4, 1500), 1), ((70, 30), 0)], ids=str
)
def test_first_positions_of_extremes(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    """Also where nothing is ahead of what a search begins with."""
    drawn = np.random.default_rng(0)
    ends = [-np.inf, np.inf] if "float" in dtype else [0, 1]
    if "int" in dtype:
        ends = [np.iinfo(dtype).min, np.iinfo(dtype).max]
    for x in (
        *(np.full(shape, end, dtype) for end in ends),
        drawn.integers(0, 3, shape).astype(dtype),
        np.where(drawn.random(shape) < 0.1, ends[0], ends[1]).astype(dtype),
    ):
        for name in ("argmax", "argmin"):
            found = np.asarray(getattr(pb, name)(pb.tensor(x), axis=axis))
            assert np.array_equal(found, getattr(np, name)(x, axis=axis))


def test_check_grad_takes_nan_where_a_function_leaves_it_out():
    x = pb.tensor([1.0, pb.nan, 2.0], dtype="float64")
    for f in (pb.nansum, pb.nanmax, lambda x: pb.where(pb.isnan(x), 0.0, x)):
        assert pb.check_grad(f, x).passed  # the second derivative is 0, of NaN too


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("n", [4, 65, 100])
def test_ldl_of_matrices_of_low_rank(n, dtype):
    half = np.ones((n, 1)) if n != 100 else np.arange(3 * n).reshape(n, 3) % 5 - 1.0
    singular = (half @ half.T).astype(dtype)
    both = np.stack([singular, singular + np.eye(n, dtype=dtype)])
    lower, middle, _ = (x.numpy() for x in pb.linalg.ldl(pb.tensor(both)))
    rebuilt = lower @ middle @ np.swapaxes(lower.conj(), -1, -2)
    np.testing.assert_allclose(rebuilt, both, atol=1e-3 if dtype == "float32" else 1e-11)
