"""Functions of matrices by their Schur forms, the exponential, and factors of Hermitian matrices.

    sylvester   (out, q, fa, fb, work, status, Nest<4>, Part q, Part fa, Part fb, length, adjoint)
    sqrtm, logm (out, f, work, status, Nest<2>, Part f, length)
    expm, ldl   (out, x, work, status, Nest<2>, Part x, length)

fa, fb and f are results of `schur`: T, then Z, column after column. A thread block has a matrix.
The methods are those of the CPU; the bits are the same every time, but not the CPU's.
"""

from __future__ import annotations

from functools import cache

from pullback.compile.kernel.matrix_functions import LOG_NODES, LOG_NORM, PADE, PADE_NORM
from pullback.core.dtypes import DType
from pullback.runtime.cuda.linalg.numbers import name_of, named
from pullback.runtime.cuda.linalg.schur_kernels import schur_source
from pullback.runtime.cuda.printer import literal

__all__ = ["function", "room"]

_MOST_HALVINGS = 1020  # about what the largest finite norm takes to get there
_MOST_ROOTS = 100  # of a number: far more bring every one next to 1

_PARTS = """
PB_DEVICE void pb_get_schur(Value* t, Value* z, const Given* f, const Part& p, long long n) {
  EACH(i, n * n) {
    t[i] = pb_wide(f[pb_place(p, i % n, i / n)]);
    z[i] = pb_wide(f[pb_place(p, n + i % n, i / n)]);
  }
  __syncthreads();
}
// c = a b; if `left` a is conjugated and transposed, if `right` b is.
template <typename T> PB_DEVICE void pb_product(T* c, const T* a, const T* b, long long m,
    long long n, long long k, bool left = false, bool right = false) {
  EACH(i, m * n) {
    const long long r = i / n, s = i % n;
    T sum;
    pb_narrow(sum, pb_value(0));
    for (long long j = 0; j < k; ++j)
      sum = pb_fused(left ? pb_conjugate(a[j * m + r]) : a[r * k + j],
                     right ? pb_conjugate(b[s * k + j]) : b[j * n + s], sum);
    c[i] = sum;
  }
  __syncthreads();
}
PB_DEVICE void pb_put(Given* out, const Value* x, long long count, bool fine) {
  EACH(i, count) {
    if (fine) pb_narrow(out[i], x[i]);
    else out[i] = pb_strangeness();
  }
}
// An upper triangle replaced by its square root (Bjorck and Hammarling), diagonal by diagonal.
PB_DEVICE void pb_triangular_root(Value* t, long long n) {
  EACH(i, n) t[i * n + i] = pb_square_root(t[i * n + i]);
  __syncthreads();
  for (long long d = 1; d < n; ++d) {
    EACH(i, n - d) {
      const long long j = i + d;
      Value sum = t[i * n + j];
      for (long long k = i + 1; k < j; ++k) sum = pb_less(sum, t[i * n + k], t[k * n + j]);
      const Value by = pb_add(t[i * n + i], t[j * n + j]);
      t[i * n + j] = pb_is_zero(by) && pb_is_zero(sum) ? pb_value(0) : pb_div(sum, by);
    }
    __syncthreads();
  }
}
// The largest sum of magnitudes in a column of x - by.
template <typename T> PB_DEVICE Real pb_norm(const T* x, Real by, long long n) {
  Real most = 0;
  for (long long j = 0; j < n; ++j) {
    Real own = 0;
    EACH(i, n) own += pb_size(pb_sub(pb_wide(x[i * n + j]), pb_value(i == j ? by : Real(0))));
    const Real sum = pb_total(own);
    most = sum <= most ? most : sum;
  }
  return most;
}
#define PB_MATRICES(K, ROOM) \\
  for (long long item = blockIdx.x; item < batch.size; item += gridDim.x) { \\
    long long at[K] = {}; \\
    pb_locate(batch, item, at); \\
    Given* const made = out + at[0]; \\
    Value* const room = reinterpret_cast<Value*>(work) + item * (ROOM);"""

