"""Circular and hyperbolic functions and their inverses."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.ir import mathfun
from pullback.ops.arithmetic import hypot
from pullback.ops.exponential import rsqrt
from pullback.ops.families import elementwise
from pullback.ops.parts import cc
from pullback.ops.selection import where

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cos",
    "cosh",
    "sin",
    "sinh",
    "tan",
    "tanh",
]


@elementwise(
    "x",
    body=mathfun.sin,
    accepts="fc",
    vjp={"x": lambda g, x: g * cc(cos(x))},
    oracle=np.sin,
    methods=("sin",),
)
def sin(x, /):
    """The sine.

    >>> pb.sin(pb.tensor([0.0, 1.0]))
    tensor([0.        , 0.84147096], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.cos,
    accepts="fc",
    vjp={"x": lambda g, x: -g * cc(sin(x))},
    oracle=np.cos,
    methods=("cos",),
)
def cos(x, /):
    """The cosine.

    >>> pb.cos(pb.tensor([0.0, 1.0]))
    tensor([1.       , 0.5403023], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.tan,
    accepts="fc",
    vjp={"x": lambda g, out: g * (cc(out * out) + 1.0)},
    domain=(-1.2, 1.2),
    oracle=np.tan,
    methods=("tan",),
)
def tan(x, /):
    """The tangent.

    >>> pb.tan(pb.tensor([0.0, 1.0]))
    tensor([0.       , 1.5574077], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.asin,
    accepts="fc",
    vjp={"x": lambda g, x: g * cc(rsqrt((1.0 - x) * (1.0 + x)))},
    domain=(-0.9, 0.9),
    oracle=np.arcsin,
)
def asin(x, /):
    """The arc sine, in [-pi/2, pi/2]; its derivative at 1 and -1 is infinite.

    >>> pb.asin(pb.tensor([0.0, 1.0]))
    tensor([0.       , 1.5707964], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.acos,
    accepts="fc",
    vjp={"x": lambda g, x: -g * cc(rsqrt((1.0 - x) * (1.0 + x)))},
    domain=(-0.9, 0.9),
    oracle=np.arccos,
)
def acos(x, /):
    """The arc cosine, in [0, pi]; its derivative at 1 and -1 is infinite.

    >>> pb.acos(pb.tensor([1.0, 0.0]))
    tensor([0.       , 1.5707964], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.atan,
    accepts="fc",
    vjp={"x": lambda g, x: g / (cc(x * x) + 1.0)},
    oracle=np.arctan,
)
def atan(x, /):
    """The arc tangent, in [-pi/2, pi/2].

    >>> pb.atan(pb.tensor([0.0, 1.0]))
    tensor([0.       , 0.7853982], float32, cpu)
    """


def _per_square(g: Any, part: Any, radius: Any) -> Any:
    """g * part / radius**2 without squaring, and 0 at the origin, where part is 0 too."""
    safe = where(radius == 0.0, 1.0, radius)
    return g * (part / safe / safe)


@elementwise(
    "y x",
    body=mathfun.atan2,
    accepts="f",
    vjp={
        "y": lambda g, y, x: _per_square(g, x, hypot(y, x)),
        "x": lambda g, y, x: -_per_square(g, y, hypot(y, x)),
    },
    domain=(0.3, 2.0),
    oracle=np.arctan2,
)
def atan2(y, x, /):
    """The angle of the point (x, y), in [-pi, pi]; its derivative at the origin is 0.

    >>> pb.atan2(pb.tensor([1.0, -1.0]), pb.tensor([1.0, 0.0]))
    tensor([ 0.7853982, -1.5707964], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.sinh,
    accepts="fc",
    vjp={"x": lambda g, x: g * cc(cosh(x))},
    oracle=np.sinh,
)
def sinh(x, /):
    """The hyperbolic sine.

    >>> pb.sinh(pb.tensor([0.0, 1.0]))
    tensor([0.       , 1.1752012], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.cosh,
    accepts="fc",
    vjp={"x": lambda g, x: g * cc(sinh(x))},
    oracle=np.cosh,
)
def cosh(x, /):
    """The hyperbolic cosine.

    >>> pb.cosh(pb.tensor([0.0, 1.0]))
    tensor([1.       , 1.5430807], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.tanh,
    accepts="fc",
    vjp={"x": lambda g, out: g * (1.0 - cc(out * out))},
    domain=(-1.2, 1.2),
    oracle=np.tanh,
    methods=("tanh",),
)
def tanh(x, /):
    """The hyperbolic tangent.

    >>> pb.tanh(pb.tensor([0.0, 1.0]))
    tensor([0.       , 0.7615942], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.asinh,
    accepts="fc",
    vjp={"x": lambda g, x: g * cc(rsqrt(x * x + 1.0))},
    domain=(-0.9, 0.9),
    oracle=np.arcsinh,
)
def asinh(x, /):
    """The inverse of sinh.

    >>> pb.asinh(pb.tensor([0.0, 1.0]))
    tensor([0.       , 0.8813736], float32, cpu)
    """


# Two roots, not one of the product: left in the complex plane these differ by their sign.


@elementwise(
    "x",
    body=mathfun.acosh,
    accepts="fc",
    vjp={"x": lambda g, x: g * cc(rsqrt(x - 1.0) * rsqrt(x + 1.0))},
    domain=(1.2, 3.0),
    oracle=np.arccosh,
)
def acosh(x, /):
    """The nonnegative inverse of cosh; its derivative at 1 is infinite.

    >>> pb.acosh(pb.tensor([1.0, 2.0]))
    tensor([0.      , 1.316958], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.atanh,
    accepts="fc",
    vjp={"x": lambda g, x: g / cc((1.0 - x) * (1.0 + x))},
    domain=(-0.9, 0.9),
    oracle=np.arctanh,
)
def atanh(x, /):
    """The inverse of tanh.

    >>> pb.atanh(pb.tensor([0.0, 0.5]))
    tensor([0.        , 0.54930615], float32, cpu)
    """
