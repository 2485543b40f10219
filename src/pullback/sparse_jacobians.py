"""Jacobians with few entries: columns that share no row are computed together.

The columns of a matrix are coloured so that no two of one colour meet in a row. One tangent for
each colour, the sum of its unit vectors, then gives all entries: a tridiagonal matrix of any size
takes three. Rows are coloured instead, for reverse mode, where that takes fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from pullback.autodiff.forward import tangents
from pullback.autodiff.recorded import Recorded
from pullback.autodiff.reverse import cotangents, zeros
from pullback.autodiff.sparsity import dependences
from pullback.core import pytrees
from pullback.core.errors import DTypeError, ShapeError, briefly, expect_function
from pullback.ir.array import Array
from pullback.ir.convert import as_array, from_numpy
from pullback.ir.graph import trace
from pullback.ir.op import REGISTRY, bind
from pullback.mapping import vmap
from pullback.transforms import of_chosen

__all__ = ["SparseMatrix", "jacobian_sparsity", "sparse_jacobian"]


class SparseMatrix:
    """A matrix by its entries: `values[k]` stands at `rows[k], columns[k]`, row after row.

    `rows` and `columns` are NumPy arrays, `values` is a tensor, which is differentiable.
    """

    def __init__(self, values: Any, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]):
        self.values, self.rows, self.columns, self.shape = values, rows, columns, shape

    def dense(self) -> Any:
        """The matrix with its zeros."""
        start = zeros(self.values._aval)
        size = self.shape[0] * self.shape[1]
        places = from_numpy(self.rows * self.shape[1] + self.columns, start._aval.device)
        whole = REGISTRY["zeros"].function(
            size, dtype=self.values._aval.dtype, device=start._aval.device
        )
        flat = bind(REGISTRY["primitive.scatter_set"], whole, self.values, places)
        return bind(REGISTRY["reshape"], flat, shape=self.shape)

    def __matmul__(self, vector: Any) -> Any:
        """The product with a vector."""
        x = as_array(vector, "matmul")
        if x._aval.shape != self.shape[1:]:
            raise ShapeError(
                f"matmul: a sparse matrix of shape {self.shape} takes vectors of {self.shape[1]}"
                f" elements, got shape {x._aval.shape}."
            )
        places, rows = (from_numpy(i, x._aval.device) for i in (self.columns, self.rows))
        products = self.values * bind(REGISTRY["primitive.gather"], x, places)
        whole = REGISTRY["zeros"].function(
            self.shape[0], dtype=products._aval.dtype, device=x._aval.device
        )
        return bind(REGISTRY["primitive.scatter_add"], whole, products, rows)

    def __repr__(self) -> str:
        return f"SparseMatrix({self.shape[0]} x {self.shape[1]}, {len(self.rows)} entries)"


class _Places:
    """Where the entries stand; two of the same matrix are equal."""

    def __init__(self, matrix: SparseMatrix):
        self.parts = matrix.rows, matrix.columns, matrix.shape

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Places)
            and self.parts[2] == other.parts[2]
            and all(
                np.array_equal(a, b) for a, b in zip(self.parts[:2], other.parts[:2], strict=True)
            )
        )

    def __hash__(self) -> int:
        return hash(self.parts[2])


pytrees.register_pytree(
    SparseMatrix,
    lambda m: ([m.values], _Places(m)),
    lambda places, values: SparseMatrix(values[0], *places.parts),
)


class _Colouring(NamedTuple):
    """A colour for each line of a matrix, and how many there are."""

    colours: np.ndarray
    number: int


def _coloured(lines: np.ndarray, across: np.ndarray, size: int, width: int) -> _Colouring:
    """Colours for `size` lines, so that two which meet the same one of `width` crossing lines
    differ: each gets the first colour that is free.
    """
    order = np.argsort(lines, kind="stable")
    crossed = across[order]
    ends = np.searchsorted(lines[order], np.arange(size + 1))
    taken: list[int] = [0] * width  # colours that meet a crossing line, as bits
    colours, count = np.zeros(size, np.int64), 0
    for line in range(size):
        own = crossed[ends[line] : ends[line + 1]].tolist()
        used = 0
        for c in own:
            used |= taken[c]
        free = ~used & (used + 1)
        colour = free.bit_length() - 1
        colours[line] = colour
        count = max(count, colour + 1)
        for c in own:
            taken[c] |= free
    return _Colouring(colours, count)


@briefly
def jacobian_sparsity(
    f: Callable[..., Any], argnums: int = 0
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """The function that finds where the Jacobian of `f` may have entries other than zero, as two
    NumPy arrays: rows and columns, of the flattened result and argument.

    It is read off the operations of `f`, and holds for all values.

    >>> rows, columns = pb.jacobian_sparsity(lambda x: x[1:] - x[:-1])(pb.zeros(3))
    >>> rows.tolist(), columns.tolist()
    ([0, 0, 1, 1], [0, 1, 1, 2])
    """
    expect_function("jacobian_sparsity", f)

    @wraps(f)
    def found(*args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
        function, (primal,) = of_chosen("jacobian_sparsity", f, (argnums,), args, kwargs)
        return _pattern("jacobian_sparsity", function, as_array(primal, "jacobian_sparsity"))

    return briefly(found)


def _pattern(name: str, function: Callable[[Any], Any], x: Array) -> tuple[np.ndarray, np.ndarray]:
    def single(x: Any) -> Any:
        out = function(x)
        if not isinstance(out, Array):
            raise DTypeError(
                f"{name}: the function must return one array, got {type(out).__name__}."
            )
        return out

    return dependences(trace(single)(x)).pairs


@briefly
def sparse_jacobian(
    f: Callable[..., Any], argnums: int = 0, sparsity: Any = None
) -> Callable[..., SparseMatrix]:
    """The function that computes a Jacobian with few entries, of one array by another, flattened.

    `sparsity` says where entries may be: (rows, columns), or a matrix of booleans; without it
    `jacobian_sparsity` finds out, each time, or once in a compiled function. Columns, or rows, that
    have no place in common are computed together.

    >>> f = lambda x: x[1:] ** 2 - x[:-1]
    >>> j = pb.sparse_jacobian(f)(pb.tensor([1.0, 2.0, 3.0]))
    >>> j, j.values
    (SparseMatrix(2 x 3, 4 entries), tensor([-1.,  4., -1.,  6.], float32, cpu))
    """
    return compressed_jacobian("sparse_jacobian", f, argnums, sparsity)


def compressed_jacobian(
    name: str,
    f: Callable[..., Any],
    argnums: Any,
    sparsity: Any,
    mode: str = "auto",
    has_aux: bool = False,
) -> Callable[..., Any]:
    """`sparse_jacobian`, under the name of who asks for it; a pattern of True or None is found."""
    expect_function(name, f)
    given = None if sparsity is None or sparsity is True else _given(name, sparsity)
    if isinstance(argnums, (tuple, list)):
        raise DTypeError(
            f"{name}: a sparse Jacobian is by one argument, got argnums={argnums!r}. Take them one"
            " after the other, or as one array."
        )

    @briefly
    @wraps(f)
    def derived(*args: Any, **kwargs: Any) -> Any:
        function, (primal,) = of_chosen(name, f, (argnums,), args, kwargs)
        if not isinstance(primal, (Array, np.ndarray)):
            raise DTypeError(
                f"{name}: the argument must be one array, got {type(primal).__name__}."
            )
        x = as_array(primal, name)
        plain = (lambda x: function(x)[0]) if has_aux else function
        rows, columns = _pattern(name, plain, x) if given is None else given
        recorded = Recorded(name, function, (x,), has_aux)
        found = _compressed(recorded, rows, columns, mode)
        return (found, recorded.auxiliary) if has_aux else found

    return derived


def _given(name: str, sparsity: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of a pattern, row after row."""
    if isinstance(sparsity, tuple) and len(sparsity) == 2:
        rows, columns = (np.asarray(i) for i in sparsity)
    else:
        mask = np.asarray(sparsity)
        if mask.ndim != 2 or mask.dtype != bool:
            raise DTypeError(
                f"{name}: sparsity is (rows, columns) or a matrix of booleans, got"
                f" {mask.dtype} of shape {mask.shape}."
            )
        rows, columns = np.nonzero(mask)
    whole = all(i.dtype.kind in "iu" and i.ndim == 1 for i in (rows, columns))
    if not whole or rows.shape != columns.shape:
        raise DTypeError(f"{name}: rows and columns are integers, as many of both.")
    pairs = np.unique(np.stack([rows, columns], axis=1).astype(np.int64), axis=0)
    return pairs[:, 0], pairs[:, 1]