_SYLVESTER = """
KERNEL(sylvester)(Given* __restrict__ out, const Given* __restrict__ q,
    const Given* __restrict__ fa, const Given* __restrict__ fb, Given* __restrict__ work,
    long long* status, const Nest<4> batch, const Part p, const Part pa, const Part pb,
    const long long length, const long long adjoint) {
  const long long m = p.rows, n = p.columns;
  PB_MATRICES(4, 2 * m * m + 2 * n * n + 2 * m * n)
    Value *const ta = room, *const za = ta + m * m, *const tb = za + m * m, *const zb = tb + n * n;
    Value *const y = zb + n * n, *const w = y + m * n;
    pb_get_schur(ta, za, fa + at[2], pa, m);
    pb_get_schur(tb, zb, fb + at[3], pb, n);
    pb_triangle(ta, za, m);
    pb_triangle(tb, zb, n);
    EACH(i, m * n) y[i] = pb_wide(q[at[1] + pb_place(p, i / n, i % n)]);
    __syncthreads();
    pb_product(w, za, y, m, n, m, true);
    pb_product(y, w, zb, m, n, n);
    Real least = 0;
    for (long long i = 0; i < m; ++i) least = fmax(least, pb_size(ta[i * m + i]));
    for (long long j = 0; j < n; ++j) least = fmax(least, pb_size(tb[j * n + j]));
    least = least * EPSILON > SMALLEST ? least * EPSILON : SMALLEST;
    bool singular = false;
    for (long long step = 0; step < n; ++step) {
      const long long j = adjoint ? n - 1 - step : step;
      const Value own = adjoint ? pb_conj(tb[j * n + j]) : tb[j * n + j];
      EACH(i, m) {
        Value sum = y[i * n + j];
        for (long long k = adjoint ? j + 1 : 0; k < (adjoint ? n : j); ++k)
          sum = pb_less(sum, y[i * n + k], adjoint ? pb_conj(tb[j * n + k]) : tb[k * n + j]);
        y[i * n + j] = sum;
      }
      __syncthreads();
      for (long long turn = 0; turn < m; ++turn) {
        const long long i = adjoint ? turn : m - 1 - turn;
        const Value by = pb_add(adjoint ? pb_conj(ta[i * m + i]) : ta[i * m + i], own);
        singular = singular || !(pb_size(by) > least);
        const Value found = pb_div(y[i * n + j], by);
        __syncthreads();
        EACH(r, m) {
          Value& place = y[r * n + j];
          if (r == i) place = found;
          else if (adjoint ? r > i : r < i)
            place = pb_less(place, adjoint ? pb_conj(ta[i * m + r]) : ta[r * m + i], found);
        }
        __syncthreads();
      }
    }
    if (threadIdx.x == 0) status[item] = singular && !pb_is_odd(ta[0]) && !pb_is_odd(tb[0]);
    pb_product(w, za, y, m, n, m);
    pb_product(y, w, zb, m, n, n, false, true);
    pb_put(made, y, m * n, true);
    __syncthreads();
  }
}"""

_SQRTM = """
KERNEL(sqrtm)(Given* __restrict__ out, const Given* __restrict__ f, Given* __restrict__ work,
    long long* status, const Nest<2> batch, const Part p, const long long length) {
  const long long n = p.columns;
  PB_MATRICES(2, 3 * n * n)
    Value *const t = room, *const z = t + n * n, *const w = z + n * n;
    pb_get_schur(t, z, f + at[1], p, n);
    pb_triangular_root(t, n);
    pb_product(w, z, t, n, n, n);
    pb_product(t, w, z, n, n, n, false, true);
    pb_put(made, t, n * n, true);
    if (threadIdx.x == 0) status[item] = 0;
    __syncthreads();
  }
}"""

