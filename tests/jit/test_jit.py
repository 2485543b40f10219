"""`pb.jit`: signatures and the cache, captured state, derivatives, and what can't be traced."""

from __future__ import annotations

import inspect
import threading
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import pullback as pb
from pullback import compiled
from pullback.compile import unit
from pullback.core import pytrees


def tensor(*shape: int, seed: int = 0, dtype: str = "float64") -> Any:
    return pb.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def equal(a: Any, b: Any) -> None:
    """The same tree with the same bits."""
    first, structure = pytrees.flatten(a)
    second, other = pytrees.flatten(b)
    assert structure == other
    for x, y in zip(first, second, strict=True):
        if isinstance(x, pb.Tensor):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            np.testing.assert_array_equal(x.numpy(), y.numpy())
        else:
            assert x == y


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-12, atol=1e-12)


def here(offset: int = 0) -> str:
    """This file and the line of the caller, moved by `offset`, as messages name them."""
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Layer:
    weight: Any
    bias: Any


# -- arguments and results -------------------------------------------------------------------------


def test_trees_of_arguments_and_results():
    def f(params, pair, *, scale):
        (layer, [c]) = params["net"], params["rest"]
        y = pb.tanh(pair.first @ layer.weight + layer.bias) * scale
        return {
            "y": y,
            "pair": Pair(pair.second, [c + 1, None]),
            "layer": Layer(c, y.sum()),
            "n": 3,
        }

    x = {"net": Layer(tensor(4, 2), tensor(2)), "rest": [tensor(3)]}
    args = (x, Pair(tensor(5, 4), tensor(2, 2, dtype="float32")))
    equal(pb.jit(f)(*args, scale=tensor()), f(*args, scale=tensor()))


def test_one_trace_per_signature():
    traces = []

    @pb.jit
    def f(x, n=2):
        traces.append(x.shape)
        return x * n

    for shape in [(3,), (3,), (4,), (3,)]:
        f(tensor(*shape))
    assert traces == [(3,), (4,)]
    f(tensor(3, dtype="float32"))
    f(tensor(3), 2)
    f(tensor(3), 2)
    f(tensor(3), n=3)
    assert len(traces) == 5
    assert f.cache_info() == (3, 5, compiled.CACHE_SIZE, 5)
    f.clear()
    assert f.cache_info() == (0, 0, compiled.CACHE_SIZE, 0)
    equal(f(tensor(3)), tensor(3) * 2)


def test_strides_are_no_part_of_the_signature():
    f = pb.jit(lambda x: pb.sin(x) + 1)
    x = tensor(4, 5)
    for view in (x, pb.permute_dims(x, (1, 0))[:4], x[:, ::-1], pb.broadcast_to(x[0], (4, 5))):
        equal(f(view[:4, :4]), pb.sin(view[:4, :4]) + 1)
    assert f.cache_info().misses == 1


def test_python_values_are_static():
    seen = []

    @pb.jit
    def f(x, power, name):
        seen.append((power, name))
        return x**power if name == "power" else x

    x = tensor(3, dtype="float32")
    for power in (2, 2, 2.0, True, 0.0, -0.0, float("nan"), float("nan")):
        equal(f(x, power, "power").dtype, (x**power).dtype)
    assert [type(p) for p, _ in seen] == [int, float, bool, float, float, float]
    equal(f(x, 2, "other"), x)


def test_python_numbers_keep_weak_promotion():
    f = pb.jit(lambda x, s: x * s)
    for dtype in (pb.float16, pb.float32, pb.float64, pb.int32, pb.complex64):
        x = pb.ones(2, dtype=dtype)
        for s in (2, 2.5, True):
            assert f(x, s).dtype is (x * s).dtype


def test_numpy_arguments_are_traced():
    f = pb.jit(lambda x, s: x * s)
    a = np.arange(3.0)
    equal(f(a, np.float64(2)), pb.tensor(a) * pb.tensor(np.float64(2)))
    equal(f(a + 1, np.float64(3)), pb.tensor((a + 1) * 3))
    assert f.cache_info().misses == 1


