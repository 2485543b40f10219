"""Linear algebra on the CPU: routines of LAPACK from OpenBLAS, called by address.

A call runs on one thread, and the matrices of a batch are the units of a stage: the bits of a
result depend on its matrix alone.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pullback.compile.kernel import eigen_order
from pullback.compile.kernel.factor_order import MINORS
from pullback.compile.kernel.lower import broadcast_strides, copy_kernel
from pullback.compile.program.matrices import JACOBI_NAMES, batch_of, is_small
from pullback.core.avals import Aval, aval, dense_strides
from pullback.core.dtypes import DType
from pullback.core.errors import ShapeError
from pullback.runtime.cpu import native
from pullback.runtime.cpu.linalg import (
    jacobi_kernels,
    lane_kernels,
    lane_reflections,
    lapack_kernels,
    matrix_functions,
    openblas,
    tiled_stages,
    tridiagonal_kernels,
)
from pullback.runtime.cpu.linalg.lapack_code import LETTERS, PREFIX, MatrixRecord
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import index_params
from pullback.runtime.cpu.llvm.lanes import LANES, lane_params
from pullback.runtime.cpu.loops import map_stages as map_kernels
from pullback.runtime.cpu.native import Stage

__all__ = ["linalg_stages"]
__tuning__ = ("_TASKS", "_TASK_WORK", "_TASK_BYTES", "_LANE_WORK", "_BLOCK")

_TASKS = 32  # that the matrices of a batch are shared out to
_TASK_WORK = 30_000  # operations of a task at least: some microseconds
_TASK_BYTES = 1 << 28  # of the work areas of all tasks, unless one needs more
_LANE_WORK = 1 << 14  # elements of a task of kernels across the batch: some microseconds
_BLOCK = 64  # columns that LAPACK works on at once, at most
_LARGEST = 2**31 - 1  # of LAPACK's integers, which have 32 bits here

_ROUTINES = (
    *("gemm", "trsm", "potrf", "getrf", "getrs", "geqrf"),
    *("gesdd", "geev", "gees", "trsyl"),
)
_OF_KIND = {"f": ("orgqr", "syevd", "sytrf"), "c": ("ungqr", "heevd", "hetrf")}

# Operands of kernels across the batch that may lie column after column.
_TURNED = {"cholesky": (0,), "lu": (0,), "cofactors": (0,), "solve_triangular": (0, 1)}

Area = Callable[[int], int]
Place = tuple[int, Aval]  # a slot, and what is there


@functools.cache
def _register() -> None:
    """Lets kernels call the routines of LAPACK by name."""
    library = openblas.handle()
    for name, letter in LETTERS.items():
        for routine in (*_ROUTINES, *_OF_KIND["c" if "complex" in name else "f"]):
            address = openblas.address(library, f"scipy_{letter}{routine}_")
            jit.add_symbol(f"{PREFIX}{letter}{routine}", address)


jit.add_source(PREFIX, _register)


class _Job(NamedTuple):
    """How a kernel is called: its params, sizes for it, and the work area of a task by parts."""

    kernel: Callable[[], int]
    record: MatrixRecord
    sizes: Mapping[str, int]
    elements: tuple[int, ...]  # of work areas
    reals: tuple[int, ...]
    integers: tuple[int, ...]
    work: int  # operations for a matrix, roughly

    def nbytes(self, dtype: DType) -> int:
        sizes = [(self.elements, dtype.itemsize), (self.reals, dtype.real.itemsize)]
        sizes.append((self.integers, 4))
        return 64 + sum(-(-n * item // 64) * 64 for counts, item in sizes for n in counts)


def _cholesky(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    n = avals[0].shape[-1]
    kernel = functools.partial(lapack_kernels.cholesky, avals[0].dtype)
    return _Job(kernel, lapack_kernels.CHOLESKY, {"n": n}, (), (), (), n**3 // 3)


def _solve_triangular(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    n, k = avals[1].shape[-2:]
    lower, unit = static["lower"], static["unit_diagonal"]
    kernel = functools.partial(lapack_kernels.solve_triangular, avals[0].dtype, lower, unit)
    sizes = {"n": n, "k": k}
    return _Job(kernel, lapack_kernels.SOLVE_TRIANGULAR, sizes, (n * n,), (), (), n * n * k)


def _lu(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    m, n = avals[0].shape[-2:]
    kernel = functools.partial(lapack_kernels.lu, avals[0].dtype)
    k = min(m, n)
    return _Job(kernel, lapack_kernels.LU, {"m": m, "n": n}, (), (), (k,), m * n * k)


def _lu_solve(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    n, k = avals[1].shape[-2:]
    kernel = functools.partial(lapack_kernels.lu_solve, avals[0].dtype, static["adjoint"])
    return _Job(kernel, lapack_kernels.LU_SOLVE, {"n": n, "k": k}, (), (), (), 2 * n * n * k)


def _det(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    n = avals[0].shape[-1]
    kernel = functools.partial(lapack_kernels.det, avals[0].dtype)
    return _Job(kernel, lapack_kernels.DET, {"n": n}, (), (), (), n)


def _ldl(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    n = avals[0].shape[-1]
    room = max(1, n * _BLOCK)
    kernel = functools.partial(lapack_kernels.ldl, avals[0].dtype)
    sizes = {"n": n, "lwork": room}
    return _Job(kernel, lapack_kernels.LDL, sizes, (n * n, room), (), (n,), n**3 // 3)


def _qr(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    m, n = avals[0].shape[-2:]
    k = min(m, n)
    q = m if static["complete"] else k
    room = max(1, max(n, q) * _BLOCK)
    kernel = functools.partial(lapack_kernels.qr, avals[0].dtype)
    sizes = {"m": m, "n": n, "q": q, "r": q, "lwork": room}
    return _Job(kernel, lapack_kernels.QR, sizes, (m * n, k, room), (), (), 4 * m * n * k)


def _eigh(avals: Sequence[Aval], static: dict[str, Any], vectors: bool = True) -> _Job:
    n, dtype = avals[0].shape[-1], avals[0].dtype
    if n <= eigen_order.ROWS and not dtype.is_complex:
        kernel = functools.partial(tridiagonal_kernels.eigh, dtype, vectors)
        sizes = {"n": n, "row": tridiagonal_kernels.row_of(dtype, n)}
        elements = tridiagonal_kernels.elements(dtype, n, vectors)
        return _Job(kernel, tridiagonal_kernels.EIGH, sizes, elements, (), (), 9 * n**3)
    blocked = n * (_BLOCK + 2)
    room = 1 + 6 * n + 2 * n * n if vectors else 1 + 2 * n + blocked
    real_room = 0
    if dtype.is_complex:
        real_room = 1 + 5 * n + 2 * n * n if vectors else 1 + n
        room = 1 + blocked + (n * n if vectors else 0)
    integers = 3 + 5 * n
    kernel = functools.partial(lapack_kernels.eigh, dtype, vectors)
    sizes = {"n": n, "lwork": room, "lrwork": real_room, "liwork": integers}
    parts = (n * n, room), (n, real_room), (integers,)
    return _Job(kernel, lapack_kernels.EIGH, sizes, *parts, 9 * n**3)


def _svd(avals: Sequence[Aval], static: dict[str, Any], job: str = "") -> _Job:
    m, n = avals[0].shape[-2:]
    dtype, k, most = avals[0].dtype, min(m, n), max(m, n)
    job = job or ("A" if static["full_matrices"] else "S")
    room = 4 * k * k + 7 * k + most + (m + n) * _BLOCK
    real_room = 0
    if dtype.is_complex:
        real_room = 7 * k if job == "N" else max(5 * k * k + 5 * k, 2 * most * k + 2 * k * k + k)
    kernel = functools.partial(lapack_kernels.svd, dtype, job)
    sizes = {"m": m, "n": n, "lwork": room, "lrwork": max(1, real_room)}
    parts = (m * n, room), (k, real_room), (8 * k,)
    return _Job(kernel, lapack_kernels.SVD, sizes, *parts, 20 * m * n * k)


def _eig(avals: Sequence[Aval], static: dict[str, Any], vectors: bool = True) -> _Job:
    n = avals[0].shape[-1]
    room = 1 + n * (_BLOCK + 4)
    kernel = functools.partial(lapack_kernels.eig, avals[0].dtype, vectors)
    sizes, elements = {"n": n, "lwork": room}, (n * n, room, 1, n * n)
    return _Job(kernel, lapack_kernels.EIG, sizes, elements, (n, n), (), 25 * n**3)


def _schur(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    n = avals[0].shape[-1]
    room = 1 + n * (_BLOCK + 4)
    kernel = functools.partial(matrix_functions.schur, avals[0].dtype)
    sizes = {"n": n, "lwork": room}
    return _Job(kernel, matrix_functions.SCHUR, sizes, (room, n), (n, n), (n, 1), 25 * n**3)


def _sylvester(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    m, n = avals[2].shape[-2:]
    kernel = functools.partial(matrix_functions.sylvester, avals[0].dtype, static["adjoint"])
    sizes, work = {"m": m, "n": n}, 5 * m * n * (m + n)
    return _Job(kernel, matrix_functions.SYLVESTER, sizes, (m * n, m * n), (1,), (), work)


def _expm(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    n = avals[0].shape[-1]
    kernel = functools.partial(matrix_functions.expm, avals[0].dtype)
    return _Job(kernel, matrix_functions.EXPM, {"n": n}, (n * n,) * 6, (), (n,), 20 * n**3)


def _sqrtm(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    n = avals[0].shape[-1]
    kernel = functools.partial(matrix_functions.sqrtm, avals[0].dtype)
    return _Job(kernel, matrix_functions.SQRTM, {"n": n}, (n * n,) * 2, (), (), 5 * n**3)


def _logm(avals: Sequence[Aval], static: dict[str, Any]) -> _Job:
    n = avals[0].shape[-1]
    kernel = functools.partial(matrix_functions.logm, avals[0].dtype)
    return _Job(kernel, matrix_functions.LOGM, {"n": n}, (n * n,) * 4, (), (), 30 * n**3)


_JOBS: dict[str, Callable[..., _Job]] = {
    "cholesky": _cholesky,
    "solve_triangular": _solve_triangular,
    "lu": _lu,
    "lu_solve": _lu_solve,
    "det": _det,
    "ldl": _ldl,
    "qr": _qr,
    "eigh": _eigh,
    "eigvalsh": functools.partial(_eigh, vectors=False),
    "svd": _svd,
    "svdvals": functools.partial(_svd, job="N"),
    "eig": _eig,
    "eigvals": functools.partial(_eig, vectors=False),
    "schur": _schur,
    "sylvester": _sylvester,
    "expm": _expm,
    "sqrtm": _sqrtm,
    "logm": _logm,
}
_FACTORS = {  # operands that kernels want to be dense
    "lu_solve": (2,),
    "det": (1,),
    "sylvester": (3, 4),
    "sqrtm": (1,),
    "logm": (1,),
}


def linalg_stages(
    name: str,
    operands: Sequence[Place],
    static: dict[str, Any],
    result: Place,
    area: Area,
    error_code: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense."""
    out_slot, out = result
    if out.size == 0:
        return []
    if name == "require":
        return _require_stages(operands, result, area, error_code)
    avals = [av for _, av in operands]
    small = _small_kernel(name, avals, static)
    if small is not None:
        batch = batch_of(name, out)
        return _lane_stages(name, small, operands, batch, result, area, error_code)
    if tiled_stages.is_tiled(name, avals):
        batch = batch_of(name, out)
        return tiled_stages.tiled_stages(name, operands, static, batch, result, area, error_code)
    _register()
    job = _JOBS[name](avals, static)
    if max(job.sizes.values()) > _LARGEST:
        raise ShapeError(
            f"{name}: the work area of LAPACK has fewer than 2**31 elements, got a matrix of shape"
            f" {avals[0].shape[-2:]}. Take a smaller one."
        )
    copies, operands = [], list(operands)
    for position in _FACTORS.get(name, ()):
        more, operands[position] = _dense(operands[position], area)
        copies += more
    batch = batch_of(name, out)
    count = math.prod(batch)
    nbytes = job.nbytes(avals[0].dtype)
    wanted = min(count, _TASKS, max(1, count * (job.work + 500) // _TASK_WORK))
    tasks = max(1, min(wanted, max(native.get_threads(), _TASK_BYTES // nbytes)))
    grain = -(-count // tasks)
    steps = [broadcast_strides(av, (*batch, *av.shape[-2:]))[: len(batch)] for _, av in operands]
    strides = [av.strides for _, av in operands if av.strides is not None]
    record = job.record.packed(
        out=out_slot, operand=[slot for slot, _ in operands],
        work=area(nbytes * -(-count // grain)), nbytes=nbytes, grain=grain, code=error_code,
        result=out.size // count, **job.sizes,
        row_stride=[own[-2] for own in strides],
        column_stride=[own[-1] for own in strides],
    )  # fmt: skip
    params = (*record, *index_params(batch, *steps))
    return [*copies, Stage(job.kernel(), count, grain, params)]


def _small_kernel(
    name: str, avals: Sequence[Aval], static: dict[str, Any]
) -> Callable[[tuple[bool, ...]], int] | None:
    """The kernel of our own for matrices of this size, if there is one, by the operands that lie
    column after column.
    """
    dtype, (rows, n) = avals[0].dtype, avals[0].shape[-2:]
    if name == "qr" and lane_reflections.suits(avals[0]):
        return lambda turned: lane_reflections.qr(dtype, rows, n, static["complete"])
    if not is_small(name, avals):
        return None
    if name in ("eigh", "eigvalsh"):
        return lambda turned: jacobi_kernels.eigh(dtype, n, name == "eigh")
    if name in ("svd", "svdvals"):
        return lambda turned: jacobi_kernels.svd(dtype, n, name == "svd")
    how: tuple[Any, ...] = ()
    if name == "lu_solve":
        how = avals[1].shape[-1], static["adjoint"]
    elif name == "solve_triangular":
        how = avals[1].shape[-1], static["lower"], static["unit_diagonal"]
    make = getattr(lane_kernels, name)
    return lambda turned: make(dtype, n, turned, *how)


def _lane_stages(
    name: str,
    kernel: Callable[[tuple[bool, ...]], int],
    operands: Sequence[Place],
    batch: tuple[int, ...],
    result: Place,
    area: Area,
    error_code: int,
) -> list[Stage]:
    """The stages of a kernel across the batch: its operands are dense matrices at one distance."""
    lanes = jacobi_kernels.TOGETHER if name in JACOBI_NAMES else LANES
    unread = _unread(name, operands[0][1].shape[-1])
    may_turn = _TURNED.get(name, ())
    slot, out = result
    count = math.prod(batch)
    slots, steps, stages, turned = [slot], [out.size // count], [], []
    for position, operand in enumerate(operands):
        if position == unread:
            more, where, step, across = [], operand[0], 0, False
        else:
            more, where, step, across = _evenly(operand, batch, area, position in may_turn)
        stages += more
        slots.append(where)
        steps.append(step)
        turned.append(across)
    groups = -(-count // lanes)
    work = sum(av.size for _, av in operands) // groups + 1
    grain = max(1, min(_LANE_WORK // work, -(-groups // 4)))
    params = lane_params(len(operands)).packed(
        array=slots, count=count, code=error_code, step=steps
    )
    return [*stages, Stage(kernel(tuple(turned)), groups, grain, params)]


def _unread(name: str, n: int) -> int | None:
    """The operand that a kernel across the batch does not look at, if there is one."""
    if name == "cofactors":
        return 1 if n <= MINORS else 0
    return 0 if name in ("lu_solve", "det") else None


def _evenly(
    operand: Place, batch: tuple[int, ...], area: Area, may_turn: bool
) -> tuple[list[Stage], int, int, bool]:
    """Where the matrices of an operand are, one for each of the batch, their distance, and whether
    they lie column after column; and the stages that copy them there, if they are not dense or not
    at one distance.
    """
    slot, av = operand
    assert av.strides is not None
    inner = av.shape[-2:]
    strides = broadcast_strides(av, (*batch, *inner))
    outer = [(n, s) for n, s in zip(batch, strides, strict=False) if n != 1]
    step = outer[-1][1] if outer else 0
    even = all(s == t * m for (_, s), (m, t) in itertools.pairwise(outer))
    if even and strides[-2:] == dense_strides(inner):
        return [], slot, step, False
    if even and may_turn and strides[:-3:-1] == dense_strides(inner[::-1]):
        return [], slot, step, True
    shape = (*batch, *inner)
    size = math.prod(inner)
    copy = area(math.prod(shape) * av.dtype.itemsize)
    stages = map_kernels.map_stages(
        copy_kernel(av.dtype), shape, [copy], [dense_strides(shape)], [slot], [strides]
    )
    return stages, copy, size, False


def _dense(operand: Place, area: Area) -> tuple[list[Stage], Place]:
    """The stages that make each matrix of an operand dense, and where it is then."""
    slot, av = operand
    assert av.strides is not None
    dense = dense_strides(av.shape)
    if av.strides[-2:] == dense[-2:]:
        return [], operand
    copy = area(av.nbytes)
    stages = map_kernels.map_stages(
        copy_kernel(av.dtype), av.shape, [copy], [dense], [slot], [av.strides]
    )
    return stages, (copy, aval(av.shape, av.dtype, av.device))


def _require_stages(
    operands: Sequence[Place], result: Place, area: Area, error_code: int
) -> list[Stage]:
    """A look at the flags, and a copy of the values."""
    (slot, av), (flags, flags_aval) = operands
    out_slot, out = result
    assert av.strides is not None and flags_aval.strides is not None
    where = area(max(1, flags_aval.size))
    seen = map_kernels.map_stages(
        copy_kernel(flags_aval.dtype), flags_aval.shape, [where],
        [dense_strides(flags_aval.shape)], [flags], [flags_aval.strides],
    )  # fmt: skip
    params = lapack_kernels.REQUIRED.packed(flags=where, code=error_code)
    look = Stage(lapack_kernels.require(), flags_aval.size, 1 << 14, params)
    copy = map_kernels.map_stages(
        copy_kernel(av.dtype), av.shape, [out_slot], [dense_strides(out.shape)], [slot],
        [av.strides],
    )  # fmt: skip
    return [*seen, look, *copy]
