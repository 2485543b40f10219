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
from pullback.runtime.webgpu.block_kernels import THREADS as BLOCK_THREADS
from pullback.runtime.webgpu.function_kernels import (
    OPERANDS,
    function_room,
    function_rounds,
    function_source,
)
from pullback.runtime.webgpu.jacobi_kernels import (
    completing_rounds,
    eigh_room,
    eigh_rounds,
    eigh_source,
    svd_room,
    svd_rounds,
    svd_source,
    valuing_rounds,
)
from pullback.runtime.webgpu.matrices import Tiles, report_steps
from pullback.runtime.webgpu.nests import THREADS
from pullback.runtime.webgpu.printer import item
from pullback.runtime.webgpu.schur_kernels import (
    SWEEPS,
    chasing_rounds,
    eig_room,
    eig_source,
    reflecting_rounds,
    schur_room,
    schur_source,
)
from pullback.runtime.webgpu.small_jacobi import small_source
from pullback.runtime.webgpu.stages import At, Binding, Dispatch, linear_groups, stage

__all__ = ["NAMES", "spectrum_stages"]

NAMES = ("eigh", "eigvalsh", "svd", "svdvals", "schur", "eig", "eigvals", *OPERANDS)
_SWEEPS = 30  # of Jacobi's method, at most: some ten are usual
_SWEPT = 10  # sweeps of the QR algorithm for a row, at most: two or three are usual
# Drivers stop what takes 2 s on a GPU, where so many rounds take half a millisecond; Mesa's
# software driver ends loops after 65535 rounds.
_ROUNDS = 1 << 15  # of a thread's loops in a dispatch, about, where work can be cut


class _Blocks:
    """The dispatches of a primitive whose kernels have a workgroup for each matrix."""

    def __init__(self, result: Place, batch: tuple[int, ...], area: Area):
        self.slot, self.out = result
        self.batch, self.count, self._area = batch, math.prod(batch), area
        self.each = self.out.size // self.count
        self.steps: list[Dispatch] = []
        self._status: int | None = None

    def dense(self, operand: Place, looks: bool = True) -> Binding:
        """The matrices of an operand, one after the other; if it `looks`, what is no finite number
        is a status.
        """
        tiles = Tiles(operand[1].dtype, self.batch, self._area, False, self._status)
        copied = tiles.dense_copy(operand, looks)
        self._status = tiles.status
        self.steps += tiles.steps()
        return Binding(At(copied), item(operand[1].dtype))

    def work(self, dtype: DType, elements: int) -> Binding:
        """Memory for so many elements of each matrix."""
        slot = self._area(self.count * elements * dtype.itemsize)
        return Binding(At(slot), item(dtype), "write")

    def result(self) -> Binding:
        """The result, which is dense."""
        return Binding(At(self.slot), item(self.out.dtype), "write")

    def launch(self, source: str, *words: int, arrays: Sequence[Binding], rounds: int = 0) -> None:
        work, *others = arrays
        assert self._status is not None
        status = Binding(At(self._status), "u32", "write")
        own = (self.count, *words)
        dispatch = Dispatch(source, (work, status, *others), own, self.count, rounds=rounds)
        self.steps.append(dispatch)

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


