"""Jitted programs equal eager ones, value and gradient, at sizes on both sides of every threshold.

Which kernels a program becomes depends on sizes: what is fused, kept in rows, unrolled, cut among
threads. Equal sizes are the hardest, since axes that differ can then be taken for each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix import Case, accepts, arrays_of, cases, tensors

import pullback as pb
from pullback.core import pytrees
from pullback.ir.op import REGISTRY

# Square, one row, one column, primes; around 32 (short rows, tiny kernels), 128 (many rows, short
# sorts), 4096 elements (182**2 are beyond 1 << 15, 64**2 are 4096) and 1 << 20.
SIZES = [
    (1, 1), (1, 7), (7, 1), (8, 8), (13, 17), (31, 31), (32, 33), (64, 64), (67, 61), (127, 129),
    (181, 181), (182, 182), (1, 1024), (1024, 1), (3, 4099), (4099, 3), (1024, 1024),
]  # fmt: skip
IDS = [f"{n}x{m}" for n, m in SIZES]


def standardised(x: Any, w: Any, b: Any) -> Any:
    """Numbers of columns, spread over rows."""
    return (x - pb.mean(x, axis=0)) / (pb.std(x, axis=0) + 1.0) * b


def normalised(x: Any, w: Any, b: Any) -> Any:
    """Numbers of rows, and a gradient that is summed over rows."""
    centred = x - pb.mean(x, axis=1, keepdims=True)
    return centred / pb.sqrt(pb.mean(centred * centred, axis=1, keepdims=True) + 1e-5) * b


def both_ways(x: Any, w: Any, b: Any) -> Any:
    """Sums along both axes, which meet again."""
    return pb.exp(-x * x) * pb.sum(x, axis=0) + pb.sum(x * b, axis=1)[:, None] * pb.max(x)


def softmax_of_rows(x: Any, w: Any, b: Any) -> Any:
    return pb.nn.softmax(x * b, dim=1) * pb.nn.log_softmax(x, dim=0)


def layer(x: Any, w: Any, b: Any) -> Any:
    """A product, what is added to it, and the same array read once more."""
    return pb.tanh(x @ w + b[:1]) + pb.sum(x, axis=1, keepdims=True)


def layers(x: Any, w: Any, b: Any) -> Any:
    h = pb.tanh((x * b) @ w)
    return pb.sum(pb.sigmoid(h @ w.T) * x, axis=0) + pb.sum(b * b)


def moved(x: Any, w: Any, b: Any) -> Any:
    """Views: a transpose, slices, a flip, a concatenation."""
    return pb.sum(pb.concat([x.T, pb.flip(x.T, 1)], 0), 1) + pb.sum(x[::-1] * x[:, ::-1])


def running(x: Any, w: Any, b: Any) -> Any:
    return pb.cumulative_sum(x * b, axis=0) * pb.logsumexp(x, axis=1)[:, None]


def indexed(x: Any, w: Any, b: Any) -> Any:
    """Rows read, columns read, sums into rows."""
    n, m = x.shape
    rows, columns = np.arange(n) * 7 % n, np.arange(m) * 5 % m
    return pb.segment_sum(x[rows][:, columns] * b, rows, n) + x[0]


PROGRAMS = [
    standardised, normalised, both_ways, softmax_of_rows, layer, layers, moved, running, indexed,
]  # fmt: skip


def assert_close(found: Any, expected: Any) -> None:
    pairs = zip(pytrees.leaves(found), pytrees.leaves(expected), strict=True)
    for x, y in pairs:
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        a, b = x.detach().numpy(), y.detach().numpy()
        scale = float(np.max(np.abs(b), initial=0.0))
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12 * scale)


def drawn(n: int, m: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(n * 10_000 + m)
    width = min(m, 19)
    shapes = ((n, m), (m, width), (m,))
    return tuple(pb.tensor(rng.uniform(-1.0, 1.0, s) / np.sqrt(m)) for s in shapes)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("n", "m"), SIZES, ids=IDS)
def test_programs_of_every_size(program: Any, n: int, m: int):
    arguments = drawn(n, m)

    def both(*args: Any) -> Any:
        def loss(*args: Any) -> Any:
            out = program(*args)
            return pb.mean(out * pb.cos(out)), out

        return pb.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(*args)

    assert_close(pb.jit(both)(*arguments), both(*arguments))


# -- every operation, on square arrays -------------------------------------------------------------

MOST_ELEMENTS = 1 << 24  # of a value: 128 MB of float64
SQUARE = 182  # 182 * 182 > 1 << 15, from where on arrays are cut in pieces


def definite_matrix(dtype: Any) -> np.ndarray:
    """A symmetric matrix with eigenvalues that are positive and apart."""
    x = np.random.default_rng(1).uniform(-1.0, 1.0, (SQUARE, SQUARE))
    return ((x + x.T) / 8 + np.diag(np.linspace(5.0, 9.0, SQUARE))).astype(dtype)


def squared(case: Case) -> tuple[Any, list[Any]] | None:
    """An operation on its sample with every matrix made square, its numbers repeated, and then
    summed over rows; None where it takes no such arrays.
    """
    leaves, structure = pytrees.flatten((case.sample.args, case.sample.kwargs))
    places = [
        i for i, a in enumerate(leaves) if isinstance(a, np.ndarray) and a.ndim in (1, 2) and a.size
    ]
    floats = [i for i in places if leaves[i].dtype.kind == "f"]
    if not floats or not any(leaves[i].ndim == 2 for i in floats):
        return None

    def f(*arrays: Any) -> Any:
        full = tensors(leaves)
        for i, a in zip(places, arrays[:-1], strict=True):
            full[i] = a
        args, kwargs = pytrees.unflatten(structure, full)
        outs = arrays_of(case.entry.function(*args, **kwargs))
        return [
            pb.sum(pb.sin(o) * arrays[-1][: o.shape[-1]], axis=0)
            if o.ndim == 2 and o.dtype.is_float and o.shape[-1] <= SQUARE
            else o
            for o in outs
        ]

    regular = case.key.startswith("linalg.")  # repeated rows would make most of them singular
    resized = [
        definite_matrix(leaves[i].dtype)
        if regular and i in floats and leaves[i].ndim == 2
        else np.resize(leaves[i], (SQUARE,) * leaves[i].ndim)
        for i in places
    ]
    vector = np.random.default_rng(0).uniform(0.5, 1.5, SQUARE)
    return f, [pb.tensor(a) for a in resized] + [pb.tensor(vector)]


def largest(f: Any, arrays: list[Any]) -> int:
    """The elements of the largest value that a function computes; 0 if it can't be traced."""
    try:
        graph = pb.trace(f)(*arrays)
    except (pb.PullbackError, TypeError, ValueError):
        return 0
    return max((v.aval.size for eq in graph.equations for v in eq.outs), default=0)


