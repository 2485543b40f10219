"""The Schur form, and eigenvalues of any matrix, by the QR algorithm.

    schur (out, x, work, status, Nest<2>, Part x, length)
    eig   (out, x, work, status, Nest<2>, Part x, length, vectors)

A thread block has a matrix: it is brought to Hessenberg form by reflections, then to triangular
form by shifted sweeps, of real matrices with blocks of two for conjugate pairs. Rows and columns
are shared by threads. The bits are the same every time, but not those of the CPU.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cuda.linalg.numbers import name_of, named, source_of
from pullback.runtime.cuda.printer import Source, literal

__all__ = ["COMMON", "THREADS", "eig", "eig_room", "schur", "schur_room", "words_of"]

THREADS = 128  # of a thread block, which works on one matrix
_SWEEPS = 40  # for an eigenvalue, at most: two or three are usual

# Value is complex here; Given is what the kernel's matrices are made of.
COMMON = """
#define THREADS {threads}
typedef {given} Given;
#define EACH(i, count) for (long long i = threadIdx.x; i < (count); i += THREADS)
PB_DEVICE Value pb_wide(Real x) {{ return Value{{x, 0}}; }}
PB_DEVICE Value pb_wide(Value x) {{ return x; }}
PB_DEVICE void pb_narrow(Real& to, Value x) {{ to = x.x; }}
PB_DEVICE void pb_narrow(Value& to, Value x) {{ to = x; }}
PB_DEVICE bool pb_strange(Real x) {{ return x - x != 0; }}
PB_DEVICE bool pb_strange(Value x) {{ return pb_is_odd(x); }}
PB_DEVICE Given pb_strangeness() {{
  Given x;
  pb_narrow(x, pb_scale(pb_value(1), pb_nan()));
  return x;
}}
// A sum that all threads of the block have, in a fixed order.
PB_DEVICE Real pb_total(Real own) {{
  __shared__ Real all[THREADS];
  all[threadIdx.x] = own;
  for (int width = THREADS / 2; width; width /= 2) {{
    __syncthreads();
    if (threadIdx.x < width) all[threadIdx.x] += all[threadIdx.x + width];
  }}
  __syncthreads();
  const Real found = all[0];
  __syncthreads();
  return found;
}}
PB_DEVICE bool pb_none_strange(const Given* x, const Part& p) {{
  bool odd = false;
  EACH(i, p.rows * p.columns) odd = odd || pb_strange(x[pb_place(p, i / p.columns, i % p.columns)]);
  return pb_total(Real(odd)) == 0;
}}
PB_DEVICE Real pb_length(Value z) {{
  const Real x = pb_abs(z.x), y = pb_abs(z.y), most = x > y ? x : y;
  return most == 0 ? Real(0) : most * pb_root(pb_square(pb_over(z, most)));
}}
PB_DEVICE Value pb_square_root(Value z) {{
  const Real size = pb_length(z), half = Real(0.5);
  const Real large = pb_root((size + pb_abs(z.x)) * half);
  if (large == 0) return pb_value(0);
  const Real other = pb_abs(z.y) * half / large;
  return z.x >= 0 ? Value{{large, pb_sign(other, z.y)}} : Value{{other, pb_sign(large, z.y)}};
}}"""

# The same text for real and for complex matrices: T is the type of an element.
_HESSENBERG = """
PB_DEVICE Real pb_conjugate(Real x) { return x; }
PB_DEVICE Value pb_conjugate(Value x) { return pb_conj(x); }
PB_DEVICE Real pb_times(Real x, Real y) { return x * y; }
PB_DEVICE Value pb_times(Value x, Value y) { return pb_mul(x, y); }
PB_DEVICE Real pb_minus(Real x, Real y) { return x - y; }
PB_DEVICE Value pb_minus(Value x, Value y) { return pb_sub(x, y); }
PB_DEVICE Real pb_opposite(Real x) { return -x; }
PB_DEVICE Value pb_opposite(Value x) { return pb_neg(x); }
PB_DEVICE Real pb_by(Real x, Real y) { return x / y; }
PB_DEVICE Value pb_by(Value x, Value y) { return pb_div(x, y); }
// h = Z^H x Z with nothing below the first subdiagonal; v has room for n numbers.
template <typename T> PB_DEVICE void pb_hessenberg(T* h, T* z, T* v, long long n) {
  EACH(i, n * n) pb_narrow(z[i], pb_value(Real(i / n == i % n)));
  __syncthreads();
  for (long long k = 0; k + 2 < n; ++k) {
    Real most = 0;
    for (long long i = k + 2; i < n; ++i) {
      const Real size = pb_size(pb_wide(h[i * n + k]));
      most = size > most ? size : most;
    }
    if (most == 0) continue;
    const T alpha = h[(k + 1) * n + k];
    const Real first = pb_size(pb_wide(alpha)), scale = first > most ? first : most;
    Real square = 0;
    for (long long i = k + 1; i < n; ++i)
      square += pb_square(pb_over(pb_wide(h[i * n + k]), scale));
    const Real norm = scale * pb_root(square);
    const Real beta = pb_wide(alpha).x >= 0 ? -norm : norm;
    T tau, by, wide;
    pb_narrow(wide, pb_value(beta));
    pb_narrow(tau, pb_over(pb_sub(pb_value(beta), pb_wide(alpha)), beta));
    by = pb_minus(alpha, wide);
    EACH(i, n) pb_narrow(v[i], pb_value(Real(i == k + 1)));
    EACH(i, n) if (i > k + 1) v[i] = pb_by(h[i * n + k], by);
    __syncthreads();
    EACH(c, n) {
      if (c < k) continue;
      T sum = pb_times(pb_conjugate(v[k + 1]), h[(k + 1) * n + c]);
      for (long long i = k + 2; i < n; ++i)
        sum = pb_fused(pb_conjugate(v[i]), h[i * n + c], sum);
      sum = pb_opposite(pb_times(pb_conjugate(tau), sum));
      for (long long i = k + 1; i < n; ++i) h[i * n + c] = pb_fused(v[i], sum, h[i * n + c]);
    }
    __syncthreads();
    EACH(r, 2 * n) {
      T* const row = (r < n ? h : z) + r % n * n;
      T sum = pb_times(row[k + 1], v[k + 1]);
      for (long long i = k + 2; i < n; ++i) sum = pb_fused(row[i], v[i], sum);
      sum = pb_opposite(pb_times(tau, sum));
      for (long long i = k + 1; i < n; ++i) row[i] = pb_fused(pb_conjugate(v[i]), sum, row[i]);
    }
    __syncthreads();
    EACH(i, n) {
      if (i == k + 1) h[i * n + k] = wide;
      if (i > k + 1) pb_narrow(h[i * n + k], pb_value(0));
    }
    __syncthreads();
  }
}
// The first row of the part that ends with row `last` and has no small subdiagonal elements.
template <typename T> PB_DEVICE long long pb_split(T* h, long long n, long long last) {
  long long found = last;
  for (; found > 0; --found) {
    const Real near = pb_size(pb_wide(h[found * n + found]))
        + pb_size(pb_wide(h[(found - 1) * n + found - 1]));
    const Real size = pb_size(pb_wide(h[found * n + found - 1]));
    if (size <= EPSILON * near || size < SMALLEST) break;
  }
  __syncthreads();
  if (threadIdx.x == 0 && found > 0) pb_narrow(h[found * n + found - 1], pb_value(0));
  __syncthreads();
  return found;
}
// Rows r and r + 1 of h from column `first` on, and columns of h to row `last` and of z, turned by
// the unitary [[c, s], [-conj(s), c]] with a real c.
template <typename T> PB_DEVICE void pb_rotated(T* h, T* z, long long n, long long r, Real c, T s,
    long long first, long long last) {
  EACH(j, n) {
    if (j < first) continue;
    const Value x = pb_wide(h[r * n + j]), y = pb_wide(h[(r + 1) * n + j]), w = pb_wide(s);
    pb_narrow(h[r * n + j], pb_add(pb_scale(x, c), pb_mul(w, y)));
    pb_narrow(h[(r + 1) * n + j], pb_sub(pb_scale(y, c), pb_mul(pb_conj(w), x)));
  }
  __syncthreads();
  EACH(i, 2 * n) {
    if (i > last && i < n) continue;
    T* const row = (i < n ? h : z) + i % n * n;
    const Value x = pb_wide(row[r]), y = pb_wide(row[r + 1]), w = pb_wide(s);
    pb_narrow(row[r], pb_add(pb_scale(x, c), pb_mul(pb_conj(w), y)));
    pb_narrow(row[r + 1], pb_sub(pb_scale(y, c), pb_mul(w, x)));
  }
  __syncthreads();
}
// The rotation that takes y to nothing: c and s with [[c, s], [-conj(s), c]] (x, y) = (r, 0).
PB_DEVICE void pb_given(Value x, Value y, Real& c, Value& s) {
  const Real p = pb_length(x), q = pb_length(y), most = p > q ? p : q;
  if (q == 0) {
    c = 1;
    s = pb_value(0);
    return;
  }
  const Real a = p / most, b = q / most, norm = pb_root(a * a + b * b);
  c = a / norm;
  const Value phase = p == 0 ? pb_value(1) : pb_over(x, p);
  s = pb_scale(pb_mul(phase, pb_over(pb_conj(y), most)), Real(1) / norm);
}"""

_COMPLEX = """
PB_DEVICE Value pb_shift(Value* h, long long n, long long last, int round) {
  const Value a = h[(last - 1) * n + last - 1], b = h[(last - 1) * n + last];
  const Value c = h[last * n + last - 1], d = h[last * n + last];
  if (round % 10 == 9) return pb_add(d, pb_value(pb_size(c)));
  const Value half = pb_scale(pb_sub(a, d), Real(0.5)), product = pb_mul(b, c);
  Value root = pb_square_root(pb_add(pb_mul(half, half), product));
  if (root.x * half.x + root.y * half.y < 0) root = pb_neg(root);
  const Value by = pb_add(half, root);
  return pb_is_zero(by) ? d : pb_sub(d, pb_div(product, by));
}
PB_DEVICE bool pb_qr(Value* h, Value* z, Value*, long long n) {
  long long last = n - 1;
  for (int round = 0; last > 0; ++round) {
    if (round > SWEEPS) return false;
    const long long first = pb_split(h, n, last);
    if (first == last) {
      --last;
      round = -1;
      continue;
    }
    const Value shift = pb_shift(h, n, last, round);
    for (long long k = first; k < last; ++k) {
      const bool begin = k == first;
      Value x = begin ? pb_sub(h[k * n + k], shift) : h[k * n + k - 1];
      const Value y = begin ? h[(k + 1) * n + k] : h[(k + 1) * n + k - 1];
      Real c;
      Value s;
      pb_given(x, y, c, s);
      __syncthreads();
      const long long below = k + 2 < last ? k + 2 : last;
      pb_rotated(h, z, n, k, c, s, begin ? k : k - 1, below);
      if (threadIdx.x == 0 && !begin) h[(k + 1) * n + k - 1] = pb_value(0);
      __syncthreads();
    }
  }
  return true;
}"""

_REAL = """
PB_DEVICE void pb_pair_of_roots(Real* h, Real* z, long long n, long long last) {
  const long long r = last - 1;
  const Real a = h[r * n + r], b = h[r * n + last], x = h[last * n + r], d = h[last * n + last];
  const Real p = (a - d) * Real(0.5), q = p * p + b * x;
  __syncthreads();
  if (q < 0) return;  // a conjugate pair
  const Real by = p + pb_sign(pb_root(q), p);
  Real c;
  Value s;
  pb_given(Value{by, 0}, Value{x, 0}, c, s);
  pb_rotated(h, z, n, r, c, s.x, r, last);
  if (threadIdx.x == 0) h[last * n + r] = 0;
  __syncthreads();
}
PB_DEVICE bool pb_qr(Real* h, Real* z, Real*, long long n) {
  long long last = n - 1;
  for (int round = 0; last > 0; ++round) {
    if (round > SWEEPS) return false;
    const long long first = pb_split(h, n, last);
    if (first + 1 >= last) {
      if (first + 1 == last) pb_pair_of_roots(h, z, n, last);
      last = first - 1;
      round = -1;
      continue;
    }
    Real x = h[last * n + last], y = h[(last - 1) * n + last - 1];
    Real w = h[last * n + last - 1] * h[(last - 1) * n + last];
    if (round % 10 == 9) {
      const Real size = pb_abs(h[last * n + last - 1]) + pb_abs(h[(last - 1) * n + last - 2]);
      x = y = Real(0.75) * size + x;
      w = Real(-0.4375) * size * size;
    }
    const Real top = h[first * n + first], one = x - top, two = y - top;
    Real p = (one * two - w) / h[(first + 1) * n + first] + h[first * n + first + 1];
    Real q = h[(first + 1) * n + first + 1] - top - one - two;
    Real r = h[(first + 2) * n + first + 1];
    for (long long k = first; k < last; ++k) {
      const bool three = k + 1 < last, begin = k == first;
      if (!begin) {
        p = h[k * n + k - 1];
        q = h[(k + 1) * n + k - 1];
        r = three ? h[(k + 2) * n + k - 1] : Real(0);
      } else if (!three) {
        r = 0;
      }
      const Real scale = pb_abs(p) + pb_abs(q) + pb_abs(r);
      __syncthreads();
      if (scale == 0) continue;
      p /= scale, q /= scale, r /= scale;
      const Real s = pb_sign(pb_root(p * p + q * q + r * r), p);
      const Real kept = -s * scale;
      p += s;
      const Real u = p / s, v = q / s, t = r / s;
      q /= p, r /= p;
      EACH(j, n) {
        if (j < k) continue;
        Real* const at = h + k * n + j;
        const Real sum = at[0] + q * at[n] + (three ? r * at[2 * n] : Real(0));
        at[0] -= sum * u;
        at[n] -= sum * v;
        if (three) at[2 * n] -= sum * t;
      }
      __syncthreads();
      const long long below = k + 3 < last ? k + 3 : last;
      EACH(i, 2 * n) {
        if (i > below && i < n) continue;
        Real* const at = (i < n ? h : z) + i % n * n + k;
        const Real sum = u * at[0] + v * at[1] + (three ? t * at[2] : Real(0));
        at[0] -= sum;
        at[1] -= sum * q;
        if (three) at[2] -= sum * r;
      }
      if (threadIdx.x == 0 && !begin) {
        h[k * n + k - 1] = kept;
        h[(k + 1) * n + k - 1] = 0;
        if (three) h[(k + 2) * n + k - 1] = 0;
      }
      __syncthreads();
    }
  }
  return true;
}"""

# Blocks of two of a real matrix become triangles; complex ones have none.
TRIANGULAR = """
PB_DEVICE void pb_triangle(Value* h, Value* z, long long n) {
  for (long long k = n - 1; k > 0; --k) {
    const Value x = h[k * n + k - 1];
    if (pb_is_zero(x)) continue;
    const Value a = h[(k - 1) * n + k - 1], b = h[(k - 1) * n + k], d = h[k * n + k];
    const Value half = pb_scale(pb_sub(a, d), Real(0.5));
    Value root = pb_square_root(pb_add(pb_mul(half, half), pb_mul(b, x)));
    if (root.y < 0) root = pb_neg(root);  // the positive imaginary part comes first
    Real c;
    Value s;
    pb_given(pb_add(half, root), x, c, s);
    __syncthreads();
    pb_rotated(h, z, n, k - 1, c, s, k - 1, k);
    if (threadIdx.x == 0) h[k * n + k - 1] = pb_value(0);
    __syncthreads();
  }
}"""

_SCHUR = """
KERNEL(schur)(Given* __restrict__ out, const Given* __restrict__ given, Given* __restrict__ work,
    long long* status, const Nest<2> batch, const Part p, const long long length) {
  const long long n = p.rows;
  for (long long item = blockIdx.x; item < batch.size; item += gridDim.x) {
    long long at[2] = {};
    pb_locate(batch, item, at);
    const Given* const x = given + at[1];
    Given *const made = out + at[0], *const h = work + item * (2 * n * n + n);
    Given *const z = h + n * n, *const v = z + n * n;
    const bool fine = pb_none_strange(x, p);
    bool found = true;
    if (fine) {
      EACH(i, n * n) h[i] = x[pb_place(p, i / n, i % n)];
      __syncthreads();
      pb_hessenberg(h, z, v, n);
      found = pb_qr(h, z, v, n);
    }
    if (threadIdx.x == 0) status[item] = found ? 0 : 1;
    EACH(i, n * n) {
      made[i % n * n + i / n] = fine ? h[i] : pb_strangeness();
      made[n * n + i % n * n + i / n] = fine ? z[i] : pb_strangeness();
    }
    __syncthreads();
  }
}"""

_EIG = """
KERNEL(eig)(Value* __restrict__ out, const Given* __restrict__ given, Value* __restrict__ work,
    long long* status, const Nest<2> batch, const Part p, const long long length,
    const long long vectors) {
  const long long n = p.rows;
  for (long long item = blockIdx.x; item < batch.size; item += gridDim.x) {
    long long at[2] = {};
    pb_locate(batch, item, at);
    const Given* const x = given + at[1];
    Value *const made = out + at[0], *const t = work + item * (4 * n * n + 2 * n);
    Value *const z = t + n * n, *const values = z + n * n;
    Given *const h = reinterpret_cast<Given*>(values + n), *const y = h + n * n;
    Given* const v = y + n * n;
    const bool fine = pb_none_strange(x, p);
    bool found = true;
    if (fine) {
      EACH(i, n * n) h[i] = x[pb_place(p, i / n, i % n)];
      __syncthreads();
      pb_hessenberg(h, y, v, n);
      found = pb_qr(h, y, v, n);
      EACH(i, n * n) {
        t[i] = pb_wide(h[i]);
        z[i] = pb_wide(y[i]);
      }
      __syncthreads();
      pb_triangle(t, z, n);
      EACH(k, n) {
        // A conjugate pair is one to the bit, the one with the positive imaginary part first.
        const bool second = PAIRS && k > 0 && !pb_is_zero(pb_wide(h[k * n + k - 1]));
        const bool begins = PAIRS && k + 1 < n && !pb_is_zero(pb_wide(h[(k + 1) * n + k]));
        const Value own = t[(second ? k - 1 : k) * n + (second ? k - 1 : k)];
        const Real size = pb_abs(own.y);
        values[k] = begins ? Value{own.x, size} : second ? Value{own.x, -size}
            : PAIRS ? Value{own.x, 0} : own;
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) status[item] = found ? 0 : 1;
    EACH(i, length) if (!fine) made[i] = pb_scale(pb_value(1), pb_nan());
    EACH(k, n) if (fine) made[k] = values[k];
    Real norm = 0;
    for (long long i = 0; i < n && fine; ++i) {
      const Real size = pb_size(t[i * n + i]);
      norm = size > norm ? size : norm;
    }
    // A vector of the triangle for each thread, then of the matrix; they lie in rows of the result.
    EACH(k, n) {
      if (!fine || !vectors) continue;
      Value* const row = made + n + k * n;
      row[k] = pb_value(1);
      for (long long i = k - 1; i >= 0; --i) {
        Value sum = pb_value(0);
        for (long long j = i + 1; j <= k; ++j) sum = pb_fused(t[i * n + j], row[j], sum);
        Value by = pb_sub(t[k * n + k], t[i * n + i]);
        if (pb_size(by) <= EPSILON * norm) by = pb_value(EPSILON * norm + SMALLEST);
        row[i] = pb_div(sum, by);
        const Real size = pb_size(row[i]);
        for (long long j = i; j <= k && size > Real(1e15); ++j) row[j] = pb_over(row[j], size);
      }
    }
    __syncthreads();
    EACH(i, n * n) {  // product k of the vectors: the triangle's are zero after element k
      if (!fine || !vectors) continue;
      const long long k = i / n, r = i % n;
      Value sum = pb_value(0);
      for (long long j = 0; j <= k; ++j) sum = pb_fused(z[r * n + j], made[n + k * n + j], sum);
      reinterpret_cast<Value*>(h)[i] = sum;
    }
    __syncthreads();
    EACH(k, n) {
      if (!fine || !vectors) continue;
      const Value* const row = reinterpret_cast<Value*>(h) + k * n;
      Real most = 0, square = 0;
      long long place = 0;
      for (long long j = 0; j < n; ++j) {
        const Real size = pb_length(row[j]);
        if (size > most) most = size, place = j;
      }
      for (long long j = 0; j < n; ++j) square += pb_square(pb_over(row[j], most));
      const Real length = most * pb_root(square);
      const Value phase = pb_over(pb_conj(row[place]), most);
      for (long long j = 0; j < n; ++j) {
        Value part = pb_mul(pb_over(row[j], length), phase);
        if (j == place || (PAIRS && values[k].y == 0)) part.y = 0;
        made[n + k * n + j] = part;
      }
    }
    __syncthreads();
    EACH(i, n * n) {
      const long long k = i / n;
      if (fine && vectors && PAIRS && values[k].y < 0) made[n + i] = pb_conj(made[i]);
    }
    __syncthreads();
  }
}"""


def words_of(dtype: DType) -> dict[str, str]:
    """What the texts say of a dtype, which may be real."""
    given = "Value" if dtype.is_complex else "Real"
    return {"threads": str(THREADS), "given": given}


def complex_of(dtype: DType) -> DType:
    """The complex dtype with parts of a dtype."""
    return dt.complex64 if dtype.real is dt.float32 else dt.complex128


def schur_source(dtype: DType) -> Source:
    """A source in which Schur forms can be made, of matrices of a dtype."""
    info, real = np.finfo(dtype.real.numpy), dtype.real
    source = source_of(complex_of(dtype))
    source.add("schur_limits", "\n".join([
        f"#define EPSILON {literal(float(info.eps), real)}",
        f"#define SMALLEST {literal(float(info.tiny / info.eps), real)}",
        f"#define SWEEPS {_SWEEPS}",
        f"#define PAIRS {int(not dtype.is_complex)}",
    ]))  # fmt: skip
    source.add("schur_common", COMMON.format(**words_of(dtype)))
    source.add("hessenberg", _HESSENBERG)
    source.add("qr", _COMPLEX if dtype.is_complex else _REAL)
    source.add("triangular", TRIANGULAR)
    return source


@cache
def schur(dtype: DType) -> tuple[str, str]:
    """The name of a kernel and its source: x (n x n) -> T and Z, both column after column."""
    source, start = schur_source(dtype), name_of(dtype, "")
    source.add("schur", named(_SCHUR, start))
    return f"{start}schur", source.text()


def schur_room(n: int) -> int:
    """Elements that `schur` works in for a matrix."""
    return 2 * n * n + n


@cache
def eig(dtype: DType) -> tuple[str, str]:
    """x (n x n) -> complex eigenvalues, then eigenvectors column after column."""
    source, start = schur_source(dtype), name_of(dtype, "")
    source.add("eig", named(_EIG, start))
    return f"{start}eig", source.text()


def eig_room(n: int) -> int:
    """Complex elements that `eig` works in for a matrix."""
    return 4 * n * n + 2 * n
