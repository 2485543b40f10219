"""Second derivatives of the fitted network's loss, each checked by another way to find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import pullback as pb
from pullback.cli import digits
from pullback.core import pytrees
from pullback.display.report import Check, below

__all__ = [
    "PixelHessian", "TopEigenvalue", "bias_check", "order_check", "pixel_hessian",
    "product_checks", "random_direction", "top_eigenvalue",
]  # fmt: skip

POWERS = 400  # most steps of the power iteration

Loss = Callable[[Any], Any]


# -- trees as vectors ------------------------------------------------------------------------------


def _dot(a: Any, b: Any) -> Any:
    """The inner product of two trees."""
    pairs = zip(pytrees.leaves(a), pytrees.leaves(b), strict=True)
    return pb.stack([pb.sum(u * v) for u, v in pairs]).sum()


def _moved(a: Any, s: Any, b: Any) -> Any:
    """`a + s b`."""
    return pb.map_tree(lambda u, v: u + s * v, a, b)


def _unit(a: Any) -> Any:
    """The tree at length 1."""
    length = pb.sqrt(_dot(a, a))
    return pb.map_tree(lambda u: u / length, a)


def random_direction(tree: Any, key: Any) -> Any:
    """A tree like the given one that points anywhere, at length 1."""
    count = iter(range(len(pytrees.leaves(tree))))
    return _unit(
        pb.map_tree(
            lambda u: pb.random.normal(
                pb.random.fold_in(key, next(count)), u.shape, dtype="float64"
            ),
            tree,
        )
    )


def _difference(a: Any, b: Any) -> float:
    """The distance of two trees, relative to the second."""
    d = _moved(a, -1.0, b)
    return pb.sqrt(_dot(d, d) / _dot(b, b)).item()


# -- Hessian-vector products -----------------------------------------------------------------------


def product_checks(f: Loss, params: Any, v: Any) -> list[Check]:
    """One Hessian-vector product by three ways."""
    forward = pb.hvp(f, (params,), (v,))
    reverse = pb.grad(lambda p: _dot(pb.grad(f)(p), v))(params)
    step = 1e-4
    ahead, behind = (pb.grad(f)(_moved(params, s, v)) for s in (step, -step))
    numeric = pb.map_tree(lambda a, b: (a - b) / (2 * step), ahead, behind)
    name = "H v, forward over reverse, against"
    return [
        below(f"{name} reverse over reverse", _difference(forward, reverse), 1e-10),
        below(f"{name} finite differences", _difference(forward, numeric), 1e-5),
    ]


def bias_check(params: Any, x: Any, y: Any) -> Check:
    """The Hessian by the last biases, which is known: the mean of diag(p) - p p^T."""
    *first, (w, b) = params

    def f(c: Any) -> Any:
        return digits.loss([*first, (w, c)], x, y)

    hessian = pb.stack([pb.hvp(f, (b,), (e,)) for e in pb.eye(len(b), dtype="float64")])
    s = digits.scores(params, x)
    p = pb.exp(s - pb.logsumexp(s, axis=1, keepdims=True))
    known = pb.diag(pb.mean(p, axis=0)) - p.T @ p / len(y)
    worst = pb.max(pb.abs(hessian - known)) / pb.max(pb.abs(known))
    return below("Hessian by the last biases against its formula", worst.item(), 1e-10)


class TopEigenvalue(NamedTuple):
    """The way to the largest eigenvalue, and the loss along its eigenvector."""

    values: list[float]  # after each step
    residuals: list[float]  # |H v - c v| / c
    distances: list[float]  # from the fitted parameters
    along: list[float]  # the loss there
    parabola: list[float]  # what value, slope and eigenvalue predict
    checks: list[Check]


def top_eigenvalue(f: Loss, params: Any, v: Any) -> TopEigenvalue:
    """Power iteration from `v`: every step is one Hessian-vector product."""
    values, residuals = [], []
    for _ in range(POWERS):
        product = pb.hvp(f, (params,), (v,))
        value = _dot(v, product)
        rest = _moved(product, -value, v)
        values.append(value.item())
        residuals.append((pb.sqrt(_dot(rest, rest)) / pb.abs(value)).item())
        if residuals[-1] < 1e-6:
            break
        v = _unit(product)
    here, slope, h = f(params).item(), _dot(pb.grad(f)(params), v).item(), 1e-3
    around = [f(_moved(params, s, v)).item() for s in (h, -h)]
    numeric = (around[0] - 2 * here + around[1]) / h**2
    checks = [
        below("top eigenvalue c: |H v - c v| / c", residuals[-1], 1e-3),
        below("top eigenvalue against how the loss bends", abs(values[-1] / numeric - 1), 1e-4),
    ]
    ts = np.linspace(-0.4, 0.4, 61)
    along = [f(_moved(params, float(t), v)).item() for t in ts]
    parabola = here + slope * ts + values[-1] / 2 * ts**2
    return TopEigenvalue(values, residuals, ts.tolist(), along, parabola.tolist(), checks)


# -- whole Hessians --------------------------------------------------------------------------------


class PixelHessian(NamedTuple):
    """The derivatives of the loss of one image by its pixels."""

    position: int  # of the image among the test images
    probability: float  # of the digit the network chose
    gradient: np.ndarray
    hessian: np.ndarray
    check: Check


def pixel_hessian(params: Any, data: digits.Data) -> PixelHessian:
    """The whole Hessian by the pixels of the test image that the network is least sure of."""
    s = digits.scores(params, data.test_x.astype("float64"))
    sure = pb.exp(pb.max(s, axis=1) - pb.logsumexp(s, axis=1))
    n = int(sure.argmin())
    image, label = data.test_x[n].astype("float64"), data.test_y[n : n + 1]

    def f(pixels: Any) -> Any:
        return digits.loss(params, pixels[None], label)

    rows = [pb.hvp(f, (image,), (e,)).numpy() for e in pb.eye(len(image), dtype="float64")]
    hessian = np.stack(rows)
    asymmetry = float(np.abs(hessian - hessian.T).max() / np.abs(hessian).max())
    check = below("Hessian by 64 pixels: |H - H^T| / |H|", asymmetry, 1e-10)
    return PixelHessian(n, sure[n].item(), pb.grad(f)(image).numpy(), hessian, check)


def order_check(key: Any, order: int) -> Check:
    """All derivatives up to `order` of a tiny network, entry by entry, by `pb.check_grad`."""
    keys = pb.random.split(key, 3)
    shapes = ((2, 3), (3, 2))
    params = [
        (pb.random.normal(k, shape, dtype="float64"), pb.zeros(shape[1], dtype="float64"))
        for k, shape in zip(keys, shapes, strict=False)
    ]
    x, y = pb.random.normal(keys[2], (4, 2), dtype="float64"), pb.tensor([0, 1, 1, 0])
    report = pb.check_grad(lambda p: digits.loss(p, x, y), params, order=order, raises=False)
    name = f"check_grad, orders 1 to {order}, on a 2-3-2 network"
    return Check(name, f"{report.error:.1e}", "<= 1e-05", report.passed)