_LOGM = """
KERNEL(logm)(Given* __restrict__ out, const Given* __restrict__ f, Given* __restrict__ work,
    long long* status, const Nest<2> batch, const Part p, const long long length) {
  const Real nodes[] = {NODES}, weights[] = {WEIGHTS};
  const long long n = p.columns;
  PB_MATRICES(2, 5 * n * n)
    Value *const t = room, *const z = t + n * n, *const x = z + n * n, *const total = x + n * n;
    Value* const w = total + n * n;
    pb_get_schur(t, z, f + at[1], p, n);
    int roots = 0;
    for (; roots < MOST_ROOTS; ++roots) {
      if (!(pb_norm(t, Real(1), n) > LOG_NORM)) break;
      pb_triangular_root(t, n);
    }
    EACH(i, n * n) {
      x[i] = i / n == i % n ? pb_sub(t[i], pb_value(1)) : t[i];
      total[i] = pb_value(0);
    }
    __syncthreads();
    for (int k = 0; k < (int)(sizeof nodes / sizeof nodes[0]); ++k) {
      // a row of y with y (1 + node x) = x for each thread
      EACH(r, n)
        for (long long j = 0; j < n; ++j) {
          Value sum = x[r * n + j];
          for (long long i = r; i < j; ++i)
            sum = pb_less(sum, w[r * n + i], pb_scale(x[i * n + j], nodes[k]));
          const Value by = pb_add(pb_value(1), pb_scale(x[j * n + j], nodes[k]));
          w[r * n + j] = j < r ? pb_value(0) : pb_div(sum, by);
          total[r * n + j] = pb_add(total[r * n + j], pb_scale(w[r * n + j], weights[k]));
        }
      __syncthreads();
    }
    Real factor = 1;
    for (int k = 0; k < roots; ++k) factor += factor;
    EACH(i, n * n) total[i] = pb_scale(total[i], factor);
    __syncthreads();
    pb_product(w, z, total, n, n, n);
    pb_product(total, w, z, n, n, n, false, true);
    pb_put(made, total, n * n, true);
    if (threadIdx.x == 0) status[item] = 0;
    __syncthreads();
  }
}"""

_EXPM = """
// The solution of a x = b in place of b, and of a its factors; partial pivoting.
PB_DEVICE void pb_solve(Value* a, Value* b, long long n) {
  for (long long j = 0; j < n; ++j) {
    Real most = -1;
    long long row = j;
    for (long long i = j; i < n; ++i) {
      const Real size = pb_size(a[i * n + j]);
      if (size > most) most = size, row = i;
    }
    __syncthreads();
    EACH(c, 2 * n) {
      Value* const x = c < n ? a : b;
      const Value held = x[j * n + c % n];
      x[j * n + c % n] = x[row * n + c % n];
      x[row * n + c % n] = held;
    }
    __syncthreads();
    const Value pivot = a[j * n + j];
    EACH(i, n) {
      if (i <= j) continue;
      const Value low = pb_div(a[i * n + j], pivot);
      for (long long c = j + 1; c < n; ++c) a[i * n + c] = pb_less(a[i * n + c], low, a[j * n + c]);
      for (long long c = 0; c < n; ++c) b[i * n + c] = pb_less(b[i * n + c], low, b[j * n + c]);
    }
    __syncthreads();
  }
  EACH(c, n)
    for (long long i = n - 1; i >= 0; --i) {
      Value sum = b[i * n + c];
      for (long long k = i + 1; k < n; ++k) sum = pb_less(sum, a[i * n + k], b[k * n + c]);
      b[i * n + c] = pb_div(sum, a[i * n + i]);
    }
  __syncthreads();
}
KERNEL(expm)(Given* __restrict__ out, const Given* __restrict__ given, Given* __restrict__ work,
    long long* status, const Nest<2> batch, const Part p, const long long length) {
  const Real c[] = {PADE};
  const long long n = p.rows;
  PB_MATRICES(2, 6 * n * n)
    const Given* const x = given + at[1];
    Value *const a = room, *const a2 = a + n * n, *const a4 = a2 + n * n, *const a6 = a4 + n * n;
    Value *const u = a6 + n * n, *const v = u + n * n;
    const bool fine = pb_none_strange(x, p);
    EACH(i, n * n) a[i] = fine ? pb_wide(x[pb_place(p, i / n, i % n)]) : pb_value(0);
    __syncthreads();
    Real norm = pb_norm(a, Real(0), n), factor = 1;
    int halvings = 0;
    for (; norm > PADE_NORM && halvings < MOST_HALVINGS; ++halvings) {
      norm *= Real(0.5);
      factor *= Real(0.5);
    }
    EACH(i, n * n) a[i] = pb_scale(a[i], factor);
    __syncthreads();
    pb_product(a2, a, a, n, n, n);
    pb_product(a4, a2, a2, n, n, n);
    pb_product(a6, a4, a2, n, n, n);
    EACH(i, n * n)
      u[i] = pb_add(pb_scale(a6[i], c[13]), pb_add(pb_scale(a4[i], c[11]), pb_scale(a2[i], c[9])));
    __syncthreads();
    pb_product(v, a6, u, n, n, n);
    EACH(i, n * n) {
      const Value more = pb_add(pb_scale(a4[i], c[5]), pb_scale(a2[i], c[3]));
      v[i] = pb_add(v[i], pb_add(pb_scale(a6[i], c[7]), more));
      if (i / n == i % n) v[i] = pb_add(v[i], pb_value(c[1]));
    }
    __syncthreads();
    pb_product(u, a, v, n, n, n);
    EACH(i, n * n)
      a[i] = pb_add(pb_scale(a6[i], c[12]), pb_add(pb_scale(a4[i], c[10]), pb_scale(a2[i], c[8])));
    __syncthreads();
    pb_product(v, a6, a, n, n, n);
    EACH(i, n * n) {
      const Value more = pb_add(pb_scale(a4[i], c[4]), pb_scale(a2[i], c[2]));
      Value even = pb_add(v[i], pb_add(pb_scale(a6[i], c[6]), more));
      if (i / n == i % n) even = pb_add(even, pb_value(c[0]));
      a[i] = pb_sub(even, u[i]);
      v[i] = pb_add(even, u[i]);
    }
    __syncthreads();
    pb_solve(a, v, n);
    for (int k = 0; k < halvings; ++k) {
      pb_product(u, v, v, n, n, n);
      EACH(i, n * n) v[i] = u[i];
      __syncthreads();
    }
    pb_put(made, v, n * n, fine);
    if (threadIdx.x == 0) status[item] = 0;
    __syncthreads();
  }
}"""

