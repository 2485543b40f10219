"""Many small real matrices at once: a thread has a matrix, in the order of the CPU's lanes.

    cholesky, lu, eigh, svd (out, x, status, Nest<2>, Part x)
    cofactors               (out, x or packed, status, Nest<2>, its Part)
    triangular              (out, a, b, status, Nest<3>, Part a, Part b)
    lu_solve                (out, b, packed, status, Nest<3>, Part b)

Results and packed factors are dense. The sizes of matrices are constants of the code.
"""

from __future__ import annotations

from functools import cache

from pullback.compile.kernel.factor_order import MINORS, minors
from pullback.compile.kernel.steps import Statements
from pullback.core.dtypes import DType
from pullback.runtime.cuda.linalg.numbers import name_of, named, source_of

__all__ = ["HEAD", "cholesky", "cofactors", "lu", "lu_solve", "triangular"]

# What all kernels do with a matrix: read it, look for what is no number, write it.
HEAD = """
template <int M, int N> PB_DEVICE void pb_get(Real (&a)[M][N], const Real* x, const Part& p) {
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j) a[i][j] = x[pb_place(p, i, j)];
}
template <int M, int N> PB_DEVICE void pb_put(Real* out, const Real (&a)[M][N]) {
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j) out[i * N + j] = a[i][j];
}
// 0 if all elements are numbers, else NaN.
template <int M, int N> PB_DEVICE Real pb_oddity(const Real (&a)[M][N]) {
  Real found = 0;
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j) found = pb_fused(a[i][j], Real(0), found);
  return found * Real(0);
}
template <int M, int N> PB_DEVICE void pb_spoil(Real (&a)[M][N], Real oddity) {
  if (oddity == oddity) return;
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j) a[i][j] = oddity;
}
#define PB_MATRICES(K) \\
  for (long long item = pb_first(); item < batch.size; item += pb_step()) { \\
    long long at[K] = {}; \\
    pb_locate(batch, item, at);"""

_CHOLESKY = """
KERNEL(cholesky{n})(Real* __restrict__ out, const Real* __restrict__ x, long long* status,
    const Nest<2> batch, const Part p) {{
  PB_MATRICES(2)
    Real a[{n}][{n}], l[{n}][{n}] = {{}};
    long long failed = 0;
    pb_get(a, x + at[1], p);
    const Real oddity = pb_oddity(a), half = Real(0.5);
    for (int j = 0; j < {n}; ++j) {{
      for (int i = j; i < {n}; ++i) {{
        Real total = a[i][j] * half + a[j][i] * half;
        for (int k = 0; k < j; ++k) total = pb_fused(-l[i][k], l[j][k], total);
        l[i][j] = total;
      }}
      if (l[j][j] <= 0 && !failed) failed = j + 1;
      l[j][j] = pb_root(l[j][j]);
      for (int i = j + 1; i < {n}; ++i) l[i][j] = l[i][j] / l[j][j];
    }}
    status[item] = oddity == oddity ? failed : 0;
    pb_spoil(l, oddity);
    pb_put(out + at[0], l);
  }}
}}"""

_LU = """
KERNEL(lu{n})(Real* __restrict__ out, const Real* __restrict__ x, long long* status,
    const Nest<2> batch, const Part p) {{
  PB_MATRICES(2)
    Real a[{n}][{n}], packed[{n} + 2][{n}];
    pb_get(a, x + at[1], p);
    const Real oddity = pb_oddity(a);
    for (int i = 0; i < {n}; ++i) packed[{n} + 1][i] = (Real)i;
    for (int k = 0; k < {n}; ++k) {{
      Real best = pb_abs(a[k][k]);
      int place = k;
      for (int i = k + 1; i < {n}; ++i) {{
        const Real size = pb_abs(a[i][k]);
        if (best < size) best = size, place = i;
      }}
      packed[{n}][k] = (Real)place;
      for (int j = 0; j < {n}; ++j) {{
        const Real held = a[k][j];
        a[k][j] = a[place][j];
        a[place][j] = held;
      }}
      const Real held = packed[{n} + 1][k];
      packed[{n} + 1][k] = packed[{n} + 1][place];
      packed[{n} + 1][place] = held;
      const Real pivot = a[k][k] == 0 ? Real(1) : a[k][k];
      for (int i = k + 1; i < {n}; ++i) {{
        const Real ratio = a[i][k] / pivot;
        a[i][k] = ratio;
        for (int j = k + 1; j < {n}; ++j) a[i][j] = pb_fused(-ratio, a[k][j], a[i][j]);
      }}
    }}
    pb_spoil(a, oddity);
    for (int i = 0; i < {n}; ++i)
      for (int j = 0; j < {n}; ++j) packed[j][i] = a[i][j];
    pb_put(out + at[0], packed);
  }}
}}"""

