"""Eigenvalues and singular values of matrices of any size, by Jacobi's method.

    eigh (out, x, work, status, Nest<2>, Part x, length, vectors)
    svd  (out, x, work, status, Nest<2>, Part x, length, basis)

A thread block has a matrix, and turns pairs of rows and columns that have none in common side by
side, round after round of a tournament, until a sweep over all pairs leaves nothing to do. `length`
counts the elements of a result; `work` has room for `eigh_room` or `svd_room` elements of each
matrix. `basis` counts the singular vectors on the longer side; without, there are only values. The
bits are the same every time, but not those of the CPU, which calls LAPACK.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pullback.compile.kernel.factor_order import JACOBI_NOTHING
from pullback.core.dtypes import DType
from pullback.runtime.cuda.linalg.numbers import name_of, named, source_of
from pullback.runtime.cuda.printer import literal

__all__ = ["THREADS", "eigh_room", "kernels", "svd_room"]

THREADS = 256  # of a thread block, which works on one matrix
_SWEEPS = 30  # at most: some ten are usual

_COMMON = """
#define THREADS {threads}
// The largest number that the threads of a block have.
PB_DEVICE Real pb_largest(Real own) {{
  __shared__ Real all[THREADS];
  all[threadIdx.x] = own;
  for (int width = THREADS / 2; width; width /= 2) {{
    __syncthreads();
    if (threadIdx.x < width && all[threadIdx.x + width] > all[threadIdx.x])
      all[threadIdx.x] = all[threadIdx.x + width];
  }}
  __syncthreads();
  const Real found = all[0];
  __syncthreads();
  return found;
}}
// Whether a thread of a block says so.
PB_DEVICE bool pb_any(bool own) {{ return pb_largest(Real(own)) > 0; }}
// Opponents of a round among an even number of players, of whom the last one stays where he is.
PB_DEVICE void pb_pair(long long players, long long round, long long i, long long& p,
    long long& q) {{
  const long long others = players - 1;
  p = (round + i) % others;
  q = i ? (round + others - i) % others : others;
  if (p > q) {{
    const long long held = p;
    p = q;
    q = held;
  }}
}}
struct Turn {{ Real t, c, s, a; Value phase; }};  // a: what vanishes, without its phase
// The rotation that makes a Hermitian 2 x 2 matrix diagonal, of its second column times the phase.
PB_DEVICE Turn pb_turn(Real app, Real aqq, Value apq) {{
  Turn turn;
  {phase}
  const bool none = turn.a == 0;
  const Real ratio = ((aqq - app) * Real(0.5)) / (none ? Real(1) : turn.a);
  const Real root = pb_root(pb_fused(ratio, ratio, Real(1)));
  turn.t = none ? Real(0) : pb_sign(Real(1), ratio) / (pb_abs(ratio) + root);
  turn.c = Real(1) / pb_root(pb_fused(turn.t, turn.t, Real(1)));
  turn.s = turn.t * turn.c;
  return turn;
}}
PB_DEVICE void pb_rotate(const Turn& t, Value phase, Value& x, Value& y) {{
  const Value z = pb_mul(phase, y);
  y = pb_add(pb_scale(x, t.s), pb_scale(z, t.c));
  x = pb_sub(pb_scale(x, t.c), pb_scale(z, t.s));
}}
PB_DEVICE bool pb_all_numbers(const Value* x, const Part& p) {{
  bool odd = false;
  for (long long i = threadIdx.x; i < p.rows * p.columns; i += THREADS)
    odd = odd || pb_is_odd(x[pb_place(p, i / p.columns, i % p.columns)]);
  return !pb_any(odd);
}}
// The power of 2 below the largest element, and 1 for zeros.
PB_DEVICE Real pb_power(const Value* x, const Part& p) {{
  Real most = 0;
  for (long long i = threadIdx.x; i < p.rows * p.columns; i += THREADS) {{
    const Real size = pb_size(x[pb_place(p, i / p.columns, i % p.columns)]);
    most = size > most ? size : most;
  }}
  const Real power = {from_bits}({to_bits}(pb_largest(most)) & {exponent});
  return power > 0 && power < {infinity} ? power : Real(1);
}}"""

_EIGH = """
KERNEL(eigh)(Result* __restrict__ out, const Value* __restrict__ given, Value* __restrict__ work,
    long long* status, const Nest<2> batch, const Part p, const long long length,
    const long long vectors) {{
  const long long n = p.rows, players = n + n % 2, own = threadIdx.x;
  for (long long item = blockIdx.x; item < batch.size; item += gridDim.x) {{
    long long at[2] = {{}};
    pb_locate(batch, item, at);
    const Value* const x = given + at[1];
    Result* const made = out + at[0];
    Value *const a = work + item * (2 * n * n + 4 * players), *const v = a + n * n;
    Turn* const turns = reinterpret_cast<Turn*>(v + n * n);
    const bool fine = pb_all_numbers(x, p);
    const Real scale = pb_power(x, p);
    Real norm = 0;
    for (long long i = own; i < n * n; i += THREADS) {{
      const long long r = i / n, c = i % n;
      const Value one = pb_over(x[pb_place(p, r, c)], scale);
      const Value two = pb_conj(pb_over(x[pb_place(p, c, r)], scale));
      a[i] = pb_scale(pb_add(one, two), Real(0.5));
      v[i] = pb_value(Real(r == c));
      const Real size = pb_size(a[i]);
      norm = size > norm ? size : norm;
    }}
    norm = pb_largest(norm);
    bool done = !fine || n == 1;
    for (int sweep = 0; sweep < {sweeps} && !done; ++sweep) {{
      Real most = 0;
      for (long long round = 0; round < players - 1; ++round) {{
        for (long long i = own; i < players / 2; i += THREADS) {{
          long long r, c;
          pb_pair(players, round, i, r, c);
          Turn turn = {{}};
          if (c < n) {{
            turn = pb_turn(pb_real(a[r * n + r]), pb_real(a[c * n + c]), a[r * n + c]);
            most = pb_abs(turn.a) > most ? pb_abs(turn.a) : most;
          }}
          turns[i] = turn;
        }}
        __syncthreads();
        for (long long k = own; k < players / 2 * n; k += THREADS) {{
          long long r, c;
          pb_pair(players, round, k / n, r, c);
          const long long j = k % n;
          const Turn turn = turns[k / n];
          if (c >= n || turn.a == 0) continue;
          pb_rotate(turn, pb_conj(turn.phase), a[r * n + j], a[c * n + j]);
          if (vectors) pb_rotate(turn, turn.phase, v[r * n + j], v[c * n + j]);
        }}
        __syncthreads();
        for (long long k = own; k < players / 2 * n; k += THREADS) {{
          long long r, c;
          pb_pair(players, round, k % (players / 2), r, c);
          const long long j = k / (players / 2);
          const Turn turn = turns[k % (players / 2)];
          if (c >= n || turn.a == 0) continue;
          pb_rotate(turn, turn.phase, a[j * n + r], a[j * n + c]);
        }}
        __syncthreads();
        for (long long i = own; i < players / 2; i += THREADS) {{
          long long r, c;
          pb_pair(players, round, i, r, c);
          if (c >= n || turns[i].a == 0) continue;
          a[r * n + c] = a[c * n + r] = pb_value(0);
          a[r * n + r] = pb_value(pb_real(a[r * n + r]));
          a[c * n + c] = pb_value(pb_real(a[c * n + c]));
        }}
        __syncthreads();
      }}
      done = pb_largest(most) <= norm * {epsilon};
    }}
    if (own == 0) status[item] = done ? 0 : n;
    for (long long i = own; i < n; i += THREADS) {{
      const Real value = pb_real(a[i * n + i]);
      long long rank = 0;
      for (long long k = 0; k < n; ++k) {{
        const Real other = pb_real(a[k * n + k]);
        rank += other < value || (other == value && k < i);
      }}
      if (fine) pb_keep(made[rank], pb_value(value * scale));
      for (long long j = 0; j < n && fine && vectors; ++j)
        pb_keep(made[n + rank * n + j], v[i * n + j]);
    }}
    for (long long i = own; i < length && !fine; i += THREADS)
      pb_keep(made[i], pb_scale(pb_value(1), pb_nan()));
    __syncthreads();
  }}
}}"""

# Rows of g are the columns of x, or the conjugated rows if there are fewer of them; they are turned
# in pairs until all are orthogonal. `extra` rows follow that make them a basis.
_SVD = """
PB_DEVICE Value pb_joined(Value sum) {{  // of the lanes of a warp
  for (int by = 16; by; by /= 2) sum = pb_add(sum, pb_down(sum, by));
  return pb_first_lane(sum);
}}
PB_DEVICE Value pb_dot(const Value* x, const Value* y, long long count) {{
  Value sum = pb_value(0);
  for (long long i = threadIdx.x % 32; i < count; i += 32)
    sum = pb_fused(pb_conj(x[i]), y[i], sum);
  return pb_joined(sum);
}}
KERNEL(svd)(Result* __restrict__ out, const Value* __restrict__ given, Value* __restrict__ work,
    long long* status, const Nest<2> batch, const Part p, const long long length,
    const long long basis) {{
  __shared__ unsigned long long chosen;
  const bool wide = p.rows < p.columns;
  const long long n = wide ? p.rows : p.columns, m = wide ? p.columns : p.rows;
  const long long players = n + n % 2, own = threadIdx.x, warp = own / 32, lane = own % 32;
  const bool vectors = basis > 0;
  const long long held = vectors ? basis : n;
  for (long long item = blockIdx.x; item < batch.size; item += gridDim.x) {{
    long long at[2] = {{}};
    pb_locate(batch, item, at);
    const Value* const x = given + at[1];
    Result* const made = out + at[0];
    Value *const g = work + item * (held * m + n * n + 2 * n + m), *const v = g + held * m;
    Value *const squares = v + n * n, *const ranks = squares + n, *const rest = ranks + n;
    const bool fine = pb_all_numbers(x, p);
    const Real scale = pb_power(x, p);
    for (long long i = own; i < n * m; i += THREADS) {{
      const long long r = i / m, c = i % m;
      const Value one = pb_over(x[wide ? pb_place(p, r, c) : pb_place(p, c, r)], scale);
      g[i] = wide ? pb_conj(one) : one;
    }}
    for (long long i = own; i < n * n; i += THREADS) v[i] = pb_value(Real(i / n == i % n));
    __syncthreads();
    const Real limit = {epsilon} * pb_root((Real)m);
    bool done = !fine;
    for (int sweep = 0; sweep < {sweeps} && !done; ++sweep) {{
      bool turned = false;
      for (long long round = 0; round < players - 1; ++round) {{
        for (long long i = warp; i < players / 2; i += THREADS / 32) {{
          long long r, c;
          pb_pair(players, round, i, r, c);
          if (c >= n) continue;
          Value *const one = g + r * m, *const two = g + c * m;
          const Real app = pb_real(pb_dot(one, one, m)), aqq = pb_real(pb_dot(two, two, m));
          const Turn turn = pb_turn(app, aqq, pb_dot(one, two, m));
          if (!(pb_abs(turn.a) > limit * pb_root(app) * pb_root(aqq))) continue;
          turned = true;
          for (long long k = lane; k < m; k += 32) pb_rotate(turn, turn.phase, one[k], two[k]);
          for (long long k = lane; k < n && vectors; k += 32)
            pb_rotate(turn, turn.phase, v[r * n + k], v[c * n + k]);
        }}
        __syncthreads();
      }}
      done = !pb_any(turned);
    }}
    if (own == 0) status[item] = done ? 0 : 1;
    for (long long i = warp; i < n; i += THREADS / 32) {{
      const Value square = pb_dot(g + i * m, g + i * m, m);
      if (lane == 0) squares[i] = square;
    }}
    __syncthreads();
    for (long long i = own; i < n; i += THREADS) {{
      const Real square = pb_real(squares[i]);
      long long rank = 0;
      for (long long k = 0; k < n; ++k) {{
        const Real other = pb_real(squares[k]);
        rank += other > square || (other == square && k < i);
      }}
      ranks[i] = pb_value((Real)rank);
      if (!fine) continue;
      pb_keep(made[rank], pb_value(pb_root(square) * scale));
    }}
    __syncthreads();
    for (long long i = own; i < n * m && vectors; i += THREADS) {{
      const Real square = pb_real(squares[i / m]);
      if (!(square < {none})) g[i] = pb_over(g[i], pb_root(square));
    }}
    __syncthreads();
    // What has no direction of its own gets one: what is left of the axis farthest from all others.
    for (long long i = 0; i < (vectors && fine ? basis : 0); ++i) {{
      if (i < n && !(pb_real(squares[i]) < {none})) continue;
      Real best = -1;
      for (long long axis = own; axis < m; axis += THREADS) {{
        Real covered = 0;
        for (long long k = 0; k < (i < n ? n : i); ++k)
          if (k >= n || k < i || !(pb_real(squares[k]) < {none}))
            covered += pb_square(g[k * m + axis]);
        rest[axis] = pb_value(Real(2) - covered);
        best = Real(2) - covered > best ? Real(2) - covered : best;
      }}
      best = pb_largest(best);
      if (own == 0) chosen = 0;
      __syncthreads();
      for (long long axis = own; axis < m; axis += THREADS)
        if (pb_real(rest[axis]) == best) atomicMax(&chosen, (unsigned long long)(m - axis));
      __syncthreads();
      Value* const row = g + i * m;
      for (long long k = own; k < m; k += THREADS)
        row[k] = pb_value(Real(k == m - (long long)chosen));
      __syncthreads();
      for (int again = 0; again < 2; ++again)  // the second time takes away what rounding left
        for (long long k = 0; k < (i < n ? n : i); ++k) {{
          if (k == i || (k < n && k > i && pb_real(squares[k]) < {none})) continue;
          const Value along = pb_dot(g + k * m, row, m);
          __syncthreads();
          for (long long j = own; j < m; j += THREADS)
            row[j] = pb_less(row[j], along, g[k * m + j]);
          __syncthreads();
        }}
      const Real size = pb_root(pb_real(pb_dot(row, row, m)));
      __syncthreads();
      for (long long k = own; k < m; k += THREADS) row[k] = pb_over(row[k], size);
      __syncthreads();
    }}
    // Both are row-major.
    if (vectors && fine) {{
      const long long kept = basis, u = wide ? n : kept;
      Result *const us = made + n, *const vs = us + p.rows * u;
      for (long long i = own; i < kept * m; i += THREADS) {{
        const long long row = i / m, k = i % m;
        const long long rank = row < n ? (long long)pb_real(ranks[row]) : row;
        if (wide) pb_keep(vs[rank * m + k], pb_conj(g[i]));
        else pb_keep(us[k * u + rank], g[i]);
      }}
      for (long long i = own; i < n * n; i += THREADS) {{
        const long long rank = (long long)pb_real(ranks[i / n]), k = i % n;
        if (wide) pb_keep(us[k * u + rank], v[i]);
        else pb_keep(vs[rank * n + k], pb_conj(v[i]));
      }}
    }}
    for (long long i = own; i < length && !fine; i += THREADS)
      pb_keep(made[i], pb_scale(pb_value(1), pb_nan()));
    __syncthreads();
  }}
}}"""

_KEEP = "PB_DEVICE void pb_keep(Value& to, Value x) { to = x; }"
_REAL = """
typedef Real Result;
PB_DEVICE Value pb_down(Value x, int by) { return __shfl_down_sync(0xffffffffu, x, by, 32); }
PB_DEVICE Value pb_first_lane(Value x) { return __shfl_sync(0xffffffffu, x, 0, 32); }"""
_COMPLEX = """
PB_DEVICE void pb_keep(Real& to, Value x) { to = x.x; }
PB_DEVICE Value pb_down(Value x, int by) {
  return Value{__shfl_down_sync(0xffffffffu, x.x, by, 32),
               __shfl_down_sync(0xffffffffu, x.y, by, 32)};
}
PB_DEVICE Value pb_first_lane(Value x) {
  return Value{__shfl_sync(0xffffffffu, x.x, 0, 32), __shfl_sync(0xffffffffu, x.y, 0, 32)};
}"""
_REAL_PHASE = "turn.phase = Real(1);\n  turn.a = apq;"
_COMPLEX_PHASE = """// scaled, so that the phase has length 1 however small the element is
  const Real most = pb_abs(apq.x) > pb_abs(apq.y) ? pb_abs(apq.x) : pb_abs(apq.y);
  const Value direction = pb_over(apq, most == 0 ? Real(1) : most);
  const Real length = pb_root(pb_square(direction));
  turn.a = most * length;
  turn.phase = turn.a == 0 ? pb_value(1) : pb_over(pb_conj(direction), length);"""


@cache
def kernels(dtype: DType, end: str, vectors: bool) -> tuple[str, str]:
    """The name of the kernel `eigh` or `svd` and its source; singular values and eigenvalues are
    elements of the matrix's dtype if there are vectors too, else real.
    """
    source, start = source_of(dtype), name_of(dtype, "")
    single = dtype.real.itemsize == 4
    words = {
        "threads": THREADS,
        "sweeps": _SWEEPS,
        "phase": _COMPLEX_PHASE if dtype.is_complex else _REAL_PHASE,
        "epsilon": literal(float(np.finfo(dtype.real.numpy).eps), dtype.real),
        "infinity": literal(float("inf"), dtype.real),
        "none": literal(JACOBI_NOTHING[dtype.real.name], dtype.real),
        "exponent": "0x7F800000" if single else "0x7FF0000000000000LL",
        "to_bits": "__float_as_int" if single else "__double_as_longlong",
        "from_bits": "__int_as_float" if single else "__longlong_as_double",
    }
    result = f"\ntypedef {'Value' if vectors else 'Real'} Result;" if dtype.is_complex else ""
    source.add("jacobi_parts", _KEEP + (_COMPLEX if dtype.is_complex else _REAL) + result)
    source.add("jacobi", _COMMON.format(**words))
    source.add(end, named({"eigh": _EIGH, "svd": _SVD}[end].format(**words), start))
    return start + end, source.text()


def eigh_room(n: int) -> int:
    """Elements that `eigh` works in for a matrix."""
    return 2 * n * n + 4 * (n + n % 2)


def svd_room(rows: int, columns: int, basis: int) -> int:
    """Elements that `svd` works in for a matrix."""
    n, m = sorted((rows, columns))
    return (basis or n) * m + n * n + 2 * n + m
