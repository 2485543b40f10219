"""What earlier systems got wrong, one test per trap. The operations of convolution, composites and
checkpointing join later.
"""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.ir.op import REGISTRY


def leaf(values, dtype="float64"):
    return pb.tensor(values, dtype=dtype, requires_grad=True)


# -- indexing --------------------------------------------------------------------------------------


def test_gather_gradient_adds_duplicates():
    """Trap: gather's gradient written with an overwriting scatter."""
    x = leaf([0.0, 0.0, 0.0, 0.0])
    pb.take(x, pb.tensor([1, 1, 1, 2]), axis=0).backward(
        pb.tensor([1.0, 2.0, 4.0, 8.0], dtype="float64")
    )
    assert x.grad.tolist() == [0.0, 7.0, 8.0, 0.0]


def test_only_the_surviving_write_gets_a_gradient():
    """Trap: an overwriting scatter whose gradient goes to every duplicate source."""
    base, values = leaf([5.0, 6.0, 7.0]), leaf([1.0, 2.0, 3.0])
    y = base * 1.0
    y[pb.tensor([1, 1, 2])] = values
    assert y.tolist() == [5.0, 2.0, 3.0]
    y.backward(pb.tensor([10.0, 20.0, 30.0], dtype="float64"))
    assert values.grad.tolist() == [0.0, 20.0, 30.0]
    assert base.grad.tolist() == [10.0, 0.0, 0.0]