def test_static_arguments():
    traces = []

    @pb.jit(static_argnums=1, static_argnames="mode")
    def f(x, shape, mode="plus"):
        traces.append((shape, mode))
        return pb.reshape(x, shape) + (1 if mode == "plus" else 0)

    x = tensor(6)
    equal(f(x, (2, 3)), pb.reshape(x, (2, 3)) + 1)
    equal(f(x, shape=(2, 3)), pb.reshape(x, (2, 3)) + 1)
    equal(f(x, (2, 3), "zero"), pb.reshape(x, (2, 3)) + 0)
    f(x, (2, 3), mode="zero")
    assert len(traces) == 4
    f(x, (2, 3), mode="zero")
    assert len(traces) == 4
    with pytest.raises(pb.DTypeError, match="hashable"):
        f(x, [2, 3])
    with pytest.raises(pb.DTypeError, match="static_argnames"):
        pb.jit(lambda x: x, static_argnames="y")
    with pytest.raises(pb.DTypeError, match="static_argnums"):
        pb.jit(lambda x: x, static_argnums=3)
    with pytest.raises(pb.DTypeError, match="got int"):
        pb.jit(3)  # pyright: ignore[reportArgumentType]


def test_objects_are_static_by_identity_or_refused():
    f = pb.jit(lambda x, g: g(x))
    x = tensor(3)
    equal(f(x, pb.sin), pb.sin(x))
    equal(f(x, pb.cos), pb.cos(x))
    with pytest.raises(pb.DTypeError, match="hashable"):
        f(x, {1, 2})


def test_outputs_that_need_no_computing():
    c = tensor(2, seed=3)

    def f(x, y):
        s = x + y
        return x, y, c, s, s, (x, 7, "text", None), pb.zeros((2, 2)), y[::2]

    x, y = tensor(4), pb.permute_dims(tensor(2, 4), (1, 0))[:, 0]
    equal(pb.jit(f)(x, y), f(x, y))
    equal(pb.jit(lambda x: x)(x), x)
    equal(pb.jit(lambda x: 5)(x), 5)
    equal(pb.jit(lambda: pb.ones(3))(), pb.ones(3))


def test_outputs_that_are_views_of_values_used_otherwise():
    def f(x):
        m = x * x
        first, second = m[:, 0:1], m[:, 1:2]
        return pb.concat([second, first], axis=1), first, second

    equal(pb.jit(f)(tensor(3, 2)), f(tensor(3, 2)))


def test_a_value_that_two_sums_read_in_different_ways():
    def f(x, y):
        m = x * y
        return m.sum(axis=1), m.sum(), m.sum(axis=0)

    args = (tensor(4, 5), tensor(4, 1, seed=1))
    for a, b in zip(pb.jit(f)(*args), f(*args), strict=True):
        close(a, b)


def test_results_are_new_handles():
    c = tensor(3)
    f = pb.jit(lambda x: (x, c))
    x = tensor(3, seed=1)
    before = x.numpy().copy()
    for _ in range(2):
        a, b = f(x)
        a[0] = 9.0
        b[0] = 9.0
        np.testing.assert_array_equal(x.numpy(), before)
        np.testing.assert_array_equal(c.numpy(), tensor(3).numpy())


def test_zero_size_and_zero_dimensions():
    f = pb.jit(lambda x: (x * 2, x.sum(), pb.exp(x)[..., None]))
    for x in (pb.zeros((0, 3)), pb.tensor(2.0), pb.zeros((2, 0))):
        equal(f(x), (x * 2, x.sum(), pb.exp(x)[..., None]))


def test_complex_values():
    def f(z):
        return (pb.abs(pb.exp(z) * z) ** 2).sum()

    z = pb.tensor(np.asarray([1 + 2j, 0.5 - 1j]))
    close(pb.jit(f)(z), f(z))
    close(pb.jit(pb.grad(f))(z), pb.grad(f)(z))
    close(pb.grad(pb.jit(f))(z), pb.grad(f)(z))


