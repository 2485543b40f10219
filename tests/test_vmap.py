"""`vmap`: axes, trees, nesting, control flow, what is captured, and what can't be mapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import pullback as pb


def normal(*shape: int, seed: int = 0) -> Any:
    return pb.tensor(np.random.default_rng(seed).normal(size=shape))


def looped(f: Callable[..., Any], *batches: Any) -> np.ndarray:
    """The results of `f` for each example, stacked."""
    return np.stack([f(*[pb.tensor(b.numpy()[k]) for b in batches]).numpy()
                     for k in range(batches[0].shape[0])])  # fmt: skip


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found.numpy(), expected)


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


# -- axes and trees --------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_examples_may_lie_along_any_axis(axis: int):
    x = normal(2, 3, 4)
    found = pb.vmap(lambda a: a * a[0], in_axes=axis, out_axes=axis)(x)
    rows = np.moveaxis(x.numpy(), axis, 0)
    same(found, np.moveaxis(np.stack([r * r[0] for r in rows]), 0, axis))


def test_in_axes_and_out_axes_are_trees_that_may_end_early():
    class Pair(NamedTuple):
        a: Any
        b: Any

    pair = Pair({"x": normal(2, 4), "y": [normal(3)]}, normal(4, 2, seed=1))
    f = pb.vmap(
        lambda p, scale: {"s": p.a["x"] * scale + p.b, "t": (p.a["y"][0], p.b.sum())},
        in_axes=(Pair({"x": 1, "y": None}, 0), None),
        out_axes={"s": 1, "t": (None, 0)},
    )
    out = f(pair, 2.0)
    same(out["s"], pair.a["x"].numpy() * 2.0 + pair.b.numpy().T)
    same(out["t"][0], pair.a["y"][0].numpy())
    same(out["t"][1], pair.b.numpy()[:, 0] + pair.b.numpy()[:, 1])


def test_keyword_arguments_are_shared_and_numpy_arrays_are_taken():
    x = np.arange(6.0).reshape(3, 2)
    same(pb.vmap(lambda a, *, by: (a * by).sum())(x, by=np.asarray([1.0, 10.0])), x @ [1.0, 10.0])


def test_a_result_that_all_examples_share_is_repeated():
    shared = pb.tensor([1.0, 2.0])
    out = pb.vmap(lambda x: (shared, 3, x))(pb.zeros((2, 1)))
    same(out[0], [[1.0, 2.0], [1.0, 2.0]])
    same(out[1], [3, 3])
    same(pb.vmap(lambda: shared * 2.0, in_axes=(), axis_size=2)(), [[2.0, 4.0]] * 2)


def test_axis_size_maps_without_an_argument():
    same(pb.vmap(lambda x: x + 1.0, in_axes=None, axis_size=3)(pb.tensor(1.0)), [2.0, 2.0, 2.0])


@pytest.mark.parametrize("size", [0, 1, 2])
def test_any_number_of_examples(size: int):
    def f(m: Any) -> Any:
        order = pb.argsort(m[0])
        return (m @ m)[order].sum(axis=0) + pb.nn.conv1d(m[None, :, :], m[:, :, None])[0].sum(
            axis=1
        )

    x = normal(size, 3, 3)
    assert pb.vmap(f)(x).shape == (size, 3)
    assert pb.jit(pb.vmap(f))(x).shape == (size, 3)
    gradient = pb.grad(lambda x: pb.vmap(f)(x).sum())(x)
    assert gradient.shape == (size, 3, 3)
    if size:
        near(gradient, looped(pb.grad(lambda m: f(m).sum()), x))


def test_maps_nest():
    a, b = normal(3, 4), normal(4, 5, seed=1)
    inner = pb.vmap(lambda row, column: (row * column).sum(), in_axes=(None, 1))
    near(pb.vmap(inner, in_axes=(0, None))(a, b), a.numpy() @ b.numpy())
    near(pb.jit(pb.vmap(inner, in_axes=(0, None)))(a, b), a.numpy() @ b.numpy())
    cube = normal(2, 3, 4)
    third = pb.vmap(pb.vmap(pb.vmap(pb.grad(lambda v: v * v * v))))(cube)
    near(third, 3 * cube.numpy() ** 2)


def test_rows_have_the_bits_they_have_alone_on_both_sides_of_thresholds():
    weight, kernel = normal(48, 40, seed=1), normal(6, 5, 3, seed=2)

    def f(x: Any) -> Any:
        y = pb.tanh(x @ weight)
        image = pb.nn.conv1d(pb.reshape(y, (1, 5, 8)), kernel)
        return pb.concat([y.sum()[None], pb.cumsum(y), image.reshape(-1), pb.nn.softmax(y, -1)])

    for size in (1, 2, 7, 33, 300):
        x = normal(size, 48, seed=size)
        same(pb.vmap(f)(x), looped(f, x))


# -- random keys, updates, control flow -----------------------------------------------------------


def test_each_key_draws_what_it_draws_alone():
    keys = pb.random.split(pb.random.key(3), 4)

    def f(key: Any) -> Any:
        first, second = pb.random.split(key)
        drawn = pb.random.normal(first, (2, 3)) + pb.random.uniform(second, (3,))
        return drawn * pb.nn.dropout(pb.ones((2, 3)), 0.5, key=pb.random.fold_in(key, 7))

    same(pb.vmap(f)(keys), looped(f, keys))
    nested = pb.vmap(pb.random.split)(keys)
    bits = pb.vmap(pb.vmap(lambda k: pb.random.bits(k, 3)))(nested)
    same(bits, np.stack([looped(lambda k: pb.random.bits(k, 3), row) for row in nested]))
    shared = pb.vmap(lambda x: x + pb.random.normal(keys[0], (2,)))(pb.zeros((3, 2)))
    same(shared, np.stack([pb.random.normal(keys[0], (2,)).numpy()] * 3))


def test_examples_update_their_arrays():
    def f(x: Any, i: Any) -> Any:
        y = x * 1.0
        y[i] = x.sum()
        y[1:] *= 2.0
        x += y
        return x

    x, places = normal(4, 3), pb.tensor([0, 1, 2, -1])
    kept = x.numpy().copy()
    same(pb.vmap(f)(x, places), looped(f, x, places))
    same(x, kept)
    near(
        pb.vmap(pb.grad(lambda x, i: (f(x, i) ** 2).sum()))(x, places),
        looped(pb.grad(lambda x, i: (f(x, i) ** 2).sum()), x, places),
    )


TABLE = pb.tensor([1.0, 2.0, 3.0, 4.0], dtype="float64")
FLOW: dict[str, Callable[[Any], Any]] = {
    "cond": lambda x: pb.cond(x > 0, pb.sin, lambda x: x * x * x, x),
    "cond of what is captured": lambda x: pb.cond(TABLE[0] > 0, pb.sin, pb.cos, x),
    "cond with indices that are bad in the other branch": lambda x: pb.cond(
        x > 0,
        lambda x: TABLE[pb.astype(x, pb.int64)] * x,
        lambda x: TABLE[pb.astype(1 - 3 * x, pb.int64)] * x,
        x,
    ),
    "scan": lambda x: pb.scan(lambda c, y: (c * 0.5 + x * y, c * y), x, TABLE)[1].sum(),
    "scan whose carry becomes different": lambda x: pb.scan(
        lambda c, y: ((c[1] * x, c[0] + y), c[0] * x), (TABLE[0], TABLE[1]), TABLE
    )[1].sum(),
    "fori_loop": lambda x: pb.fori_loop(0, 3, lambda i, c: c * x + i, x),
    "while_loop": lambda x: pb.while_loop(
        lambda c: c < 50.0, lambda c: c * (2.0 + x * x) + 1.0, x + 1.0, max_steps=20
    ),
    "cond in a scan": lambda x: pb.scan(
        lambda c, y: (pb.cond(c < y * x, lambda c: c + y, lambda c: c * 0.5, c), c), x, TABLE
    )[0],
}


@pytest.mark.parametrize("name", FLOW)
def test_control_flow_and_its_derivatives(name: str):
    f, x = FLOW[name], pb.tensor([0.3, -0.7, 1.2, 2.5], dtype="float64")
    slope = pb.grad(f)
    same(pb.vmap(f)(x), looped(f, x))
    near(pb.jit(pb.vmap(f))(x), looped(f, x))
    for g in (pb.vmap(slope), pb.grad(lambda x: pb.vmap(f)(x).sum())):
        near(g(x), looped(slope, x))
        near(pb.jit(g)(x), looped(slope, x))
    curvature = looped(pb.grad(slope), x)
    near(pb.grad(lambda x: pb.vmap(slope)(x).sum())(x), curvature)
    near(pb.jit(pb.grad(lambda x: pb.vmap(slope)(x).sum()))(x), curvature)
    along = looped(lambda x: pb.jvp(f, (x,), (x,))[1], x)
    near(pb.jvp(pb.vmap(f), (x,), (x,))[1], along)
    near(pb.vmap(lambda x: pb.jvp(f, (x,), (x,))[1])(x), along)


def test_an_index_that_an_example_uses_is_checked():
    with pytest.raises(IndexError, match="out of range"):
        pb.vmap(lambda x: pb.cond(x > 0, lambda x: TABLE[pb.astype(x, pb.int64)], pb.sin, x))(
            pb.tensor([-1.0, 9.0], dtype="float64")
        )


def test_a_loop_ends_for_each_example_by_itself():
    x = pb.tensor([0.0, 99.0, 200.0, 3.0])
    f = lambda x: pb.while_loop(lambda c: c < 100.0, lambda c: c * 2.0 + 1.0, x)  # noqa: E731
    same(pb.vmap(f)(x), looped(f, x))
    same(pb.jit(pb.vmap(f))(x), looped(f, x))


def test_a_map_inside_of_a_loop():
    def f(c: Any, xs: Any) -> Any:
        step = lambda c, x: (pb.vmap(lambda a, b: pb.sin(a * b))(c, x), c.sum())  # noqa: E731
        return pb.scan(step, c, xs)[1].sum()

    c, xs = normal(3), normal(5, 3, seed=1)
    near(pb.jit(f)(c, xs), f(c, xs).numpy())
    near(pb.jit(pb.grad(f))(c, xs), pb.grad(f)(c, xs).numpy())


# -- derivatives -----------------------------------------------------------------------------------


@pb.custom_vjp
def square(x: Any) -> Any:
    return x * x


square.defvjp(lambda x: (square(x), x), lambda x, g: (g * x * 100.0,))


def test_custom_rules_and_detach_count_inside():
    x = normal(3, 2)
    near(pb.grad(lambda x: pb.vmap(lambda r: square(r).sum())(x).sum())(x), 100 * x.numpy())
    near(pb.vmap(pb.grad(lambda r: square(r).sum()))(x), 100 * x.numpy())
    twice = pb.grad(lambda x: pb.vmap(pb.grad(lambda r: square(r).sum()))(x).sum())(x)
    near(twice, np.full((3, 2), 100.0))
    near(pb.grad(lambda x: pb.vmap(lambda r: (r.detach() * r).sum())(x).sum())(x), x.numpy())

    def silent(r: Any) -> Any:
        with pb.no_grad():
            return r * r

    assert not pb.vmap(silent)(pb.tensor(x, requires_grad=True)).requires_grad


def test_what_is_captured_gets_the_sum_of_all_examples():
    x = normal(4, 3)
    w = pb.tensor([1.0, 2.0, 3.0], dtype="float64", requires_grad=True)
    loss = pb.vmap(lambda r: (r * w * w).sum())(x).sum()
    loss.backward(create_graph=True)
    near(w.grad.detach(), 2 * w.detach().numpy() * x.numpy().sum(0))
    seen = []
    w.register_hook(lambda g: seen.append(g.detach().numpy()))
    pb.vmap(lambda r: (r * w).sum())(x).sum().backward()
    np.testing.assert_allclose(seen[0], x.numpy().sum(0))

    def outer(w: Any) -> Any:
        return pb.vmap(lambda r: (w * 2.0 * r + w).sum() * w[0])(x).sum()

    one = lambda w, r: (w * 2.0 * r + w).sum() * w[0]  # noqa: E731
    parts = looped(lambda r: pb.grad(one)(w.detach(), r), x)
    near(pb.grad(outer)(w.detach()), parts.sum(0))
    near(pb.jit(pb.grad(outer))(w.detach()), parts.sum(0))


def test_saved_values_are_released_and_a_second_pass_says_so():
    x = pb.tensor(np.ones((2, 2)), requires_grad=True)
    y = pb.vmap(lambda r: (r * r).sum())(x).sum()
    y.backward()
    with pytest.raises(pb.GradientError, match="released by an earlier"):
        y.backward()


def test_per_example_gradients_of_a_model():
    params = {"w": normal(3, 4), "b": normal(4, seed=1)}

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((pb.tanh(x @ p["w"] + p["b"]) - y) ** 2).sum()

    x, y = normal(5, 3, seed=2), normal(5, 4, seed=3)
    found = pb.jit(pb.vmap(pb.grad(loss), in_axes=(None, 0, 0)))(params, x, y)
    for k in range(5):
        alone = pb.grad(loss)(params, x[k], y[k])
        for name in params:
            near(found[name][k], alone[name].numpy())


# -- what can't be mapped --------------------------------------------------------------------------


X = pb.zeros((4, 3))
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: pb.vmap(lambda x, y: x)(X, pb.zeros(3)), pb.ShapeError, "got 4 from args[0] and 3"),
    (lambda: pb.vmap(lambda x: x, axis_size=2)(X), pb.ShapeError, "got 2 from axis_size and 4"),
    (lambda: pb.vmap(lambda x: x, in_axes=2)(X), pb.ShapeError, "args[0] has no axis 2"),
    (lambda: pb.vmap(lambda x: x)(pb.tensor(1.0)), pb.ShapeError, "got shape ()"),
    (lambda: pb.vmap(lambda x: x, in_axes=(0, 1))(X), pb.ShapeError, "got 2 for 1"),
    (lambda: pb.vmap(lambda x: x)({"a": 3.0}), pb.DTypeError, "args[0]['a'] is to be mapped"),
    (lambda: pb.vmap(lambda x: x, in_axes=None)(X), pb.ShapeError, "no argument is mapped"),
    (lambda: pb.vmap(lambda x: x, in_axes=True)(X), pb.DTypeError, "integers and None, got True"),
    (lambda: pb.vmap(lambda x: x, in_axes="0")(X), pb.DTypeError, "integers and None, got '0'"),
    (lambda: pb.vmap(lambda x: x, in_axes=({"a": 0},))({"b": X}), pb.ShapeError, "must look like"),
    (lambda: pb.vmap(lambda x: x, axis_size=-1)(X), pb.DTypeError, "number of examples, got -1"),
    (lambda: pb.vmap(lambda x: x, out_axes=None)(X), pb.ShapeError, "differs from example"),
    (lambda: pb.vmap(lambda x: x, out_axes=5)(X), pb.ShapeError, "along axis 5"),
    (lambda: pb.vmap(lambda x: (x, x), out_axes=(0,))(X), pb.ShapeError, "out_axes must look"),
    (lambda: pb.vmap(lambda x: "a")(X), pb.DTypeError, "expected an array"),
    (lambda: pb.vmap(lambda x: int(x[0]))(X), pb.TraceError, "has no value yet"),
    (lambda: pb.vmap(lambda x: x if x[0] > 0 else -x)(X), pb.TraceError, "can't branch"),
]


@pytest.mark.parametrize("position", range(len(BAD)))
def test_bad_calls(position: int):
    call, error, text = BAD[position]
    with pytest.raises(error) as info:
        call()
    assert text in str(info.value)


def test_values_of_one_example_do_not_outlive_the_call():
    kept: list[Any] = []
    pb.vmap(lambda x: kept.append(x) or x * 2.0)(X)
    with pytest.raises(pb.TraceError, match="vmap: a traced value of"):
        _ = kept[0] + 1.0


def test_an_update_of_what_is_captured_is_refused_and_undone():
    total = pb.zeros(3)

    def f(x: Any) -> Any:
        nonlocal total
        total += x
        return x

    with pytest.raises(pb.TraceError, match="updates a captured tensor in place"):
        pb.vmap(f)(X)
    same(total, np.zeros(3))


def test_an_operation_without_a_batch_rule_is_incomplete():
    op = pb.matmul.op  # type: ignore[attr-defined]
    fields = ("name", "function", "oracle", "samples", "errors", "operands", "infer", "lowering")
    with pytest.raises(TypeError, match="lacks a batch rule"):
        type(op)(**{k: getattr(op, k) for k in fields}, no_gradient="for this test")


def test_only_a_function_can_be_mapped():
    number: Any = 3
    with pytest.raises(pb.DTypeError, match="expected a function, got int"):
        pb.vmap(number)


def test_a_compiled_loop_is_run_once_for_values_and_once_for_derivatives():
    def f(x: Any) -> Any:
        return pb.scan(lambda c, y: (pb.tanh(c * y + pb.sin(c)), c), x, TABLE)[1].sum()

    for g in (
        lambda x: pb.value_and_grad(lambda x: pb.vmap(f)(x).sum())(x),
        pb.vmap(pb.value_and_grad(f)),
        pb.vmap(lambda x: pb.vmap(pb.value_and_grad(f))(pb.stack([x, x * 2.0]))),
    ):
        graph = pb.jit(g).lower(pb.ones(3, dtype="float64")).optimised
        assert [eq.op.name for eq in graph.equations].count("scan") == 2
