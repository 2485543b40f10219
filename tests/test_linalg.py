"""Linear algebra where others go wrong, its errors, and the same bits for batches and threads."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import pullback as pb
from pullback import linalg

RNG = np.random.default_rng(7)
# The standard's `linalg` extension, version 2025.12: parameters after the positional ones.
STANDARD = {
    "cholesky": (1, {"upper": False}),
    "cross": (2, {"axis": -1}),
    "det": (1, {}),
    "diagonal": (1, {"offset": 0}),
    "eig": (1, {}),
    "eigh": (1, {}),
    "eigvals": (1, {}),
    "eigvalsh": (1, {}),
    "inv": (1, {}),
    "matmul": (2, {}),
    "matrix_norm": (1, {"keepdims": False, "ord": "fro"}),
    "matrix_power": (2, {}),
    "matrix_rank": (1, {"rtol": None}),
    "matrix_transpose": (1, {}),
    "outer": (2, {}),
    "pinv": (1, {"rtol": None}),
    "qr": (1, {"mode": "reduced"}),
    "slogdet": (1, {}),
    "solve": (2, {}),
    "svd": (1, {"full_matrices": True}),
    "svdvals": (1, {}),
    "tensordot": (2, {"axes": 2}),
    "trace": (1, {"offset": 0, "dtype": None}),
    "vecdot": (2, {"axis": -1}),
    "vector_norm": (1, {"axis": None, "keepdims": False, "ord": 2}),
}


@pytest.mark.parametrize("name", sorted(STANDARD))
def test_signatures_are_those_of_the_standard(name):
    positional, keywords = STANDARD[name]
    parameters = inspect.signature(getattr(linalg, name)).parameters.values()
    leading = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    others = {p.name: p.default for p in parameters if p.kind is not p.POSITIONAL_ONLY}
    assert len(leading) == positional
    assert others == keywords


def matrices(*shape, dtype="float64"):
    x = RNG.normal(size=shape)
    if dtype.startswith("complex"):
        x = x + 1j * RNG.normal(size=shape)
    return x.astype(dtype)


def positive(*shape, dtype="float64"):
    x = matrices(*shape, dtype=dtype)
    made = x @ np.conj(np.swapaxes(x, -1, -2)) + shape[-1] * np.eye(shape[-1])
    return made.astype(dtype)


def differences(f, x, direction, h=1e-4):
    """The derivative of a scalar function along a direction, by central differences."""
    return (f(pb.tensor(x + h * direction)) - f(pb.tensor(x - h * direction))).item() / (2 * h)


def along(gradient, direction):
    return float(np.real(np.sum(np.conj(gradient.numpy()) * direction)))


def of_turned(values):
    """A symmetric matrix with these eigenvalues, and its eigenvectors."""
    q, _ = np.linalg.qr(matrices(len(values), len(values)))
    return q @ np.diag(values) @ q.T


# -- derivatives where others are wrong -----------------------------------------------------------


@pytest.mark.parametrize(
    "x", [np.diag([1.0, 2.0, 0.0]), [[1.0, 2.0], [2.0, 4.0]], np.zeros((2, 2)), np.zeros((1, 1))]
)
def test_gradient_of_det_at_singular_matrices(x):
    x = np.asarray(x)
    minors = np.array(
        [
            [
                (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(x, i, 0), j, 1))
                for j in range(len(x))
            ]
            for i in range(len(x))
        ]
    )
    got = pb.grad(linalg.det)(pb.tensor(x)).numpy()
    np.testing.assert_allclose(got, minors, atol=1e-14)


@pytest.mark.parametrize("rank", range(6))
def test_derivatives_of_det_of_any_rank(rank):
    """det is a polynomial: its derivatives along a line are those of the polynomial."""
    n = 5
    x, v = matrices(n, rank) @ matrices(rank, n), matrices(n, n)
    points = np.linspace(-1, 1, n + 1)
    exact = np.polynomial.Polynomial.fit(points, [np.linalg.det(x + t * v) for t in points], n)
    f = lambda t: linalg.det(pb.tensor(x) + t * pb.tensor(v))  # noqa: E731
    for order in range(1, 5):
        f = pb.grad(f)
        exact = exact.deriv()
        got = f(pb.tensor(0.0, dtype="float64")).item()
        assert abs(got - exact(0.0)) <= 1e-9 * max(1.0, np.abs(exact.convert().coef).max()), order


def test_functions_of_equal_eigenvalues():
    """Sums of eigenvalues have derivatives at equal ones, by eigvalsh and by eigh."""
    x = pb.tensor(of_turned([1.0, 1.0, 2.0]))
    for f in (lambda x: linalg.eigvalsh(x).sum(), lambda x: linalg.eigh(x).eigenvalues.sum()):
        np.testing.assert_allclose(pb.grad(f)(x).numpy(), np.eye(3), atol=1e-14)
    cubes = pb.grad(lambda x: (linalg.eigvalsh(x) ** 3).sum())(x).numpy()
    np.testing.assert_allclose(cubes, 3 * x.numpy() @ x.numpy(), atol=1e-13)
    nuclear = pb.grad(lambda x: linalg.svdvals(x).sum())(x).numpy()
    np.testing.assert_allclose(nuclear, np.eye(3), atol=1e-13)


def rebuilt(x):
    w, v = linalg.eigh(x)
    return (v * (w * w)) @ linalg.matrix_transpose(v)


def rebuilt_by_svd(x):
    u, s, vh = linalg.svd(x, full_matrices=False)
    return (u * s) @ vh


@pytest.mark.parametrize("f", [rebuilt, rebuilt_by_svd])
def test_what_equal_eigenvalues_leave_open_raises_in_both_modes(f):
    x = pb.tensor(of_turned([1.0, 1.0, 2.0]))
    w, t = pb.tensor(matrices(3, 3)), pb.tensor(matrices(3, 3))
    for run in (
        lambda x: pb.grad(lambda x: (f(x) * w).sum())(x),
        pb.jit(lambda x: pb.grad(lambda x: (f(x) * w).sum())(x)),
        lambda x: pb.jvp(f, (x,), (t,)),
    ):
        with pytest.raises(pb.LinAlgError, match="equal"):
            run(x)


@pytest.mark.parametrize("f", [rebuilt, rebuilt_by_svd])
def test_what_is_apart_has_its_derivative(f):
    x, v, w = of_turned([1.0, 3.0, 2.0]), matrices(3, 3), pb.tensor(matrices(3, 3))
    v = v + v.T
    g = lambda x: (f(x) * w).sum()  # noqa: E731
    np.testing.assert_allclose(along(pb.grad(g)(pb.tensor(x)), v), differences(g, x, v), rtol=1e-6)


def test_several_null_singular_values_raise():
    x = pb.tensor(np.diag([1.0, 0.0, 0.0]))
    with pytest.raises(pb.LinAlgError, match="are 0"):
        pb.grad(lambda x: rebuilt_by_svd(x).sum())(x)
    # The first triple alone does not see them.
    first = lambda x: linalg.svd(x).S[0]  # noqa: E731
    np.testing.assert_allclose(pb.grad(first)(x).numpy(), np.diag([1.0, 0.0, 0.0]), atol=1e-15)


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (lambda x: linalg.eigh(x).eigenvectors, positive(3, 3, dtype="complex128")),
        (lambda x: linalg.eig(x).eigenvectors, matrices(3, 3)),
        (lambda x: linalg.svd(x).U, matrices(3, 3, dtype="complex128")),
        (lambda x: linalg.svd(x).U[:, 2:], matrices(5, 2)),
        (lambda x: linalg.qr(x, mode="complete").Q[:, 2:], matrices(5, 2)),
    ],
    ids=["eigh", "eig", "svd", "full svd", "complete qr"],
)
def test_functions_of_what_is_free_raise(f, x):
    w = pb.tensor(matrices(*f(pb.tensor(x)).shape, dtype="complex128"))
    loss = lambda x: pb.real((f(x) * w).sum())  # noqa: E731
    for run in (pb.grad(loss), pb.jit(pb.grad(loss))):
        with pytest.raises(pb.LinAlgError, match="no derivative"):
            run(pb.tensor(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: linalg.svd(x).U[:, 2:],
        lambda x: linalg.matrix_transpose(linalg.svd(linalg.matrix_transpose(x)).Vh[2:]),
        lambda x: linalg.qr(x, mode="complete").Q[:, 2:],
    ],
    ids=["U", "V", "Q"],
)
def test_projectors_on_what_completes_a_basis(f):
    x, v, w = matrices(5, 2), matrices(5, 2), pb.tensor(matrices(5, 5))

    def loss(x):
        free = f(x)
        return ((free @ linalg.matrix_transpose(free)) * w).sum()

    np.testing.assert_allclose(
        along(pb.grad(loss)(pb.tensor(x)), v), differences(loss, x, v), rtol=1e-6
    )


@pytest.mark.parametrize("function", [linalg.pinv, lambda a: linalg.lstsq(a, B).solution])
def test_pseudoinverses_of_deficient_matrices_at_fixed_rank(function):
    u, v, du, dv = matrices(5, 2), matrices(2, 4), matrices(5, 2), matrices(2, 4)
    made = lambda t: (pb.tensor(u) + t * pb.tensor(du)) @ (pb.tensor(v) + t * pb.tensor(dv))  # noqa: E731
    w = pb.tensor(matrices(*function(made(pb.tensor(0.0))).shape))
    phi = lambda t: (function(made(t)) * w).sum()  # noqa: E731
    zero = pb.tensor(0.0, dtype="float64")
    first = pb.grad(phi)
    for f, derivative in ((phi, first), (first, pb.grad(first))):
        h = 1e-4
        expected = (f(zero + h) - f(zero - h)).item() / (2 * h)
        np.testing.assert_allclose(derivative(zero).item(), expected, rtol=1e-5)


B = pb.tensor(matrices(5))


def test_norms_at_zero():
    for ord_ in (2, 3, 1):
        g = pb.grad(lambda x, p=ord_: linalg.vector_norm(x, ord=p))(pb.zeros(3)).numpy()
        assert np.array_equal(g, np.zeros(3))
    for ord_ in ("fro", "nuc", 2):
        g = pb.grad(lambda x, p=ord_: linalg.matrix_norm(x, ord=p))(pb.zeros((2, 2))).numpy()
        assert np.isfinite(g).all()


# -- errors ---------------------------------------------------------------------------------------

FAILING = {
    "cholesky": (linalg.cholesky, "not positive definite"),
    "inv": (linalg.inv, "singular"),
    "solve": (lambda x: linalg.solve(x, pb.ones(x.shape[-1], dtype=x.dtype)), "singular"),
}


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_errors_say_which_matrix_of_a_batch(name, dtype):
    f, match = FAILING[name]
    x = positive(2, 40, 3, 3, dtype=dtype)
    x[1, 17] = 0
    x[1, 30] = 0
    for run in (f, pb.jit(f), pb.jit(lambda x: (f(x), x)[1])):
        with pytest.raises(np.linalg.LinAlgError, match=rf"^{name}: .*\(1, 17\).*{match}"):
            run(pb.tensor(x))


FUNCTIONS = {
    "cholesky": linalg.cholesky,
    "det": linalg.det,
    "eig": lambda x: linalg.eig(x).eigenvectors,
    "eigh": lambda x: linalg.eigh(x).eigenvectors,
    "eigvals": linalg.eigvals,
    "eigvalsh": linalg.eigvalsh,
    "inv": linalg.inv,
    "ldl": lambda x: linalg.ldl(x).D,
    "lu": lambda x: linalg.lu_factor(x).LU,
    "pinv": linalg.pinv,
    "qr": lambda x: linalg.qr(x).Q,
    "slogdet": lambda x: linalg.slogdet(x).logabsdet,
    "solve": lambda x: linalg.solve(x, pb.ones((x.shape[-1], 2), dtype=x.dtype)),
    "solve_triangular": lambda x: linalg.solve_triangular(x, x),
    "svd": lambda x: linalg.svd(x).Vh,
    "svdvals": linalg.svdvals,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_gives_nan_and_leaves_the_others_alone(name, dtype, value):
    f = FUNCTIONS[name]
    x = positive(3, 4, 4, dtype=dtype)
    expected = f(pb.tensor(x)).numpy()
    x[1, 3, 2] = value
    if name == "solve_triangular" and not np.isnan(value):
        return
    x[1, 2, 3] = value
    for run in (f, pb.jit(f)):
        got = run(pb.tensor(x)).numpy()
        assert np.isnan(got[1]).any() if name == "solve_triangular" else np.isnan(got[1]).all()
        assert got[0].tobytes() == expected[0].tobytes()
        assert got[2].tobytes() == expected[2].tobytes()


# -- bits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("count", "n"), [(100, 3), (7, 40), (3, 130)])
def test_bits_depend_on_the_matrix_alone(name, count, n, threads):
    """Not on the batch it is in, the threads that share it, or on compilation of its call."""
    f = FUNCTIONS[name]
    x = positive(count, n, n, dtype="float32")
    found = set()
    for number in (1, 2, 3):
        threads(number)
        found.add(f(pb.tensor(x)).numpy().tobytes())
    assert len(found) == 1
    whole = f(pb.tensor(x)).numpy()
    for i in (0, count - 1):
        assert f(pb.tensor(x[i])).numpy().tobytes() == whole[i].tobytes()
    compiled = pb.jit(f)(pb.tensor(x)).numpy()
    np.testing.assert_allclose(compiled, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("n", [1, 2, 31, 33, 65, 200])
def test_sizes_around_the_blocks(dtype, n):
    """Factors multiply to what they came from."""
    x = positive(n, n, dtype=dtype)
    eps = np.finfo(dtype).eps * n * np.abs(x).max() * 20
    t = pb.tensor(x)
    p, lower, upper = (a.numpy() for a in linalg.lu(t))
    q, r = (a.numpy() for a in linalg.qr(t[:, : max(1, n // 2)]))
    w, v = (a.numpy() for a in linalg.eigh(t))
    u, s, vh = (a.numpy() for a in linalg.svd(t[: max(1, n // 2)], full_matrices=False))
    e, z = (a.numpy() for a in linalg.eig(t))
    c = linalg.cholesky(t).numpy()
    b = np.ones((n, 3), dtype)
    for got, expected in [
        (p @ lower @ upper, x),
        (q @ r, x[:, : max(1, n // 2)]),
        ((v * w) @ np.conj(v.T), x),
        ((u * s) @ vh, x[: max(1, n // 2)]),
        (x @ z, z * e),
        (c @ np.conj(c.T), x),
        (x @ linalg.solve(t, pb.tensor(b)).numpy(), b),
    ]:
        np.testing.assert_allclose(got, expected, atol=eps)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("n", [2, 5, 70])
def test_factors_of_indefinite_matrices(dtype, n):
    x = matrices(3, n, n, dtype=dtype)
    x = x + np.conj(x.transpose(0, 2, 1))
    x[0] -= np.diag(np.diag(x[0]))  # pivots of two rows
    lower, middle, order = (a.numpy() for a in linalg.ldl(pb.tensor(x)))
    back = lower @ middle @ np.conj(lower.transpose(0, 2, 1))
    np.testing.assert_allclose(back, x, atol=np.finfo(dtype).eps * 40 * n)
    triangle = np.take_along_axis(lower, order[..., None], axis=-2)
    assert np.array_equal(triangle, np.tril(triangle, -1) + np.eye(n)[None])


def test_a_broadcast_matrix_is_solved_like_its_copies():
    a, b = positive(3, 3), matrices(4, 3, 2)
    found = linalg.solve(pb.tensor(a), pb.tensor(b)).numpy()
    copies = linalg.solve(pb.tensor(np.stack([a] * 4)), pb.tensor(b)).numpy()
    assert found.tobytes() == copies.tobytes()
    g = pb.grad(lambda a: linalg.solve(a, pb.tensor(b)).sum())(pb.tensor(a))
    assert g.shape == (3, 3)


def test_gradients_under_jit_are_those_of_eager_mode():
    a, b = pb.tensor(positive(4, 5, 5)), pb.tensor(matrices(4, 5, 2))

    def loss(a, b):
        x = linalg.solve(a, b)
        return x.sum() + linalg.slogdet(a).logabsdet.sum() + linalg.cholesky(a).sum()

    eager, compiled = pb.grad(loss, argnums=(0, 1)), pb.jit(pb.grad(loss, argnums=(0, 1)))
    for x, y in zip(eager(a, b), compiled(a, b), strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17])
def test_small_matrices_across_a_batch(dtype, n):
    """Kernels across the batch: sizes, groups that are not full, strides, broadcast operands."""
    eps = np.finfo(dtype).eps * 50 * n
    for count in (1, 7, 8, 9, 30):
        x, p, b = matrices(count, n, n), positive(count, n, n, dtype=dtype), matrices(count, n, 2)
        x, b = np.roll(0.3 * x + n * np.eye(n), 1, axis=1).astype(dtype), b.astype(dtype)
        t = pb.tensor(x)
        across = pb.permute_dims(pb.tensor(np.ascontiguousarray(x.transpose(1, 2, 0))), (2, 0, 1))
        solution = linalg.solve(t, pb.tensor(b)).numpy()
        assert linalg.solve(across, pb.tensor(b)).numpy().tobytes() == solution.tobytes()
        assert linalg.solve(t[3:4], pb.tensor(b[3:4])).numpy().tobytes() == solution[3:4].tobytes()
        perm, lower, upper = (a.numpy() for a in linalg.lu(t))
        c = linalg.cholesky(pb.tensor(p)).numpy()
        for got, expected in [
            (x @ solution, b),
            (perm @ lower @ upper, x),
            (linalg.inv(t).numpy() @ x, np.broadcast_to(np.eye(n), x.shape)),
            (c @ c.transpose(0, 2, 1), p),
            (
                np.tril(p)
                @ linalg.solve_triangular(pb.tensor(p), pb.tensor(b), lower=True).numpy(),
                b,
            ),
            (linalg.det(t).numpy() / np.linalg.det(x), np.ones(count)),
            (x @ linalg.solve(t, pb.tensor(b[:1])).numpy(), np.broadcast_to(b[:1], b.shape)),
        ]:
            scale = max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(got, expected, atol=eps * scale)


def assert_orthonormal(x, eps):
    ones = np.broadcast_to(np.eye(x.shape[-1]), x.shape)
    np.testing.assert_allclose(x @ x.transpose(0, 2, 1), ones, atol=eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_singular_values_of_small_matrices_across_a_batch(dtype, n):
    """Zero, equal, graded, deficient, tiny and large ones."""
    x = matrices(4000, n, n)
    x[0], x[1], x[2] = 0, np.eye(n), 1
    x[3] *= np.finfo(dtype).tiny / 8
    x[4] *= 1e15
    x[5:1005] *= 10.0 ** RNG.uniform(-6, 0, (1000, n, 1))
    x[1005:2005] *= 10.0 ** RNG.uniform(-6, 0, (1000, 1, n))
    for rank in range(1, n):
        part = slice(2005 + 100 * rank, 2105 + 100 * rank)
        x[part] = matrices(100, n, rank) @ matrices(100, rank, n)
    x[2005:2105, :, 0] = 0
    x = x.astype(dtype)
    u, s, vh = (a.numpy().astype(np.float64) for a in linalg.svd(pb.tensor(x)))
    scale = np.maximum(np.abs(x).max((1, 2)), np.finfo(dtype).tiny).astype(np.float64)
    eps = 100 * np.finfo(dtype).eps
    assert np.all(np.abs((u * s[:, None]) @ vh - x).max((1, 2)) <= eps * scale)
    assert_orthonormal(u, eps)
    assert_orthonormal(vh, eps)
    assert np.all(np.diff(s, axis=1) <= 0) and np.all(s >= 0)
    exact = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    for values in (s, linalg.svdvals(pb.tensor(x)).numpy()):
        assert np.all(np.abs(values - exact).max(1) <= eps * scale)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_eigenvalues_of_small_matrices_across_a_batch(dtype, n):
    """Zero, equal, graded, tiny and large ones; eigenvalues in order, vectors orthonormal."""
    x = matrices(3000, n, n)
    x = x + x.transpose(0, 2, 1)
    x[0], x[1], x[2] = 0, np.eye(n), 1
    x[3] *= 1e-30
    x[4] *= 1e15
    grades = 10.0 ** RNG.uniform(-4, 0, (1000, n))
    x[5:1005] *= grades[:, None] * grades[:, :, None]
    x = x.astype(dtype)
    w, v = (a.numpy() for a in linalg.eigh(pb.tensor(x)))
    scale = np.maximum(np.abs(x).max((1, 2)), np.finfo(dtype).tiny).astype(np.float64)
    eps = 30 * np.finfo(dtype).eps
    wide, turned = w.astype(np.float64), v.astype(np.float64)
    back = (turned * wide[:, None]) @ turned.transpose(0, 2, 1) - x
    assert np.all(np.abs(back).max((1, 2)) <= eps * scale)
    np.testing.assert_allclose(
        turned @ turned.transpose(0, 2, 1), np.eye(n)[None] + 0 * x, atol=eps
    )
    assert np.all(np.diff(w, axis=1) >= 0)
    for values in (w, linalg.eigvalsh(pb.tensor(x)).numpy()):
        exact = np.linalg.eigvalsh(x.astype(np.float64))
        assert np.all(np.abs(values - exact).max(1) <= eps * scale)


# -- polynomials ----------------------------------------------------------------------------------


def test_roots_leave_leading_zeros_out_and_have_derivatives():
    p = pb.tensor([0.0, 0.0, 1.0, -5.0, 6.0], dtype="float64")
    np.testing.assert_allclose(np.sort(np.real(pb.roots(p).numpy())), [2, 3], atol=1e-14)
    assert pb.roots(pb.zeros(3)).shape == (0,)
    # x^2 - s x + q has the derivative r / (2 r - s) of its root r by s.
    largest = lambda s: pb.max(pb.real(pb.roots(pb.stack([s * 0 + 1, -s, s * 0 + 6]))))  # noqa: E731
    s = pb.tensor(5.0, dtype="float64")
    assert abs(pb.grad(largest)(s).item() - 3) < 1e-12
    assert abs(pb.grad(pb.grad(largest))(s).item() + 12) < 1e-10


def test_polynomials_are_fitted_whatever_their_scale():
    x = np.linspace(1000, 1010, 30)
    wanted = np.polyfit(x, np.sin(x), 3)
    got = pb.polyfit(pb.tensor(x), pb.tensor(np.sin(x)), 3).numpy()
    np.testing.assert_allclose(np.polyval(got, x), np.polyval(wanted, x), atol=1e-6)


@pytest.mark.parametrize("n", [0, 1, 5, 40])
def test_exchanges_of_any_number_of_rows(n: int):
    """Once they were taken for a permutation above sixteen rows."""
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((2, n, n)), rng.standard_normal((2, n, 3))
    both, pivots = pb.linalg.lu_factor(pb.tensor(a))
    for trans, matrix in ((0, a), (1, np.swapaxes(a, -1, -2))):
        x = pb.linalg.lu_solve(both, pivots, pb.tensor(b), trans=trans).numpy()
        assert np.allclose(matrix @ x, b)
