"""Powers and products of matrices, diagonals and traces, products of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.linalg.arguments import like_eye, regular
from pullback.linalg.lu import inv
from pullback.ops.arrangement import moveaxis, stack
from pullback.ops.diagonals import diagonal as diagonal_along
from pullback.ops.families import broadcast_shapes, composite, normalise_axis
from pullback.ops.movement import broadcast_to, concat, reshape
from pullback.ops.padding import pad
from pullback.ops.products import matmul
from pullback.ops.promotion import same_dtype
from pullback.ops.reductions import sum as sum_

__all__ = [
    "block_diag",
    "cross",
    "diagonal",
    "khatri_rao",
    "kron",
    "matrix_power",
    "multi_dot",
    "trace",
]


def _of_matrices(name: str, x: Any) -> Any:
    x = as_array(x, name)
    if x._aval.ndim < 2:
        raise ShapeError(
            f"{name}: a matrix has at least two dimensions, got shape {x._aval.shape}."
        )
    return x


def _matrix_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(3),), {}, ShapeError, "at least two dimensions"),
        Bad((object(),), {}, DTypeError, "expected an array"),
    ]


def _diagonal_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(3, 3),)),
        Sample((d.real(2, 3, 4),), {"offset": 1}),
        Sample((d.real(4, 3),), {"offset": -1}),
        Sample((d.real(2, 2),), {"offset": 5}),
        Sample((d.integers(3, 3),)),
    ]


@composite(
    oracle=lambda x, *, offset=0: np.linalg.diagonal(x, offset=offset),
    samples=_diagonal_samples,
    errors=_matrix_errors,
    namespace="linalg",
)
def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonals of matrices; those above the main one have a positive `offset`.

    >>> pb.linalg.diagonal(pb.tensor([[1, 2], [3, 4]]))
    tensor([1, 4], int64, cpu)
    """
    return diagonal_along(_of_matrices("diagonal", x), offset, -2, -1)