_COFACTORS = """
KERNEL(cofactors{n})(Real* __restrict__ out, const Real* __restrict__ factors, long long* status,
    const Nest<2> batch, const Part p) {{
  PB_MATRICES(2)
    Real packed[{n} + 2][{n}], found[{n}][{n}];
    pb_get(packed, factors + at[1], p);
    Real before = 1;
    for (int i = 0; i < {n}; ++i) before = packed[{n}][i] == (Real)i ? before : -before;
    for (int r = 0; r < {n}; ++r) {{
      Real row[{n}] = {{}};
      row[r] = before;
      for (int j = r + 1; j < {n}; ++j) {{
        Real total = 0;
        for (int k = r; k < j; ++k) total = pb_fused(-packed[j][k], row[k], total);
        for (int k = r; k < j; ++k) row[k] = row[k] * packed[j][j];
        row[j] = total;
      }}
      before = before * packed[r][r];
      for (int i = {n} - 1; i >= 0; --i) {{
        Real total = row[i];
        for (int k = i + 1; k < {n}; ++k) total = pb_fused(-packed[i][k], row[k], total);
        row[i] = total;
        found[(int)packed[{n} + 1][i]][r] = total;
      }}
    }}
    pb_put(out + at[0], found);
  }}
}}"""

_MINORS = """
KERNEL(cofactors{n})(Real* __restrict__ out, const Real* __restrict__ x, long long* status,
    const Nest<2> batch, const Part p) {{
  PB_MATRICES(2)
    Real a[{n}][{n}], found[{n}][{n}];
    pb_get(a, x + at[1], p);
{lines}
    pb_put(out + at[0], found);
  }}
}}"""

# x becomes the solution of A y = x for a triangle of `a`, or of its transpose if TURNED.
_SOLVE = """
template <bool LOWER, bool UNIT, bool TURNED, int N, int K, int M>
PB_DEVICE void pb_solve(const Real (&a)[M][N], Real (&x)[N][K]) {
  for (int step = 0; step < N; ++step) {
    const int i = LOWER ? step : N - 1 - step;
    for (int c = 0; c < K; ++c) {
      Real total = x[i][c];
      for (int k = LOWER ? 0 : i + 1; k < (LOWER ? i : N); ++k)
        total = pb_fused(-(TURNED ? a[k][i] : a[i][k]), x[k][c], total);
      x[i][c] = UNIT ? total : total / a[i][i];
    }
  }
}
template <int N, int M> PB_DEVICE long long pb_singular(const Real (&a)[M][N]) {
  for (int i = 0; i < N; ++i)
    if (a[i][i] == 0) return i + 1;
  return 0;
}
// Exchanges row i with the one that the factorisation did.
template <int N, int K>
PB_DEVICE void pb_swap(const Real (&packed)[N + 2][N], Real (&x)[N][K], int i) {
  const int place = (int)packed[N][i];
  for (int c = 0; c < K; ++c) {
    const Real held = x[i][c];
    x[i][c] = x[place][c];
    x[place][c] = held;
  }
}"""