def test_setitem_inside():
    def f(x, i):
        y = pb.zeros(4, dtype="float64")
        y[1] = x.sum()
        y[i] = x[0] * 2
        y[y > 1] = 0.5
        y += 1
        return y

    args = (tensor(3), pb.tensor(2))
    equal(pb.jit(f)(*args), f(*args))


def test_updates_of_arguments_reach_the_caller():
    def f(x, y):
        x[0] = y.sum()
        x *= 2
        return x + 1

    a, b = tensor(3), tensor(3)
    jitted = pb.jit(f)
    for _ in range(2):
        equal(jitted(a, tensor(2)), f(b, tensor(2)))
        equal(a, b)
    with pytest.raises(pb.TraceError, match="NumPy array in place"):
        jitted(np.ones(3), tensor(2))


def test_random_keys_inside():
    def f(key, x):
        a, b = pb.random.split(key)
        return x + pb.random.normal(a, x.shape), pb.random.uniform(b, (2,))

    jitted = pb.jit(f)
    for seed in (1, 2):
        key = pb.random.key(seed)
        equal(jitted(key, tensor(3, dtype="float32")), f(key, tensor(3, dtype="float32")))
    assert jitted.cache_info().misses == 1


def test_methods_can_be_jitted():
    class Model:
        def __init__(self, scale):
            self.scale = scale

        @pb.jit
        def run(self, x):
            return x * self.scale

    a, b = Model(2.0), Model(3.0)
    x = tensor(3)
    equal(a.run(x), x * 2.0)
    equal(b.run(x), x * 3.0)


def test_defaults_are_part_of_the_signature():
    f = pb.jit(lambda: pb.ones(2) * 1.5)
    assert f().dtype is pb.float32
    pb.set_default_float(pb.float64)
    try:
        assert f().dtype is pb.float64
    finally:
        pb.set_default_float(pb.float32)


def test_the_cache_is_bounded_and_forgets_what_was_not_used():
    f = pb.jit(lambda x: x + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.RetraceWarning)
        for n in range(1, compiled.CACHE_SIZE + 10):
            f(pb.zeros(n))
            f(pb.zeros(1))
    info = f.cache_info()
    assert info.currsize == compiled.CACHE_SIZE
    misses = info.misses
    f(pb.zeros(1))
    assert f.cache_info().misses == misses


def test_retracing_is_warned_about_and_says_what_changed():
    f = pb.jit(lambda x, step: x * step, name="update")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(compiled.MANY_TRACES + 1):
            f({"w": tensor(2)}["w"], step)
        line = here(-1)
    (warning,) = caught
    assert warning.category is pb.RetraceWarning
    text = str(warning.message)
    assert "`update`" in text and f"traced {compiled.MANY_TRACES + 1} times" in text
    assert "step was 15, now 16" in text and "x was" not in text
    assert f"{warning.filename}:{warning.lineno}" == line


# -- captured state --------------------------------------------------------------------------------


def test_captured_arrays_are_constants():
    w = tensor(3)
    f = pb.jit(lambda x: x * w + w)
    equal(f(tensor(3, seed=1)), tensor(3, seed=1) * w + w)


@pytest.mark.parametrize("update", ["setitem", "in_place"])
def test_a_captured_array_that_is_updated_causes_another_trace(update):
    w = tensor(3)
    f = pb.jit(lambda x: x * w)
    x = tensor(3, seed=1)
    equal(f(x), x * w)
    if update == "setitem":
        w[1] = 7.0
    else:
        w += 1.0
    equal(f(x), x * w)
    assert f.cache_info().misses == 2


