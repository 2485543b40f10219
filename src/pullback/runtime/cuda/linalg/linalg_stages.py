"""Primitives of linear algebra as launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pullback.compile.kernel.factor_order import MINORS
from pullback.compile.kernel.forms import Map
from pullback.compile.kernel.lower import broadcast_strides, copy_kernel
from pullback.compile.program.matrices import batch_of, is_small
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.compile.program.tiles import TILED, Block
from pullback.core import dtypes as dt
from pullback.core.avals import dense_strides
from pullback.ir.scalar import cast, load, logical_not
from pullback.runtime.cuda.linalg import (
    function_kernels,
    jacobi_kernels,
    schur_kernels,
    small_jacobi,
    small_kernels,
)
from pullback.runtime.cuda.linalg.tiles import Tiles, report_step
from pullback.runtime.cuda.loops import map_steps
from pullback.runtime.cuda.products import Products
from pullback.runtime.cuda.stages import At, stage

__all__ = ["NAMES", "linalg_stages"]

_UNSET = Map((dt.bool_,), dt.int64, (cast(logical_not(load(0, dt.bool_)), dt.int64),))
# Functions of matrices, and how many of their first operands are not looked at.
_FUNCTIONS = {"sylvester": 2, "sqrtm": 1, "logm": 1, "expm": 0, "ldl": 0}
_WHOLE = ("eigh", "eigvalsh", "svd", "svdvals", "schur", "eig", "eigvals", *_FUNCTIONS)
NAMES = (*TILED, *_WHOLE, "det", "cofactors", "require")  # of the intrinsics


def linalg_stages(
    products: Products,
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    error: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense."""
    out = result[1]
    if out.size == 0:
        return []
    if name == "require":
        return _require_stages(operands, result, area, error)
    tiles = Tiles(operands[0][1].dtype, batch_of(name, out), area, products.steps)
    avals = [av for _, av in operands]
    if name == "det":
        tiles.determinant(_matrices(operands[1], tiles.batch), result)
    elif is_small(name, avals):
        _small(tiles, name, operands, static, result, error)
    elif name in _WHOLE:
        _whole(tiles, name, operands, static, result)
        tiles.report(error)
    else:
        tiles.run(name, operands, static, result, error)
    return stage(*tiles.steps())


def _matrices(operand: Place, batch: tuple[int, ...]) -> Block:
    """The matrices of an operand."""
    slot, av = operand
    assert av.strides is not None
    rows, columns = av.shape[-2:]
    *steps, row, column = broadcast_strides(av, (*batch, rows, columns))
    return Block(slot, 0, rows, columns, row, column, tuple(steps))


def _small(
    tiles: Tiles,
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    error: int,
) -> None:
    """A kernel that has a thread for each matrix."""
    dtype, n = operands[0][1].dtype, operands[0][1].shape[-1]
    given = [_matrices(operand, tiles.batch) for operand in operands]
    if name in ("eigh", "eigvalsh"):
        kernel = small_jacobi.eigh(dtype, n, name == "eigh")
    elif name in ("svd", "svdvals"):
        kernel = small_jacobi.svd(dtype, n, name == "svd")
    elif name == "solve_triangular":
        how = static["lower"], static["unit_diagonal"]
        kernel = small_kernels.triangular(dtype, n, given[1].columns, *how)
    elif name == "lu_solve":
        kernel = small_kernels.lu_solve(dtype, n, given[1].columns, static["adjoint"])
        given = given[1:]
    elif name == "cofactors":
        kernel = small_kernels.cofactors(dtype, n)
        given = given[:1] if n <= MINORS else given[1:]
    else:
        kernel = {"cholesky": small_kernels.cholesky, "lu": small_kernels.lu}[name](dtype, n)
    tiles.side_by_side(kernel, result, given)
    if name not in ("lu", "cofactors", "eigh", "eigvalsh", "svd", "svdvals"):
        tiles.report(error)


def _whole(
    tiles: Tiles, name: str, operands: Sequence[Place], static: Mapping[str, Any], result: Place
) -> None:
    """A kernel that has a thread block for each matrix."""
    given = [_matrices(operand, tiles.batch) for operand in operands]
    dtype, x, size = tiles.dtype, given[0], tiles.size
    wide = 2 * dtype.real.itemsize  # bytes of a complex number
    if name in ("eigh", "eigvalsh"):
        kernel = jacobi_kernels.kernels(dtype, "eigh", name == "eigh")
        room, more = jacobi_kernels.eigh_room(x.rows) * size, int(name == "eigh")
        tiles.block_each(kernel, jacobi_kernels.THREADS, result, given, room, more)
    elif name in ("svd", "svdvals"):
        kernel, basis = jacobi_kernels.kernels(dtype, "svd", name == "svd"), 0
        if name == "svd":
            basis = (max if static["full_matrices"] else min)(x.rows, x.columns)
        room = jacobi_kernels.svd_room(x.rows, x.columns, basis) * size
        tiles.block_each(kernel, jacobi_kernels.THREADS, result, given, room, basis)
    elif name == "schur":
        room = schur_kernels.schur_room(x.rows) * size
        kernel = schur_kernels.schur(dtype)
        tiles.block_each(kernel, schur_kernels.THREADS, result, given, room)
    elif name in _FUNCTIONS:
        given = given[_FUNCTIONS[name] :]
        m, n = given[0].rows, given[0].columns
        room, kernel = (
            function_kernels.room(name, m, n) * wide,
            function_kernels.function(name, dtype),
        )
        more = (int(static["adjoint"]),) if name == "sylvester" else ()
        tiles.block_each(kernel, schur_kernels.THREADS, result, given, room, *more)
    else:
        room, vectors = schur_kernels.eig_room(x.rows) * wide, int(name == "eig")
        kernel = schur_kernels.eig(dtype)
        tiles.block_each(kernel, schur_kernels.THREADS, result, given, room, vectors)


def _require_stages(
    operands: Sequence[Place], result: Place, area: Area, error: int
) -> list[Stage]:
    """A look at the flags, and a copy of the values."""
    (slot, av), (flags, flags_aval) = operands
    out_slot, out = result
    assert av.strides is not None and flags_aval.strides is not None
    status = area(8 * max(1, flags_aval.size))
    shape = flags_aval.shape
    dense = [dense_strides(shape)]
    looked = map_steps(_UNSET, shape, [At(status)], dense, [At(flags)], [flags_aval.strides])
    copied = map_steps(
        copy_kernel(av.dtype), av.shape, [At(out_slot)], [dense_strides(out.shape)], [At(slot)],
        [av.strides],
    )  # fmt: skip
    # the value of the error is 0
    note = report_step(dt.float32, status, flags_aval.size, 1, error)
    return stage(*looked, note, *copied)
