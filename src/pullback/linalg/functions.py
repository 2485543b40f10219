"""Functions of matrices: exponential, square root, logarithm, and any function of Hermitian ones.

The derivative of the exponential and of the logarithm in a direction E stands in the upper right
block of the function of `[[A, E], [0, A]]`; that of the square root solves Sylvester's equation.

The derivatives of `f(A) = V f(w) V^H` are sums over paths of divided differences of f (Daleckii and
Krein 1951), which are as smooth as f: nothing is divided by the distance of eigenvalues. A divided
difference is a mean of the derivative, by quadrature; where two rules of quadrature differ, the
numbers are far apart as f sees it, and the quotient of differences is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np

from pullback.autodiff.reverse import cotangents, enable_grad, fresh, no_grad
from pullback.core.errors import DTypeError, GradientError, LinAlgError
from pullback.ir.cost import matrix_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.linalg import hermitian as eigen
from pullback.linalg.arguments import (
    adjoint,
    detached,
    given,
    hermitian,
    regular,
    spacing,
    square,
    square_errors,
    zero_rule,
)
from pullback.linalg.checks import vanishing
from pullback.linalg.equations import packed_schur, sylvester
from pullback.linalg.general import complex_of
from pullback.linalg.triangular import hermitian_part
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.arrangement import expand_dims
from pullback.ops.creation import ones_like, zeros_like
from pullback.ops.exponential import exp
from pullback.ops.families import primitive
from pullback.ops.movement import concat, reshape
from pullback.ops.parts import astype, imag, real
from pullback.ops.products import einsum, matmul
from pullback.ops.requirements import require
from pullback.ops.selection import where

__all__ = ["expm", "logm", "matrix_function", "sqrtm"]


def _in_direction(function: Callable[[Any], Any], x: Any, e: Any) -> Any:
    """The derivative of a function of matrices in a direction."""
    n = x._aval.shape[-1]
    top, bottom = concat([x, e], axis=-1), concat([zeros_like(x), x], axis=-1)
    return function(concat([top, bottom], axis=-2))[..., :n, n:]


def _expm(x: Any) -> Any:
    return bind(expm.op, x)


def _scipy(name: str) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        import scipy.linalg

        function = getattr(scipy.linalg, name)
        if not x.size:
            return x
        flat = [function(m) for m in x.reshape(-1, *x.shape[-2:])]
        return np.asarray(flat).reshape(x.shape).astype(x.dtype)

    return call


@primitive(
    "x",
    infer=lambda x: (x.shape, x.dtype),
    lowering=Intrinsic("expm", work=matrix_work),
    vjp={"x": lambda g, x: _in_direction(_expm, adjoint(x), g)},
    jvp={"x": lambda t, x: _in_direction(_expm, x, t)},
    batch="rows",
    oracle=_scipy("expm"),
    samples=lambda d: [
        Sample((d.real(3, 3) * d.dtype.type(0.3),)),
        Sample((d.real(2, 3, 3),), order=2),
        Sample((d.real(2, 2) * d.dtype.type(6),), order=1),
        Sample((d.real(1, 1),)),
        Sample((d.real(0, 0),)),
        Sample((np.asarray([[0, 1], [0, 0]], d.dtype),)),
    ],
    errors=square_errors,
    namespace="linalg",
    tolerance=64,
)
def expm(x: Any, /) -> Any:
    """The exponential of square matrices, `1 + x + x @ x / 2 + ...`, by scaling and squaring.

    >>> pb.linalg.expm(pb.tensor([[0.0, 1.0], [0.0, 0.0]]))
    tensor([[1., 1.],
            [0., 1.]], float32, cpu)
    """
    return _expm(square("expm", x))


# -- square root and logarithm -------------------------------------------------------------------


def _root_vjp(g: Any, out: Any) -> Any:
    f = packed_schur(out)
    return sylvester(out, out, g, f, f, True, "sqrtm")


def _root_jvp(t: Any, out: Any) -> Any:
    f = packed_schur(out)
    return sylvester(out, out, t, f, f, False, "sqrtm")


_CUT = (
    "has a negative eigenvalue, and so no real {0}. Cast it to a complex dtype with astype for the"
    " complex one."
)


def _realised(name: str, noun: str, x: Any, found: Any) -> Any:
    """The complex function of a real matrix as a real matrix, where it is one."""
    if x._aval.dtype.is_complex:
        return found
    flags = vanishing(imag(detached(found)), detached(found))
    return require(real(found), flags, name, _CUT.format(noun))


def _spectrum(d: Draw, *shape: int) -> np.ndarray:
    """Matrices with eigenvalues away from the negative numbers."""
    return regular(d, *shape) + np.asarray(2 * np.eye(shape[-1]), d.dtype)


def _root_samples(d: Draw) -> list[Sample]:
    return [
        Sample((_spectrum(d, 3, 3),)),
        Sample((_spectrum(d, 2, 2, 2),)),
        Sample((_spectrum(d, 1, 1),)),
        Sample((d.real(0, 0),)),
        Sample((np.asarray([[1, 1], [0, 1]], d.dtype),)),
        Sample((np.asarray([[2, -3], [3, 2]], d.dtype),)),
    ]


def _root_errors(d: Draw) -> list[Bad]:
    return [
        *square_errors(d),
        Bad((np.diag([1.0, -1.0]),), {}, LinAlgError, "negative eigenvalue"),
    ]


@primitive(
    "x f",
    infer=lambda x, f: (x.shape, x.dtype),
    lowering=Intrinsic("sqrtm", work=matrix_work),
    vjp={"x": _root_vjp, "f": zero_rule},
    jvp={"x": _root_jvp},
    batch="rows",
    oracle=_scipy("sqrtm"),
    samples=_root_samples,
    errors=_root_errors,
    namespace="linalg",
    tolerance=64,
)
def sqrtm(x: Any, /) -> Any:
    """The principal square root of square matrices: `r @ r = x`.

    A real matrix with negative eigenvalues has no real one: that raises. The derivative at singular
    matrices does not exist.

    >>> pb.linalg.sqrtm(pb.tensor([[4.0, 0.0], [0.0, 9.0]]))
    tensor([[2., 0.],
            [0., 3.]], float32, cpu)
    """
    x = square("sqrtm", x)
    wide = astype(x, complex_of(x._aval.dtype))
    return _realised("sqrtm", "square root", x, bind(sqrtm.op, wide, packed_schur(wide)))


def _logm(x: Any) -> Any:
    return bind(logm.op, x, packed_schur(x))


@primitive(
    "x f",
    infer=lambda x, f: (x.shape, x.dtype),
    lowering=Intrinsic("logm", work=matrix_work),
    vjp={"x": lambda g, x: _in_direction(_logm, adjoint(x), g), "f": zero_rule},
    jvp={"x": lambda t, x: _in_direction(_logm, x, t)},
    batch="rows",
    oracle=_scipy("logm"),
    samples=_root_samples,
    errors=_root_errors,
    namespace="linalg",
    tolerance=256,
)
def logm(x: Any, /) -> Any:
    """The principal logarithm of square matrices: `expm(l) = x`.

    A real matrix with negative eigenvalues has no real one: that raises.

    >>> pb.linalg.logm(pb.tensor([[1.0, 1.0], [0.0, 1.0]]))
    tensor([[0., 1.],
            [0., 0.]], float32, cpu)
    """
    x = square("logm", x)
    return _realised("logm", "logarithm", x, _logm(astype(x, complex_of(x._aval.dtype))))


# -- functions of Hermitian matrices ---------------------------------------------------------------

Elementwise = Callable[[Any], Any]


def _slope(f: Elementwise) -> Elementwise:
    """The derivative of an elementwise function, elementwise and differentiable."""

    def call(x: Any) -> Any:
        with enable_grad():
            v = fresh(x)
            out = f(v)
        if out._node is None:
            return zeros_like(x)
        (found,) = cotangents([out], [ones_like(out)], [v], retain=True, create_graph=True)
        return zeros_like(x) if found is None else found

    return call


def _rule(count: int) -> list[tuple[float, float]]:
    """Nodes and weights of Gauss and Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return [(float(0.5 + 0.5 * x), float(0.5 * w)) for x, w in zip(nodes, weights, strict=True)]