def test_an_update_of_what_was_only_used_indirectly_is_noticed():
    w = tensor(3, 2)
    box = {"w": w}
    f = pb.jit(lambda x: x @ pb.permute_dims(box["w"], (1, 0)))
    x = tensor(4, 2, seed=1)
    equal(f(x), x @ w.T)
    w[0] = 1.0
    equal(f(x), x @ w.T)
    box["w"] = w + 1
    equal(f(x), x @ (w + 1).T)


def test_a_captured_name_that_is_bound_again_is_noticed():
    w = tensor(3)

    def scaled(x):
        return x * w

    f = pb.jit(lambda x: scaled(x) + 1)
    x = tensor(3, seed=1)
    equal(f(x), x * w + 1)
    w = w + 1
    equal(f(x), x * w + 1)


def test_updating_captured_state_inside_is_an_error_and_undone():
    total = tensor(3)
    before = total.numpy().copy()

    @pb.jit
    def f(x):
        nonlocal total
        total += x
        return x

    line = here(-3)
    with pytest.raises(pb.TraceError, match="captured tensor in place") as caught:
        f(tensor(3))
    assert line in str(caught.value)
    np.testing.assert_array_equal(total.numpy(), before)


def test_captured_tensors_that_require_gradients_get_them():
    w = pb.tensor(tensor(3), requires_grad=True)
    x = tensor(3, seed=1)
    f = pb.jit(lambda x: (pb.sin(w * x) * w).sum())
    for _ in range(3):
        w.grad = None
        f(x).backward()
        found = w.grad
        w.grad = None
        (pb.sin(w * x) * w).sum().backward()
        close(found, w.grad)
        with pb.no_grad():
            w -= 0.1 * w.grad
    assert f.cache_info().misses == 1
    detached = pb.jit(lambda x: (w.detach() * x * w).sum())
    w.grad = None
    detached(x).backward()
    close(w.grad, w.detach() * x)


def test_constants_made_from_captured_tracked_tensors_follow_them():
    w = pb.tensor(tensor(3), requires_grad=True)
    x = tensor(3, seed=1)

    def target(x):
        return (pb.sin(w.detach()) * x * w).sum()

    def padded(x):
        return pb.concat([w * x, pb.ones(2, dtype="float64") * 3]).sum()

    jitted, other = pb.jit(target), pb.jit(padded)
    for _ in range(5):
        close(jitted(x), target(x))
        close(other(x), padded(x))
        with pb.no_grad():
            w -= 0.1
    assert other.cache_info().misses == 2  # its constants turn out not to depend on w


def test_derivatives_after_a_captured_change_are_refused():
    w = tensor(3)
    f = pb.jit(lambda x: (pb.sin(x) * w).sum())
    x = pb.tensor(tensor(3), requires_grad=True)
    y = f(x)
    w += 1.0
    with pytest.raises(pb.GradientError, match="captures was changed"):
        y.backward(create_graph=True)
    y.backward()
    close(x.grad, pb.cos(x.detach()) * (w - 1.0))


def test_computing_with_captured_tracked_tensors_only_is_an_error():
    w = pb.tensor(tensor(3), requires_grad=True)
    f = pb.jit(lambda x: x * pb.sin(w))
    with pytest.raises(pb.TraceError, match="Pass the tensor as an argument"):
        f(tensor(3))
    with pb.no_grad():
        close(f(tensor(3)), tensor(3) * pb.sin(w))


# -- what can't be traced --------------------------------------------------------------------------


