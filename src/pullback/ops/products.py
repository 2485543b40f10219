"""Products of matrices, vectors and tensors; `einsum` is their general form."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod as size_of
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core import precision as precisions
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.core.errors import AxisError, DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.cost import product_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.families import broadcast_shapes, composite, normalise_axis, primitive, sum_to
from pullback.ops.labels import Labels, label_sizes, parsed, spelled
from pullback.ops.movement import both_aligned, permute_dims, reshape
from pullback.ops.parts import astype, cc
from pullback.ops.promotion import same_dtype
from pullback.ops.reductions import sum as sum_

__all__ = ["einsum", "matmul", "matrix_transpose", "outer", "tensordot", "vecdot"]

MOST_PRODUCTS = 1 << 22  # elements of the intermediate array of an integer matmul


def _matmul_infer(
    x: Aval, y: Aval, precision: str = precisions.DEFAULT
) -> tuple[tuple[int, ...], DType]:
    if x.shape[-1] != y.shape[-2]:
        raise ShapeError(
            f"matmul: the inner sizes differ, got shapes {x.shape} and {y.shape}."
            " The last axis of the left operand meets the second last of the right one."
        )
    batch = broadcast_shapes("matmul", x.shape[:-2], y.shape[:-2])
    return (*batch, x.shape[-2], y.shape[-1]), x.dtype


def _matmul_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(3, 4), d.real(4, 2))),
        Sample((d.real(3), d.real(3))),
        Sample((d.real(3), d.real(3, 2))),
        Sample((d.real(2, 3), d.real(3))),
        Sample((d.real(2, 1, 3, 2), d.real(3, 2, 2))),
        Sample((d.real(2, 2, 3), d.real(3))),
        Sample((d.real(0, 3), d.real(3, 2))),
        Sample((d.real(2, 0), d.real(0, 3))),
        Sample((d.integers(3, 4), d.integers(4, 2))),
        Sample((d.integers(3, 4, dtype=np.int8), d.integers(4, 2, dtype=np.int8))),
        Sample((d.mask(3, 4), d.mask(4, 2))),
    ]


def _matmul_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 3), d.real(2, 3)), {}, ShapeError, "inner sizes differ, got shapes (2, 3)"),
        Bad((d.real(3), d.real(2)), {}, ShapeError, "inner sizes differ"),
        Bad((d.real(2, 2, 2), d.real(3, 2, 2)), {}, ShapeError, "do not broadcast"),
        Bad((d.real(), d.real(3)), {}, ShapeError, "at least one dimension"),
        Bad((object(), d.real(3)), {}, DTypeError, "expected an array"),
    ]


def _transposed(x: Any) -> Any:
    n = x._aval.ndim
    return permute_dims(x, (*range(n - 2), n - 1, n - 2))


def _precision(x: Aval) -> dict[str, str]:
    """What a product notes of the setting: nothing where it makes no difference."""
    name = precisions.get_matmul_precision()
    if name == precisions.DEFAULT or not x.device.runtime.has_fast_products:
        return {}
    if x.dtype.itemsize == 2:
        return {"precision": name} if name == precisions.HIGHEST else {}
    return {"precision": name} if x.dtype is dt.float32 and name != precisions.HIGHEST else {}


def _matmul_vjp_left(g: Any, y: Any, x_aval: Aval, static: dict[str, Any]) -> Any:
    gx = bind(matmul.op, g, _transposed(cc(y)), **static)
    return gx if gx._aval.shape == x_aval.shape else sum_to(gx, x_aval.shape)


def _matmul_vjp_right(g: Any, x: Any, y_aval: Aval, static: dict[str, Any]) -> Any:
    gy = bind(matmul.op, _transposed(cc(x)), g, **static)
    return gy if gy._aval.shape == y_aval.shape else sum_to(gy, y_aval.shape)


def _matmul_batch(x: Any, y: Any, static: dict[str, Any]) -> Any:
    """Matrices that meet one and the same matrix are the rows of a single product."""
    a, b = x._aval.shape, y._aval.shape
    if b[0] == 1 and len(b) == 3:
        rows = reshape(x, (size_of(a[:-1]), a[-1]))
        return reshape(bind(matmul.op, rows, reshape(y, b[1:]), **static), (*a[:-1], b[-1]))
    return bind(matmul.op, *both_aligned(x, y), **static)


@primitive(
    "x y",
    infer=_matmul_infer,
    lowering=Intrinsic("matmul", work=product_work),
    vjp={"x": _matmul_vjp_left, "y": _matmul_vjp_right},
    jvp="multilinear",
    batch=_matmul_batch,
    oracle=np.matmul,
    samples=_matmul_samples,
    errors=_matmul_errors,
    methods=("__matmul__", "__rmatmul__"),
    front=2,
    setting=precisions.get_matmul_precision,
)
def matmul(x: Any, y: Any, /) -> Any:
    """The product of matrices in the last two axes, over broadcast batches.

    A 1-D operand is a row on the left and a column on the right.

    >>> pb.matmul(pb.tensor([[1.0, 2.0], [3.0, 4.0]]), pb.tensor([10.0, 1.0]))
    tensor([12., 34.], float32, cpu)
    """
    x, y = same_dtype("matmul", x, y)
    a, b = x._aval, y._aval
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(
            f"matmul: operands need at least one dimension, got shapes {a.shape} and {b.shape}."
            " Multiply by scalars with *."
        )
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else -1]:
        raise ShapeError(f"matmul: the inner sizes differ, got shapes {a.shape} and {b.shape}.")
    if a.ndim == 1:
        x = reshape(x, (1, *a.shape))
    if b.ndim == 1:
        y = reshape(y, (*b.shape, 1))
    whole = not a.dtype.is_inexact
    out = _whole_matmul(x, y) if whole else bind(matmul.op, x, y, **_precision(x._aval))
    if a.ndim > 1 and b.ndim > 1:
        return out
    shape = out._aval.shape
    rows = shape[:-2] if a.ndim == 1 else shape[:-1]
    return reshape(out, rows if b.ndim == 1 else (*rows, shape[-1]))


def _whole_matmul(x: Any, y: Any) -> Any:
    """The product of integer or bool matrices, in float64 where that is exact."""
    (shape, dtype), k = _matmul_infer(x._aval, y._aval), x._aval.shape[-1]
    if dtype.itemsize <= 2:
        out = bind(matmul.op, astype(x, dt.float64), astype(y, dt.float64))
        return astype(out if dtype is dt.bool_ else astype(out, dt.int64), dtype)
    step = max(1, min(k, MOST_PRODUCTS // max(1, size_of(shape))))
    total = None
    for k0 in range(0, max(k, 1), step):
        part = sum_(x[..., :, k0 : k0 + step, None] * y[..., None, k0 : k0 + step, :], axis=-2)
        total = part if total is None else total + part
    return astype(total, dtype)


def _matrix_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(3),), {}, ShapeError, "at least two dimensions"),
        Bad((object(),), {}, DTypeError, "expected an array"),
    ]


def _matrix(name: str, x: Any) -> Any:
    x = as_array(x, name)
    if x._aval.ndim < 2:
        raise ShapeError(
            f"{name}: a matrix has at least two dimensions, got shape {x._aval.shape}."
        )
    return x


@composite(
    oracle=lambda x: np.swapaxes(x, -1, -2),
    samples=lambda d: [Sample((d.real(2, 3),)), Sample((d.real(2, 3, 4),))],
    errors=_matrix_errors,
)
def matrix_transpose(x: Any, /) -> Any:
    """The array with its last two axes exchanged.

    >>> pb.matrix_transpose(pb.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[1., 3.],
            [2., 4.]], float32, cpu)
    """
    return _transposed(_matrix("matrix_transpose", x))


def diagonal_of(x: Any, axis1: int, axis2: int) -> Any:
    """The diagonal of two axes of equal size, as the last axis.

    It is every (n + 1)-th element of the flattened pair.
    """
    av = x._aval
    rest = [d for d in range(av.ndim) if d not in (axis1, axis2)]
    n = av.shape[axis1]
    flat = reshape(permute_dims(x, (*rest, axis1, axis2)), (*[av.shape[d] for d in rest], n * n))
    return flat[..., :: n + 1]


@composite(
    oracle=lambda x, y: np.outer(x, y),
    samples=lambda d: [
        Sample((d.real(3), d.real(2))),
        Sample((d.integers(3), d.integers(0))),
    ],
    errors=lambda d: [Bad((d.real(2, 2), d.real(2)), {}, ShapeError, "vectors")],
)
def outer(x: Any, y: Any, /) -> Any:
    """The matrix `x[i] * y[j]` of two vectors.

    >>> pb.outer(pb.tensor([1.0, 2.0]), pb.tensor([10.0, 1.0]))
    tensor([[10.,  1.],
            [20.,  2.]], float32, cpu)
    """
    x, y = as_array(x, "outer"), as_array(y, "outer")
    if x._aval.ndim != 1 or y._aval.ndim != 1:
        raise ShapeError(
            f"outer: expected two vectors, got shapes {x._aval.shape} and {y._aval.shape}."
        )
    return reshape(x, (x._aval.size, 1)) * y


@composite(
    oracle=lambda x, y, *, axis=-1: np.sum(
        np.moveaxis(np.conj(x), axis, -1) * np.moveaxis(y, axis, -1),
        axis=-1,
        dtype=np.result_type(x, y),
    ),
    samples=lambda d: [
        Sample((d.real(3), d.real(3))),
        Sample((d.real(2, 3), d.real(3))),
        Sample((d.real(3, 2), d.real(3, 2)), {"axis": -2}),
        Sample((d.integers(4, dtype=np.int8), d.integers(4, dtype=np.int8))),
    ],
    errors=lambda d: [
        Bad((d.real(3), d.real(2)), {}, ShapeError, "sizes along the axis differ"),
        Bad((d.real(3), d.real(3)), {"axis": 0}, ShapeError, "axis must be negative"),
    ],
)
def vecdot(x1: Any, x2: Any, /, axis: int = -1) -> Any:
    """The dot product `sum(conj(x1) * x2)` along `axis`, over broadcast batches.

    >>> pb.vecdot(pb.tensor([1.0, 2.0]), pb.tensor([10.0, 1.0]))
    tensor(12., float32, cpu)
    """
    x, y = same_dtype("vecdot", x1, x2)
    if not isinstance(axis, int) or not -min(x._aval.ndim, y._aval.ndim) <= axis < 0:
        raise AxisError(f"vecdot: axis must be negative and belong to both arrays, got {axis!r}.")
    if x._aval.shape[axis] != y._aval.shape[axis]:
        raise ShapeError(
            f"vecdot: the sizes along the axis differ, got {x._aval.shape} and {y._aval.shape}."
        )
    return sum_(cc(x) * y, axis=axis, dtype=x._aval.dtype)


def _tensordot_axes(axes: Any, x: Aval, y: Aval) -> tuple[list[int], list[int]]:
    """The axes that meet, of the left and of the right operand."""
    if isinstance(axes, (int, np.integer)):
        if not 0 <= axes <= min(x.ndim, y.ndim):
            raise ShapeError(
                f"tensordot: {axes} axes can't meet, got shapes {x.shape} and {y.shape}."
            )
        return list(range(x.ndim - int(axes), x.ndim)), list(range(int(axes)))
    left, right = ([a] if isinstance(a, (int, np.integer)) else list(a) for a in axes)
    found = (
        [normalise_axis("tensordot", a, x.ndim) for a in left],
        [normalise_axis("tensordot", a, y.ndim) for a in right],
    )
    if len(left) != len(right):
        raise ShapeError(f"tensordot: as many axes must meet on both sides, got {axes}.")
    return found


@composite(
    oracle=lambda x, y, *, axes=2: np.tensordot(x, y, axes=axes),
    samples=lambda d: [
        Sample((d.real(2, 3, 4), d.real(3, 4, 2))),
        Sample((d.real(2, 3), d.real(3, 2)), {"axes": 1}),
        Sample((d.real(2), d.real(3)), {"axes": 0}),
        Sample((d.real(2, 3, 4), d.real(4, 2)), {"axes": ((0, 2), (1, 0))}),
        Sample((d.real(2, 3), d.real(3)), {"axes": (1, 0)}),
        Sample((d.integers(2, 3), d.integers(3, 2)), {"axes": 1}),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), d.real(2, 3)), {"axes": 1}, ShapeError, "sizes that meet differ"),
        Bad((d.real(2), d.real(2)), {"axes": 2}, ShapeError, "can't meet"),
        Bad((d.real(2), d.real(2)), {"axes": ((0,), ())}, ShapeError, "as many axes"),
    ],
)
def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    """The sum of products over the last `axes` axes of `x1` and the first of `x2`.

    `axes` may also be a pair of lists: axes of `x1`, and those of `x2` that they meet.

    >>> pb.tensordot(pb.tensor([1.0, 2.0]), pb.tensor([10.0, 1.0]), axes=1)
    tensor(12., float32, cpu)
    """
    x, y = same_dtype("tensordot", x1, x2)
    a, b = x._aval, y._aval
    left, right = _tensordot_axes(axes, a, b)
    meeting = [a.shape[d] for d in left]
    if meeting != [b.shape[d] for d in right]:
        raise ShapeError(
            f"tensordot: the sizes that meet differ, got shapes {a.shape} and {b.shape}"
            f" with axes {axes}."
        )
    rows = [d for d in range(a.ndim) if d not in left]
    columns = [d for d in range(b.ndim) if d not in right]
    k = size_of(meeting)
    m, n = size_of(a.shape[d] for d in rows), size_of(b.shape[d] for d in columns)
    out = matmul(
        reshape(permute_dims(x, (*rows, *left)), (m, k)),
        reshape(permute_dims(y, (*right, *columns)), (k, n)),
    )
    return reshape(out, (*[a.shape[d] for d in rows], *[b.shape[d] for d in columns]))


# -- einsum --------------------------------------------------------------------------------------


def _shaped(x: Any, shape: tuple[int, ...]) -> Any:
    return x if x._aval.shape == shape else reshape(x, shape)


def _moved(x: Any, axes: tuple[int, ...]) -> Any:
    return x if axes == tuple(range(len(axes))) else permute_dims(x, axes)


def _distinct_labels(x: Any, labels: Labels, sizes: dict[Any, int]) -> tuple[Any, Labels]:
    """The operand with diagonals for repeated labels, and without axes that only broadcast."""
    keep = [d for d, c in enumerate(labels) if x._aval.shape[d] == sizes[c]]
    x = _shaped(x, tuple(x._aval.shape[d] for d in keep))
    found = [labels[d] for d in keep]
    for c in dict.fromkeys(found):
        while found.count(c) > 1:
            first = found.index(c)
            second = found.index(c, first + 1)
            x = diagonal_of(x, first, second)
            found = [b for d, b in enumerate(found) if d not in (first, second)] + [c]
    return x, tuple(found)


def _summed(x: Any, labels: Labels, kept: set[Any]) -> tuple[Any, Labels]:
    """The operand summed over the labels that nobody needs."""
    gone = tuple(d for d, c in enumerate(labels) if c not in kept)
    if not gone:
        return x, labels
    return sum_(x, axis=gone, dtype=x._aval.dtype), tuple(c for c in labels if c in kept)


def _arranged(x: Any, labels: Labels, *groups: Sequence[Any]) -> Any:
    """The operand with its axes in the order of the groups, the last two of them flattened."""
    order = [c for group in groups for c in group]
    x = _moved(x, tuple(labels.index(c) for c in order))
    shape = iter(x._aval.shape)
    sizes = [[next(shape) for _ in group] for group in groups]
    return _shaped(x, (*sizes[0], *[size_of(s) for s in sizes[1:]]))


def _contracted(x: tuple[Any, Labels], y: tuple[Any, Labels], kept: set[Any]) -> tuple[Any, Labels]:
    """Two operands joined into one: labels that nobody needs any more are summed over."""
    (a, left), (b, right) = _summed(*x, kept | set(y[1])), _summed(*y, kept | set(x[1]))
    both = [c for c in left if c in right]
    batch, inner = [c for c in both if c in kept], [c for c in both if c not in kept]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    shape = [n for c in (*batch, *rows) for n, k in zip(a._aval.shape, left, strict=True) if k == c]
    shape += [n for c in columns for n, k in zip(b._aval.shape, right, strict=True) if k == c]
    if inner and (rows or columns or not batch):
        out = matmul(
            _arranged(a, left, batch, rows, inner), _arranged(b, right, batch, inner, columns)
        )
    elif inner:
        out = _arranged(a, left, batch, (), inner) * _arranged(b, right, batch, (), inner)
        out = sum_(out, axis=-1, dtype=out._aval.dtype)
    else:
        out = _arranged(a, left, batch, rows, ()) * _arranged(b, right, batch, (), columns)
    return _shaped(out, tuple(shape)), (*batch, *rows, *columns)


def _next_pair(terms: list[Labels], out: Labels, sizes: dict[Any, int]) -> tuple[int, int]:
    """The two operands whose product adds least to the elements held: a greedy order."""

    def size(labels: Any) -> int:
        return size_of(sizes[c] for c in labels)

    def growth(pair: tuple[int, int]) -> int:
        i, j = pair
        needed = {c for n, t in enumerate(terms) if n not in pair for c in t} | set(out)
        result = (set(terms[i]) | set(terms[j])) & needed
        return size(result) - size(terms[i]) - size(terms[j])

    n = len(terms)
    return min(((i, j) for i in range(n) for j in range(i + 1, n)), key=growth)


def _einsum_samples(d: Draw) -> list[Sample]:
    x, y, z = d.real(2, 3), d.real(3, 4), d.real(4, 2)
    return [
        Sample(("ij,jk->ik", x, y)),
        Sample(("ij,jk", x, y)),
        Sample(("ij,jk,kl->il", x, y, z)),
        Sample(("ij,jk,ki->", x, y, z)),
        Sample(("ij->ji", x)),
        Sample(("ij->j", x)),
        Sample(("ii->i", d.real(3, 3))),
        Sample(("ii", d.real(3, 3))),
        Sample(("iij->j", d.real(2, 2, 3))),
        Sample(("i,j->ij", d.real(3), d.real(2))),
        Sample(("i,i", d.real(3), d.real(3))),
        Sample(("bij,bjk->bik", d.real(2, 2, 3), d.real(2, 3, 2))),
        Sample(("...ij,...jk->...ik", d.real(2, 1, 2, 3), d.real(2, 3, 2))),
        Sample(("i...,i...->...", d.real(3, 2), d.real(3, 2))),
        Sample(("bi,bi->b", x, d.real(2, 3))),
        Sample(("ijk,jil->kl", d.real(2, 3, 2), d.real(3, 2, 2))),
        Sample(("ij,kl->", x, y)),
        Sample((",ij", d.real(), x)),
        Sample(("ij,jk", d.integers(2, 3), d.integers(3, 2))),
        Sample((x, [0, 1], y, [1, 2], [0, 2])),
        Sample((x, [0, 1])),
    ]


@composite(
    oracle=np.einsum,
    samples=_einsum_samples,
    errors=lambda d: [
        Bad(("ij,jk", d.real(2, 3), d.real(2, 3)), {}, ShapeError, "label 'j' has sizes 3 and 2"),
        Bad(("ij", d.real(2)), {}, ShapeError, "does not fit"),
        Bad(("i,j", d.real(2)), {}, ShapeError, "names 2 operands"),
        Bad(("i->k", d.real(2)), {}, ShapeError, "not in an operand"),
        Bad(("i->ii", d.real(2)), {}, ShapeError, "repeated"),
        Bad(("i1->i", d.real(2, 2)), {}, ShapeError, "not a letter"),
        Bad(("i,i", object(), d.real(2)), {}, DTypeError, "expected an array"),
        Bad((d.real(2, 2), [0, 52]), {}, ShapeError, "integer from 0 to 51"),
    ],
)
def einsum(subscripts: Any, /, *operands: Any) -> Any:
    """The sum of products that `subscripts` spell: labels absent from the output are summed over.

    Repeated labels take diagonals, `...` stands for the axes that have no label, and without `->`
    the output has the labels that occur once, in alphabetic order.

    >>> x = pb.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> pb.einsum("ij,ij->i", x, x)
    tensor([ 5., 25.], float32, cpu)
    """
    if not isinstance(subscripts, str):
        subscripts, operands = spelled((subscripts, *operands))
    arrays = same_dtype("einsum", *operands)
    avals = [a._aval for a in arrays]
    terms, out = parsed(subscripts, avals)
    sizes = label_sizes(terms, avals, subscripts)
    left = [_distinct_labels(a, t, sizes) for a, t in zip(arrays, terms, strict=True)]
    while len(left) > 1:
        i, j = _next_pair([labels for _, labels in left], out, sizes)
        second, first = left.pop(j), left.pop(i)
        kept = {c for _, labels in left for c in labels} | set(out)
        left.append(_contracted(first, second, kept))
    x, labels = _summed(*left[0], set(out))
    return _moved(x, tuple(labels.index(c) for c in out))
