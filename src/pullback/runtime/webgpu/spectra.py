"""Eigenvalues, singular values and Schur forms, and functions of matrices, as dispatches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pullback.compile.program.matrices import batch_of, is_small
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.function_kernels import OPERANDS, function_room, function_source
from pullback.runtime.webgpu.jacobi_kernels import (
    eigh_room,
    eigh_source,
    svd_room,
    svd_source,
)
from pullback.runtime.webgpu.matrices import Tiles, report_steps
from pullback.runtime.webgpu.nests import THREADS
from pullback.runtime.webgpu.printer import item
from pullback.runtime.webgpu.schur_kernels import (
    SWEEPS,
    eig_room,
    eig_source,
    schur_room,
    schur_source,
)
from pullback.runtime.webgpu.small_jacobi import small_source
from pullback.runtime.webgpu.stages import Array, At, Dispatch, linear_groups, stage

__all__ = ["NAMES", "spectrum_stages"]

NAMES = ("eigh", "eigvalsh", "svd", "svdvals", "schur", "eig", "eigvals", *OPERANDS)
_SWEEPS = 30  # of Jacobi's method, at most: some ten are usual
# Elements that the rounds of a dispatch turn: some 0.2 s on a GPU with 1 ns for an element and a
# workgroup, where drivers stop what takes 2 s.
_TURNED = 1 << 27
_REFLECTED = 1 << 24  # elements that reflections of a dispatch go over, each of them by two sums
_CHASED = 1 << 16  # rows that the sweeps of a dispatch go down, 5 us each


class _Blocks:
    """The dispatches of a primitive whose kernels have a workgroup for each matrix."""

    def __init__(self, result: Place, batch: tuple[int, ...], area: Area):
        self.slot, self.out = result
        self.batch, self.count, self._area = batch, math.prod(batch), area
        self.each = self.out.size // self.count
        self.steps: list[Dispatch] = []
        self._status: int | None = None

    def dense(self, operand: Place, looks: bool = True) -> Array:
        """The matrices of an operand, one after the other; if it `looks`, what is no finite number
        is a status.
        """
        tiles = Tiles(operand[1].dtype, self.batch, self._area, False, self._status)
        copied = tiles.dense_copy(operand, looks)
        self._status = tiles.status
        self.steps += tiles.steps()
        return Array(At(copied), item(operand[1].dtype))

    def work(self, dtype: DType, elements: int) -> Array:
        """Memory for so many elements of each matrix."""
        slot = self._area(self.count * elements * dtype.itemsize)
        return Array(At(slot), item(dtype), "write")

    def result(self) -> Array:
        """The result, which is dense."""
        return Array(At(self.slot), item(self.out.dtype), "write")

    def launch(self, source: str, *words: int, arrays: Sequence[Array]) -> None:
        work, *others = arrays
        assert self._status is not None
        status = Array(At(self._status), "u32", "write")
        own = (self.count, *words)
        self.steps.append(Dispatch(source, (work, status, *others), own, self.count))

    def report(self, error: int) -> list[Stage]:
        """All stages, the last of which note an error about the first matrix with a status."""
        assert self._status is not None
        return stage(*self.steps, *report_steps(self._status, self.count, 0, error))


def spectrum_stages(
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    error: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense."""
    if result[1].size == 0:
        return []
    x = operands[0][1]
    blocks = _Blocks(result, batch_of(name, result[1]), area)
    if name in OPERANDS:
        _function(blocks, name, operands, static)
        return blocks.report(error)
    if name in ("schur", "eig", "eigvals"):
        _schur(blocks, name, operands[0])
        return blocks.report(error)
    kind, vectors = ("svd" if name.startswith("svd") else "eigh"), name in ("eigh", "svd")
    if is_small(name, [x]):
        source = small_source(kind, x.shape[-1], vectors)
        given = blocks.dense(operands[0])
        groups = linear_groups(blocks.count, THREADS)
        return stage(
            *blocks.steps, Dispatch(source, (blocks.result(), given), (blocks.count,), groups)
        )
    if kind == "eigh":
        _eigh(blocks, operands[0], vectors)
    else:
        _svd(blocks, operands[0], vectors, static)
    return blocks.report(error)