USES = {
    "bool": lambda x: 1 if x > 0 else 2,
    "int": lambda x: int(x),
    "float": lambda x: float(x),
    "complex": lambda x: complex(x),
    "index": lambda x: list(range(pb.astype(x, pb.int64))),
    "item": lambda x: x.item(),
    "numpy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("name", USES)
def test_values_of_traced_tensors_are_refused_with_the_line(name):
    def f(x):
        y = x + 1
        return USES[name](y)

    line = f"{__file__}:{USES[name].__code__.co_firstlineno}"
    with pytest.raises(pb.TraceError) as caught:
        pb.jit(f)(pb.tensor(1.0))
    message = str(caught.value)
    assert message.startswith(f"{name}: a traced tensor has no value yet")
    assert line in message
    assert "made by" in message


@pytest.mark.parametrize(
    "use",
    [
        lambda x: pb.nonzero(x),
        lambda x: x[x > 0],
        lambda x: pb.unique_values(x),
        lambda x: pb.zeros((pb.astype(x.sum(), pb.int64), 2)),  # pyright: ignore[reportArgumentType]
        lambda x: np.asarray(x),
        lambda x: 1.0 in x,
        lambda x: f"{x.sum():.3f}",
    ],
)
def test_data_dependent_shapes_and_values_are_refused_with_the_line(use):
    with pytest.raises(pb.DTypeError) as caught:
        pb.jit(use)(tensor(3))
    assert f"{__file__}:{use.__code__.co_firstlineno}" in str(caught.value)


def test_errors_of_operations_name_the_line():
    def f(x):
        return x + pb.ones(7)

    with pytest.raises(pb.ShapeError, match="do not broadcast") as caught:
        pb.jit(f)(tensor(3))
    assert f"{__file__}:{f.__code__.co_firstlineno + 1}" in str(caught.value)


def test_a_leaked_value_is_refused_and_says_where_it_was_made():
    kept = []

    @pb.jit
    def f(x):
        kept.append(pb.sin(x))
        return x

    line = here(-3)
    f(tensor(3))
    (leaked,) = kept
    uses = [
        lambda: leaked + 1,
        lambda: leaked * tensor(3),
        lambda: leaked.numpy(),
        lambda: bool(leaked.sum()),
        lambda: f(leaked),
        lambda: pb.jit(lambda x: x * leaked)(tensor(3)),
        lambda: pb.concat([leaked, tensor(3)]),
    ]
    for use in uses:
        with pytest.raises(pb.TraceError, match="after the trace has ended") as caught:
            use()
        assert line in str(caught.value) and "made by sin" in str(caught.value)


def test_exceptions_leave_the_cache_usable():
    fail = True

    @pb.jit
    def f(x):
        if fail:
            raise KeyError("mine")
        return pb.sin(x)

    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            f(tensor(3))
    assert f.cache_info().currsize == 0
    fail = False
    equal(f(tensor(3)), pb.sin(tensor(3)))


def test_a_failed_compilation_leaves_the_cache_usable(monkeypatch):
    f = pb.jit(lambda x: pb.sin(x) + 1)
    x = tensor(3)
    with monkeypatch.context() as patch:

        def broken(graph, exact):
            raise pb.PullbackError("compile: broken")

        patch.setattr(unit, "optimise", broken)
        for _ in range(2):
            with pytest.raises(pb.PullbackError, match="broken"):
                f(x)
    equal(f(x), pb.sin(x) + 1)


def test_an_index_out_of_range_is_an_error():
    f = pb.jit(lambda x, i: x[i] * 2)
    x = tensor(3)
    equal(f(x, pb.tensor([2, 0])), x[[2, 0]] * 2)
    with pytest.raises(IndexError, match="out of range"):
        f(x, pb.tensor([3, 0]))
    equal(f(x, pb.tensor([2, 0])), x[[2, 0]] * 2)


# -- derivatives -----------------------------------------------------------------------------------


def loss(params: Any, x: Any) -> Any:
    y = pb.tanh(x @ params["w"] + params["b"])
    return (y * y).sum() + pb.exp(params["b"]).sum()


PARAMS = {"w": tensor(4, 3), "b": tensor(3, seed=1)}
X = tensor(5, 4, seed=2)


def test_derivatives_inside():
    both = pb.value_and_grad(loss)
    for a, b in zip(leaves(pb.jit(both)(PARAMS, X)), leaves(both(PARAMS, X)), strict=True):
        close(a, b)


def leaves(tree: Any) -> list[Any]:
    return pytrees.leaves(tree)


def test_value_and_grad_with_aux():
    def f(x):
        y = pb.sin(x)
        return y.sum(), {"y": y, "n": 3}

    x = tensor(3)
    both = pb.value_and_grad(f, has_aux=True)
    equal(pb.jit(both)(x), both(x))
    equal(pb.value_and_grad(pb.jit(f), has_aux=True)(x), both(x))


def test_a_training_step():
    def step(params, x):
        value, gradient = pb.value_and_grad(loss)(params, x)
        return value, pb.map_tree(lambda p, g: p - 0.1 * g, params, gradient)

    jitted = pb.jit(step)
    a = b = PARAMS
    for _ in range(5):
        va, a = jitted(a, X)
        vb, b = step(b, X)
        close(va, vb)
    assert jitted.cache_info().misses == 1


def wave(x: Any) -> Any:
    return (pb.sin(x * x) * pb.exp(-x)).sum()


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, j: pb.grad(j(f)),
        lambda f, j: j(pb.grad(f)),
        lambda f, j: pb.grad(j(pb.grad(j(f)))),
        lambda f, j: j(pb.grad(j(pb.grad(j(f))))),
        lambda f, j: pb.grad(pb.grad(j(f))),
        lambda f, j: pb.grad(pb.grad(pb.grad(j(f)))),
        lambda f, j: pb.grad(j(pb.grad(pb.grad(j(f))))),
        lambda f, j: pb.grad(pb.grad(pb.grad(pb.grad(j(f))))),
        lambda f, j: lambda x: pb.jvp(j(f), (x,), (x,))[1],
        lambda f, j: lambda x: pb.hvp(j(f), (x,), (x,)),
        lambda f, j: pb.grad(lambda x: pb.jvp(j(f), (x,), (x,))[1]),
        lambda f, j: lambda x: pb.jvp(pb.grad(pb.grad(j(f))), (x,), (x,))[1],
        lambda f, j: lambda x: pb.jvp(lambda y: pb.jvp(j(f), (y,), (x,))[1], (x,), (x,))[1],
    ],
)
def test_derivatives_of_any_order_and_kind(transform):
    x = pb.tensor(0.7, dtype="float64")
    expected = transform(wave, lambda f: f)(x)
    for _ in range(2):
        close(transform(wave, pb.jit)(x), expected)


