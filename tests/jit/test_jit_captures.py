"""`jit` and what a function captures; what cannot be traced."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import pullback as pb
from jit.jit_checks import close, equal, here, tensor
from pullback.compile.function import unit

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


# -- memory that others write to -------------------------------------------------------------------

OUTSIDE: Any = types.ModuleType("outside")  # nobody looks for what functions reach in modules


class Readable:
    """What NumPy can read, but is no array."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


READS = {
    "a NumPy array": lambda x, m: x * m.array,
    "a part of it": lambda x, m: x * m.array[:3][::-1],
    "a function of it": lambda x, m: x * np.cos(m.array),
    "a number of it": lambda x, m: x * float(m.array[1]),
    "as a tensor": lambda x, m: x * pb.tensor(m.array),
    "as indices": lambda x, m: x[m.array.astype(int) % 3],
    "a shared tensor": lambda x, m: x * m.shared,
    "a part of a shared tensor": lambda x, m: x * m.shared[::-1],
    "a function of a shared tensor": lambda x, m: x * pb.cos(m.shared),
    "a number of a shared tensor": lambda x, m: x * m.shared[1].item(),
    "a shared tensor and a number of it": lambda x, m: x * m.shared * m.shared[1].item(),
    "a shared tensor and a decision": lambda x, m: (
        x + m.shared if m.shared[1] > 5 else x - m.shared
    ),
    "another library's array": lambda x, m: x * pb.asarray(m.readable),
    "something in a module": lambda x, m: x * OUTSIDE.array,
    "a part of something in a module": lambda x, m: x * OUTSIDE.array[::-1],
    "in a loop": lambda x, m: pb.fori_loop(0, 2, lambda i, c: c * OUTSIDE.array, x),
}


@pytest.mark.parametrize("name", READS)
def test_memory_that_somebody_else_writes_to_is_read_at_each_call(name):
    read = READS[name]
    a = OUTSIDE.array = np.array([1.0, 2.0, 3.0])
    memory = types.SimpleNamespace(array=a, shared=pb.from_dlpack(a), readable=Readable(a))
    f = pb.jit(lambda x: read(x, memory))
    x = tensor(3, seed=1)
    for value in (1.0, 5.0, 6.0, 7.0):
        a[1] = value
        equal(f(x), read(x, memory))
        wanted = pb.grad(lambda x: (read(x, memory) ** 2).sum())(x)
        close(pb.grad(lambda x: (f(x) ** 2).sum())(x), wanted)
    before = f.cache_info().misses
    f(x)
    assert f.cache_info().misses == before


def test_a_number_of_a_parameter_is_read_at_each_call():
    w = tensor(2)
    w.requires_grad = True
    f = lambda x: x * w * w.detach()[1].item()  # noqa: E731
    g = pb.jit(f)
    for _ in range(3):
        equal(g(tensor(2, seed=1)).detach(), f(tensor(2, seed=1)).detach())
        with pb.no_grad():
            w *= 2.0


def test_shared_memory_is_an_argument_and_needs_no_other_trace():
    a = np.ones(3)
    t = pb.from_dlpack(a)
    f = pb.jit(lambda x: x * t + 1.5)
    for n in range(4):
        a[0] = n
        equal(f(pb.ones(3)), pb.ones(3) * t + 1.5)
    assert f.cache_info().misses == 1


def test_nan_is_equal_to_itself():
    a = np.array([np.nan, -0.0])
    f = pb.jit(lambda x: x + a)
    f(tensor(2))
    f(tensor(2))
    assert f.cache_info().misses == 1
    a[1] = 0.0
    f(tensor(2))
    assert f.cache_info().misses == 2


def test_another_array_under_a_captured_name_is_noticed():
    a = np.ones(3)
    f = pb.jit(lambda x: x * a)
    equal(f(pb.ones(3)), pb.ones(3) * a)
    a = np.full(3, 2.0)
    equal(f(pb.ones(3)), pb.ones(3) * a)


@pytest.mark.parametrize("holder", [{0: 2.0}, [2.0]], ids=["dict", "list"])
def test_numbers_in_captured_containers_are_noticed(holder):
    f = pb.jit(lambda x: x * holder[0])
    equal(f(pb.ones(3)), pb.ones(3) * 2.0)
    holder[0] = 3.0
    equal(f(pb.ones(3)), pb.ones(3) * 3.0)


def test_arguments_are_not_captured():
    f = pb.jit(lambda x: x + 1)
    for n in range(3):
        f(np.full(3, float(n)))
    assert f.cache_info().misses == 1


# -- updates inside --------------------------------------------------------------------------------


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
