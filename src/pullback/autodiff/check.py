"""`check_grad`: derivatives against finite differences, with the name of the operation that is
wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pullback.autodiff.reverse import close, cotangents, fresh, with_recording
from pullback.core import pytrees
from pullback.core.errors import DTypeError, GradientError, briefly
from pullback.ir.array import Array, handle
from pullback.ir.convert import as_array, from_numpy, to_numpy
from pullback.ir.graph import trace
from pullback.ir.op import REGISTRY, bind
from pullback.ops.creation import zeros_like

__all__ = ["GradientReport", "check_grad"]


class GradientReport(NamedTuple):
    """The worst disagreement that `check_grad` found."""

    order: int  # of the derivative
    argument: int  # position among the arrays of the arguments
    place: tuple[int, ...]  # the entry of that array
    analytic: complex
    numeric: complex
    error: float  # relative to the scale of that derivative
    op: str  # the operation it came from, "" if every one is right by itself
    passed: bool


@briefly
def check_grad(
    f: Callable[..., Any],
    *args: Any,
    order: int = 2,
    eps: float = 1e-4,
    rtol: float = 1e-5,
    raises: bool = True,
) -> GradientReport:
    """Compare the derivatives of `f` up to `order` with finite differences, entry by entry.

    Arguments are trees of float64 or complex128 tensors. Derivative k is checked against
    differences of derivative k - 1, each contracted with fixed random weights, so that every order
    is exercised by itself. On a mismatch a GradientError names the entry and the first operation of
    `f` whose own rule is wrong.

    >>> pb.check_grad(lambda x: (x.sin() * x).sum(), pb.tensor([0.3, 1.2], dtype="float64")).passed
    True
    """
    leaves, structure = pytrees.flatten(args)
    arrays = [_checked(x) for x in leaves]

    def flat(*xs: Any) -> list[Any]:
        return [
            as_array(o, "check_grad") for o in pytrees.leaves(f(*pytrees.unflatten(structure, xs)))
        ]

    worst = _worst(flat, arrays, order, eps, rtol)
    if worst.passed:
        return worst
    worst = worst._replace(op=_culprit(flat, arrays, eps, rtol))
    if raises:
        where = f"argument {worst.argument}{list(worst.place) if worst.place else ''}"
        blame = f" The rule of {worst.op!r} is wrong." if worst.op else ""
        raise GradientError(
            f"check_grad: derivative of order {worst.order} by {where} is {worst.analytic:.10g},"
            f" finite differences give {worst.numeric:.10g} (error {worst.error:.2g}).{blame}"
        )
    return worst


def _checked(x: Any) -> Any:
    x = as_array(x, "check_grad")
    if x._aval.dtype.name not in ("float64", "complex128"):
        raise DTypeError(
            "check_grad: finite differences need float64 or complex128 arguments, got"
            f" {x._aval.dtype.name}."
        )
    return handle.cls.detach(x)  # type: ignore[attr-defined]


class _Scalar:
    """`f` contracted with fixed weights to a real scalar, and its derivatives as functions of the
    same arrays.
    """

    def __init__(self, f: Callable[..., list[Any]], seed: int):
        self.f = f
        self.seed = seed

    def __call__(self, *xs: Any) -> Any:
        rng = np.random.default_rng(self.seed)
        total: Any = None
        for out in self.f(*xs):
            if not out._aval.dtype.is_inexact:
                continue
            w = rng.uniform(0.5, 1.5, out._aval.shape) * rng.choice((-1.0, 1.0), out._aval.shape)
            term = (REGISTRY["astype"].function(from_numpy(w), out._aval.dtype) * out).sum()
            if out._aval.dtype.is_complex:
                term = REGISTRY["real"].function(term) + REGISTRY["imag"].function(term) * 0.7
            term = REGISTRY["astype"].function(term, "float64")
            total = term if total is None else total + term
        if total is None:
            raise GradientError("check_grad: the function returns no floating array.")
        return total


def gradient(f: Callable[..., Any], xs: list[Any]) -> list[Any]:
    """The gradient of a scalar function by all arrays, zeros where it does not depend on one."""
    variables = [fresh(x) for x in xs]
    value = with_recording(True, f, *variables)
    found = cotangents([value], [None], variables, retain=False)
    close(variables)
    return [zeros_like(x) if g is None else g for g, x in zip(found, xs, strict=True)]


def _worst(
    f: Callable[..., list[Any]], arrays: list[Any], order: int, eps: float, rtol: float
) -> GradientReport:
    worst = GradientReport(1, 0, (), 0.0, 0.0, 0.0, "", True)
    level: Callable[..., Any] = _Scalar(f, 1)
    for k in range(1, order + 1):
        analytic = [to_numpy(g) for g in gradient(level, arrays)]
        numeric = _differences(level, arrays, eps)
        report = _compare(k, analytic, numeric, rtol)
        if report.error > worst.error or (worst.passed and not report.passed):
            worst = report
        if not report.passed:
            break
        level = _Scalar(lambda *xs, inner=level: gradient(inner, list(xs)), k + 1)
    return worst


def _differences(f: Callable[..., Any], arrays: list[Any], eps: float) -> list[np.ndarray]:
    """Central differences of fourth order; complex entries move along both axes (PyTorch's
    convention).
    """
    result = []
    for i, x in enumerate(arrays):
        base = np.array(to_numpy(x))
        slope = np.zeros_like(base)
        for place in np.ndindex(base.shape):
            h = eps * max(1.0, abs(base[place]))
            for step in (h, 1j * h) if base.dtype.kind == "c" else (h,):
                values = []
                for factor in (-2, -1, 1, 2):
                    moved = base.copy()
                    moved[place] += factor * step
                    values.append(f(*arrays[:i], from_numpy(moved), *arrays[i + 1 :]).item())
                d = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
                slope[place] += d * (step / h)
        result.append(slope)
    return result


def _compare(
    order: int, analytic: list[np.ndarray], numeric: list[np.ndarray], rtol: float
) -> GradientReport:
    scale = max([1e-8, *[float(np.max(np.abs(n), initial=0.0)) for n in numeric]])
    worst = GradientReport(order, 0, (), 0.0, 0.0, 0.0, "", True)
    for i, (a, n) in enumerate(zip(analytic, numeric, strict=True)):
        if a.size == 0:
            continue
        error = np.abs(a - n) / np.maximum(np.abs(n), max(scale * 1e-2, 1e-4))
        error = np.where(np.isfinite(error), error, np.inf)
        place = tuple(int(p) for p in np.unravel_index(int(np.argmax(error)), a.shape))
        if error[place] > worst.error:
            worst = worst._replace(
                argument=i, place=place, analytic=a[place].item(), numeric=n[place].item(),
                error=float(error[place]), passed=bool(error[place] <= rtol * 10**order),
            )  # fmt: skip
    return worst


def _culprit(f: Callable[..., list[Any]], arrays: list[Any], eps: float, rtol: float) -> str:
    """The first operation of `f` that is wrong by itself, to second order, at the values it met."""
    graph = trace(f)(*arrays)
    names: list[str] = []

    def check(op: Any, *operands: Array, **static: Any) -> Any:
        if not names and getattr(op, "vjp", None):
            floats = [i for i, x in enumerate(operands) if x._aval.dtype.is_inexact]

            def alone(*xs: Any) -> list[Any]:
                full = list(operands)
                for i, x in zip(floats, xs, strict=True):
                    full[i] = x
                return [bind(op, *full, **static)]

            out = bind(op, *operands, **static)
            if floats and out._aval.dtype.is_inexact:
                report = _worst(alone, [operands[i] for i in floats], 2, eps, rtol)
                if not report.passed:
                    names.append(op.name)
            return out
        return bind(op, *operands, **static)

    graph.run(*arrays, bind=check)
    return names[0] if names else ""