def test_derivatives_of_several_outputs_and_arguments():
    def f(x, y, i):
        s = pb.sin(x) * y
        return s, s.sum(), i, x, {"z": pb.exp(y), "z2": s}

    jitted = pb.jit(f)
    for chosen in ([0], [1], [0, 1, 3], [4], [3, 5]):
        grads = []
        for g in (f, jitted):
            x = pb.tensor(tensor(3), requires_grad=True)
            y = pb.tensor(tensor(3, seed=1), requires_grad=True)
            outs = [o for o in leaves(g(x, y, pb.tensor(3))) if o.dtype.is_inexact]
            total: Any = sum((outs[k % len(outs)] * (k + 1)).sum() for k in chosen)
            total.backward()
            grads.append([x.grad, y.grad])
        for a, b in zip(*grads, strict=True):
            close(b, a)
    outs = jitted(pb.tensor(tensor(3), requires_grad=True), tensor(3), pb.tensor(3))
    assert [o.requires_grad for o in leaves(outs)] == [True, True, False, True, False, True]


def test_only_some_arguments_are_tracked():
    f = pb.jit(lambda x, y: (pb.sin(x) * y * y).sum())
    x, y = tensor(3), tensor(3, seed=1)
    close(pb.grad(f, 0)(x, y), pb.cos(x) * y * y)
    close(pb.grad(f, 1)(x, y), 2 * pb.sin(x) * y)
    a, b = pb.grad(f, (0, 1))(x, y)
    close(a, pb.cos(x) * y * y)
    close(b, 2 * pb.sin(x) * y)
    assert f.cache_info().misses == 1


