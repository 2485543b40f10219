"""The library behind products of complex matrices, found on first use, and calls of it in LLVM IR.

It runs on the calling thread alone: `matmul` cuts the work into pieces that depend on shapes only,
so that the bits of a product do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir

from pullback.core import dtypes
from pullback.core.dtypes import DType
from pullback.core.errors import DeviceError
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import I32, PTR, VOID, Code, Value

__all__ = ["Library", "address", "emit_gemm", "emit_gemv", "handle", "openblas"]

_PREFIX = "pullback_blas_"  # of the names under which IR finds the libraries' functions
_LETTERS = {"complex64": "c", "complex128": "z"}
_ROW_MAJOR, _NO_TRANS, _TRANS = 101, 111, 112


class Library(NamedTuple):
    """A loaded library and the largest extent it takes."""

    name: str
    largest: int


@functools.cache
def openblas() -> Library:
    """OpenBLAS from the package scipy-openblas32, its products registered."""
    library = handle()
    for letter in _LETTERS.values():
        for routine in ("gemm", "gemv"):
            name = f"cblas_{letter}{routine}"
            jit.add_symbol(_PREFIX + name, address(library, f"scipy_{name}"))
    version = library.scipy_openblas_get_config().decode().split()[1]
    return Library(f"OpenBLAS {version}", 2**31 - 1)


@functools.cache
def handle() -> ctypes.CDLL:
    """The loaded library, which starts no threads."""
    with _environment("OPENBLAS_NUM_THREADS", "1"):  # else it starts threads of its own on loading
        found = _load("scipy-openblas32", "libscipy_openblas")
    if found is None:
        raise DeviceError(
            "linalg: products of complex matrices and factorisations on the CPU need OpenBLAS,"
            " got none. Install the package scipy-openblas32."
        )
    found.scipy_openblas_set_num_threads(1)
    found.scipy_openblas_get_config.restype = ctypes.c_char_p
    return found


def address(library: ctypes.CDLL, name: str) -> int:
    """Where a function of the library is."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _load(package: str, stem: str) -> ctypes.CDLL | None:
    """The shared library of an installed package, or None if it is missing or unusable."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name.startswith(stem) and {".so", ".dylib", ".dll"} & set(file.suffixes):
            try:
                return ctypes.CDLL(os.path.realpath(file.locate()))
            except OSError:  # for another platform, or without its OpenMP runtime
                return None
    return None


@contextmanager
def _environment(name: str, value: str):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class Matrix(NamedTuple):
    """A row-major operand in IR: address, leading dimension, whether (i1) to transpose it."""

    pointer: Value
    leading: Value
    transposed: Value


def emit_gemm(
    code: Code,
    dtype: DType,
    shape: tuple[Value, Value, Value],
    a: Matrix,
    b: Matrix,
    c: Matrix,
) -> None:
    """Calls C = op(A) op(B), with `shape` = (m, n, k)."""
    one, zero = _scalars(code, dtype)
    types = (*[I32] * 6, PTR, PTR, I32, PTR, I32, PTR, PTR, I32)
    gemm = code.declare(f"{_PREFIX}cblas_{_LETTERS[dtype.name]}gemm", VOID, types)
    m, n, k, lda, ldb, ldc = (
        code.b.trunc(x, I32) for x in (*shape, a.leading, b.leading, c.leading)
    )
    flags = (_flag(code, a, _NO_TRANS, _TRANS, I32), _flag(code, b, _NO_TRANS, _TRANS, I32))
    order = code.int(_ROW_MAJOR, I32)
    operands = (one, a.pointer, lda, b.pointer, ldb, zero, c.pointer, ldc)
    code.b.call(gemm, (order, *flags, m, n, k, *operands))


def emit_gemv(
    code: Code,
    dtype: DType,
    extents: tuple[Value, Value],
    a: Matrix,
    x: tuple[Value, Value],
    y: Value,
) -> None:
    """Calls y = op(A) x through OpenBLAS: `extents` of y and x, `x` as (address, stride)."""
    one, zero = _scalars(code, dtype)
    types = (*[I32] * 4, PTR, PTR, I32, PTR, I32, PTR, PTR, I32)
    gemv = code.declare(f"{_PREFIX}cblas_{_LETTERS[dtype.name]}gemv", VOID, types)
    long, short, lda, step = (code.b.trunc(v, I32) for v in (*extents, a.leading, x[1]))
    rows = code.b.select(a.transposed, short, long)
    columns = code.b.select(a.transposed, long, short)
    flag = _flag(code, a, _NO_TRANS, _TRANS, I32)
    order, unit = code.int(_ROW_MAJOR, I32), code.int(1, I32)
    operands = (one, a.pointer, lda, x[0], step, zero, y, unit)
    code.b.call(gemv, (order, flag, rows, columns, *operands))


def _flag(code: Code, matrix: Matrix, plain: int, transposed: int, type_: ir.Type) -> Value:
    return code.b.select(matrix.transposed, code.int(transposed, type_), code.int(plain, type_))


def _scalars(code: Code, dtype: DType) -> tuple[Value, Value]:
    """The addresses of 1 and 0, for alpha and beta."""
    real = ir.FloatType() if dtype.real is dtypes.float32 else ir.DoubleType()
    return _complex(code, real, 1.0), _complex(code, real, 0.0)


def _complex(code: Code, real: ir.Type, value: float) -> Value:
    name = "one" if value else "zero"
    if name in code.module.globals:
        return code.module.globals[name]
    pair = ir.ArrayType(real, 2)
    constant: Value = ir.GlobalVariable(code.module, pair, name)
    constant.initializer = ir.Constant(pair, [value, 0.0])
    constant.global_constant, constant.linkage = True, "internal"
    return constant