def squares() -> list[Case]:
    """The first sample of each operation that has matrices."""
    found: dict[str, Case] = {}
    for case in cases((pb.float64,), compiled=False):
        if case.key not in found and squared(case) is not None:
            found[case.key] = case
    return list(found.values())


def is_well_conditioned(f: Any, arrays: list[Any], expected: Any) -> bool:
    """Whether operands that differ in their last bits give nearly the same: factors of matrices
    without full rank do not.
    """
    moved = [a * (1.0 + 2.0**-50) if a.dtype.is_float else a for a in arrays]
    try:
        assert_close(f(*moved), expected)
    except (AssertionError, pb.PullbackError):
        return False
    return True


@pytest.mark.parametrize("case", squares(), ids=lambda c: c.key)
def test_operations_on_square_arrays(case: Case):
    if not accepts(case.entry, case.dtype):
        pytest.skip("the record does not accept this dtype")
    made = squared(case)
    assert made is not None
    f, arrays = made
    if largest(f, arrays) > MOST_ELEMENTS:
        pytest.skip("the result would fill the memory")
    try:
        expected = f(*arrays)
    except (pb.PullbackError, IndexError):
        pytest.skip("the other arguments fit no square arrays")
    try:
        found = pb.jit(f)(*arrays)
    except pb.DTypeError as error:
        assert "traced" in str(error)  # the shape of the result depends on contents
        pytest.skip("needs the contents of an argument")
    if not is_well_conditioned(f, arrays, expected):
        pytest.skip("the result depends on how its operands are rounded")
    assert_close(found, expected)
    wanted = tuple(i for i, a in enumerate(arrays) if a.dtype.is_float)

    def loss(*args: Any) -> Any:
        return pb.sum(pb.stack([pb.mean(o) for o in f(*args) if o.dtype.is_float]))

    if getattr(REGISTRY[case.key], "differentiable", True) and any(
        o.dtype.is_float for o in expected
    ):
        derived = pb.grad(loss, argnums=wanted)
        try:
            slopes = derived(*arrays)
        except (pb.LinAlgError, pb.GradientError) as error:  # these matrices have no derivative
            with pytest.raises(type(error)):
                pb.jit(derived)(*arrays)
            return
        if is_well_conditioned(derived, arrays, slopes):
            assert_close(pb.jit(derived)(*arrays), slopes)


# -- sums and products of one element --------------------------------------------------------------

ONES = {
    "sum": lambda x: pb.sum(x, axis=1),
    "sum of all": pb.sum,
    "mean": lambda x: pb.mean(x, axis=0),
    "prod": lambda x: pb.prod(x, axis=0),
    "cumulative_sum": lambda x: pb.cumulative_sum(x, axis=0),
    "matmul": lambda x: x @ x,
    "outer product": lambda x: pb.ones((3, 1), dtype=x.dtype) @ x,
    "einsum": lambda x: pb.einsum("ij,jk->ik", x, pb.ones((1, 2), dtype=x.dtype)),
    "vecdot": lambda x: pb.vecdot(x, x),
    "linear": lambda x: pb.nn.linear(x, pb.ones((2, 1), dtype=x.dtype)),
    "segment_sum": lambda x: pb.segment_sum(x, pb.tensor([0]), 2),
    "gradient": pb.grad(lambda x: pb.sum(x * 0.0 * x)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("name", ONES)
def test_zeros_have_the_sign_that_they_have_in_eager_mode(name: str, dtype: str):
    if name == "gradient" and dtype == "complex128":
        pytest.skip("no real scalar")
    x = pb.tensor([[-0.0]], dtype=dtype)
    f = ONES[name]
    assert pb.jit(f)(x).numpy().tobytes() == f(x).numpy().tobytes()


def test_a_compiled_function_takes_many_arrays() -> None:
    arrays = [pb.tensor([float(k), 1.0]) for k in range(5000)]
    total = pb.jit(lambda xs: sum(xs[1:], xs[0]))(arrays)
    np.testing.assert_array_equal(total.numpy(), [5000 * 4999 / 2, 5000])