@pytest.mark.parametrize("index", [4, -5, 100, -(2**40)])
def test_out_of_range_indices_raise_in_both_directions(index):
    """Trap: indices out of range read as 0 or skipped; forward and backward disagreeing."""
    x = pb.tensor([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(IndexError, match="out of range"):
        pb.take(x, pb.tensor([0, index]), axis=0)
    with pytest.raises(IndexError, match="out of range"):
        pb.scatter_add(x, pb.tensor([0, index]), pb.tensor([1.0, 1.0]))


def test_negative_indices_work_in_both_directions():
    """Trap: negative indices work one way only."""
    x = leaf([1.0, 2.0, 3.0])
    y = pb.take(x, pb.tensor([-1, 0, -1]), axis=0)
    assert y.tolist() == [3.0, 1.0, 3.0]
    y.backward(pb.tensor([1.0, 2.0, 4.0], dtype="float64"))
    assert x.grad.tolist() == [2.0, 0.0, 5.0]


def test_indices_beyond_the_exact_range_of_float32():
    """Trap: indices stored as float32, exact only below 2**24."""
    n = 2**24 + 4
    x = pb.arange(n, dtype="int32")
    picked = pb.take(x, pb.tensor([2**24 + 1, 2**24 + 3]), axis=0)
    assert picked.tolist() == [2**24 + 1, 2**24 + 3]


def test_scatter_add_is_bit_equal_for_any_thread_count(threads):
    """Trap: "deterministic" claimed for float atomics."""
    rng = np.random.default_rng(0)
    x = pb.zeros((50,), dtype="float32")
    idx = pb.tensor(rng.integers(0, 50, 200_000))
    upd = pb.tensor(rng.standard_normal(200_000).astype(np.float32))
    patterns = set()
    for n in (1, 2, 5):
        threads(n)
        patterns |= {pb.scatter_add(x, idx, upd).numpy().tobytes() for _ in range(3)}
    assert len(patterns) == 1


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_nd_indices_on_any_axis_to_second_order(axis, dtype):
    """Trap: N-D index arrays accepted in forward and refused in backward; only axis 0; complex
    forgotten.
    """
    rng = np.random.default_rng(1)
    values = rng.standard_normal((3, 4, 5))
    x = pb.tensor(values + (1j * values[::-1] if dtype == "complex128" else 0), dtype=dtype)
    idx = pb.tensor(rng.integers(-3, 3, (2, 3)))

    def f(x):
        y = pb.take(x, idx, axis=axis)
        return pb.abs(y * y * y).sum()

    assert pb.check_grad(f, x, order=2).passed


def test_gather_from_a_flattened_complex_grid():
    """The real use: a complex grid gathered by many int64 indices."""
    rng = np.random.default_rng(2)
    grid = (rng.standard_normal(12_000) + 1j * rng.standard_normal(12_000)).astype(np.complex64)
    idx = rng.integers(0, grid.size, 80_000)
    x = pb.tensor(grid, requires_grad=True)
    y = x[pb.tensor(idx)]
    assert np.array_equal(y.detach().numpy(), grid[idx])
    g = (rng.standard_normal(idx.size) + 1j).astype(np.complex64)
    y.backward(pb.tensor(g))
    expected = np.zeros(grid.size, np.complex128)
    np.add.at(expected, idx, g.astype(np.complex128))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5, atol=1e-5)


# -- rules and engine ------------------------------------------------------------------------------


def test_second_derivative_of_exp_is_exp():
    """Trap: the second rule treats a saved output as a constant, so d2 exp = 0."""
    x = pb.tensor(0.7, dtype="float64")
    f = pb.exp
    for _ in range(5):
        f = pb.grad(f)
        assert f(x).item() == pytest.approx(np.exp(0.7), rel=1e-14)


def test_a_record_without_rule_is_refused_when_declared():
    """Trap: a default rule that silently breaks the graph. A missing rule must be named."""
    from pullback.ir.lowering import Elementwise
    from pullback.ops.families import primitive

    def ruleless(x, /):
        """No rule.

        >>> 1
        1
        """

    with pytest.raises(TypeError, match=r"'ruleless' is incomplete.*vjp rules"):
        primitive(
            "x",
            infer=lambda x: (x.shape, x.dtype),
            lowering=Elementwise(lambda x: x),
            oracle=np.positive,
            samples=lambda d: [],
            errors=lambda d: [],
        )(ruleless)


def test_permute_with_three_cycles():
    """Trap: the inverse of a permutation is right for involutions only."""
    x = leaf(np.arange(24.0).reshape(2, 3, 4))
    w = np.random.default_rng(0).standard_normal((3, 4, 2))
    pb.permute_dims(x, (1, 2, 0)).backward(pb.tensor(w))
    np.testing.assert_array_equal(x.grad.numpy(), w.transpose(2, 0, 1))


def test_mean_over_no_axes_and_over_all():
    """Trap: "all axes" given as an empty list makes the gradient N times too large."""
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    pb.mean(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), np.full((2, 2), 0.25))
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    y = pb.mean(x, axis=())
    assert y.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    y.backward(pb.ones((2, 2), dtype="float64"))
    np.testing.assert_allclose(x.grad.numpy(), np.ones((2, 2)))


@pytest.mark.filterwarnings("error")
def test_variance_of_one_element_is_nan_not_a_crash():
    """Trap: var and std dividing by zero."""
    x = pb.tensor([3.0])
    assert np.isnan(pb.var(x, correction=1).item())
    assert pb.var(x).item() == 0.0


@pytest.mark.parametrize(
    ("f", "x", "slopes"),
    [
        (lambda x: pb.abs(x), 0.0, [0.0, 0.0]),
        (lambda x: x**2, 0.0, [0.0, 2.0, 0.0]),
        (lambda x: x**3, 0.0, [0.0, 0.0, 6.0]),
        (lambda x: x**1, 0.0, [1.0, 0.0]),
        (lambda x: x**0, 0.0, [0.0]),
        (lambda x: pb.pow(x, pb.tensor(2.0, dtype="float64")), 0.0, [0.0, 2.0, 0.0]),
        (lambda x: pb.pow(x, pb.tensor(3.0, dtype="float64")), -2.0, [12.0, -12.0, 6.0]),
        (lambda x: pb.maximum(x, 0.0), 0.0, [0.5]),
        (lambda x: pb.maximum(x, 0.0), 1.0, [1.0, 0.0]),
    ],
)
def test_derivatives_at_special_points(f, x, slopes):
    """Trap: abs at 0, pow at 0, log of a negative base reaching a constant exponent."""
    t = pb.tensor(x, dtype="float64")
    for expected in slopes:
        f = pb.grad(f)
        assert f(t).item() == expected


