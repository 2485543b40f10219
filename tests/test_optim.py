"""Optimisers against references in plain NumPy, over trees, under jit, and at their edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.core import pytrees

optim = pb.optim
RNG = np.random.default_rng(7)
STEPS = 6


def gradient(p: np.ndarray) -> np.ndarray:
    """Of `sum(p**4 / 4 - p + sin(3 p))`: neither constant nor linear."""
    return p**3 - 1.0 + 3.0 * np.cos(3.0 * p)


# -- references: p, g, memory, step number (from 1) -> p ------------------------------------------


def sgd(p, g, m, t, lr=0.1, momentum=0.0, dampening=0.0, nesterov=False, decay=0.0):
    g = g + decay * p
    if momentum:
        m["b"] = g if t == 1 else momentum * m["b"] + (1 - dampening) * g
        g = g + momentum * m["b"] if nesterov else m["b"]
    return p - lr * g


def adam(p, g, m, t, lr=0.1, b1=0.9, b2=0.999, eps=1e-8, amsgrad=False, decay=0.0, decoupled=0.0):
    p = p * (1 - lr * decoupled)
    g = g + decay * p
    m["m"] = b1 * m.get("m", 0) + (1 - b1) * g
    m["v"] = b2 * m.get("v", 0) + (1 - b2) * g**2
    m["max"] = np.maximum(m.get("max", 0), m["v"])
    v = m["max"] if amsgrad else m["v"]
    return p - lr * (m["m"] / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)


def radam(p, g, m, t, lr=0.1, b1=0.9, b2=0.999, eps=1e-8):
    m["m"] = b1 * m.get("m", 0) + (1 - b1) * g
    m["v"] = b2 * m.get("v", 0) + (1 - b2) * g**2
    inf = 2 / (1 - b2) - 1
    rho = inf - 2 * t * b2**t / (1 - b2**t)
    mean = m["m"] / (1 - b1**t)
    if rho <= 5:
        return p - lr * mean
    r = np.sqrt((rho - 4) * (rho - 2) * inf / ((inf - 4) * (inf - 2) * rho))
    return p - lr * mean * r * np.sqrt(1 - b2**t) / (np.sqrt(m["v"]) + eps)


def lamb(p, g, m, t, lr=0.1, b1=0.9, b2=0.999, eps=1e-6, decay=0.0):
    m["m"] = b1 * m.get("m", 0) + (1 - b1) * g
    m["v"] = b2 * m.get("v", 0) + (1 - b2) * g**2
    r = (m["m"] / (1 - b1**t)) / (np.sqrt(m["v"] / (1 - b2**t)) + eps) + decay * p
    return p - lr * np.linalg.norm(p) / np.linalg.norm(r) * r


def lion(p, g, m, t, lr=0.1, b1=0.9, b2=0.99, decay=0.0):
    old = m.get("m", 0)
    m["m"] = b2 * old + (1 - b2) * g
    return p * (1 - lr * decay) - lr * np.sign(b1 * old + (1 - b1) * g)


def rmsprop(p, g, m, t, lr=0.1, alpha=0.99, eps=1e-8, momentum=0.0, centered=False):
    m["s"] = alpha * m.get("s", 0) + (1 - alpha) * g**2
    m["g"] = alpha * m.get("g", 0) + (1 - alpha) * g
    scale = np.sqrt(m["s"] - m["g"] ** 2 if centered else m["s"]) + eps
    m["b"] = momentum * m.get("b", 0) + g / scale
    return p - lr * m["b"]


def adagrad(p, g, m, t, lr=0.1, lr_decay=0.0, eps=1e-10, start=0.0):
    m["s"] = m.get("s", start) + g**2
    return p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(m["s"]) + eps)


def adadelta(p, g, m, t, lr=1.0, rho=0.9, eps=1e-6):
    m["s"] = rho * m.get("s", 0) + (1 - rho) * g**2
    step = np.sqrt(m.get("d", 0) + eps) / np.sqrt(m["s"] + eps) * g
    m["d"] = rho * m.get("d", 0) + (1 - rho) * step**2
    return p - lr * step


CASES: list[tuple[Any, Callable[..., np.ndarray], dict[str, Any]]] = [
    (optim.SGD(lr=0.1), sgd, {}),
    (optim.SGD(lr=0.1, momentum=0.9), sgd, {"momentum": 0.9}),
    (optim.SGD(lr=0.1, momentum=0.9, dampening=0.5), sgd, {"momentum": 0.9, "dampening": 0.5}),
    (optim.SGD(lr=0.1, momentum=0.9, nesterov=True), sgd, {"momentum": 0.9, "nesterov": True}),
    (optim.SGD(lr=0.1, weight_decay=0.2), sgd, {"decay": 0.2}),
    (optim.Adam(lr=0.1), adam, {}),
    (optim.Adam(lr=0.1, amsgrad=True, weight_decay=0.2), adam, {"amsgrad": True, "decay": 0.2}),
    (optim.Adam(lr=0.1, betas=(0.5, 0.6), eps=1e-3), adam, {"b1": 0.5, "b2": 0.6, "eps": 1e-3}),
    (optim.AdamW(lr=0.1), adam, {"decoupled": 1e-2}),
    (optim.RAdam(lr=0.1), radam, {}),
    (optim.RAdam(lr=0.1, betas=(0.9, 0.6)), radam, {"b2": 0.6}),
    (optim.LAMB(lr=0.1, weight_decay=0.1), lamb, {"decay": 0.1}),
    (optim.Lion(lr=0.1, weight_decay=0.1), lion, {"decay": 0.1}),
    (optim.RMSprop(lr=0.1), rmsprop, {}),
    (
        optim.RMSprop(lr=0.1, alpha=0.8, momentum=0.5, centered=True),
        rmsprop,
        {"alpha": 0.8, "momentum": 0.5, "centered": True},
    ),
    (
        optim.Adagrad(lr=0.1, lr_decay=0.3, initial_accumulator_value=0.2),
        adagrad,
        {"lr_decay": 0.3, "start": 0.2},
    ),
    (optim.Adadelta(), adadelta, {}),
]


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(("opt", "reference", "options"), CASES, ids=range(len(CASES)))
def test_steps_are_those_of_the_reference(opt, reference, options, jitted):
    start = {"w": RNG.normal(size=(3, 2)), "b": (RNG.normal(size=4),)}
    params = pytrees.map_tree(pb.tensor, start)
    state = opt.init(params)
    step = pb.jit(opt.step) if jitted else opt.step
    expected, memory = pytrees.flatten(start)[0], [{}, {}]
    for t in range(1, STEPS + 1):
        grads = pytrees.map_tree(lambda p: pb.tensor(gradient(p.numpy())), params)
        params, state = step(params, grads, state)
        expected = [
            reference(p, gradient(p), m, t, **options)
            for p, m in zip(expected, memory, strict=True)
        ]
        for got, want in zip(pytrees.leaves(params), expected, strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)
    assert state["step"].item() == STEPS


@pytest.mark.parametrize("opt", [optim.SGD(lr=0.1, momentum=0.9), optim.Adam(lr=0.1)], ids=str)
def test_a_complex_parameter_is_two_real_ones(opt):
    z = RNG.normal(size=3) + 1j * RNG.normal(size=3)
    g = RNG.normal(size=3) + 1j * RNG.normal(size=3)
    whole, parts = pb.tensor(z), [pb.tensor(z.real.copy()), pb.tensor(z.imag.copy())]
    state, others = opt.init(whole), opt.init(parts)
    for _ in range(3):
        whole, state = opt.step(whole, pb.tensor(g), state)
        parts, others = opt.step(
            parts, [pb.tensor(g.real.copy()), pb.tensor(g.imag.copy())], others
        )
    np.testing.assert_array_equal(whole.numpy(), parts[0].numpy() + 1j * parts[1].numpy())


def test_narrow_parameters_keep_their_dtype():
    p = pb.tensor([1.0, 2.0], dtype="bfloat16")
    for opt in (optim.SGD(lr=optim.cosine(0.1, 5), momentum=0.9), optim.Adam(lr=pb.tensor(0.1))):
        new, state = opt.step(p, p, opt.init(p))
        assert new.dtype is pb.bfloat16
        assert all(leaf.dtype is pb.bfloat16 for n in opt.kept for leaf in [state[n]])


def test_maximize_climbs():
    p, g = pb.tensor([1.0]), pb.tensor([2.0])
    up, down = optim.SGD(lr=0.1, maximize=True), optim.SGD(lr=0.1)
    assert up.step(p, g, up.init(p))[0].item() == pytest.approx(1.2)
    assert down.step(p, g, down.init(p))[0].item() == pytest.approx(0.8)


def test_a_schedule_is_asked_with_the_step_from_zero():
    opt = optim.SGD(lr=lambda n: 1.0 / (n + 1))
    p = pb.tensor(0.0, dtype="float64")
    state = opt.init(p)
    for _ in range(3):
        p, state = opt.step(p, pb.tensor(-1.0, dtype="float64"), state)
    assert p.item() == pytest.approx(1 + 1 / 2 + 1 / 3)


def test_the_learning_rate_can_be_differentiated():
    """The loss after two steps, by the learning rate, against central differences."""

    def after(lr):
        opt = optim.Adam(lr=lr)
        p = pb.tensor([1.0, -2.0], dtype="float64")
        state = opt.init(p)
        for _ in range(2):
            p, state = opt.step(p, 2.0 * p + p**3, state)
        return (p * p).sum()

    h, at = 1e-5, 0.1
    exact = pb.grad(after)(pb.tensor(at, dtype="float64")).item()
    up, down = (after(pb.tensor(at + s * h, dtype="float64")).item() for s in (1, -1))
    assert exact == pytest.approx((up - down) / (2 * h), rel=1e-7)


def test_lookahead_meets_every_k_steps():
    opt = optim.Lookahead(optim.SGD(lr=1.0), k=3, alpha=0.25)
    p = pb.tensor([0.0])
    state, seen = opt.init(p), []
    for _ in range(4):
        p, state = opt.step(p, pb.tensor([-1.0]), state)
        seen.append(p.item())
    assert seen == [1.0, 2.0, 0.75, 1.75]


# -- L-BFGS ---------------------------------------------------------------------------------------


def rosenbrock(p: Any) -> Any:
    x = p["x"]
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_lbfgs_finds_the_minimum_of_rosenbrock(jitted):
    opt = optim.LBFGS(max_iter=300)
    start = {"x": pb.tensor(np.tile([-1.2, 1.0], 5))}
    run = pb.jit(lambda p: opt.minimize(rosenbrock, p)) if jitted else None
    found, state = run(start) if run else opt.minimize(rosenbrock, start)
    np.testing.assert_allclose(found["x"].numpy(), 1.0, atol=1e-6)
    assert state["step"].item() < 150
    assert state["evaluations"].item() < 2 * state["step"].item() + 10


def test_lbfgs_solves_a_quadratic_in_about_its_dimension():
    a = RNG.normal(size=(6, 6))
    a = pb.tensor(a @ a.T + np.eye(6))
    b = pb.tensor(RNG.normal(size=6))
    found, state = optim.LBFGS().minimize(lambda x: 0.5 * (x @ (a @ x)) - (b * x).sum(), b * 0.0)
    np.testing.assert_allclose((a @ found).numpy(), b.numpy(), atol=1e-6)
    assert state["step"].item() <= 30


def test_lbfgs_never_climbs_and_survives_values_that_are_not_finite():
    def steep(x):  # infinite beyond 2: a step of length 1 from the start would land there
        return -pb.log(2.0 - x).sum() + 10.0 * (x * x).sum()

    opt = optim.LBFGS()
    x = pb.tensor([1.9, 1.5], dtype="float64")
    state = opt.init(steep, x)
    last = state["value"].item()
    for _ in range(15):
        x, state = opt.step(steep, x, state)
        assert np.isfinite(state["value"].item())
        assert state["value"].item() <= last + 1e-12
        last = state["value"].item()
    np.testing.assert_allclose(pb.grad(steep)(x).numpy(), 0.0, atol=1e-5)


def test_lbfgs_over_complex_and_mixed_trees():
    target = pb.tensor(np.array([1 + 2j, -0.5j]))

    def loss(p):
        d = p["z"] - target
        return pb.real(d * pb.conj(d)).sum() + ((p["w"] - 2.0) ** 2).sum()

    start = {"z": pb.tensor(np.zeros(2, complex)), "w": pb.tensor(np.zeros(3))}
    found, _ = optim.LBFGS().minimize(loss, start)
    np.testing.assert_allclose(found["z"].numpy(), target.numpy(), atol=1e-7)
    np.testing.assert_allclose(found["w"].numpy(), 2.0, atol=1e-7)


def test_lbfgs_without_line_search_takes_steps_of_length_lr():
    opt = optim.LBFGS(lr=0.5, line_search=None)
    x = pb.tensor([0.25], dtype="float64")  # |gradient| < 1: the first step is lr * gradient
    new, state = opt.step(
        lambda x: 0.5 * (x * x).sum(), x, opt.init(lambda x: 0.5 * (x * x).sum(), x)
    )
    assert new.item() == pytest.approx(0.125)
    assert state["evaluations"].item() == 1


# -- clipping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, np.inf])
def test_the_norm_is_that_of_all_gradients_together(norm_type):
    a, b = RNG.normal(size=(3, 2)), RNG.normal(size=4) + 1j * RNG.normal(size=4)
    got = optim.global_norm([pb.tensor(a), {"b": pb.tensor(b)}], norm_type).item()
    want = np.linalg.norm(np.abs(np.concatenate([a.ravel(), b])), norm_type)
    assert got == pytest.approx(want)


def test_clip_grad_norm_scales_only_what_is_too_long():
    g = {"a": pb.tensor([3.0]), "b": pb.tensor([4.0])}
    clipped, norm = optim.clip_grad_norm(g, 1.0)
    assert norm.item() == 5.0
    assert optim.global_norm(clipped).item() == pytest.approx(1.0, rel=1e-5)
    same, _ = optim.clip_grad_norm(g, 10.0)
    assert same["a"].item() == 3.0 and same["b"].item() == 4.0


def test_the_norm_of_zeros_has_a_gradient():
    zero = pb.tensor([0.0, 0.0], dtype="float64")
    assert pb.grad(lambda g: optim.global_norm([g]))(zero).tolist() == [0.0, 0.0]


def test_clip_grad_value():
    got = optim.clip_grad_value([pb.tensor([-3.0, 0.5]), pb.tensor([2 - 0.5j])], 1.0)
    assert got[0].tolist() == [-1.0, 0.5]
    assert got[1].tolist() == [1 - 0.5j]


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: optim.SGD(lr=-1.0), "SGD: lr must be in"),
        (lambda: optim.SGD(lr=0.1, nesterov=True), "SGD: nesterov needs a momentum"),
        (lambda: optim.Adam(betas=(1.0, 0.9)), "Adam: betas must be in"),
        (lambda: optim.Adam(eps=-1.0), "Adam: eps"),
        (lambda: optim.RMSprop(weight_decay=-0.1), "RMSprop: weight_decay"),
        (lambda: optim.Lookahead(optim.SGD(), k=0), "Lookahead: k"),
        (lambda: optim.LBFGS(line_search="armijo"), "LBFGS: line_search"),
        (lambda: optim.clip_grad_norm([pb.tensor([1.0])], -1.0), "clip_grad_norm: max_norm"),
        (lambda: optim.step(0.1, 0), "step: step_size must be a positive number"),
        (lambda: optim.one_cycle(0.1, 10, anneal="exp"), "one_cycle: anneal"),
        (lambda: optim.joined([0.1], [3]), "joined: needs one schedule more"),
    ],
)
def test_bad_settings_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_gradients_must_look_like_parameters():
    opt, p = optim.SGD(), {"w": pb.tensor([1.0, 2.0])}
    with pytest.raises(pb.ShapeError, match=r"SGD.step: gradients must have the structure"):
        opt.step(p, [pb.tensor([1.0, 2.0])], opt.init(p))
    with pytest.raises(pb.ShapeError, match=r"a gradient must have its parameter's shape"):
        opt.step(p, {"w": pb.tensor([1.0])}, opt.init(p))
    with pytest.raises(pb.DTypeError, match=r"parameters must be floating"):
        opt.step({"w": pb.tensor([1])}, {"w": pb.tensor([1])}, opt.init(p))
    with pytest.raises(pb.DTypeError, match="LBFGS: parameters must be floating"):
        optim.LBFGS().minimize(lambda p: p.sum(), pb.tensor([1]))
