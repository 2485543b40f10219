"""Eigenvalues and singular values of many real matrices of up to four rows, by Jacobi's method.

    eigh, svd (out, x, status, Nest<2>, Part x)

A thread has a matrix; the arithmetic is that of the CPU, to the bit.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pullback.compile.kernel.factor_order import (
    JACOBI_LARGE,
    JACOBI_NOTHING,
    JACOBI_ROUNDS,
    JACOBI_SWEEPS,
)
from pullback.core.dtypes import DType
from pullback.runtime.cuda.linalg.numbers import name_of, named, source_of
from pullback.runtime.cuda.linalg.small_kernels import HEAD
from pullback.runtime.cuda.printer import literal

__all__ = ["eigh", "svd"]

# Tangent, cosine and sine of the rotation that makes a symmetric 2 x 2 matrix diagonal.
_TURN = """
struct Turn { Real t, c, s; };
PB_DEVICE Turn pb_turn(Real app, Real aqq, Real apq) {
  const bool none = apq == 0;
  const Real ratio = ((aqq - app) * Real(0.5)) / (none ? Real(1) : apq);
  const Real root = pb_root(pb_fused(ratio, ratio, Real(1)));
  const Real made = pb_sign(Real(1), ratio) / (pb_abs(ratio) + root);
  const Real t = none ? Real(0) : made;
  const Real c = Real(1) / pb_root(pb_fused(t, t, Real(1)));
  return Turn{t, c, t * c};
}
PB_DEVICE void pb_turned(const Turn& t, Real& x, Real& y) {
  const Real first = pb_fused(t.c, x, -(t.s * y)), second = pb_fused(t.s, x, t.c * y);
  x = first;
  y = second;
}
PB_DEVICE void pb_exchange(bool yes, Real& x, Real& y) {
  const Real first = yes ? y : x, second = yes ? x : y;
  x = first;
  y = second;
}"""

_LARGEST = """
PB_DEVICE Real pb_largest{n}(const Real (&x)[{n}][{n}]) {{
  Real largest = 0;
#pragma unroll
  for (int k = 0; k < {n} * {n}; ++k) {{
    const Real size = pb_abs(x[k / {n}][k % {n}]);
    largest = largest < size ? size : largest;
  }}
  return largest;
}}"""

_EIGH = """
KERNEL(eigh{n}_{vectors})(Real* __restrict__ out, const Real* __restrict__ x, long long* status,
    const Nest<2> batch, const Part p) {{
  PB_MATRICES(2)
    Real given[{n}][{n}], a[{n}][{n}], made[{width}][{n}] = {{}};
    pb_get(given, x + at[1], p);
    const Real oddity = pb_oddity(given);
    const bool usual = pb_largest{n}(given) < {large};
    const Real half = usual ? Real(0.5) : Real(0.5 / 16), whole = usual ? Real(1) : Real(16);
#pragma unroll
    for (int i = 0; i < {n}; ++i)
#pragma unroll
      for (int j = 0; j < {n}; ++j) {{
        a[i][j] = given[i][j] * half + given[j][i] * half;
        if ({vectors}) made[1 + i][j] = Real(i == j);  // row 1 + i is vector i
      }}
    for (int sweep = 0; sweep < {sweeps}; ++sweep)
#pragma unroll
      for (int p = 0; p < {n}; ++p)
#pragma unroll
        for (int q = p + 1; q < {n}; ++q) {{
          const Turn turn = pb_turn(a[p][p], a[q][q], a[p][q]);
          const Real shift = turn.t * a[p][q];
          a[p][p] = a[p][p] - shift;
          a[q][q] = a[q][q] + shift;
          a[p][q] = a[q][p] = 0;
#pragma unroll
          for (int r = 0; r < {n}; ++r) {{
            if (r != p && r != q) {{
              Real one = a[r][p], two = a[r][q];
              pb_turned(turn, one, two);
              a[r][p] = a[p][r] = one;
              a[r][q] = a[q][r] = two;
            }}
            if ({vectors}) pb_turned(turn, made[1 + p][r], made[1 + q][r]);
          }}
        }}
#pragma unroll
    for (int i = 0; i < {n}; ++i) made[0][i] = a[i][i] * whole;
#pragma unroll
    for (int last = {n} - 1; last >= 0; --last)
#pragma unroll
      for (int i = 0; i < last; ++i) {{
        const bool wrong = made[0][i + 1] < made[0][i];
        pb_exchange(wrong, made[0][i], made[0][i + 1]);
        for (int r = 0; {vectors} && r < {n}; ++r)
          pb_exchange(wrong, made[1 + i][r], made[2 + i][r]);
      }}
    status[item] = 0;
    pb_spoil(made, oddity);
    pb_put(out + at[0], made);
  }}
}}"""

# Columns are turned in pairs until all are orthogonal, and then are U times the singular values.
# In lanes with nothing in a column, `pb_complete` gives a unit vector orthogonal to those before:
# what is left of the axis that they are farthest from.
_SVD = """
PB_DEVICE Real pb_dot{n}(const Real (&x)[{n}], const Real (&y)[{n}]) {{
  Real total = x[0] * y[0];
#pragma unroll
  for (int k = 1; k < {n}; ++k) total = pb_fused(x[k], y[k], total);
  return total;
}}
PB_DEVICE void pb_complete{n}(Real (&g)[{n}][{n}], int i) {{
  Real best = -1, kept[{n}] = {{}};
  for (int axis = 0; axis < {n}; ++axis) {{
    Real rest[{n}];
    for (int k = 0; k < {n}; ++k) rest[k] = Real(k == axis);
    for (int again = 0; again < 2; ++again)  // the second time takes away what rounding left
      for (int before = 0; before < i; ++before) {{
        const Real along = pb_dot{n}(g[before], rest);
        for (int k = 0; k < {n}; ++k) rest[k] = pb_fused(-along, g[before][k], rest[k]);
      }}
    const Real square = pb_dot{n}(rest, rest);
    if (!(best < square)) continue;
    best = square;
    for (int k = 0; k < {n}; ++k) kept[k] = rest[k];
  }}
  const Real length = pb_root(Real(0) < best ? best : Real(1));
  for (int k = 0; k < {n}; ++k) g[i][k] = kept[k] / length;
}}
KERNEL(svd{n}_{vectors})(Real* __restrict__ out, const Real* __restrict__ x, long long* status,
    const Nest<2> batch, const Part p) {{
  PB_MATRICES(2)
    Real given[{n}][{n}], g[{n}][{n}], v[{n}][{n}], made[{height}][{n}];
    pb_get(given, x + at[1], p);
    const Real oddity = pb_oddity(given);
    const Real largest = pb_largest{n}(given);
    // The power of 2 below the largest element, or the least normal number, which is one.
    const Real power = {from_bits}({to_bits}(largest) & {exponent});
    const Real scale = power < {normal} ? {normal} : power < {infinity} ? power : Real(1);
#pragma unroll
    for (int i = 0; i < {n}; ++i)
#pragma unroll
      for (int j = 0; j < {n}; ++j) {{
        g[i][j] = given[j][i] / scale;  // row i of g and v is column i
        v[i][j] = Real(i == j);
      }}
    for (int round = 0; round < {rounds}; ++round)
#pragma unroll
      for (int p = 0; p < {n}; ++p)
#pragma unroll
        for (int q = p + 1; q < {n}; ++q) {{
          const Turn turn = pb_turn(pb_dot{n}(g[p], g[p]), pb_dot{n}(g[q], g[q]),
                                    pb_dot{n}(g[p], g[q]));
#pragma unroll
          for (int k = 0; k < {n}; ++k) {{
            pb_turned(turn, g[p][k], g[q][k]);
            if ({vectors}) pb_turned(turn, v[p][k], v[q][k]);
          }}
        }}
#pragma unroll
    for (int i = 0; i < {n}; ++i) made[0][i] = pb_dot{n}(g[i], g[i]);
#pragma unroll
    for (int last = {n} - 1; last >= 0; --last)
#pragma unroll
      for (int i = 0; i < last; ++i) {{
        const bool wrong = made[0][i] < made[0][i + 1];
        pb_exchange(wrong, made[0][i], made[0][i + 1]);
#pragma unroll
        for (int k = 0; {vectors} && k < {n}; ++k) {{
          pb_exchange(wrong, g[i][k], g[i + 1][k]);
          pb_exchange(wrong, v[i][k], v[i + 1][k]);
        }}
      }}
    for (int i = 0; i < {n}; ++i) {{
      const Real square = made[0][i], length = pb_root(square);
      made[0][i] = length * scale;
      if (!{vectors}) continue;
      const bool nothing = square < {nothing};
      if (nothing) pb_complete{n}(g, i);
      for (int j = 0; !nothing && j < {n}; ++j) g[i][j] = g[i][j] / length;
    }}
    for (int i = 0; {vectors} && i < {n}; ++i)
      for (int j = 0; j < {n}; ++j) {{
        made[1 + i][j] = g[j][i];
        made[1 + {n} + i][j] = v[i][j];
      }}
    status[item] = 0;
    pb_spoil(made, oddity);
    pb_put(out + at[0], made);
  }}
}}"""


def _kernel(dtype: DType, end: str, text: str, n: int, **words: object) -> tuple[str, str]:
    source, start = source_of(dtype), name_of(dtype, "")
    source.add("small", HEAD)
    source.add("turn", _TURN)
    source.add("largest", named(_LARGEST.format(n=n), start))
    source.add(end, named(text.format(n=n, **words), start))
    return start + end, source.text()


@cache
def eigh(dtype: DType, n: int, vectors: bool) -> tuple[str, str]:
    """The name of a kernel and its source: x (n x n) -> eigenvalues, then eigenvectors."""
    words = {
        "n": n,
        "vectors": int(vectors),
        "width": 1 + n * vectors,
        "large": literal(JACOBI_LARGE[dtype.name], dtype),
    }
    sweeps = JACOBI_SWEEPS[dtype.name]
    return _kernel(dtype, f"eigh{n}_{vectors:d}", _EIGH, sweeps=sweeps, **words)


@cache
def svd(dtype: DType, n: int, vectors: bool) -> tuple[str, str]:
    """x (n x n) -> singular values, then U and V^T row after row."""
    single = dtype.itemsize == 4
    words = {
        "n": n,
        "vectors": int(vectors),
        "height": 1 + 2 * n * vectors,
        "rounds": JACOBI_ROUNDS[dtype.name],
        "nothing": literal(JACOBI_NOTHING[dtype.name], dtype),
        "normal": literal(float(np.finfo(dtype.numpy).tiny), dtype),
        "infinity": literal(float("inf"), dtype),
        "exponent": "0x7F800000" if single else "0x7FF0000000000000LL",
        "to_bits": "__float_as_int" if single else "__double_as_longlong",
        "from_bits": "__int_as_float" if single else "__longlong_as_double",
    }
    return _kernel(dtype, f"svd{n}_{vectors:d}", _SVD, **words)