# Bunch and Kaufman's choice of pivots, from the first column on; `order` is where rows came from.
_LDL = """
PB_DEVICE void pb_swap_both(Value* a, Value* l, Value* order, long long n, long long k,
    long long i, long long j) {
  if (i == j) return;
  EACH(c, n) {
    Value held = a[i * n + c];
    a[i * n + c] = a[j * n + c];
    a[j * n + c] = held;
    if (c >= k) continue;
    held = l[i * n + c];
    l[i * n + c] = l[j * n + c];
    l[j * n + c] = held;
  }
  __syncthreads();
  EACH(r, n) {
    const Value held = a[r * n + i];
    a[r * n + i] = a[r * n + j];
    a[r * n + j] = held;
    if (r) continue;
    const Value place = order[i];
    order[i] = order[j];
    order[j] = place;
  }
  __syncthreads();
}
KERNEL(ldl)(Given* __restrict__ out, const Given* __restrict__ given, Given* __restrict__ work,
    long long* status, const Nest<2> batch, const Part p, const long long length) {
  const Real alpha = ALPHA;
  const long long n = p.rows;
  PB_MATRICES(2, 3 * n * n + n)
    const Given* const x = given + at[1];
    Value *const a = room, *const l = a + n * n, *const d = l + n * n, *const order = d + n * n;
    const bool fine = pb_none_strange(x, p);
    EACH(i, n * n) {
      const Value one = pb_wide(x[pb_place(p, i / n, i % n)]);
      const Value two = pb_conj(pb_wide(x[pb_place(p, i % n, i / n)]));
      a[i] = pb_scale(pb_add(one, two), Real(0.5));
      l[i] = pb_value(Real(i / n == i % n));
      d[i] = pb_value(0);
    }
    EACH(i, n) order[i] = pb_value((Real)i);
    __syncthreads();
    for (long long k = 0; k < n && fine;) {
      Real most = 0, along = 0;
      long long row = k;
      for (long long i = k + 1; i < n; ++i) {
        const Real size = pb_length(a[i * n + k]);
        if (size > most) most = size, row = i;
      }
      const Real own = pb_abs(a[k * n + k].x);
      for (long long j = k; j < n; ++j) {
        const Real size = j == row ? Real(0) : pb_length(a[row * n + j]);
        along = size > along ? size : along;
      }
      const Real other = pb_abs(a[row * n + row].x);
      __syncthreads();
      int width = 1;
      long long pivot = k;
      if (own < alpha * most && own * along < alpha * most * most) {
        pivot = row;
        if (other < alpha * along) width = 2;
      }
      pb_swap_both(a, l, order, n, k, k + width - 1, pivot);
      if (width == 1) {
        const Value by = pb_value(a[k * n + k].x);
        EACH(i, n) {
          const Value x = a[i * n + k];
          if (i > k) l[i * n + k] = pb_is_zero(x) ? pb_value(0) : pb_div(x, by);
        }
        if (threadIdx.x == 0) d[k * n + k] = by;
        __syncthreads();
        EACH(i, n * n) {
          const long long r = i / n, c = i % n;
          if (r > k && c > k) a[i] = pb_less(a[i], l[r * n + k], pb_conj(a[c * n + k]));
        }
      } else {
        const Real one = a[k * n + k].x, two = a[(k + 1) * n + k + 1].x;
        const Value low = a[(k + 1) * n + k];
        const Real size = pb_length(low), by = (one / size) * (two / size) - Real(1);
        EACH(i, n) {
          if (i < k + 2) continue;  // the row times the inverse of the block
          const Value x1 = pb_over(a[i * n + k], size), x2 = pb_over(a[i * n + k + 1], size);
          const Value turn = pb_over(low, size);
          l[i * n + k] = pb_over(pb_sub(pb_scale(x1, two / size), pb_mul(x2, turn)), by);
          l[i * n + k + 1] =
              pb_over(pb_sub(pb_scale(x2, one / size), pb_mul(x1, pb_conj(turn))), by);
        }
        if (threadIdx.x == 0) {
          d[k * n + k] = pb_value(one);
          d[(k + 1) * n + k + 1] = pb_value(two);
          d[(k + 1) * n + k] = low;
          d[k * n + k + 1] = pb_conj(low);
        }
        __syncthreads();
        EACH(i, n * n) {
          const long long r = i / n, c = i % n;
          if (r < k + 2 || c < k + 2) continue;
          const Value part = pb_less(a[i], l[r * n + k], pb_conj(a[c * n + k]));
          a[i] = pb_less(part, l[r * n + k + 1], pb_conj(a[c * n + k + 1]));
        }
      }
      __syncthreads();
      k += width;
    }
    Real odd = 0;
    EACH(i, 2 * n * n) odd += fine && pb_is_odd(l[i]);
    odd = pb_total(odd);
    if (threadIdx.x == 0) status[item] = (long long)odd;
    pb_put(made, l, n * n, fine);
    pb_put(made + n * n, d, n * n, fine);
    pb_put(made + 2 * n * n, order, n, true);
    __syncthreads();
  }
}"""

