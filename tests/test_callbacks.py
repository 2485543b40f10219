"""`pure_callback`: host code among operations: eager, compiled, mapped, in control flow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb

X = pb.tensor([1.0, 2.0, 3.0])


def both(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return {"sum": x + y, "count": np.int64(x.sum())}


def from_host(x: Any) -> Any:
    return pb.pure_callback(both, {"sum": X, "count": 0}, x, pb.exp(x))


@pytest.mark.parametrize("wrap", [lambda f: f, pb.jit], ids=["eager", "jit"])
def test_trees_come_back(wrap: Callable[..., Any]):
    found = wrap(lambda x: from_host(x * 2.0))(X)
    doubled = X.numpy() * 2
    np.testing.assert_array_equal(found["sum"].numpy(), doubled + pb.exp(X * 2.0).numpy())
    assert (found["count"].item(), found["count"].dtype) == (12, pb.int64)
    batch = pb.stack([X, X * 3.0])
    mapped = wrap(pb.vmap(from_host))(batch)
    for k in range(2):
        alone = from_host(batch[k])
        np.testing.assert_array_equal(mapped["sum"][k].numpy(), alone["sum"].numpy())
        assert mapped["count"][k].item() == alone["count"].item()


def test_a_vectorized_function_is_called_once_for_all_examples():
    shapes = []

    def f(x: np.ndarray) -> np.ndarray:
        shapes.append(x.shape)
        return x.sum(axis=-1)

    batch = pb.ones((4, 3))
    whole = pb.vmap(lambda x: pb.pure_callback(f, 0.0, x, vectorized=True))(batch)
    each = pb.vmap(lambda x: pb.pure_callback(f, 0.0, x))(batch)
    np.testing.assert_array_equal(whole.numpy(), each.numpy())
    assert shapes == [(4, 3), *[(3,)] * 4]
    nested = pb.vmap(pb.vmap(lambda x: pb.pure_callback(f, 0.0, x, vectorized=True)))
    assert nested(pb.ones((2, 4, 3))).shape == (2, 4)


def test_layouts_and_dtypes_arrive_as_they_are():
    seen = []

    def f(x: np.ndarray) -> np.ndarray:
        seen.append((x.shape, x.dtype.name, x.tolist()))
        return x * 2

    for dtype in (pb.float16, pb.bfloat16, pb.int8, pb.complex64):
        x = pb.astype(pb.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), dtype)
        call = lambda x: pb.pure_callback(f, x.mT[::-1], x.mT[::-1] + 0)  # noqa: E731
        eager, compiled = call(x), pb.jit(call)(x)
        np.testing.assert_array_equal(eager.numpy(), compiled.numpy())
        assert seen[-1] == seen[-2]
        assert seen[-1][:2] == ((3, 2), dtype.name)


def test_loops_and_branches_call_the_host():
    step = lambda c, r: (pb.pure_callback(np.sin, c, c + r), c)  # noqa: E731
    f = lambda x: pb.scan(step, x[0], x)[1]  # noqa: E731
    np.testing.assert_array_equal(pb.jit(f)(X).numpy(), f(X).numpy())

    def fails(x: np.ndarray) -> np.ndarray:
        raise ValueError("not taken")

    g = lambda x: pb.cond(  # noqa: E731
        x > 0, lambda x: pb.pure_callback(np.sqrt, x, x), lambda x: pb.pure_callback(fails, x, x), x
    )
    assert pb.jit(g)(pb.tensor(4.0)).item() == 2.0
    np.testing.assert_array_equal(pb.vmap(g)(X).numpy(), np.sqrt(X.numpy()))
    with pytest.raises(ValueError, match="not taken"):
        pb.vmap(g)(X - 2.0)


def test_threads_share_a_compiled_function():
    f = pb.jit(lambda x: pb.pure_callback(np.tanh, x, pb.exp(x.mT) @ x).sum())
    x, found = pb.ones((300, 300)), []
    threads = [threading.Thread(target=lambda: found.append(f(x).item())) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [f(x).item()] * 4


def test_derivatives_are_given_by_custom_rules_or_refused():
    @pb.custom_jvp
    def sine(x: Any) -> Any:
        return pb.pure_callback(np.sin, x, x)

    sine.defjvp(lambda xs, ts: (sine(*xs), pb.pure_callback(np.cos, xs[0], xs[0]) * ts[0]))
    total = lambda x: sine(x).sum()  # noqa: E731
    for derivative in (pb.grad(total), pb.jit(pb.grad(total)), pb.jit(pb.vmap(pb.grad(sine)))):
        np.testing.assert_array_equal(derivative(X).numpy(), np.cos(X.numpy()))
    plain = lambda x: pb.pure_callback(np.sin, x, x).sum()  # noqa: E731
    for f in (pb.grad(plain), pb.jit(pb.grad(plain)), lambda x: pb.jvp(plain, (x,), (x,))):
        with pytest.raises(pb.GradientError, match="`sin` is host code, which has no derivative"):
            f(X)
    stopped = lambda x: (x * pb.stop_gradient(pb.pure_callback(np.sin, x, x))).sum()  # noqa: E731
    np.testing.assert_array_equal(pb.grad(stopped)(X).numpy(), np.sin(X.numpy()))


def raises(x: np.ndarray) -> np.ndarray:
    raise KeyError("my own")


BAD: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (raises, KeyError, "my own"),
    (lambda x: x[:2], pb.ShapeError, "must return an array of shape (3,), got (2,)"),
    (lambda x: x * 1j, pb.DTypeError, "must return float32, got complex64"),
    (lambda x: (x, x), pb.ShapeError, "must return a tree like `like`"),
]


@pytest.mark.parametrize("wrap", [lambda f: f, pb.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("position", range(len(BAD)))
def test_what_the_host_does_wrong_is_raised_by_the_call(position: int, wrap: Callable[..., Any]):
    f, error, text = BAD[position]
    call = wrap(lambda x: pb.pure_callback(f, x, x * 2.0) + 1.0)
    for _ in range(2):  # a function that failed can be called again
        with pytest.raises(error) as info:
            call(X)
        assert text in str(info.value)