@composite(
    oracle=lambda x, *, offset=0, dtype=None: np.linalg.trace(x, offset=offset, dtype=dtype),
    samples=_diagonal_samples,
    errors=_matrix_errors,
    namespace="linalg",
)
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sum of a diagonal of matrices.

    >>> pb.linalg.trace(pb.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor(5., float32, cpu)
    """
    x = _of_matrices("trace", x)
    return sum_(diagonal_along(x, offset, -2, -1), axis=-1, dtype=dtype)


def _power_oracle(x: Any, n: int) -> Any:
    return np.linalg.matrix_power(x, n)


@composite(
    oracle=_power_oracle,
    samples=lambda d: [
        *[Sample((d.real(3, 3), n)) for n in (0, 1, 2, 3, 7)],
        Sample((regular(d, 2, 3, 3), -2)),
        Sample((d.integers(2, 2), 3)),
    ],
    errors=lambda d: [
        *[Bad((*bad.args, 2), {}, bad.error, bad.match) for bad in _matrix_errors(d)],
        Bad((d.real(2, 3), 2), {}, ShapeError, "square"),
        Bad((d.real(2, 2), 2.0), {}, DTypeError, "the power is an integer"),
    ],
    namespace="linalg",
    tolerance=64,
)
def matrix_power(x: Any, n: int, /) -> Any:
    """The product of `n` copies of square matrices; of the inverse if `n` is negative.

    >>> pb.linalg.matrix_power(pb.tensor([[1.0, 1.0], [0.0, 1.0]]), 5)
    tensor([[1., 5.],
            [0., 1.]], float32, cpu)
    """
    x = _of_matrices("matrix_power", x)
    if x._aval.shape[-1] != x._aval.shape[-2]:
        raise ShapeError(f"matrix_power: a square matrix is needed, got shape {x._aval.shape}.")
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise DTypeError(f"matrix_power: the power is an integer, got {n!r}.")
    x, n = (inv(x), -int(n)) if n < 0 else (x, int(n))
    result = None
    while n:
        if n & 1:
            result = x if result is None else matmul(result, x)
        n >>= 1
        x = matmul(x, x) if n else x
    return like_eye(x) if result is None else result


@composite(
    oracle=lambda x, y, *, axis=-1: np.cross(x, y, axis=axis),
    samples=lambda d: [
        Sample((d.real(3), d.real(3))),
        Sample((d.real(2, 1, 3), d.real(4, 3))),
        Sample((d.real(3, 2), d.real(3, 2)), {"axis": 0}),
        Sample((d.integers(3), d.integers(3))),
    ],
    errors=lambda d: [
        Bad((d.real(2), d.real(2)), {}, ShapeError, "three elements"),
        Bad((d.real(3), d.real(3)), {"axis": 1}, ShapeError, "out of range"),
        Bad((d.real(2, 3), d.real(4, 3)), {}, ShapeError, "do not broadcast"),
    ],
    namespace="linalg",
)
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The cross product of vectors of three elements along `axis`.

    >>> pb.linalg.cross(pb.tensor([1.0, 0.0, 0.0]), pb.tensor([0.0, 1.0, 0.0]))
    tensor([0., 0., 1.], float32, cpu)
    """
    x, y = same_dtype("cross", x1, x2)
    axes = [normalise_axis("cross", axis, v._aval.ndim) for v in (x, y)]
    if any(v._aval.shape[a] != 3 for v, a in zip((x, y), axes, strict=True)):
        raise ShapeError(
            f"cross: vectors have three elements, got shapes {x._aval.shape} and {y._aval.shape}"
            f" along axis {axis}."
        )
    x, y = (moveaxis(v, a, -1) for v, a in zip((x, y), axes, strict=True))
    broadcast_shapes("cross", x._aval.shape, y._aval.shape)
    (a, b, c), (p, q, r) = ([v[..., i] for i in range(3)] for v in (x, y))
    out = stack([b * r - c * q, c * p - a * r, a * q - b * p], axis=-1)
    return moveaxis(out, -1, axis)


@composite(
    oracle=np.kron,
    samples=lambda d: [
        Sample((d.real(2, 3), d.real(3, 2))),
        Sample((d.real(2), d.real(3))),
        Sample((d.integers(2, 2), d.integers(1, 2))),
        Sample((d.real(2, 2), d.real(3))),
    ],
    errors=lambda d: [Bad((object(), d.real(2)), {}, DTypeError, "expected an array")],
    namespace="linalg",
)
def kron(a: Any, b: Any, /) -> Any:
    """The Kronecker product: blocks `a[i, j] * b`.

    >>> pb.linalg.kron(pb.tensor([[1.0, 2.0]]), pb.tensor([[1.0], [3.0]]))
    tensor([[1., 2.],
            [3., 6.]], float32, cpu)
    """
    a, b = same_dtype("kron", a, b)
    ndim = max(a._aval.ndim, b._aval.ndim)
    first, second = ((1,) * (ndim - v._aval.ndim) + v._aval.shape for v in (a, b))
    left = reshape(a, [n for size in first for n in (size, 1)])
    right = reshape(b, [n for size in second for n in (1, size)])
    return reshape(left * right, tuple(p * q for p, q in zip(first, second, strict=True)))


def _khatri_rao_oracle(a: Any, b: Any) -> Any:
    return (a[..., :, None, :] * b[..., None, :, :]).reshape(*a.shape[:-2], -1, a.shape[-1])


@composite(
    oracle=_khatri_rao_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3), d.real(4, 3))),
        Sample((d.real(2, 2, 3), d.real(2, 1, 3))),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), d.real(2, 2)), {}, ShapeError, "as many columns"),
        Bad((d.real(3), d.real(2, 3)), {}, ShapeError, "at least two dimensions"),
    ],
    namespace="linalg",
)
def khatri_rao(a: Any, b: Any, /) -> Any:
    """The Kronecker products of the columns of two matrices, as columns.

    >>> pb.linalg.khatri_rao(pb.tensor([[1.0, 2.0]]), pb.tensor([[3.0, 4.0], [5.0, 6.0]]))
    tensor([[ 3.,  8.],
            [ 5., 12.]], float32, cpu)
    """
    a, b = (_of_matrices("khatri_rao", x) for x in same_dtype("khatri_rao", a, b))
    p, q = a._aval.shape, b._aval.shape
    if p[-1] != q[-1]:
        raise ShapeError(f"khatri_rao: the matrices need as many columns, got shapes {p} and {q}.")
    left = reshape(a, (*p[:-1], 1, p[-1]))
    right = reshape(b, (*q[:-2], 1, *q[-2:]))
    batch = broadcast_shapes("khatri_rao", p[:-2], q[:-2])
    return reshape(left * right, (*batch, p[-2] * q[-2], p[-1]))