_RULES = (_rule(7), _rule(10))


def _mean(f: Elementwise, x: Any, y: Any, rule: list[tuple[float, float]]) -> Any:
    """The mean of a function between numbers."""
    total = None
    for node, weight in rule:
        term = f(x + (y - x) * node) * weight
        total = term if total is None else total + term
    return total


def _divided(f: Elementwise, x: Any, y: Any) -> Any:
    """(f(y) - f(x)) / (y - x), and the derivative where they are equal."""
    slope = _slope(f)
    coarse, fine = (_mean(slope, x, y, rule) for rule in _RULES)
    error = abs_(detached(fine - coarse))
    smooth = error <= 64 * spacing(x) * (abs_(detached(fine)) + spacing(x))
    gap = where(smooth, 1.0, y - x)
    return where(smooth, fine, (f(y) - f(x)) / gap)


def _differences(f: Elementwise, points: list[Any]) -> Any:
    """The divided difference of a function at several points: that in the first and last of the one
    at the points between and a variable.
    """
    if len(points) == 1:
        return f(points[0])
    first, *inner, last = points
    return _divided(lambda y: _differences(f, [*inner, y]), first, last)


_LETTERS = "abcdefgh"


def _value(f: Elementwise, p: Any, directions: tuple[Any, ...]) -> Any:
    """f(A), or the derivative of f at A in some directions, by the packed eigenvectors."""
    values, vectors = eigen.parts(p)
    values = eigen.real_part(values)
    k = len(directions)
    if k == 0:
        rows = expand_dims(f(values), -2)
        return matmul(vectors * astype(rows, p._aval.dtype), adjoint(vectors))
    *batch, n = values._aval.shape
    axes = range(k + 1)
    points = [reshape(values, (*batch, *(n if i == j else 1 for j in axes))) for i in axes]
    zero = sum(points[1:], points[0]) * 0.0
    factors = astype(_differences(f, [x + zero for x in points]), p._aval.dtype)
    inside = [matmul(matmul(adjoint(vectors), g), vectors) for g in directions]
    names = _LETTERS[: k + 1]
    steps = [names[i : i + 2] for i in range(k)]
    spec = ",".join(f"...{s}" for s in [names, *steps]) + f"->...{names[0]}{names[-1]}"
    total = None
    for order in permutations(inside):
        term = einsum(spec, factors, *order)
        total = term if total is None else total + term
    return matmul(matmul(vectors, total), adjoint(vectors))