def _cut(count: int, rounds: int) -> list[tuple[int, int, int]]:
    """Pieces of work in ranges for dispatches, and how often loops go round in each: so often for
    one of the range.
    """
    few = max(1, _ROUNDS // rounds)
    ends = [(k, min(k + few, count)) for k in range(0, count, few)]
    return [(first, stop, (stop - first) * rounds) for first, stop in ends]


def _passes(n: int, m: int) -> int:
    """How often loops go round in kernels that walk a few times over n x m elements, each against
    those of a row.
    """
    return 3 * -(-n * m // BLOCK_THREADS) + m * -(-n // BLOCK_THREADS)


def _eigh(blocks: _Blocks, operand: Place, vectors: bool) -> None:
    x = operand[1]
    n, dtype, room = x.shape[-1], x.dtype, eigh_room(x.shape[-1])
    given, work = blocks.dense(operand), blocks.work(dtype, room)
    begin, turn, end = (eigh_source(dtype, part, vectors) for part in ("begin", "turn", "end"))
    few = _passes(n, n)
    blocks.launch(begin, n, room, arrays=(work, given), rounds=few)
    for _ in range(_SWEEPS if n > 1 else 0):
        for *part, rounds in _cut(n + n % 2 - 1, eigh_rounds(n)):
            blocks.launch(turn, n, room, *part, int(vectors), arrays=(work,), rounds=rounds)
    own = (n, room, blocks.each, int(vectors))
    blocks.launch(end, *own, arrays=(work, blocks.result()), rounds=few)


def _svd(blocks: _Blocks, operand: Place, vectors: bool, static: Mapping[str, Any]) -> None:
    x = operand[1]
    n, m = sorted(x.shape[-2:])
    basis = 0
    if vectors:
        basis = m if static["full_matrices"] else n
    room = svd_room(n, m, basis or n)
    own = (n, m, basis or n, room, int(x.shape[-2] < x.shape[-1]))
    given, work = blocks.dense(operand), blocks.work(x.dtype, room)
    kernel = {
        part: svd_source(x.dtype, part, vectors)
        for part in ("begin", "turn", "values", "complete", "end")
    }
    few = _passes(max(n, basis), m)
    blocks.launch(kernel["begin"], *own, arrays=(work, given), rounds=few)
    for _ in range(_SWEEPS):
        for *part, rounds in _cut(n + n % 2 - 1, svd_rounds(n, m)):
            words = *own, *part, int(vectors)
            blocks.launch(kernel["turn"], *words, arrays=(work,), rounds=rounds)
    blocks.launch(kernel["values"], *own, arrays=(work,), rounds=valuing_rounds(n, m))
    for *part, rounds in _cut(basis, completing_rounds(m)):
        blocks.launch(kernel["complete"], *own, *part, arrays=(work,), rounds=rounds)
    arrays = work, blocks.result()
    blocks.launch(kernel["end"], *own, blocks.each, basis, arrays=arrays, rounds=few)


def _schur(blocks: _Blocks, name: str, operand: Place) -> None:
    x = operand[1]
    n, dtype, room = x.shape[-1], x.dtype, schur_room(x.shape[-1])
    given, work = blocks.dense(operand), blocks.work(dtype, room)
    begin, reflect, chase = (schur_source(dtype, part) for part in ("begin", "reflect", "chase"))
    few = _passes(n, n)
    blocks.launch(begin, n, room, arrays=(work, given), rounds=few)
    for *part, rounds in _cut(n - 2, reflecting_rounds(n)):
        blocks.launch(reflect, n, room, *part, arrays=(work,), rounds=rounds)
    for first, stop, rounds in _cut(n * _SWEPT + SWEEPS, chasing_rounds(n)):
        blocks.launch(chase, n, room, stop - first, arrays=(work,), rounds=rounds)
    if name == "schur":
        arrays = work, blocks.result()
        blocks.launch(schur_source(dtype, "end"), n, room, arrays=arrays, rounds=few)
        return
    more = eig_room(n)
    own = n, more, room, blocks.each
    arrays = blocks.work(dt.complex64, more), work._replace(mode="read"), blocks.result()

    def launch(part: str, *words: int, rounds: int) -> None:
        source = eig_source(dtype, part)
        blocks.launch(source, *own, *words, arrays=arrays, rounds=rounds)

    launch("values", rounds=few)
    if name == "eig":
        rows = -(-n // BLOCK_THREADS)
        for first, stop, rounds in _cut(n, n * rows):  # from the last row on
            launch("vectors", n - first, n - stop, rounds=rounds)
        for first, stop, rounds in _cut(-(-n * n // BLOCK_THREADS), n):
            part = first * BLOCK_THREADS, min(stop * BLOCK_THREADS, n * n)
            launch("products", *part, rounds=rounds)
        launch("lengths", rounds=few)
    launch("failed", rounds=few)


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
    rounds = function_rounds(name, m, n)
    source = function_source(name, own[0][1].dtype)
    blocks.launch(source, *words, arrays=arrays, rounds=rounds)