def test_products_with_zeros():
    """Trap: cumprod (and prod) with a zero."""
    for zeros in ([0], [1, 3], []):
        values = np.array([2.0, 3.0, -1.5, 4.0])
        values[zeros] = 0.0
        x = pb.tensor(values)
        assert pb.check_grad(lambda x: pb.prod(x), x, order=3).passed
        assert pb.check_grad(lambda x: pb.cumulative_prod(x), x, order=3).passed


def test_a_million_operations_in_a_chain():
    """Trap: a recursive topological sort."""
    x = leaf(1.0)
    y = x
    for _ in range(1_000_000):
        y = y + 1.0
    y.backward()
    assert x.grad.item() == 1.0
    del y


def test_targets_with_one_element_of_any_rank():
    """Trap: scalar targets only, `[1]` refused."""
    for shape in ((), (1,), (1, 1)):
        x = leaf(np.full(shape, 3.0))
        (x * x).backward()
        assert x.grad.item() == 6.0
        assert pb.grad(lambda t: t * t)(x.detach()).item() == 6.0


def test_a_clone_passes_the_gradient_on():
    """Trap: a cloned leaf losing its gradient."""
    x = leaf([1.0, 2.0])
    (x.clone() * 3.0).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_gradients_accumulate():
    """Trap: gradients zeroed at the start of backward."""
    x = leaf(2.0)
    (x * x).backward()
    (x * x).backward()
    assert x.grad.item() == 8.0


def test_no_gradient_is_computed_for_operands_that_need_none():
    """Trap: gradients computed for operands that need none, then dropped."""
    calls = []
    op = REGISTRY["multiply"]
    original = dict(op.pull_rules)

    def counting(name):
        rule = op.vjp[name]
        parameters = original[name].parameters

        def rule_x(g, y):
            calls.append(name)
            return rule(g, y)

        def rule_y(g, x):
            calls.append(name)
            return rule(g, x)

        return rule_x if parameters == ("g", "y") else rule_y

    from pullback.ir.rules import Rule

    try:
        op.pull_rules = {n: Rule(op, n, counting(n), "g") for n in op.vjp}
        op.__dict__.pop("pull", None)
        a, b = leaf([1.0]), pb.tensor([2.0], dtype="float64")
        (a * b).backward()
        assert calls == ["x"]
        assert (a * b).grad_fn.saved[0] is None, "the tracked operand itself is not needed"
    finally:
        op.pull_rules = original
        op.__dict__.pop("pull", None)


def test_hvp_needs_no_gradient_from_the_caller():
    """Trap: an HVP that needs a hand-written gradient."""
    x, v = pb.tensor([0.3, -0.7], dtype="float64"), pb.tensor([1.0, 2.0], dtype="float64")
    got = pb.hvp(lambda x: pb.exp(x[0] * x[1]) + (x**3).sum(), (x,), (v,)).numpy()
    a, b = 0.3, -0.7
    e = np.exp(a * b)
    h = np.array([[b * b * e + 6 * a, (1 + a * b) * e], [(1 + a * b) * e, a * a * e + 6 * b]])
    np.testing.assert_allclose(got, h @ [1.0, 2.0], rtol=1e-13)


def test_the_same_input_twice_gets_the_sum_once():
    """Trap: the same input passed twice gets twice the gradient."""
    x = leaf(3.0)
    (x * x).backward()
    assert x.grad.item() == 6.0
    assert pb.grad(lambda a, b: a * b, argnums=(0, 1))(x.detach(), x.detach())[0].item() == 3.0
