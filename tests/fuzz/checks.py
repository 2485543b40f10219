"""Ways to run one program that must agree. Found programs carry this file along: it needs only
pullback and NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

import pullback as pb
from pullback.compiled import Jitted
from pullback.core import pytrees
from pullback.ir.op import bind
from pullback.runtime.cpu import native

Program = Callable[..., Any]
Check = Callable[..., None]


class Finding(AssertionError):
    """Two ways to run a program do not agree."""


class Exact(Jitted):
    """What `jit` makes, without the passes that round otherwise."""

    exact = True


def own(x: Any) -> Any:
    """Another handle; of a NumPy array a copy, as if it were a tensor."""
    return pb.asarray(x, copy=True)


def tensors_of(tree: Any) -> list[Any]:
    return [x for x in pytrees.leaves(tree) if isinstance(x, pb.Tensor)]


def contents(tree: Any) -> list[np.ndarray]:
    return [np.array(x.detach().numpy()) for x in tensors_of(tree)]


def described(a: np.ndarray, b: np.ndarray, wrong: np.ndarray) -> str:
    places = np.argwhere(wrong)
    at = tuple(int(i) for i in places[0])
    return f"{a.dtype}{a.shape}, {len(places)} elements, first at {at}: {a[at]!r}, not {b[at]!r}"


def same_bits(
    what: str, got: Sequence[np.ndarray], expected: Sequence[np.ndarray], nan: bool = True
) -> None:
    """Raise unless all bits are the same; those of a NaN only where `nan` is true."""
    if len(got) != len(expected):
        raise Finding(f"{what}: {len(got)} results, not {len(expected)}")
    for a, b in zip(got, expected, strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise Finding(f"{what}: {a.dtype}{a.shape}, not {b.dtype}{b.shape}")
        if a.tobytes() == b.tobytes():
            continue
        wrong = np.zeros(a.shape, np.bool_)
        for x, y in zip(_parts(a), _parts(b), strict=True):
            bits = [np.ascontiguousarray(v).view(f"u{v.dtype.itemsize}") for v in (x, y)]
            differ = bits[0] != bits[1]
            if not nan and x.dtype.kind not in "biu":
                differ &= ~(np.isnan(x) & np.isnan(y))
            wrong |= differ.reshape(a.shape)
        if wrong.any():
            raise Finding(f"{what}: {described(a, b, wrong)}")


def _parts(a: np.ndarray) -> list[np.ndarray]:
    a = np.atleast_1d(a)
    return [np.real(a), np.imag(a)] if a.dtype.kind == "c" else [a]


def wide(a: np.ndarray) -> np.ndarray:
    """Floats as float64, complex numbers as complex128; others as they are."""
    if a.dtype.kind in "biu":
        return a
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def near(
    what: str, got: np.ndarray, expected: np.ndarray, spread: np.ndarray, epsilon: float
) -> None:
    """Raise unless two arrays agree where `expected` is finite, to what is known of rounding.

    `spread` is how far results lie apart that rounded otherwise; nothing is said where that is no
    small part of the largest element.
    """
    if got.shape != expected.shape:
        raise Finding(f"{what}: shape {got.shape}, not {expected.shape}")
    if got.dtype.kind in "biu":
        wrong = (got != expected) & (spread == 0)
    else:
        with np.errstate(all="ignore"):
            x, y = wide(got), wide(expected)
            scale = float(np.max(np.abs(y[np.isfinite(y)]), initial=0.0))
            judged = np.isfinite(y) & np.isfinite(spread)
            if not np.max(spread[judged], initial=0.0) <= 0.02 * scale + 1e-300:
                return
            spread = np.maximum(spread, np.mean(spread[judged]) if judged.any() else 0.0)
            wrong = judged & ~(np.abs(x - y) <= 64 * spread + 16 * epsilon * (scale + np.abs(y)))
    if np.any(wrong):
        raise Finding(f"{what}: {described(got, expected, wrong)}")


def shaky(rng: np.random.Generator) -> Callable[..., Any]:
    """`bind` whose results are off by about one rounding."""

    def touched(x: Any) -> Any:
        if not x.dtype.is_inexact:
            return x
        factor = 1 + pb.finfo(x.dtype).eps * rng.choice((-1.0, 0.0, 1.0), x.shape)
        with np.errstate(all="ignore"):
            return pb.tensor((wide(x.numpy()) * factor).astype(x.numpy().dtype))

    def run(op: Any, *arrays: Any, **static: Any) -> Any:
        found = bind(op, *arrays, **static)
        return pytrees.map_tree(touched, found)

    return run


def spread_of(f: Program, inputs: Sequence[Any]) -> list[np.ndarray]:
    """How far the results of a program move when each of its operations rounds otherwise."""
    graph = pb.trace(f)(*inputs)
    rng = np.random.default_rng(0)
    with pb.no_grad(), np.errstate(all="ignore"):
        plain = [wide(a) for a in contents(graph.run(*inputs, bind=bind))]
        found = [np.zeros(a.shape) for a in plain]
        for _ in range(3):
            try:
                moved = contents(graph.run(*inputs, bind=shaky(rng)))
            except pb.PullbackError:  # of an index, edges or a matrix that moved
                return [np.full(a.shape, np.inf) for a in plain]
            for i, (a, b) in enumerate(zip(moved, plain, strict=True)):
                a = wide(a)
                apart = a != b if a.dtype.kind in "biu" else np.abs(a - b)
                found[i] = np.maximum(found[i], np.where(np.isnan(apart), np.inf, apart))
    return found


# -- what is checked -------------------------------------------------------------------------------


def runs(f: Program, *inputs: Any) -> None:
    """It runs, the same bits twice."""
    same_bits("the second run", contents(f(*inputs)), contents(f(*inputs)))


def threads_change_nothing(f: Program, *inputs: Any) -> None:
    before = native.get_threads()
    try:
        native.set_threads(1)
        expected, compiled = contents(f(*inputs)), pb.jit(f)
        by_jit = contents(compiled(*inputs))
        for n in (2, 3, 4):
            native.set_threads(n)
            same_bits(f"eager on {n} threads", contents(f(*inputs)), expected)
            same_bits(f"jit on {n} threads", contents(compiled(*inputs)), by_jit)
    finally:
        native.set_threads(before)


def jit_gives_the_bits_of_eager(f: Program, *inputs: Any) -> None:
    """Compiled without the passes that round otherwise, and called twice."""
    compiled, expected = Exact(f), contents(f(*inputs))
    for call in ("the first call", "the second call"):
        same_bits(f"exact jit, {call}", contents(compiled(*inputs)), expected, nan=False)


def jit_is_near_eager(f: Program, *inputs: Any) -> None:
    found, expected = contents(pb.jit(f)(*inputs)), contents(f(*inputs))
    for a, b, s in zip(found, expected, spread_of(f, inputs), strict=True):
        near("jit", a, b, s, _epsilon(inputs, b))


def _epsilon(inputs: Sequence[Any], a: np.ndarray) -> float:
    """The coarsest rounding among the arguments and a result."""
    kinds = [x.dtype.real for x in inputs if x.dtype.is_inexact]
    own = pb.tensor(np.zeros((), a.dtype)).dtype
    kinds += [own.real] if own.is_inexact else []
    return max([float(pb.finfo(k).eps) for k in kinds], default=0.0)


def loss_of(f: Program) -> Program:
    """The sum of all that a program returns, weighted so that no two elements are alike."""

    def loss(*xs: Any) -> Any:
        total = pb.zeros((), dtype="float64")
        for y in tensors_of(f(*xs)):
            if y.dtype.is_inexact:
                w = pb.tensor(np.cos(1.0 + np.arange(math.prod(y.shape))).reshape(y.shape))
                y = pb.real(y) + pb.imag(y) * 0.5 if y.dtype.is_complex else y
                total = total + pb.astype(pb.sum(y * pb.astype(w, y.dtype)), pb.float64)
        return total

    return loss


def gradient_of(f: Program) -> Program:
    """All derivatives of the weighted sum of what a program returns."""

    def gradient(*xs: Any) -> Any:
        places = tuple(i for i, x in enumerate(xs) if x.dtype.is_inexact)
        return pb.grad(loss_of(f), argnums=places)(*xs) if places else ()

    return gradient


def where_there_is_one(check: Check) -> Check:
    """A check of a gradient; where there is none, eager and compiled functions both say so."""

    @wraps(check)
    def run(f: Program, *inputs: Any) -> None:
        try:
            check(f, *inputs)
        except (pb.GradientError, pb.LinAlgError):
            for gradient in (gradient_of(f), pb.jit(gradient_of(f))):
                try:
                    gradient(*inputs)
                except (pb.GradientError, pb.LinAlgError):
                    continue
                raise

    return run


@where_there_is_one
def gradient_runs(f: Program, *inputs: Any) -> None:
    runs(gradient_of(f), *inputs)


@where_there_is_one
def gradient_threads_change_nothing(f: Program, *inputs: Any) -> None:
    threads_change_nothing(gradient_of(f), *inputs)


@where_there_is_one
def gradient_in_jit_gives_the_bits_of_eager(f: Program, *inputs: Any) -> None:
    jit_gives_the_bits_of_eager(gradient_of(f), *inputs)


@where_there_is_one
def gradient_in_jit_is_near_eager(f: Program, *inputs: Any) -> None:
    jit_is_near_eager(gradient_of(f), *inputs)


@where_there_is_one
def gradient_through_jit_is_near_eager(f: Program, *inputs: Any) -> None:
    found = contents(gradient_of(Exact(f))(*inputs))
    expected = contents(gradient_of(f)(*inputs))
    for a, b, s in zip(found, expected, spread_of(gradient_of(f), inputs), strict=True):
        near("gradient through jit", a, b, s, _epsilon(inputs, b))


@where_there_is_one
def backward_is_near_grad(f: Program, *inputs: Any) -> None:
    expected = contents(gradient_of(f)(*inputs))
    leaves = [pb.tensor(x, requires_grad=x.dtype.is_inexact) for x in inputs]
    total = loss_of(f)(*leaves)
    tracked = [x for x in leaves if x.requires_grad]
    if total.requires_grad:
        total.backward()
    found = [x.grad if x.grad is not None else pb.zeros_like(x) for x in tracked]
    for a, b, s in zip(contents(found), expected, spread_of(gradient_of(f), inputs), strict=True):
        near("backward", a, b, s, _epsilon(inputs, b))


def _along(f: Program, inputs: Sequence[Any]) -> tuple[list[int], Callable[[float], float], float]:
    """The places of the arguments that move, the loss moved by t, and the slope by reverse mode."""
    places = [i for i, x in enumerate(inputs) if x.dtype.is_inexact]
    rng = np.random.default_rng(1)
    ways = {i: rng.choice((-1.0, 1.0), inputs[i].shape) for i in places}

    def moved(t: float) -> float:
        xs = [
            x + pb.astype(pb.tensor(t * ways[i]), x.dtype) if i in ways else x
            for i, x in enumerate(inputs)
        ]
        return loss_of(f)(*xs).item()

    gradients = contents(gradient_of(f)(*inputs))
    slope = sum(float(np.sum(np.real(g) * ways[i])) for g, i in zip(gradients, places, strict=True))
    return places, moved, slope


@where_there_is_one
def gradient_agrees_with_differences(f: Program, *inputs: Any) -> None:
    """Reverse mode against differences, where these agree with each other on both sides."""
    _, moved, slope = _along(f, inputs)
    middle = moved(0.0)
    found = []
    for h in (1e-4, -1e-4, 3e-5, -3e-5):
        found.append((moved(h) - middle) / h)
    best = (found[2] + found[3]) / 2
    apart = max(abs(x - best) for x in found)
    noise = abs(middle) * 1e-10
    if not (math.isfinite(best) and apart <= 1e-2 * abs(best)) or noise > 1e-3 * abs(best):
        return
    if not abs(slope - best) <= 0.1 * abs(best):
        raise Finding(f"gradient: the slope is {slope!r}, by differences {best!r}")


@where_there_is_one
def forward_agrees_with_reverse(f: Program, *inputs: Any) -> None:
    places, _, slope = _along(f, inputs)
    rng = np.random.default_rng(1)
    ways = [rng.choice((-1.0, 1.0), inputs[i].shape) for i in places]
    given = [inputs[i] for i in places]
    tangents = [pb.astype(pb.tensor(w), x.dtype) for w, x in zip(ways, given, strict=True)]

    def of_moving(*xs: Any) -> Any:
        full = list(inputs)
        for i, x in zip(places, xs, strict=True):
            full[i] = x
        return loss_of(f)(*full)

    _, forward = pb.jvp(of_moving, tuple(given), tuple(tangents))
    forward = forward.item()
    if not math.isfinite(loss_of(f)(*inputs).item()):
        return  # a constant that is multiplied by an infinite derivative counts forwards alone
    gradients = [np.real(g) for g in contents(gradient_of(f)(*inputs))]
    scale = sum(float(np.sum(np.abs(g))) for g in gradients)
    if math.isfinite(scale) and scale < 1e8 and not abs(forward - slope) <= 1e-7 * (scale + 1e-9):
        raise Finding(f"forward mode: the slope is {forward!r}, by reverse mode {slope!r}")


def loop_is_what_is_written_out(f: Program, written_out: Program, *inputs: Any) -> None:
    same_bits("the loop", contents(f(*inputs)), contents(written_out(*inputs)), nan=False)


def gradient_is_what_is_written_out(f: Program, written_out: Program, *inputs: Any) -> None:
    found, expected = (contents(gradient_of(g)(*inputs)) for g in (f, written_out))
    spread = spread_of(gradient_of(written_out), inputs)
    for a, b, s in zip(found, expected, spread, strict=True):
        near("gradient of the loop", a, b, s, _epsilon(inputs, b))
