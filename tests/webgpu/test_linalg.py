"""Linear algebra on webgpu: what has an order on the CPU has its bits, all else is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from cuda_registry import same_bits
from generated.matrix import FULL
from pullback.core import pytrees
from webgpu_device import needs_adapter

pytestmark = needs_adapter

DTYPES = ("float32", "complex64")
EPSILON = float(np.finfo(np.float32).eps)


def draw(*shape: int, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("c") else x).astype(dtype)


def adjoint(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x.conj(), -1, -2)


def positive(x: np.ndarray) -> np.ndarray:
    n = x.shape[-1]
    return (x @ adjoint(x) + n * np.eye(n)).astype(x.dtype)


def results(f: Callable[..., Any], *arrays: np.ndarray, device: str = "webgpu") -> list[np.ndarray]:
    made = f(*(pb.tensor(a, device=device) for a in arrays))
    return [leaf.numpy() for leaf in pytrees.leaves(made)]


def assert_equal(f: Callable[..., Any], *arrays: np.ndarray) -> None:
    expected, found = results(f, *arrays, device="cpu"), results(f, *arrays)
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert same_bits(x, y)


def assert_near(x: Any, y: Any, units: float = 200) -> None:
    bound = units * EPSILON * max(1.0, float(np.abs(y).max()))
    assert np.abs(np.asarray(x) - y).max() <= bound


# -- factorisations --------------------------------------------------------------------------------

FACTORED: dict[str, Callable[..., Any]] = {
    "qr": pb.linalg.qr,
    "complete": lambda x: pb.linalg.qr(x[..., : x.shape[-1] // 2 + 1], mode="complete"),
    "wide": lambda x: pb.linalg.qr(x[..., : x.shape[-1] // 2 + 1, :]),
    "turned": lambda x: pb.linalg.qr(x.mT),
    "first": pb.grad(lambda x: pb.sum(pb.linalg.qr(x).R ** 2 / 3 + pb.linalg.qr(x).Q)),
}


# A leaf, leaves, panels of columns.
@pytest.mark.parametrize("n", [1, 5, 70, *([150, 300] if FULL else [])])
@pytest.mark.parametrize("name", FACTORED)
def test_qr_has_the_bits_of_the_cpu(name: str, n: int):
    assert_equal(FACTORED[name], draw(2, n, n))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 16])
def test_cofactors_have_the_bits_of_the_cpu(n: int):
    x = draw(4, n, n)
    x[1, 0, 0], x[2], x[3, 1] = np.nan, 0, x[3, 0]
    assert_equal(pb.primitive.cofactors, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reflections_of_dependent_columns(dtype: str):
    """What rounding leaves of such columns gets smaller from one to the next, down to nothing."""
    n = 40
    x = np.outer(np.arange(n) % 3 + 1, np.arange(n) % 5 + 1.5).astype(dtype)
    q, r = results(pb.linalg.qr, x)
    assert_near(q @ r, x)
    assert_near(adjoint(q) @ q, np.eye(n))


@pytest.mark.parametrize("n", [1, 5, 36])
def test_complex_factorisations(n: int):
    x = draw(2, n, n, dtype="complex64")
    a, b = positive(x), draw(2, n, 3, dtype="complex64")
    (lower,) = results(pb.linalg.cholesky, a)
    assert_near(lower @ adjoint(lower), a)
    assert not np.triu(lower, 1).any()
    q, r = results(pb.linalg.qr, x)
    assert_near(q @ r, x)
    assert_near(adjoint(q) @ q, np.eye(n))
    assert_near(a @ results(pb.linalg.solve, a, b)[0], b)
    p, low, up = results(lambda m: tuple(pb.linalg.lu(m)), x)
    assert_near(p @ low @ up, x)
    assert_near(results(pb.linalg.det, x / n)[0], np.linalg.det(x / n))


def _size(x: Any) -> Any:
    return pb.sum(pb.abs(x) ** 2)


GRADIENTS: dict[str, Callable[..., Any]] = {
    "cholesky": lambda x, b: _size(pb.linalg.cholesky(x @ pb.conj(x.mT) + 9 * b @ pb.conj(b.mT))),
    "qr": lambda x, b: _size(pb.linalg.qr(x).Q @ b) + pb.abs(pb.linalg.qr(x).R[..., 0, 1]),
    "solve": lambda x, b: _size(pb.linalg.solve(x, b)),
    "triangle": lambda x, b: _size(pb.linalg.solve_triangular(x, b)),
    "log_det": lambda x, b: pb.linalg.slogdet(x)[1],
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_derivatives_of_complex_factorisations(name: str):
    """Which take adjoints: conjugated, and not only transposed."""
    x = draw(5, 5, dtype="complex64") + 4 * np.eye(5, dtype="complex64")
    derivative = pb.grad(lambda x, b: GRADIENTS[name](x, b).sum(), argnums=(0, 1))
    found, expected = (results(derivative, x, x[::-1] / 2, device=d) for d in ("webgpu", "cpu"))
    for one, two in zip(found, expected, strict=True):
        assert_near(one, two)


# -- spectra ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["eigh", "eigvalsh", "svd", "svdvals"])
def test_small_spectra_have_the_bits_of_the_cpu(name: str, n: int):
    x = draw(7, n, n)
    x[1, 0, 0], x[2], x[3, 0] = np.nan, 0, 0
    x[5] *= np.finfo(x.dtype).max / 4
    x[6] *= np.finfo(x.dtype).tiny / 64
    assert_equal(getattr(pb.linalg, name), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 6, 9, 40])
def test_spectra(n: int, dtype: str):
    x = draw(2, n, n, dtype=dtype)
    h = (x + adjoint(x)) / 2
    values, vectors = results(pb.linalg.eigh, h)
    assert_near(h @ vectors, vectors * values[:, None])
    assert_near(adjoint(vectors) @ vectors, np.eye(n))
    assert_near(values, np.linalg.eigvalsh(h))
    assert_near(results(pb.linalg.eigvalsh, h)[0], values)
    values, vectors = results(pb.linalg.eig, x)
    assert_near(x @ vectors, vectors * values[:, None])
    t, z = results(pb.linalg.schur, x)
    assert_near(z @ t @ adjoint(z), x)
    assert_near(adjoint(z) @ z, np.eye(n))
    assert not np.tril(t, -1 if dtype.startswith("c") else -2).any()
    alone: Any = results(pb.linalg.eigvals, x)[0]
    if dtype == "float32":  # conjugate pairs are pairs to the bit
        upper, lower = alone[np.imag(alone) > 0], alone[np.imag(alone) < 0]
        assert np.array_equal(upper, lower.conj())


def test_rounds_and_sweeps_may_be_cut_anywhere(monkeypatch: pytest.MonkeyPatch):
    """Into dispatches, as large matrices are: that changes no bit."""
    from pullback.runtime.webgpu import spectra

    functions = (pb.linalg.eigh, pb.linalg.svd, pb.linalg.schur, pb.linalg.eig)
    x = draw(11, 11)
    whole = [results(f, x) for f in functions]
    monkeypatch.setattr(spectra, "_ROUNDS", 100)
    cut = [results(lambda a, f=f: f(a[0]), x[None]) for f in functions]
    for one, two in zip(whole, cut, strict=True):
        assert all(same_bits(*pair) for pair in zip(one, two, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 5), (5, 8), (40, 25)])
@pytest.mark.parametrize("full", [True, False])
def test_singular_vectors_are_a_basis_for_any_rank(shape: tuple[int, int], full: bool, dtype: str):
    x = draw(2, *shape, dtype=dtype)
    x[1, :, 0], x[1, :, 1] = x[1, :, -1], 0
    u, s, vh = results(lambda a: pb.linalg.svd(a, full_matrices=full), x)
    k = min(shape)
    assert_near((u[..., :k] * s[:, None]) @ vh[..., :k, :], x)
    assert_near(s, np.linalg.svd(x, compute_uv=False))
    for basis in (u, adjoint(vh)):
        assert_near(adjoint(basis) @ basis, np.eye(basis.shape[-1]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 2), (3, 4), (6, 6), (7, 5)])
def test_columns_that_are_equal_end_as_nothing(shape: tuple[int, int], dtype: str):
    """What is left of them becomes subnormal, which adapters may flush to zero."""
    x = np.ones(shape, dtype)
    u, s, vh = results(lambda a: pb.linalg.svd(a, full_matrices=False), x)
    assert_near(s, np.linalg.svd(x, compute_uv=False))
    assert_near((u * s) @ vh, x)
    for basis in (u, adjoint(vh)):
        assert_near(adjoint(basis) @ basis, np.eye(basis.shape[-1]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_matrices(dtype: str):
    x = draw(5, 5, dtype=dtype)
    a, b, q = positive(x), draw(3, 3, dtype=dtype), draw(5, 3, dtype=dtype)
    (root,) = results(pb.linalg.sqrtm, a)
    assert_near(root @ root, a)
    (power,) = results(lambda m: pb.linalg.expm(pb.linalg.logm(m)), a)
    assert_near(power / 10, a / 10, 1000)
    (solution,) = results(pb.linalg.solve_sylvester, a, b, q)
    assert_near(a @ solution + solution @ b, q)
    h = (x + adjoint(x)) / 2
    lower, middle, order = results(pb.linalg.ldl, h)
    assert_near(lower @ middle @ adjoint(lower), h)
    assert not np.triu(lower[order], 1).any()


# -- what is wrong ---------------------------------------------------------------------------------


def test_what_is_no_number_becomes_nan():
    for n in (3, 20):
        x = positive(draw(3, n, n))
        x[1, 0, 1] = x[1, 1, 0] = np.inf
        assert_equal(pb.linalg.qr, x)
        functions = (pb.linalg.svdvals, pb.linalg.eigvalsh, pb.linalg.eigvals, pb.linalg.expm)
        for f in (*functions, pb.linalg.sqrtm, pb.linalg.schur):
            odd = results(f, x)[0]
            assert np.isnan(odd[1]).all() and np.isfinite(odd[[0, 2]]).all()


@pytest.mark.parametrize("n", [2, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_name_the_position_in_the_batch(n: int, dtype: str):
    x = np.stack([np.eye(n)] * 6).astype(dtype).reshape(2, 3, n, n)
    x[1, 2, 1, 1] = 0
    for f, a in (
        (pb.linalg.cholesky, -x[1:]), (lambda a: pb.linalg.solve(a, a), x),
        (lambda a: pb.linalg.solve_triangular(a, a), x),
        (lambda a: pb.linalg.solve_sylvester(a, -a, a), x),
    ):  # fmt: skip
        said = []
        for device in ("cpu", "webgpu"):
            with pytest.raises(pb.LinAlgError) as caught:
                results(f, a, device=device)
            said.append(str(caught.value))
        assert said[0] == said[1]
        assert "of the batch" in said[0]
