"""Optimisers and schedules beside those of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb

torch = pytest.importorskip("torch")
lrs = torch.optim.lr_scheduler
optim = pb.optim
RNG = np.random.default_rng(3)

OPTIMISERS: list[tuple[Any, Any]] = [
    (optim.SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    (
        optim.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    (
        optim.SGD(lr=0.1, momentum=0.9, dampening=0.3, maximize=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, maximize=True),
    ),
    (
        optim.Adam(lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    ),
    (optim.Adam(lr=0.1, amsgrad=True), lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True)),
    (optim.AdamW(lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.1)),
    (optim.RAdam(lr=0.1), lambda p: torch.optim.RAdam(p, lr=0.1)),
    (
        optim.RMSprop(lr=0.1, momentum=0.5, centered=True),
        lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    ),
    (
        optim.Adagrad(lr=0.1, lr_decay=0.1, initial_accumulator_value=0.5),
        lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.5),
    ),
    (optim.Adadelta(), lambda p: torch.optim.Adadelta(p)),
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize(("ours", "theirs"), OPTIMISERS, ids=range(len(OPTIMISERS)))
def test_ten_steps_are_theirs(ours, theirs, dtype):
    start = (
        RNG.normal(size=(2, 3)) + (1j * RNG.normal(size=(2, 3)) if "c" in dtype else 0)
    ).astype(dtype)
    grads = [(RNG.normal(size=(2, 3)) + start * 0.1).astype(dtype) for _ in range(10)]
    p, q = pb.tensor(start), torch.tensor(start, requires_grad=True)
    state, other = ours.init(p), theirs([q])
    for g in grads:
        p, state = ours.step(p, pb.tensor(g), state)
        q.grad = torch.tensor(g)
        other.step()
    tolerance = 1e-5 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=tolerance, atol=tolerance)


SCHEDULES: list[tuple[Any, Any]] = [
    (optim.step(0.5, 3, 0.4), lambda o: lrs.StepLR(o, 3, 0.4)),
    (optim.multistep(0.5, [2, 5, 6], 0.4), lambda o: lrs.MultiStepLR(o, [2, 5, 6], 0.4)),
    (optim.exponential(0.5, 0.9), lambda o: lrs.ExponentialLR(o, 0.9)),
    (optim.polynomial(0.5, 12, 2.0), lambda o: lrs.PolynomialLR(o, 12, 2.0)),
    (optim.linear(0.1, 0.5, 6), lambda o: lrs.LinearLR(o, 0.2, 1.0, 6)),
    (optim.cosine_restarts(0.5, 4), lambda o: lrs.CosineAnnealingWarmRestarts(o, 4)),
    (
        optim.cosine_restarts(0.5, 3, 2, 0.1),
        lambda o: lrs.CosineAnnealingWarmRestarts(o, 3, 2, 0.1),
    ),
    (optim.one_cycle(2.0, 16), lambda o: lrs.OneCycleLR(o, 2.0, 16)),
    (
        optim.one_cycle(2.0, 16, 0.5, 5.0, 10.0, "linear"),
        lambda o: lrs.OneCycleLR(
            o, 2.0, 16, None, None, 0.5, "linear", True, 0.85, 0.95, 5.0, 10.0
        ),
    ),
    (
        optim.cyclic(0.1, 0.5, 3),
        lambda o: lrs.CyclicLR(o, 0.1, 0.5, 3, cycle_momentum=False),
    ),
]


@pytest.mark.filterwarnings("ignore")  # torch wants its optimiser to step first
@pytest.mark.parametrize(("ours", "theirs"), SCHEDULES, ids=range(len(SCHEDULES)))
def test_schedules_are_theirs(ours, theirs):
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    schedule = theirs(other)
    compiled = pb.jit(ours)
    for n in range(14):
        want = other.param_groups[0]["lr"]
        assert ours(n).item() == pytest.approx(want, rel=1e-9, abs=1e-12), n
        assert compiled(pb.tensor(n)).item() == pytest.approx(want, rel=1e-9, abs=1e-12), n
        schedule.step()


@pytest.mark.filterwarnings("ignore")
def test_cosine_is_theirs_and_then_stays():
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    schedule, ours = lrs.CosineAnnealingLR(other, 10, 0.1), optim.cosine(0.5, 10, 0.1)
    for n in range(11):
        assert ours(n).item() == pytest.approx(other.param_groups[0]["lr"])
        schedule.step()
    assert ours(25).item() == pytest.approx(0.1)


@pytest.mark.parametrize("cooldown", [0, 2])
def test_plateau_is_theirs(cooldown):
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = lrs.ReduceLROnPlateau(other, factor=0.5, patience=1, cooldown=cooldown)
    ours = optim.Plateau(factor=0.5, patience=1, cooldown=cooldown)
    state = ours.init()
    for measure in [3.0, 2.0, 2.0, 2.0, 2.0, 1.5, 1.6, 1.7, 1.8, 1.9, 1.0, 1.0, 1.0, 1.0]:
        state = ours.step(measure, state)
        schedule.step(measure)
        assert state["scale"].item() == pytest.approx(other.param_groups[0]["lr"])


def test_clipping_is_theirs():
    a, b = RNG.normal(size=5), RNG.normal(size=(2, 2))
    leaves = [torch.zeros(5, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)]
    for leaf, g in zip(leaves, (a, b), strict=True):
        leaf.grad = torch.tensor(g)
    norm = torch.nn.utils.clip_grad_norm_(leaves, 0.7)
    ours, own_norm = optim.clip_grad_norm([pb.tensor(a), pb.tensor(b)], 0.7)
    assert own_norm.item() == pytest.approx(norm.item())
    for x, leaf in zip(ours, leaves, strict=True):
        np.testing.assert_allclose(x.numpy(), leaf.grad.numpy())


def test_lbfgs_needs_about_as_many_evaluations():
    """Both find the same minimum; ours with about as many evaluations."""
    a, b = RNG.normal(size=(30, 8)), RNG.normal(size=30)
    count = 0
    q = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.LBFGS(
        [q], max_iter=100, history_size=10, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
    )

    def closure():
        nonlocal count
        count += 1
        theirs.zero_grad()
        loss = ((torch.tensor(a) @ q - torch.tensor(b)) ** 2).cosh().log().sum()
        loss.backward()
        return loss

    theirs.step(closure)
    ta, tb = pb.tensor(a), pb.tensor(b)
    p, state = optim.LBFGS(max_iter=100).minimize(
        lambda p: pb.log(pb.cosh((ta @ p - tb) ** 2)).sum(), pb.tensor(np.zeros(8))
    )
    np.testing.assert_allclose(p.numpy(), q.detach().numpy(), atol=1e-5)
    assert state["evaluations"].item() <= 1.5 * count
