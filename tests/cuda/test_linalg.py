"""Linear algebra on the emulated GPU: real factorisations have the bits of the CPU, all else is
right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cuda_fake
import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER
from cuda_registry import same_bits
from generated.matrix import FULL
from pullback.core import pytrees
from pullback.runtime.cuda import nvrtc

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

DTYPES = ("float32", "float64", "complex64", "complex128") if FULL else ("float32", "complex128")
REAL = ("float32", "float64") if FULL else ("float32",)


@pytest.fixture(scope="module")
def cuda() -> Iterator[Any]:
    with emulated() as device:
        yield device


def draw(*shape: int, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("c") else x).astype(dtype)


def positive(x: np.ndarray) -> np.ndarray:
    n = x.shape[-1]
    return (x @ np.swapaxes(x.conj(), -1, -2) + n * np.eye(n)).astype(x.dtype)


def results(f: Callable[..., Any], *arrays: np.ndarray, device: Any) -> list[np.ndarray]:
    made = f(*(pb.tensor(a, device=device) for a in arrays))
    return [leaf.numpy() for leaf in pytrees.leaves(made)]


def assert_equal(f: Callable[..., Any], *arrays: np.ndarray, cuda: Any) -> None:
    expected, found = (results(f, *arrays, device=d) for d in ("cpu", cuda))
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert same_bits(x, y)


def assert_near(x: Any, y: Any, dtype: str) -> None:
    bound = 2000 * np.finfo(dtype).eps * max(1.0, float(np.abs(y).max()))
    assert np.abs(np.asarray(x) - y).max() <= bound


FACTORED: dict[str, Callable[..., Any]] = {
    "cholesky": lambda a, x, b: pb.linalg.cholesky(a.mT),
    "lu": lambda a, x, b: pb.linalg.lu(x),
    "tall": lambda a, x, b: pb.linalg.lu(x[..., : x.shape[-1] // 2 + 1]),
    "wide": lambda a, x, b: pb.linalg.lu(x[..., : x.shape[-1] // 2 + 1, :]),
    "qr": lambda a, x, b: pb.linalg.qr(x),
    "complete": lambda a, x, b: pb.linalg.qr(x[..., : x.shape[-1] // 2 + 1], mode="complete"),
    "solve": lambda a, x, b: pb.linalg.solve(x, b),
    "adjoint": pb.grad(lambda a, x, b: pb.sum(pb.linalg.solve(x, b) ** 2), argnums=(1, 2)),
    "det": lambda a, x, b: pb.linalg.det(x),
    "triangular": lambda a, x, b: pb.linalg.solve_triangular(a, b),
    "unit": lambda a, x, b: pb.linalg.solve_triangular(
        a.mT / 100, b, lower=True, unit_diagonal=True
    ),
}


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("n", [1, 3, 16, 17, 40, *([150, 300] if FULL else [])])
@pytest.mark.parametrize("name", FACTORED)
def test_real_factorisations_have_the_bits_of_the_cpu(name: str, n: int, dtype: str, cuda: Any):
    x = draw(2 if n < 100 else 1, n, n, dtype=dtype)
    b = draw(x.shape[0], n, 5, dtype=dtype)
    assert_equal(FACTORED[name], positive(x), x, b, cuda=cuda)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16])
def test_cofactors_have_the_bits_of_the_cpu(n: int, cuda: Any):
    x = draw(4, n, n)
    x[1, 0, 0], x[2], x[3, 1] = np.nan, 0, x[3, 0]
    assert_equal(pb.primitive.cofactors, x, cuda=cuda)


def test_products_of_several_chunks_are_taken_one_by_one(cuda: Any):
    """Of 600 rows the second half loses a product of 320 columns, more than a chunk of 256."""
    assert_equal(pb.linalg.cholesky, positive(draw(600, 600)), cuda=cuda)


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("name", ["eigh", "eigvalsh", "svd", "svdvals"])
def test_small_spectra_have_the_bits_of_the_cpu(name: str, n: int, cuda: Any):
    x = draw(7, n, n)
    x[1, 0, 0], x[2], x[3, 0] = np.nan, 0, 0
    x[5] *= np.finfo(x.dtype).max / 4
    x[6] *= np.finfo(x.dtype).tiny / 64
    assert_equal(getattr(pb.linalg, name), x, cuda=cuda)


def test_what_is_no_number_becomes_nan(cuda: Any):
    for n in (3, 20):
        x = positive(draw(3, n, n))
        x[1, 0, 1] = x[1, 1, 0] = np.inf
        for f in (pb.linalg.cholesky, pb.linalg.lu, pb.linalg.qr):
            assert_equal(f, x, cuda=cuda)
        for f in (pb.linalg.svdvals, pb.linalg.eigvals, pb.linalg.expm, pb.linalg.schur):
            odd = results(f, x, device=cuda)[0]
            assert np.isnan(odd[1]).all() and np.isfinite(odd[[0, 2]]).all()


@pytest.mark.parametrize("n", [2, 40])
def test_errors_name_the_position_in_the_batch(n: int, cuda: Any):
    x = np.stack([np.eye(n)] * 6, dtype=np.float64).reshape(2, 3, n, n)
    x[1, 2, 1, 1] = 0
    for f, a in (
        (pb.linalg.cholesky, -x[1:]), (lambda a: pb.linalg.solve(a, a), x),
        (lambda a: pb.linalg.solve_triangular(a, a), x),
    ):  # fmt: skip
        said = []
        for device in ("cpu", cuda):
            with pytest.raises(pb.LinAlgError) as caught:
                results(f, a, device=device)
            said.append(str(caught.value))
        assert said[0] == said[1]
        assert "of the batch" in said[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_reflections_of_dependent_columns(dtype: str, cuda: Any):
    """What rounding leaves of such columns gets smaller from one to the next, down to nothing."""
    n = 40
    x = np.outer(np.arange(n) % 3 + 1, np.arange(n) % 5 + 1.5).astype(dtype)
    if not dtype.startswith("c"):
        assert_equal(pb.linalg.qr, x, cuda=cuda)
    q, r = results(pb.linalg.qr, x, device=cuda)
    assert_near(q @ r, x, dtype)
    assert_near(np.swapaxes(q.conj(), -1, -2) @ q, np.eye(n), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 5, 36])
def test_complex_factorisations(n: int, dtype: str, cuda: Any):
    x = draw(2, n, n, dtype=dtype)
    a, b = positive(x), draw(2, n, 3, dtype=dtype)
    (lower,) = results(pb.linalg.cholesky, a, device=cuda)
    assert_near(lower @ np.swapaxes(lower.conj(), -1, -2), a, dtype)
    assert not np.triu(lower, 1).any()
    q, r = results(pb.linalg.qr, x, device=cuda)
    assert_near(q @ r, x, dtype)
    assert_near(np.swapaxes(q.conj(), -1, -2) @ q, np.eye(n), dtype)
    assert_near(a @ results(pb.linalg.solve, a, b, device=cuda)[0], b, dtype)
    at = pb.tensor(x, device=cuda), pb.tensor(b, device=cuda)
    (g,) = pb.vjp(lambda b: pb.linalg.solve(at[0], b), at[1])[1](at[1])  # X^-H b
    assert_near(np.swapaxes(x.conj(), -1, -2) @ g.numpy(), b, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 6, 9])
def test_spectra(n: int, dtype: str, cuda: Any):
    x = draw(2, n, n, dtype=dtype)
    h = (x + np.swapaxes(x.conj(), -1, -2)) / 2
    values, vectors = results(pb.linalg.eigh, h, device=cuda)
    assert_near(h @ vectors, vectors * values[:, None], dtype)
    assert_near(np.swapaxes(vectors.conj(), -1, -2) @ vectors, np.eye(n), dtype)
    assert_near(values, np.linalg.eigvalsh(h), dtype)
    values, vectors = results(pb.linalg.eig, x, device=cuda)
    assert_near(x @ vectors, vectors * values[:, None], dtype)
    t, z = results(pb.linalg.schur, x, device=cuda)
    assert_near(z @ t @ np.swapaxes(z.conj(), -1, -2), x, dtype)
    assert not np.tril(t, -1 if dtype.startswith("c") else -2).any()


def test_eigenvalues_of_real_matrices_are_pairs_to_the_bit(cuda: Any):
    values: Any
    (values,) = results(pb.linalg.eigvals, draw(9, 9), device=cuda)
    upper, lower = values[values.imag > 0], values[values.imag < 0]
    assert np.array_equal(upper, lower.conj()) and 0 < len(upper) < 5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 5), (5, 8), (8, 5)])
@pytest.mark.parametrize("full", [True, False])
def test_singular_vectors_are_a_basis_for_any_rank(
    shape: tuple[int, int], full: bool, dtype: str, cuda: Any
):
    x = draw(2, *shape, dtype=dtype)
    x[1, :, 0], x[1, :, 1] = x[1, :, -1], 0
    f = lambda a: pb.linalg.svd(a, full_matrices=full)  # noqa: E731
    u, s, vh = results(f, x, device=cuda)
    k = min(shape)
    assert_near((u[..., :k] * s[:, None]) @ vh[..., :k, :], x, dtype)
    assert_near(s, np.linalg.svd(x, compute_uv=False), dtype)
    for basis in (u, np.swapaxes(vh.conj(), -1, -2)):
        gram = np.swapaxes(basis.conj(), -1, -2) @ basis
        assert_near(gram, np.eye(gram.shape[-1]), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_matrices(dtype: str, cuda: Any):
    x = draw(5, 5, dtype=dtype)
    a, b, q = positive(x), draw(3, 3, dtype=dtype), draw(5, 3, dtype=dtype)
    (root,) = results(pb.linalg.sqrtm, a, device=cuda)
    assert_near(root @ root, a, dtype)
    (power,) = results(lambda m: pb.linalg.expm(pb.linalg.logm(m)), a, device=cuda)
    assert_near(power / 10, a / 10, dtype)
    (solution,) = results(pb.linalg.solve_sylvester, a, b, q, device=cuda)
    assert_near(a @ solution + solution @ b, q, dtype)
    for h in ((x + np.swapaxes(x.conj(), -1, -2)) / 2, np.ones((5, 5), dtype)):
        lower, middle, order = results(pb.linalg.ldl, h, device=cuda)
        assert_near(lower @ middle @ np.swapaxes(lower.conj(), -1, -2), h, dtype)
        assert not np.triu(lower[order], 1).any()
    with pytest.raises(pb.LinAlgError, match="no solution"):
        results(pb.linalg.solve_sylvester, np.eye(2), -np.eye(2), np.eye(2), device=cuda)


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_nvrtc_compiles_the_kernels(target: str, cuda: Any):
    x = draw(6, 6)
    for f in (pb.linalg.svd, pb.linalg.eig, pb.linalg.qr, pb.linalg.expm):
        results(f, x, device=cuda)
    printed = sorted(s for s in cuda_fake.printed if "matrix_float32" in s)
    for source in printed if FULL else printed[::6]:
        assert nvrtc.compile_source(source, target, nvrtc.QUICK)
