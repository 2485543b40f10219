"""Handles have one owner: what is done to one in place, or to its memory, changes no other."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

import pullback as pb
from pullback.ops.families import apart


def test_kept_scalars_are_not_given_away():
    for made in (pb.ones(()), pb.ones_like(pb.tensor(3.0)), pb.full((), 1.0), pb.asarray(1.0)):
        made *= 5
        made += 1
        assert made.item() == 6
    assert (pb.tensor([10.0]) + 1).tolist() == [11.0]
    x = pb.tensor(2.0, requires_grad=True)
    x.sum().backward()
    x.grad *= 0.5
    y = pb.tensor(2.0, requires_grad=True)
    y.sum().backward()
    assert y.grad.item() == 1.0


def test_what_is_given_by_name_is_not_the_result():
    x = pb.ones((2, 3))
    y = apart(lambda *, x: x)(x=x)
    y += 1
    assert x.tolist() == [[1.0] * 3] * 2


def test_kept_scalars_are_found_by_their_bits():
    pb.asarray(complex(-1, 0.0))
    assert pb.sqrt(pb.asarray(complex(-1, -0.0))).item() == -1j
    pb.asarray(float("nan"))
    assert math.copysign(1, pb.asarray(-float("nan")).item()) == -1
    pb.asarray(0.0)
    assert math.copysign(1, pb.asarray(-0.0).item()) == -1


def test_gradients_share_no_handle():
    a, b = pb.tensor([1.0]), pb.tensor([2.0])
    ga, gb = pb.grad(lambda p: pb.sum(p[0] + p[1]))((a, b))
    ga += 5
    assert gb.tolist() == [1.0]
    x, seed = pb.tensor([1.0], requires_grad=True), pb.tensor([3.0])
    x.backward(seed)
    x.grad *= 2
    assert seed.tolist() == [3.0]
    _, pull = pb.vjp(lambda x, y: (x, x), a, b)
    pulled = pull((seed, pb.tensor([0.0])))
    assert pulled[0] is not seed
    value, tangent = pb.jvp(lambda x: x, (a,), (seed,))
    assert value is not a and tangent is not seed


def test_a_hook_may_update_what_it_is_given():
    x, y = (pb.tensor([1.0], requires_grad=True) for _ in range(2))

    def double(g):
        g *= 2

    x.register_hook(double)
    pb.sum(x + y).backward()
    assert (x.grad.item(), y.grad.item()) == (2.0, 1.0)


def test_residuals_of_a_custom_rule_are_snapshots():
    @pb.custom_vjp
    def square(x):
        return x * x

    square.defvjp(lambda x: (x * x, x), lambda x, g: (2 * x * g,))
    x = pb.tensor(3.0, requires_grad=True)
    y = x + 0
    z = square(y)
    y += 100
    z.backward()
    assert x.grad.item() == 6.0


def test_outputs_of_a_loop_are_snapshots():
    held = pb.tensor(0.0)

    def body(c, x):
        nonlocal held
        held += x
        return c, held

    assert pb.scan(body, pb.tensor(0.0), pb.tensor([1.0, 2.0, 3.0]))[1].tolist() == [1.0, 3.0, 6.0]


def test_a_loop_without_steps_returns_other_handles():
    x = pb.tensor([1.0])
    for out in (
        pb.fori_loop(0, 0, lambda i, c: c, x),
        pb.while_loop(lambda c: c.sum() < 0, lambda c: c, x),
        pb.scan(lambda c, r: (c, r), x, pb.zeros((0, 2)))[0],
        pb.cond(pb.tensor(True), lambda a: a, lambda a: a, x),
    ):
        out += 1
        assert x.tolist() == [1.0]


def test_optimisers_and_graphs_keep_no_handle_of_the_user():
    p = pb.tensor([1.0])
    state = pb.optim.Lookahead(pb.optim.SGD(lr=1.0)).init(p)
    p += 5
    assert state["slow"].tolist() == [1.0]
    g = pb.Graph()
    x = g.input(())
    y = x * x
    g.forward({x: 3.0})
    g.backward(y)
    got = g.grad(x)
    got *= 0
    assert g.grad(x).item() == 6.0


# -- links to what a tensor was computed from ------------------------------------------------------


def rotation(a):
    return pb.tensor([[pb.cos(a), -pb.sin(a)], [pb.sin(a), pb.cos(a)]])


@pytest.mark.parametrize("make", [pb.tensor, pb.asarray])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_lists_of_tensors_keep_their_link(make, compiled):
    wrap = pb.jit if compiled else lambda f: f

    def f(a):
        return pb.sum(make([2 * a[0], 3.0, [5 * a[1]][0]]) * make((1, a[0], 1)))

    a = pb.tensor([2.0, 7.0])
    assert wrap(pb.grad(f))(a).tolist() == [5.0, 5.0]
    assert pb.jvp(wrap(f), (a,), (pb.tensor([1.0, 0.0]),))[1].item() == 5.0
    turn = wrap(pb.grad(lambda t: (rotation(t) @ pb.tensor([1.0, 0.0]))[1]))
    assert turn(pb.tensor(0.0)).item() == 1.0
    assert wrap(pb.grad(lambda t: pb.sum(make(t) * t)))(a).tolist() == [4.0, 14.0]


def test_lists_of_tensors_promote_like_operations():
    one = pb.tensor(1.0, dtype="float32")
    assert pb.tensor([one, 2.5]).dtype is pb.float32
    assert pb.tensor([one, pb.tensor(1.0, dtype="float64")]).dtype is pb.float64
    assert pb.tensor([pb.tensor(1), 2.5]).dtype is pb.default_float()
    assert pb.tensor([one, 1], dtype="int32").tolist() == [1, 1]
    with pytest.raises(pb.ShapeError, match="ragged"):
        pb.tensor([[one, one], [one]])


def test_tensor_makes_a_leaf_where_it_is_asked_to():
    x = pb.tensor([1.0], requires_grad=True)
    assert pb.tensor(x).grad_fn is not None
    assert pb.tensor(x, requires_grad=True).is_leaf


@pytest.mark.parametrize("number", [float, complex, math.sin])
def test_a_python_number_of_a_tracked_tensor_is_refused(number):
    x = pb.tensor(2.0, requires_grad=True)
    with pytest.raises(pb.GradientError, match=r"requires a gradient.*item\(\)"):
        number(x)
    with pytest.raises(pb.GradientError):
        pb.grad(lambda a: a * number(a))(pb.tensor(2.0))
    with pb.no_grad():
        assert number(x) == number(2.0)
    assert number(x.detach()) == number(2.0)
    assert x.item() == int(x) == 2


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("kind", ["int32", "bool"])
def test_integers_and_booleans_have_no_gradient(compiled, kind):
    derived = pb.grad(lambda a: pb.sum(pb.astype(a, kind)).astype(kind))
    with pytest.raises(pb.GradientError, match=rf"floating scalar, got {kind}"):
        (pb.jit(derived) if compiled else derived)(pb.tensor([1.0, 2.0]))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_bound_on_steps_cuts_neither_value_nor_derivative(compiled):
    def f(x, steps):
        step = lambda c: (c[0] + 1, c[1] * x)  # noqa: E731
        return pb.while_loop(lambda c: c[0] < 5, step, (pb.tensor(0), x), max_steps=steps)[1]

    for function in (f, pb.value_and_grad(f)):
        bounded = pb.jit(function, static_argnums=1) if compiled else function
        with pytest.raises(pb.PullbackError, match="while_loop: the loop has not ended after"):
            bounded(pb.tensor(2.0), 4)
    value, gradient = bounded(pb.tensor(2.0), 5)
    assert (value.item(), gradient.item()) == (2.0**6, 6 * 2.0**5)


# -- memory that others can write to ---------------------------------------------------------------


def written(x, value):
    """What somebody does who takes memory by DLPack and does not heed a read-only flag."""
    array = np.from_dlpack(x)
    pointer = array.__array_interface__["data"][0]
    filled = np.full(array.size, value, array.dtype)
    ctypes.memmove(pointer, filled.ctypes.data, filled.nbytes)


def test_exported_memory_is_no_constant_and_no_saved_value():
    written(pb.zeros(1), 7)
    written(pb.ones(()), 7)
    written(pb.tensor(1.0), 7)
    assert pb.zeros(2).tolist() == [0.0, 0.0]
    assert (pb.tensor(5.0) + 1.0).item() == 6.0
    x = pb.tensor([1.0, 2.0], requires_grad=True)
    y = x * 1.0
    z = y * y
    written(y.detach(), 101)
    pb.sum(z).backward()
    assert x.grad.tolist() == [2.0, 4.0]
    written(x.grad, 0)
    assert pb.ones(2).tolist() == [1.0, 1.0]


def test_a_numpy_array_of_a_saved_value_is_a_copy():
    x = pb.tensor(np.arange(1.0, 9.0), requires_grad=True)
    y = x * 1.0
    z = y * y
    array = y.detach().numpy()
    assert not array.flags.writeable
    ctypes.memset(array.__array_interface__["data"][0], 0, array.nbytes)  # as PyTorch would
    pb.sum(z).backward()
    assert x.grad.tolist() == (2 * np.arange(1.0, 9.0)).tolist()


def test_small_arrays_of_numpy_are_copies():
    for x in (pb.ones(()), pb.zeros(3), pb.tensor(1.0)):
        array = x.numpy()
        assert not array.flags.writeable
        assert array.__array_interface__["data"][0] != x._buf.address


def test_memory_is_shared_on_request_if_nobody_else_has_it():
    x = pb.tensor(np.arange(6.0))
    capsule = x.__dlpack__(copy=False)
    assert capsule is not None
    y = x[1:]
    for held in (x, y, y[2:]):
        with pytest.raises(BufferError, match="belongs to others"):
            held.__dlpack__(copy=False)


def test_indices_in_shared_memory_may_change():
    a = np.arange(100000) % 1000
    indices = pb.from_dlpack(a)
    plan = pb.scatter_plan(indices, 1000)
    x = pb.ones(100000)
    for _ in range(4):
        assert pb.segment_sum(x, indices, 1000)[0].item() == 100
    a[:] = 0
    assert pb.segment_sum(x, indices, 1000)[0].item() == 100000
    assert pb.segment_sum(x, plan)[0].item() == 100


# -- calls that have nothing to do -----------------------------------------------------------------

NOTHING_TO_DO = {
    "asarray": lambda x: pb.asarray(x, copy=True),
    "tensor": pb.tensor,
    "astype": lambda x: pb.astype(x, x.dtype),
    "mean": lambda x: pb.mean(x, axis=()),
    "sum": lambda x: pb.sum(x, axis=()),
    "max": lambda x: pb.max(x, axis=()),
    "min": lambda x: pb.min(x, axis=()),
    "prod": lambda x: pb.prod(x, axis=()),
    "median": lambda x: pb.median(x, axis=()),
    "logsumexp": lambda x: pb.logsumexp(x, axis=()),
    "diff": lambda x: pb.diff(x, n=0),
    "reshape": lambda x: pb.reshape(x, x.shape),
    "flatten": pb.flatten,
    "broadcast_to": lambda x: pb.broadcast_to(x, x.shape),
    "broadcast_arrays": lambda x: pb.broadcast_arrays(x, x)[0],
    "permute_dims": lambda x: pb.permute_dims(x, (0,)),
    "squeeze": lambda x: pb.squeeze(x, ()),
    "flip": lambda x: pb.flip(x, axis=()),
    "roll": lambda x: pb.roll(x, 0),
    "tile": lambda x: pb.tile(x, (1,)),
    "repeat": lambda x: pb.repeat(x, 1),
    "concat": lambda x: pb.concat([x]),
    "pad": lambda x: pb.pad(x, 0),
    "einsum": lambda x: pb.einsum("i->i", x),
    "clip": pb.clip,
    "real": lambda x: x.real,
    "conj": pb.conj,
    "positive": pb.positive,
    "item": lambda x: x[...],
    "slice": lambda x: x[:],
    "moveaxis": lambda x: pb.moveaxis(x, 0, 0),
    "swapaxes": lambda x: pb.swapaxes(x, 0, 0),
    "dropout": lambda x: pb.nn.dropout(x, 0.0),
    "identity": lambda x: pb.nn.interpolate(x[None, None], 2)[0, 0],
    "Identity": lambda x: pb.nn.Identity()(x),
    "Sequential": lambda x: pb.nn.Sequential()(x),
    "Dropout": lambda x: pb.nn.Dropout(0.5)(x),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "to_device": lambda x: pb.asarray(x, device="cpu", copy=True),
}


@pytest.mark.parametrize("name", NOTHING_TO_DO)
@pytest.mark.parametrize("tracked", [False, True], ids=["plain", "tracked"])
def test_a_call_that_has_nothing_to_do_gives_another_handle(name, tracked):
    x = pb.tensor([1.0, 2.0], requires_grad=tracked)
    out = NOTHING_TO_DO[name](x)
    assert out is not x and out.tolist() == x.tolist()
    with pb.no_grad():
        out[...] = 7.0
        out += 1
    assert x.tolist() == [1.0, 2.0]
    assert x.requires_grad is tracked and x.is_leaf
