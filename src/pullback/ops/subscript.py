"""`x[key]` and `x[key] = value`, with NumPy's rules, as slices, gathers and scatters.

Keys without arrays are views; the arrays of a key become one gather, or one scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pullback.core.avals import Aval
from pullback.core.dtypes import bool_
from pullback.core.errors import DTypeError, IndexOutOfRange, ReportedBy, ShapeError
from pullback.ir.array import Array, mode
from pullback.ir.convert import as_array, is_number, scalar
from pullback.ir.op import bind, record
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.creation import constant
from pullback.ops.families import composite
from pullback.ops.gather_scatter import gather, scatter_set
from pullback.ops.keys import Selection, Shape, inverse, selection
from pullback.ops.movement import broadcast_to, cut, embed, permute_dims, reshape
from pullback.ops.parts import astype
from pullback.ops.plain_keys import place, put, view, write, writers
from pullback.ops.selection import where

__all__ = ["assigned", "getitem", "setitem"]


def _samples(d: Draw) -> list[tuple[np.ndarray, Any]]:
    x = d.real(3, 4, 2)
    return [
        (x, 1),
        (x, np.s_[1:, ::-2, None, ..., -1]),
        (x, np.array([2, 0, 2, -1])),
        (x, (np.s_[:], np.array([[1, 1], [3, 0]]))),
        (x, (np.array([0, 2]), np.s_[:], np.array([[1], [0]]))),
        (x, (np.s_[:], [1, 3, 1], 0)),
        (x, np.s_[..., np.array([True, False])]),
        (d.real(3), np.array([True, False, True])),
        (d.real(), ()),
        (d.real(2), True),
    ]


def _errors(*value: Any) -> Callable[[Draw], list[Bad]]:
    return lambda d: [
        Bad((d.real(3), 3, *value), {}, IndexError, "out of range"),
        Bad((d.real(3), (0, 0), *value), {}, IndexError, "too many"),
        Bad((d.real(3), 0.5, *value), {}, IndexError, "must be an integer"),
        Bad((d.real(3), np.array([0, 3]), *value), {}, IndexError, "out of range"),
        Bad((d.real(3), np.array([True]), *value), {}, IndexError, "shape"),
        Bad((d.real(3, 3), ([0, 1], [0, 1, 2]), *value), {}, IndexError, "broadcast"),
    ]


def _select(x: Any, key: Any) -> Any:
    sel, indices = selection("getitem", x._aval, key)
    if not indices:
        return cut(x, *sel.box[:3], sel.shape)
    with ReportedBy("getitem"):
        rows = bind(gather.op, _boxed(x, sel), *_aligned(sel, indices))
    return _reshaped(_permuted(rows, sel.gathered), sel.shape)


@composite(
    oracle=lambda x, key: x[key],
    samples=lambda d: [Sample((x, key)) for x, key in _samples(d)],
    errors=_errors(),
    namespace="primitive",
)
def getitem(x: Any, key: Any, /) -> Any:
    """The part of `x` that a key selects, by NumPy's rules.

    >>> pb.primitive.getitem(pb.tensor([5, 6, 7]), [2, 0])
    tensor([7, 5], int64, cpu)
    """
    part = view(x, key if key.__class__ is tuple else (key,))
    return _select(x, key) if part is None else part


def _setitem_oracle(x: np.ndarray, key: Any, value: Any) -> np.ndarray:
    out = np.array(x)
    out[key] = value
    return out


@composite(
    oracle=_setitem_oracle,
    samples=lambda d: [
        *[Sample((x, key, d.real(*x[key].shape))) for x, key in _samples(d)],
        *[Sample((x, key, d.real())) for x, key in _samples(d)],
    ],
    errors=lambda d: [
        *_errors(0.0)(d),
        Bad((d.real(3), np.s_[1:], d.real(3)), {}, ShapeError, "does not broadcast"),
        Bad((np.ones(3), 0, 1j), {}, DTypeError, "complex"),
    ],
    namespace="primitive",
)
def setitem(x: Any, key: Any, value: Any, /) -> Any:
    """`x` with the selected part replaced by `value`; of several writes to a place the last stays.

    >>> pb.primitive.setitem(pb.tensor([5, 6, 7]), [2, 0], 1)
    tensor([1, 6, 1], int64, cpu)
    """
    av = x._aval
    value = _as_value(av, value)
    mask = _as_mask(key)
    if mask is not None and mask.size and value._aval.ndim <= av.ndim - mask.ndim:
        return _masked(x, mask, value)
    sel, indices = selection("setitem", av, key)
    value = _spread(value, sel.shape)
    if indices:
        updates = _permuted(_reshaped(value, sel.middle), sel.scattered)
        with ReportedBy("setitem"):
            value = bind(scatter_set.op, _boxed(x, sel), updates, *_aligned(sel, indices))
        value = _permuted(value, None if sel.order is None else inverse(sel.order))
    box = sel.box
    value = _reshaped(value, box.shape)
    if box.whole:
        return value
    return bind(embed.op, x, value, shape=av.shape, starts=box.starts, steps=box.steps)


_PLAIN = frozenset((float, int, bool))


def assigned(x: Any, key: Any, value: Any) -> Any:
    """`setitem` for a handle that will stand for the result: where nobody else has its memory, the
    value is written into that. None for what is left to `setitem`.
    """
    av = x._aval
    found = place(av, key if key.__class__ is tuple else (key,)) if av.dense else None
    if found is None:
        return None
    if value.__class__ in _PLAIN and put(x, *found, value):
        return x
    value = _as_value(av, value)
    if value._aval.is_symbolic or value._aval.device is not av.device:
        return None
    starts, plan = found
    tracked = mode.recording and (x._node is not None or value._node is not None)
    if tracked and plan.aval.size == av.size:
        return None  # nothing is left of x, which the result then does not depend on
    if tracked or (av, plan.aval, value._aval) not in writers:
        value = _spread(value, plan.aval.shape)
    out = write(x, starts, plan, value)
    if tracked:
        boxed = _reshaped(value, plan.shape)
        static = plan.static(starts)
        static = {"shape": av.shape, "starts": static["starts"], "steps": plan.steps}
        out._node = record(embed.op, (x, boxed), static, out)
    return out


def _reshaped(x: Any, shape: Shape) -> Any:
    return x if x._aval.shape == shape else bind(reshape.op, x, shape=shape)


def _permuted(x: Any, order: Shape | None) -> Any:
    return x if order is None else bind(permute_dims.op, x, axes=order)


def _boxed(x: Any, sel: Selection) -> Any:
    """The box, with the axes that are picked from first."""
    if not sel.box.whole:
        x = cut(x, *sel.box[:3])
    return _permuted(_reshaped(x, sel.inner), sel.order)


def _aligned(sel: Selection, indices: Sequence[Any]) -> list[Any]:
    """The index arrays with one rank, followed by axes for the rest."""
    aligned = [_reshaped(i, shape) for i, shape in zip(indices, sel.aligned, strict=True)]
    if sel.spread is not None:
        aligned[0] = bind(broadcast_to.op, aligned[0], shape=sel.spread)
    if 0 in sel.shape:
        # nothing will be read from the array itself: read a stand-in, for the sake of bad indices
        shape = sel.sizes + (1,) * (len(sel.inner) - len(sel.sizes))
        bind(gather.op, constant(0, shape, bool_, aligned[0]._aval.device), *aligned)
    return aligned


# -- values to write -------------------------------------------------------------------------------


def _as_value(av: Aval, value: Any) -> Any:
    """The value as an array of the dtype of the array it is written to."""
    if is_number(value):
        if isinstance(value, complex) and not av.dtype.is_complex:
            raise DTypeError(f"setitem: a complex number can't be written to {av.dtype.name}.")
        return scalar(value, av.dtype, av.device)
    value = as_array(value, "setitem", dev=av.device)
    if value._aval.dtype.is_complex and not av.dtype.is_complex:
        raise DTypeError(f"setitem: complex values can't be written to {av.dtype.name}.")
    return astype(value, av.dtype)


def _spread(value: Any, shape: Shape) -> Any:
    """The value broadcast to the selected part; surplus leading axes of size 1 are dropped."""
    own = value._aval.shape
    surplus = len(own) - len(shape)
    if surplus > 0 and all(n == 1 for n in own[:surplus]):
        own = own[surplus:]
        value = bind(reshape.op, value, shape=own)
    if own == shape:
        return value
    lead = len(shape) - len(own)
    if lead < 0 or any(n not in (1, m) for n, m in zip(own, shape[lead:], strict=True)):
        raise ShapeError(
            f"setitem: a value of shape {value._aval.shape} does not broadcast"
            f" to the selected part, {shape}."
        )
    return bind(broadcast_to.op, value, shape=shape)


def _as_mask(key: Any) -> Any:
    """The key if it is one boolean array, as a NumPy array or as a tensor (which may be traced)."""
    if isinstance(key, Array) and key._aval.dtype.kind == "b":
        return key
    return key if isinstance(key, np.ndarray) and key.dtype == bool else None


def _masked(x: Any, mask: Any, value: Any) -> Any:
    """A value that does not vary with the mask is written without looking at the mask's values."""
    mask = as_array(mask, "setitem", dev=x._aval.device)
    shape, own = mask._aval.shape, x._aval.shape[: mask._aval.ndim]
    if shape != own:
        raise IndexOutOfRange(
            "setitem: a boolean index must have the shape of the axes it selects from,"
            f" {own}, got {shape}."
        )
    rest = x._aval.shape[len(shape) :]
    value = _spread(value, rest)
    mask = bind(reshape.op, mask, shape=shape + (1,) * len(rest))
    return where(mask, value, x)