def _applied(f: Elementwise, x: Any, p: Any, directions: tuple[Any, ...]) -> Any:
    """f(A), or its derivative in directions, with a history."""
    directions = tuple(hermitian_part(g) for g in directions)
    with no_grad():
        value = detached(_value(f, detached(p), tuple(detached(g) for g in directions)))
    return bind(matrix_function.op, x, p, value, *directions, f=f)


def _function_vjp_x(g: Any, x: Any, p: Any, directions: tuple[Any, ...], f: Elementwise) -> Any:
    return _applied(f, x, p, (*directions, g))


def _function_vjp_direction(
    g: Any, x: Any, p: Any, directions: tuple[Any, ...], position: int, f: Elementwise
) -> Any:
    """The form is symmetric: the cotangent takes the place of the direction."""
    return _applied(f, x, p, (*directions[:position], *directions[position + 1 :], g))


def _function_jvp_direction(
    t: Any, x: Any, p: Any, directions: tuple[Any, ...], position: int, f: Elementwise
) -> Any:
    return _applied(f, x, p, (*directions[:position], t, *directions[position + 1 :]))


def _function_oracle(f: Elementwise, x: Any) -> Any:
    w, v = np.linalg.eigh((x + np.conj(np.swapaxes(x, -1, -2))) / 2)
    return (v * np.exp(w)[..., None, :]) @ np.conj(np.swapaxes(v, -1, -2))


def _function_samples(d: Draw) -> list[Sample]:
    small = np.asarray(0.3, d.dtype)
    return [
        Sample((exp, hermitian(d, 3, 3) * small)),
        Sample((exp, hermitian(d, 2, 2, 2) * small)),
        Sample((exp, np.eye(3, dtype=d.dtype))),
        Sample((exp, np.diag(np.asarray([1, 1, 2], d.dtype)))),
        Sample((exp, np.zeros((2, 2), d.dtype))),
    ]


@primitive(
    "x p v *directions",
    infer=lambda x, p, v, *directions, f: (v.shape, v.dtype),
    lowering=given(2),
    vjp={
        "x": _function_vjp_x,
        "p": zero_rule,
        "v": zero_rule,
        "directions": _function_vjp_direction,
    },
    jvp={
        "x": lambda t, x, p, directions, f: _applied(f, x, p, (*directions, t)),
        "directions": _function_jvp_direction,
    },
    batch="rows",
    oracle=_function_oracle,
    samples=_function_samples,
    errors=lambda d: [
        *[Bad((exp, *bad.args), {}, bad.error, bad.match) for bad in square_errors(d)],
        Bad((2.0, d.real(2, 2)), {}, DTypeError, "a function of an array"),
    ],
    namespace="linalg",
    tolerance=64,
)
def matrix_function(f: Callable[[Any], Any], x: Any, /) -> Any:
    """`V @ diag(f(w)) @ V.mH` for Hermitian matrices `V @ diag(w) @ V.mH` and a real function of
    each element, made of operations.

    Derivatives of every order are right where eigenvalues are equal or close, if f is smooth there.

    >>> pb.linalg.matrix_function(pb.sqrt, pb.tensor([[4.0, 0.0], [0.0, 4.0]]))
    tensor([[2., 0.],
            [0., 2.]], float32, cpu)
    """
    if not callable(f):
        raise DTypeError(f"matrix_function: f is a function of an array, got {f!r}.")
    x = square("matrix_function", x)
    with enable_grad():
        if f(detached(eigen.real_part(x)))._node is not None:
            raise GradientError(
                "matrix_function: f depends on a tensor that requires a gradient, which would be"
                " lost. Use eigh, or put it into the matrix."
            )
    return _applied(f, x, bind(eigen.eigh.op, detached(x)), ())