def test_the_same_array_twice():
    x = tensor(3)
    f = pb.jit(lambda x, y: (x * y).sum())
    close(pb.grad(lambda x: f(x, x))(x), 2 * x)


def test_backward_releases_what_was_saved():
    x = pb.tensor(tensor(3), requires_grad=True)
    y = pb.jit(lambda x: pb.exp(pb.sin(x)).sum())(x)
    y.backward(retain_graph=True)
    first = x.grad
    x.grad = None
    y.backward()
    close(x.grad, first)
    with pytest.raises(pb.GradientError, match="released"):
        y.backward()


def test_jit_inside_jit_and_recursion():
    @pb.jit
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    x = tensor(3)
    equal(power(x, 4), x * (x * (x * x)))
    inner = pb.jit(lambda x: pb.sin(x))
    outer = pb.jit(lambda x: inner(x) + inner(x * 2))
    equal(outer(x), pb.sin(x) + pb.sin(x * 2))
    assert inner.cache_info().misses == 0
    equal(pb.jit(lambda x: x + inner(pb.ones(3)))(x), x + pb.sin(pb.ones(3)))


def test_jit_that_captures_the_values_of_an_outer_trace():
    def outer(x):
        inner = pb.jit(lambda y: y * x)
        return inner(pb.ones(3)).sum() + inner(x).sum()

    x = tensor(3)
    close(pb.jit(outer)(x), outer(x))
    close(pb.grad(outer)(x), pb.grad(lambda x: x.sum() + (x * x).sum())(x))
    graph = pb.trace(outer)(x)
    assert len(graph.inputs) == 1


def test_under_no_grad_nothing_is_recorded():
    f = pb.jit(lambda x: pb.sin(x).sum())
    x = pb.tensor(tensor(3), requires_grad=True)
    with pb.no_grad():
        assert not f(x).requires_grad
    assert f(x).requires_grad


def test_custom_rules_inside():
    @pb.custom_vjp
    def double(x):
        return x * 2

    double.defvjp(lambda x: (double(x), None), lambda _, g: (g * 10,))
    x = tensor(3)
    for g in (
        pb.grad(pb.jit(lambda x: double(x).sum())),
        pb.jit(pb.grad(lambda x: double(x).sum())),
    ):
        np.testing.assert_array_equal(g(x).numpy(), 10.0)


# -- looking, threads ------------------------------------------------------------------------------


def test_lower_shows_everything_and_runs_nothing():
    f = pb.jit(pb.value_and_grad(wave))
    lowered = f.lower(tensor(100))
    assert lowered.graph.equations and lowered.optimised.equations
    text = lowered.text()
    for part in ("traced:", "optimised:", "compiled:", "sin", "trace ", "compile ", "ms"):
        assert part in text
    assert repr(lowered).startswith("traced:")
    assert f.cache_info() == (0, 1, compiled.CACHE_SIZE, 1)
    f(tensor(100))
    assert f.cache_info().misses == 1


def test_python_threads_share_a_function():
    f = pb.jit(pb.value_and_grad(wave))
    inputs = [tensor(n % 3 + 1000, seed=n % 3) for n in range(12)]
    expected = [pb.value_and_grad(wave)(x) for x in inputs]
    results: list[Any] = [None] * len(inputs)
    start = threading.Barrier(len(inputs))

    def work(k: int) -> None:
        start.wait()
        for _ in range(5):
            results[k] = f(inputs[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert f.cache_info().misses == 3
    once = [f(x) for x in inputs]
    for a, b, c in zip(results, once, expected, strict=True):
        equal(a, b)
        close(a[0], c[0])
        close(a[1], c[1])


def test_thread_count_does_not_change_the_bits(threads):
    x = tensor(300_000, dtype="float32")
    f = pb.jit(pb.value_and_grad(wave))
    patterns = set()
    for n in (1, 2, 3):
        threads(n)
        patterns.add(b"".join(o.numpy().tobytes() for o in f(x)))
    assert len(patterns) == 1
