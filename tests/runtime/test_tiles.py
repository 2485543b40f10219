"""Tiled factorisations: one order, whatever the threads, layouts and batches; their errors."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback import linalg
from pullback.compile.kernel import factor_order
from pullback.runtime.cpu import native
from pullback.runtime.cpu.linalg import lane_reflections, linalg_stages

RNG = np.random.default_rng(11)
# On both sides of leaves, panels, tiles of products and chunks of k.
SIZES = (17, 32, 33, 64, 65, 127, 129, 300)

pytestmark = pytest.mark.usefixtures("threads")


def draw(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def positive(*shape, dtype="float32"):
    x = draw(*shape, dtype=dtype)
    return (x @ np.swapaxes(x, -1, -2) / shape[-1] + np.eye(shape[-1])).astype(dtype)


def same(x, y):
    x, y = (v.numpy() if isinstance(v, pb.Tensor) else v for v in (x, y))
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("n", "dtype"), [*((n, "float32") for n in SIZES), (17, "float64"), (40, "float64")]
)
def test_factors_have_the_order_that_is_written_down(n, dtype):
    x = positive(n, n, dtype=dtype)
    same(linalg.cholesky(pb.tensor(x)), factor_order.cholesky((x + x.T) / 2))
    t, b = np.tril(x), draw(n, 3, dtype=dtype)
    solved = linalg.solve_triangular(pb.tensor(t), pb.tensor(b), lower=True)
    same(solved, factor_order.solved(t, b))
    # Upwards, everything is turned around.
    back = linalg.solve_triangular(pb.tensor(t[::-1, ::-1].copy()), pb.tensor(b[::-1].copy()))
    if n <= factor_order.LEAF:
        same(back, factor_order.solved(t, b)[::-1])


@pytest.mark.parametrize("shape", [(17, 17), (33, 33), (129, 129), (300, 300), (5, 40), (150, 70)])
def test_lu_has_the_order_that_is_written_down(shape):
    x = draw(*shape)
    both, rows = factor_order.lu(x)
    got, pivots = linalg.lu_factor(pb.tensor(x))
    same(got, both)
    order = np.arange(shape[0])
    for i, r in enumerate(pivots.tolist()):
        order[[i, r]] = order[[r, i]]
    same(order, rows)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [5, 7, 8, 9, 16])
def test_cofactors_have_the_order_that_is_written_down(n, dtype):
    x = draw(19, n, n, dtype=dtype)
    x[1], x[2] = 0, 1
    x[3] = x[3, :, :2] @ x[3, :2]
    x[4, :, n // 2] = 0
    wanted = np.stack([factor_order.cofactors(*factor_order.lu(m)) for m in x])
    for count in (1, 2, 3):
        native.set_threads(count)
        same(pb.primitive.cofactors(pb.tensor(x)), wanted)
    same(pb.jit(pb.grad(lambda x: linalg.det(x).sum()))(pb.tensor(x)), wanted)
    same(pb.primitive.cofactors(pb.tensor(x[5])), wanted[5])
    x[6, 1, 2] = np.inf
    odd = pb.primitive.cofactors(pb.tensor(x)).numpy()
    assert np.isnan(odd[6]).all()
    same(np.delete(odd, 6, 0), np.delete(wanted, 6, 0))


@pytest.mark.parametrize("name", ["cholesky", "lu", "solve_triangular", "cofactors"])
@pytest.mark.parametrize("n", [4, 8, 12])
def test_turned_small_matrices_are_not_copied(name, n):
    """They have the bits of those that lie row after row."""
    x, b = positive(20, n, n), draw(20, n, n)
    calls = {
        "cholesky": lambda x, b: linalg.cholesky(x),
        "lu": lambda x, b: linalg.lu_factor(x).LU,
        "solve_triangular": lambda x, b: linalg.solve_triangular(x, b, lower=True),
        "cofactors": lambda x, b: pb.primitive.cofactors(x),
    }
    upright = calls[name](pb.tensor(x), pb.tensor(b))
    across = [pb.tensor(np.swapaxes(y, 1, 2).copy()).mT for y in (x, b)]
    same(calls[name](*across), upright)
    places = [(k + 1, y._aval) for k, y in enumerate(across)]
    places = [places[0], places[1 if name == "solve_triangular" else 0]]
    static = {"lower": True, "unit_diagonal": True}
    if name == "cofactors":
        places[1] = (2, pb.tensor(draw(20, n + 2, n))._aval)
    out = pb.tensor(draw(20, n + 2 * (name == "lu"), n))._aval
    given = places[: 1 if name in ("cholesky", "lu") else 2]
    assert len(linalg_stages.linalg_stages(name, given, static, (0, out), lambda n: 9, 0)) == 1


CALLS = {
    "cholesky": lambda x, b: (linalg.cholesky(x @ pb.linalg.matrix_transpose(x) + 99),),
    "lu_factor": lambda x, b: linalg.lu_factor(x),
    "qr": lambda x, b: linalg.qr(x),
    "complete qr": lambda x, b: linalg.qr(x[..., :70], mode="complete"),
    "wide qr": lambda x, b: linalg.qr(x[..., :70, :]),
    "solve": lambda x, b: (linalg.solve(x, b),),
    "inv": lambda x, b: (linalg.inv(x),),
    "upper": lambda x, b: (linalg.solve_triangular(x, b),),
    "adjoint": lambda x, b: (pb.grad(lambda b: pb.sum(linalg.solve(x, b) ** 2))(b),),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_bits_are_those_of_one_matrix_by_one_thread(name, dtype):
    """For batches that go matrix by matrix and those that do not, and for all layouts."""
    n = 261
    call = CALLS[name]
    x = draw(5, n, n, dtype=dtype) + 40 * np.eye(n, dtype=dtype)
    b = draw(5, n, 19, dtype=dtype)
    native.set_threads(1)
    pairs = [(pb.tensor(p), pb.tensor(q)) for p, q in zip(x, b, strict=True)]
    expected = [[y.numpy() for y in call(*pair)] for pair in pairs]
    turned = pb.linalg.matrix_transpose(pb.tensor(np.swapaxes(x, 1, 2).copy()))
    apart = pb.tensor(np.repeat(x, 2, axis=2))[..., ::2]
    for count in (1, 2, 3):
        native.set_threads(count)
        for given in (pb.tensor(x), turned, apart):
            for got, *own in zip(call(given, pb.tensor(b)), *expected, strict=True):
                same(got, np.stack(own))
        for got, own in zip(call(*pairs[1]), expected[1], strict=True):
            same(got, own)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1), (2, 20, 3), (1, 3, 40)])
def test_small_and_empty_ones(shape):
    x = draw(*shape)
    for mode in ("reduced", "complete"):
        q, r = linalg.qr(pb.tensor(x), mode=mode)
        wanted = np.linalg.qr(x, mode=mode)
        assert (q.shape, r.shape) == (wanted[0].shape, wanted[1].shape)
        np.testing.assert_allclose((q @ r).numpy(), x, atol=1e-5)
        ones = (linalg.matrix_transpose(q) @ q).numpy()
        np.testing.assert_allclose(ones - np.eye(q.shape[-1]), 0, atol=1e-5)
    p, low, up = linalg.lu(pb.tensor(x))
    np.testing.assert_allclose((p @ low @ up).numpy(), x, atol=1e-5)


def test_reflections_of_extreme_numbers():
    """Norms neither overflow nor vanish, and columns of zeros stay as they are."""
    for dtype, most in (("float32", 1e37), ("float64", 1e300)):
        x = draw(60, 40, dtype=dtype)
        for scale in (most, 1 / most):
            q, r = linalg.qr(pb.tensor(x * np.asarray(scale, dtype)))
            eps, ones = np.finfo(dtype).eps, linalg.matrix_transpose(q) @ q
            np.testing.assert_allclose(ones.numpy(), np.eye(40), atol=99 * eps)
            np.testing.assert_allclose((q @ (r / scale)).numpy(), x, atol=999 * eps)
        x[:, 3] = 0
        x[5:, 4] = 0
        q, r = linalg.qr(pb.tensor(x))
        np.testing.assert_allclose((q @ r).numpy(), x, atol=999 * eps)
        assert not np.tril(r.numpy(), -1).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_ones_have_the_bits_that_they_have_alone(dtype):
    """Side by side in a batch, or one by tiles: on both sides of the largest of the first kind."""
    info = np.finfo(dtype)
    for m, n in ((1, 1), (1, 5), (4, 4), (3, 8), (8, 5), (8, 8), (9, 8), (8, 9)):
        x = draw(lane_reflections.MATRICES, m, n, dtype=dtype)
        x[1], x[2], x[3] = 0, 1, np.eye(m, n)
        x[4] *= info.tiny * 16
        x[5] *= info.max / 100
        x[6, :, 0] = 0
        x[7, 0, 0] = np.nan
        x[8] = np.outer(np.arange(m) % 3 + 1, np.arange(n) % 5 + 1.5)
        for mode in ("reduced", "complete"):
            together = linalg.qr(pb.tensor(x), mode=mode)
            for k, one in enumerate(x):
                for got, own in zip(together, linalg.qr(pb.tensor(one), mode=mode), strict=True):
                    same(got[k], own)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reflections_of_dependent_columns(dtype):
    """What rounding leaves of such columns gets smaller from one to the next, down to nothing."""
    eps = np.finfo(dtype).eps
    for n in (5, 17, 40, 150):
        for x in (np.ones((n, n)), np.outer(np.arange(n) % 3 + 1, np.arange(n) % 5 + 1.5)):
            q, r = linalg.qr(pb.tensor(x.astype(dtype)))
            ones = linalg.matrix_transpose(q) @ q
            np.testing.assert_allclose(ones.numpy(), np.eye(n), atol=99 * eps)
            np.testing.assert_allclose((q @ r).numpy(), x, atol=9 * n * eps * x.max())


@pytest.mark.parametrize("count", [1, 2, 9])
def test_what_is_wrong_with_a_large_matrix(count):
    """In a batch: which one; with NaN or infinity, NaN and the others as they are alone."""
    n, native_threads = 100, 2
    native.set_threads(native_threads)
    x = positive(count, n, n)
    bad = x.copy()
    bad[-1, 70, 70] = -5
    where = f"at {count - 1} of the batch"
    with pytest.raises(pb.LinAlgError, match=f"{where} is not positive definite: .* order 71 "):
        linalg.cholesky(pb.tensor(bad))
    with pytest.raises(pb.LinAlgError, match="order 71"):
        pb.jit(linalg.cholesky)(pb.tensor(bad[-1]))
    for call, message in (
        (linalg.solve, f"solve: the matrix {where} is singular: pivot "),
        (linalg.solve_triangular, f"the matrix {where} is singular: element 99 "),
    ):
        bad = x.copy()
        bad[-1, :, -1] = 0
        with pytest.raises(pb.LinAlgError, match=message):
            call(pb.tensor(bad), pb.tensor(draw(n)))
    for value in (np.nan, np.inf):
        bad = x.copy()
        bad[0, 90, 3] = value
        for name in ("cholesky", "qr", "lu_factor"):
            for got, fine in zip(parts(name, bad), parts(name, x), strict=True):
                assert np.isnan(got[0]).all()
                same(got[1:], fine[1:])


def parts(name, x):
    """The floating results of a factorisation."""
    found = getattr(linalg, name)(pb.tensor(x))
    found = [found] if isinstance(found, pb.Tensor) else found
    return [y.numpy() for y in found if y.dtype == pb.float32]


def test_pivots_are_the_first_of_the_largest():
    x = np.ones((80, 80), np.float32) + np.triu(np.ones((80, 80), np.float32))
    assert linalg.lu_factor(pb.tensor(x)).pivots.tolist() == list(range(80))
    x[50, 0] = -3
    assert linalg.lu_factor(pb.tensor(x)).pivots.tolist()[0] == 50


@pytest.mark.parametrize("name", ["cholesky", "qr", "solve", "inv"])
def test_derivatives_of_large_ones(name):
    """Along a line, against central differences in float64."""
    n = 150
    x, v = positive(n, n, dtype="float64"), draw(n, n, dtype="float64") / n
    b, w = pb.tensor(draw(n, 2, dtype="float64")), draw(n, n, dtype="float64")

    def f(x):
        found = {"solve": lambda: linalg.solve(x, b), "cholesky": lambda: linalg.cholesky(x)}
        found |= {"qr": lambda: linalg.qr(x).R, "inv": lambda: linalg.inv(x)}
        out = found[name]()
        return pb.sum(pb.sin(out) * pb.tensor(w[:, : out.shape[1]]))

    x, v, h = pb.tensor(x), pb.tensor(v), 1e-5
    differences = ((f(x + h * v) - f(x - h * v)) / (2 * h)).item()
    assert abs(pb.sum(pb.grad(f)(x) * v).item() - differences) < 1e-6 * max(1, abs(differences))
    second = pb.sum(pb.hvp(f, (x,), (v,)) * v).item()
    g = lambda t: pb.sum(pb.grad(f)(x + t * v) * v).item()  # noqa: E731
    differences = (g(h) - g(-h)) / (2 * h)
    assert abs(second - differences) < 1e-5 * max(1, abs(differences))