def _block_oracle(*blocks: Any) -> Any:
    import scipy.linalg

    return scipy.linalg.block_diag(*blocks)


@composite(
    oracle=_block_oracle,
    samples=lambda d: [
        Sample((d.real(2, 2), d.real(1, 3))),
        Sample((d.real(2), d.real(2, 1), d.real(1, 1))),
        Sample((d.real(2, 3, 3),)),
        Sample((d.integers(2, 2), d.integers(1, 1))),
    ],
    errors=lambda d: [
        Bad((), {}, ShapeError, "at least one"),
        Bad((d.real(2, 2), object()), {}, DTypeError, "expected an array"),
    ],
    namespace="linalg",
)
def block_diag(*blocks: Any) -> Any:
    """The matrices (over broadcast batches) along the diagonal of a larger one, zeros elsewhere.

    >>> pb.linalg.block_diag(pb.tensor([[1.0, 2.0]]), pb.tensor([[3.0]]))
    tensor([[1., 2., 0.],
            [0., 0., 3.]], float32, cpu)
    """
    if not blocks:
        raise ShapeError("block_diag: needs at least one matrix, got none.")
    arrays = same_dtype("block_diag", *blocks)
    arrays = [
        reshape(a, (*(1,) * (2 - a._aval.ndim), *a._aval.shape)) if a._aval.ndim < 2 else a
        for a in arrays
    ]
    batch = broadcast_shapes("block_diag", *[a._aval.shape[:-2] for a in arrays])
    width = sum(a._aval.shape[-1] for a in arrays)
    rows, before = [], 0
    for a in arrays:
        m, n = a._aval.shape[-2:]
        around = [(0, 0)] * len(batch) + [(0, 0), (before, width - before - n)]
        rows.append(pad(broadcast_to(a, (*batch, m, n)), around))
        before += n
    return concat(rows, axis=-2)


def _best_order(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where each chain of matrices is cut best: matrix i is sizes[i] by sizes[i + 1]."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    cut: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            options = [
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            ]
            cost[i, j], cut[i, j] = min(options)
    return cut


@composite(
    oracle=lambda arrays: reduce(np.matmul, arrays),
    samples=lambda d: [
        Sample(([d.real(2, 3), d.real(3, 4)],)),
        Sample(([d.real(2, 3), d.real(3, 4), d.real(4, 2), d.real(2, 5)],)),
        Sample(([d.real(3), d.real(3, 4), d.real(4)],)),
        Sample(([d.real(2, 2, 3), d.real(3, 1), d.real(1, 2)],)),
    ],
    errors=lambda d: [
        Bad(([d.real(2, 2)],), {}, ShapeError, "at least two"),
        Bad(([d.real(2, 2), d.real(3, 2)],), {}, ShapeError, "inner sizes differ"),
    ],
    namespace="linalg",
    tolerance=4,
)
def multi_dot(arrays: Sequence[Any], /) -> Any:
    """The product of a chain of matrices, in the order of the fewest multiplications.

    The first may be a row and the last a column with one dimension.

    >>> x = pb.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> pb.linalg.multi_dot([x, x, pb.tensor([1.0, 0.0])])
    tensor([ 7., 15.], float32, cpu)
    """
    if len(arrays) < 2:
        raise ShapeError(f"multi_dot: needs at least two matrices, got {len(arrays)}.")
    xs = same_dtype("multi_dot", *arrays)
    row, column = xs[0]._aval.ndim == 1, xs[-1]._aval.ndim == 1
    if row:
        xs[0] = reshape(xs[0], (1, -1))
    if column:
        xs[-1] = reshape(xs[-1], (-1, 1))
    for x in xs:
        _of_matrices("multi_dot", x)
    sizes = [xs[0]._aval.shape[-2], *[x._aval.shape[-1] for x in xs]]
    for x, inner in zip(xs, sizes, strict=False):
        if x._aval.shape[-2] != inner:
            shapes = ", ".join(str(x._aval.shape) for x in xs)
            raise ShapeError(f"multi_dot: the inner sizes differ, got shapes {shapes}.")
    cut = _best_order(sizes)

    def product(i: int, j: int) -> Any:
        if i == j:
            return xs[i]
        return matmul(product(i, cut[i, j]), product(cut[i, j] + 1, j))

    out = product(0, len(xs) - 1)
    out = out[..., 0, :] if row else out
    return out[..., 0] if column else out
