"""The bits of integers and floats: bitwise logic, shifts, sign bits, neighbouring numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType, default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir import scalar
from pullback.ir.lowering import Elementwise
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Expr, select
from pullback.ops.families import broadcast_shapes, elementwise, primitive, sum_to
from pullback.ops.parts import astype
from pullback.ops.promotion import same_dtype

__all__ = [
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "nextafter",
    "signbit",
]

_BITS = "its operands and values are integers"


def _integer_pairs(d: Draw) -> list[Sample]:
    return [
        Sample((d.integers(3, 5, low=-9), d.integers(3, 5, low=-9))),
        Sample((d.integers(), d.integers())),
        Sample((d.integers(0, 2), d.integers(0, 2))),
        Sample((d.integers(4, 1, 3, dtype=np.uint8), d.integers(2, 3, dtype=np.uint8))),
        Sample((d.integers(19, low=-9, dtype=np.int16), 3)),
        Sample((d.mask(19), d.mask(19))),
    ]


def _shifts(d: Draw) -> list[Sample]:
    counts = np.array([0, 1, 7, 8, 31, 32, 63, 64, 100, -1])
    return [
        Sample((d.integers(3, 5, low=-9), d.integers(3, 5))),
        Sample((d.integers(), d.integers())),
        Sample((d.integers(0, 2), d.integers(0, 2))),
        *[Sample((np.array([[3], [-3]]).astype(t), counts.astype(t))) for t in ("i1", "i4", "i8")],
        Sample((np.array([[3], [251]], np.uint8), np.abs(counts).astype(np.uint8))),
        Sample((d.integers(19, low=-9, dtype=np.int16), 3)),
    ]


@elementwise(
    "x y",
    body=lambda x, y: x & y,
    accepts="biu",
    no_gradient=_BITS,
    samples=_integer_pairs,
    oracle=np.bitwise_and,
    methods=("__and__", "__rand__"),
)
def bitwise_and(x, y, /):
    """The bits that x and y share; the logical and of booleans.

    >>> pb.bitwise_and(pb.tensor([1, 6]), 3)
    tensor([1, 2], int64, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: x | y,
    accepts="biu",
    no_gradient=_BITS,
    samples=_integer_pairs,
    oracle=np.bitwise_or,
    methods=("__or__", "__ror__"),
)
def bitwise_or(x, y, /):
    """The bits of x and those of y; the logical or of booleans.

    >>> pb.bitwise_or(pb.tensor([1, 6]), 3)
    tensor([3, 7], int64, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: x ^ y,
    accepts="biu",
    no_gradient=_BITS,
    samples=_integer_pairs,
    oracle=np.bitwise_xor,
    methods=("__xor__", "__rxor__"),
)
def bitwise_xor(x, y, /):
    """The bits in which x and y differ.

    >>> pb.bitwise_xor(pb.tensor([1, 6]), 3)
    tensor([2, 5], int64, cpu)
    """


@elementwise(
    "x",
    body=lambda x: ~x,
    accepts="biu",
    no_gradient=_BITS,
    samples=lambda d: [
        Sample((d.integers(3, 5, low=-9),)),
        Sample((d.integers(),)),
        Sample((d.integers(0, 2),)),
        Sample((d.integers(19, dtype=np.uint8),)),
        Sample((d.mask(19),)),
    ],
    oracle=np.invert,
    methods=("__invert__",),
)
def bitwise_invert(x, /):
    """The bits of x inverted; the logical not of booleans.

    >>> pb.bitwise_invert(pb.tensor([0, 5]))
    tensor([-1, -6], int64, cpu)
    """


def _in_range(x: Expr, count: Expr) -> tuple[Expr, Expr]:
    """Whether a shift count is in range, and a count that is; a negative one is too large."""
    inside = count < 8 * x.dtype.itemsize
    if count.dtype.kind == "i":
        inside = inside & (count >= 0)
    return inside, select(inside, count, 0)


def _shifted_left(x: Expr, count: Expr) -> Expr:
    inside, safe = _in_range(x, count)
    return select(inside, x << safe, 0)


def _shifted_right(x: Expr, count: Expr) -> Expr:
    inside, safe = _in_range(x, count)
    beyond = scalar.const(0, x.dtype)
    if x.dtype.kind == "i":
        beyond = select(x < 0, -1, beyond)
    return select(inside, x >> safe, beyond)


@elementwise(
    "x y",
    body=_shifted_left,
    accepts="iu",
    no_gradient=_BITS,
    samples=_shifts,
    oracle=np.left_shift,
    methods=("__lshift__", "__rlshift__"),
)
def bitwise_left_shift(x, y, /):
    """`x << y`; bits shifted out are lost, and a count beyond the width leaves 0.

    >>> pb.bitwise_left_shift(pb.tensor([1, 6]), 3)
    tensor([ 8, 48], int64, cpu)
    """


@elementwise(
    "x y",
    body=_shifted_right,
    accepts="iu",
    no_gradient=_BITS,
    samples=_shifts,
    oracle=np.right_shift,
    methods=("__rshift__", "__rrshift__"),
)
def bitwise_right_shift(x, y, /):
    """`x >> y`, with copies of the sign bit; a count beyond the width leaves nothing but those.

    >>> pb.bitwise_right_shift(pb.tensor([8, -8]), 2)
    tensor([ 2, -2], int64, cpu)
    """


# -- floats ----------------------------------------------------------------------------------------


def _sign_bit(x: Expr) -> Expr:
    bits = dt.int32 if x.dtype is dt.float32 else dt.int64
    return scalar.bitcast(x, bits) < 0


@elementwise(
    "x",
    body=_sign_bit,
    accepts="f",
    result="bool",
    no_gradient="its values are booleans",
    samples=lambda d: [
        Sample((d.real(3, 5),)),
        Sample((d.real(),)),
        Sample((np.array([0.0, -0.0, np.inf, -np.inf, np.nan]),)),
    ],
    oracle=np.signbit,
)
def signbit(x, /):
    """Whether the sign bit is set; -0.0 has one.

    >>> pb.signbit(pb.tensor([1.0, -0.0]))
    tensor([False,  True], bool, cpu)
    """


# What one unit in the last place is in the bits of the compute dtype, and the smallest number.
_UNITS = {
    dt.float16: (1 << 13, 2.0**-24),
    dt.bfloat16: (1 << 16, 2.0**-133),
    dt.float32: (1, 2.0**-149),
    dt.float64: (1, 2.0**-1074),
}


def _neighbour(x: Expr, y: Expr, dtype: DType) -> Expr:
    unit, tiny = _UNITS[dtype]
    size = scalar.abs_(x)
    away = (y > x) == (x > 0.0)
    bits = scalar.bitcast(size, dt.int32 if x.dtype is dt.float32 else dt.int64)
    moved = scalar.bitcast(select(away, bits + unit, bits - unit), x.dtype)
    if dtype is dt.float16:  # its subnormals and its infinity are not where those of float32 are
        least = 2.0**-14
        small = (size < least) | ((size == least) & scalar.logical_not(away))
        moved = select(small, select(away, size + tiny, size - tiny), moved)
        moved = select(size == np.inf, 65504.0, moved)
    moved = scalar.copysign(moved, x)
    moved = select(x == 0.0, scalar.copysign(tiny, y), moved)
    return select(x == y, y, select((x != x) | (y != y), x + y, moved))


def _neighbour_samples(d: Draw) -> list[Sample]:
    special = np.array([0.0, -0.0, 1.0, -1.0, 2.0**-14, 6e-8, np.inf, -np.inf, np.nan, 65504.0])
    return [
        Sample((d.real(3, 5), d.real(3, 5))),
        Sample((d.real(), d.real())),
        Sample((d.real(0, 2), d.real(0, 2))),
        Sample((d.real(19), 0.0)),
        Sample((special, special[:, None]), order=0),
    ]


@primitive(
    "x y",
    infer=lambda x, y, dtype: (broadcast_shapes("nextafter", x.shape, y.shape), dtype),
    lowering=Elementwise(_neighbour),
    batch="elementwise",
    vjp={"x": lambda g: g, "y": lambda g: None},
    jvp="elementwise",
    unbroadcast=sum_to,
    oracle=np.nextafter,
    samples=_neighbour_samples,
    errors=lambda d: [
        Bad((object(), 1.0), {}, DTypeError, "expected an array"),
        Bad((d.real(2), d.real(3)), {}, ShapeError, "do not broadcast"),
        Bad((np.ones(2, np.complex64), 1.0), {}, DTypeError, "got complex64"),
    ],
)
def nextafter(x: Any, y: Any, /) -> Any:
    """The next number after x of its dtype in the direction of y; differentiated as x itself.

    >>> pb.nextafter(pb.tensor([1.0, 0.0]), 2.0)
    tensor([1.0000001e+00, 1.4012985e-45], float32, cpu)
    """
    x, y = same_dtype("nextafter", x, y)
    dtype = x._aval.dtype
    if dtype.is_complex:
        raise DTypeError(f"nextafter: expected a floating dtype, got {dtype.name}.")
    dtype = dtype if dtype.is_float else default_float()
    x, y = astype(x, dtype, copy=False), astype(y, dtype, copy=False)
    return bind(nextafter.op, x, y, dtype=dtype)