def _rounds(n: int, elements: int) -> list[tuple[int, int]]:
    """The rounds of a sweep over pairs of n, of so many elements each, in dispatches."""
    rounds = n + n % 2 - 1
    few = max(1, _TURNED // elements)
    return [(k, min(k + few, rounds)) for k in range(0, rounds, few)]


def _eigh(blocks: _Blocks, operand: Place, vectors: bool) -> None:
    x = operand[1]
    n, dtype, room = x.shape[-1], x.dtype, eigh_room(x.shape[-1])
    given, work = blocks.dense(operand), blocks.work(dtype, room)
    blocks.launch(eigh_source(dtype, "begin", vectors), n, room, arrays=(work, given))
    turn = eigh_source(dtype, "turn", vectors)
    for _ in range(_SWEEPS if n > 1 else 0):
        for first, stop in _rounds(n, n * n):
            blocks.launch(turn, n, room, first, stop, int(vectors), arrays=(work,))
    own = (n, room, blocks.each, int(vectors))
    blocks.launch(eigh_source(dtype, "end", vectors), *own, arrays=(work, blocks.result()))


def _svd(blocks: _Blocks, operand: Place, vectors: bool, static: Mapping[str, Any]) -> None:
    x = operand[1]
    n, m = sorted(x.shape[-2:])
    basis = 0
    if vectors:
        basis = m if static["full_matrices"] else n
    room = svd_room(n, m, basis or n)
    own = (n, m, basis or n, room, int(x.shape[-2] < x.shape[-1]))
    given, work = blocks.dense(operand), blocks.work(x.dtype, room)
    blocks.launch(svd_source(x.dtype, "begin", vectors), *own, arrays=(work, given))
    turn = svd_source(x.dtype, "turn", vectors)
    for _ in range(_SWEEPS):
        for first, stop in _rounds(n, n * m):
            blocks.launch(turn, *own, first, stop, int(vectors), arrays=(work,))
    end = svd_source(x.dtype, "end", vectors)
    blocks.launch(end, *own, blocks.each, basis, arrays=(work, blocks.result()))


def _schur(blocks: _Blocks, name: str, operand: Place) -> None:
    x = operand[1]
    n, dtype, room = x.shape[-1], x.dtype, schur_room(x.shape[-1])
    given, work = blocks.dense(operand), blocks.work(dtype, room)
    blocks.launch(schur_source(dtype, "begin"), n, room, arrays=(work, given))
    few = max(1, _REFLECTED // (n * n))
    for k in range(0, n - 2, few):
        own = n, room, k, min(k + few, n - 2)
        blocks.launch(schur_source(dtype, "reflect"), *own, arrays=(work,))
    sweeps = max(8, _CHASED // n)
    for _ in range(-(-n * (SWEEPS + 2) // sweeps)):
        blocks.launch(schur_source(dtype, "chase"), n, room, sweeps, arrays=(work,))
    if name == "schur":
        blocks.launch(schur_source(dtype, "end"), n, room, arrays=(work, blocks.result()))
        return
    more = eig_room(n)
    own = n, more, room, blocks.each, int(name == "eig")
    arrays = blocks.work(dt.complex64, more), work._replace(mode="read"), blocks.result()
    blocks.launch(eig_source(dtype), *own, arrays=arrays)


def _function(
    blocks: _Blocks, name: str, operands: Sequence[Place], static: Mapping[str, Any]
) -> None:
    own = operands[-OPERANDS[name] :]
    given = [blocks.dense(x, looks=name != "sylvester" or k > 0) for k, x in enumerate(own)]
    m, n = own[0][1].shape[-2:]
    if name in ("sqrtm", "logm"):
        m = n  # the operand is a Schur form: twice as many rows
    room = function_room(name, m, n)
    words = m, n, room, blocks.each, int(name == "sylvester" and static["adjoint"])
    arrays = blocks.work(dt.complex64, room), *given, blocks.result()
    blocks.launch(function_source(name, own[0][1].dtype), *words, arrays=arrays)