def _compressed(
    recorded: Recorded, rows: np.ndarray, columns: np.ndarray, mode: str
) -> SparseMatrix:
    """The entries, by one sweep for each colour of columns or of rows."""
    if len(recorded.outputs) != 1:
        raise DTypeError(f"{recorded.name}: the function must return one array.")
    (x,), (y,) = recorded.variables, recorded.outputs
    m, n = y._aval.size, x._aval.size
    if len(rows) and (rows.min() < 0 or rows.max() >= m or columns.min() < 0 or columns.max() >= n):
        raise ShapeError(f"{recorded.name}: the pattern does not fit a Jacobian of {m} x {n}.")
    if x._aval.dtype is not y._aval.dtype or x._aval.dtype.is_complex:
        raise DTypeError(
            f"{recorded.name}: result and argument must have one floating dtype, got"
            f" {y._aval.dtype.name} and {x._aval.dtype.name}."
        )
    down = _coloured(columns, rows, n, m)
    along = _coloured(rows, columns, m, n)
    forward = mode == "forward" or (mode == "auto" and down.number <= along.number)
    if forward:
        found = _swept(lambda t: tangents([y], [x], [t])[0], x, y, down)
        places = (down.colours[columns], rows)
    else:
        found = _swept(lambda g: cotangents([y], [g], [x], retain=True)[0], y, x, along)
        places = (along.colours[rows], columns)
    indices = [from_numpy(i, x._aval.device) for i in places]
    values = bind(REGISTRY["primitive.gather"], found, *indices)
    return SparseMatrix(values, rows, columns, (m, n))


def _swept(sweep: Callable[[Any], Any], start: Any, end: Any, colouring: _Colouring) -> Any:
    """The results of sweeps from sums of unit vectors, one for each colour, as rows."""
    av = start._aval
    count = max(colouring.number, 1)
    seeds = np.zeros((count, av.size), av.dtype.numpy)
    seeds[colouring.colours, np.arange(av.size)] = 1

    def one(t: Any) -> Any:
        found = sweep(t)
        return zeros(end._aval) if found is None else found

    given = from_numpy(seeds.reshape(count, *av.shape), av.device)
    return bind(REGISTRY["reshape"], vmap(one)(given), shape=(count, end._aval.size))