_TEXTS = {"sylvester": _SYLVESTER, "sqrtm": _SQRTM, "logm": _LOGM, "expm": _EXPM, "ldl": _LDL}


@cache
def function(name: str, dtype: DType) -> tuple[str, str]:
    """The name of a kernel and its source."""
    source, start, real = schur_source(dtype), name_of(dtype, ""), dtype.real

    def numbers(values: object) -> str:
        return ", ".join(literal(v, real) for v in values)  # type: ignore[attr-defined]

    constants = {
        "LOG_NORM": literal(LOG_NORM, real),
        "PADE_NORM": literal(PADE_NORM, real),
        "MOST_ROOTS": str(_MOST_ROOTS),
        "MOST_HALVINGS": str(_MOST_HALVINGS),
        "NODES": numbers(node for node, _ in LOG_NODES),
        "WEIGHTS": numbers(weight for _, weight in LOG_NODES),
        "PADE": numbers(x / PADE[0] for x in PADE),
        "ALPHA": literal((1 + 17**0.5) / 8, real),
    }
    source.add("function_parts", _PARTS)
    source.add("constants", "\n".join(f"#define {k} {v}" for k, v in constants.items()))
    source.add(name, named(_TEXTS[name], start))
    return start + name, source.text()


def room(name: str, m: int, n: int) -> int:
    """Complex elements that a kernel works in for a matrix."""
    if name == "sylvester":
        return 2 * m * m + 2 * n * n + 2 * m * n
    return {"sqrtm": 3, "logm": 5, "expm": 6, "ldl": 3}[name] * n * n + n * (name == "ldl")