_TRIANGULAR = """
KERNEL(triangular{n}_{k}_{lower}{unit})(Real* __restrict__ out, const Real* __restrict__ a,
    const Real* __restrict__ b, long long* status, const Nest<3> batch, const Part p,
    const Part q) {{
  PB_MATRICES(3)
    Real t[{n}][{n}], x[{n}][{k}];
    pb_get(t, a + at[1], p);
    pb_get(x, b + at[2], q);
    status[item] = {unit} ? 0 : pb_singular(t);
    pb_solve<{lower}, {unit}, false>(t, x);
    pb_put(out + at[0], x);
  }}
}}"""

_LU_SOLVE = """
KERNEL(lu_solve{n}_{k}_{adjoint})(Real* __restrict__ out, const Real* __restrict__ b,
    const Real* __restrict__ factors, long long* status, const Nest<3> batch, const Part q,
    const Part p) {{
  PB_MATRICES(3)
    Real packed[{n} + 2][{n}], x[{n}][{k}];
    pb_get(x, b + at[1], q);
    pb_get(packed, factors + at[2], p);
    status[item] = pb_singular(packed);
    if ({adjoint}) {{  // the packed factor is transposed already
      pb_solve<true, false, false>(packed, x);
      pb_solve<false, true, false>(packed, x);
      for (int i = {n} - 1; i >= 0; --i) pb_swap(packed, x, i);
    }} else {{
      for (int i = 0; i < {n}; ++i) pb_swap(packed, x, i);
      pb_solve<true, true, true>(packed, x);
      pb_solve<false, false, true>(packed, x);
    }}
    pb_put(out + at[0], x);
  }}
}}"""


def _kernel(dtype: DType, end: str, text: str, **words: int | str) -> tuple[str, str]:
    source, start = source_of(dtype), name_of(dtype, "")
    source.add("small", HEAD)
    source.add("small_solve", _SOLVE)
    source.add(end, named(text.format(**words), start))
    return start + end, source.text()


@cache
def cholesky(dtype: DType, n: int) -> tuple[str, str]:
    """The name of a kernel and its source: x (n x n) -> L."""
    return _kernel(dtype, f"cholesky{n}", _CHOLESKY, n=n)


@cache
def lu(dtype: DType, n: int) -> tuple[str, str]:
    """x (n x n) -> LU column after column, the rows exchanged, the permutation."""
    return _kernel(dtype, f"lu{n}", _LU, n=n)


@cache
def cofactors(dtype: DType, n: int) -> tuple[str, str]:
    """The matrix, or of more than MINORS rows the result of `lu` -> the matrix of cofactors."""
    if n > MINORS:
        return _kernel(dtype, f"cofactors{n}", _COFACTORS, n=n)
    steps = Statements("const Real {0} = {1};", "{0} * {1}", "{0} + {1}", "{0} - {1}", "-{0}")
    found = minors(n, lambda i, j: steps.value(f"a[{i}][{j}]"), steps.value("Real(1)"))
    ends = [f"found[{k // n}][{k % n}] = {v.name};" for k, v in enumerate(found)]
    lines = "\n".join(f"    {line}" for line in (*steps.lines, *ends))
    return _kernel(dtype, f"cofactors{n}", _MINORS, n=n, lines=lines)


@cache
def triangular(dtype: DType, n: int, k: int, lower: bool, unit: bool) -> tuple[str, str]:
    """a (n x n), b (n x k) -> the solution."""
    end, how = f"triangular{n}_{k}_{lower:d}{unit:d}", {"lower": int(lower), "unit": int(unit)}
    return _kernel(dtype, end, _TRIANGULAR, n=n, k=k, **how)


@cache
def lu_solve(dtype: DType, n: int, k: int, adjoint: bool) -> tuple[str, str]:
    """b (n x k) and the result of `lu` -> A^-1 b or A^-T b."""
    words = {"n": n, "k": k, "adjoint": int(adjoint)}
    return _kernel(dtype, f"lu_solve{n}_{k}_{adjoint:d}", _LU_SOLVE, **words)
