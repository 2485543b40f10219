"""The leaves and moves of tiled factorisations as CUDA C, in the order of `factor_order`.

    copy     (out, x, status, Nest<2>, Part out, Part x, way, looks)
    take     (out, p, Nest<2>, Part out, Part p)                out -= p
    solve    (x, t, Nest<2>, Part x, Part t, unit)
    cholesky (a, status, Nest<1>, Part a, first)
    panel    (a, swaps, Nest<2>, Part a, Part swaps, first)
    exchange (a, swaps, Nest<2>, Part a, Part swaps, top, first, last)
    order    (swaps, status, Nest<1>, Part swaps, n, count)
    permute  (out, x, numbers, Nest<3>, Part out, Part x, Part numbers, back)
    identity (a, Nest<1>, Part a)
    regular  (a, status, Nest<1>, Part a)
    trim     (a, status, Nest<1>, Part a, side)
    report   (record, status, count, from, code)
    determinant (out, packed, Nest<2>, Part packed)

A thread has an element of copies, a column of `solve` and of `exchange`; a thread block has a
matrix of the other leaves. The `way` of a copy: 0 as it is, 1 the lower triangle
of (x + x^H) / 2, 2 conjugated.
"""

from __future__ import annotations

from functools import cache

from pullback.compile.kernel.factor_order import LEAF
from pullback.core.dtypes import DType
from pullback.runtime.cuda.linalg.numbers import name_of, named, source_of

__all__ = ["PANEL_THREADS", "kernels"]

PANEL_THREADS = 512  # of a thread block that has a panel of columns: rows are shared by threads

_MOVES = """
#define FOLLOWED 8192
#define PB_ELEMENTS(items, rows, columns) \\
  for (long long i = pb_first(); i < (items) * (rows) * (columns); i += pb_step()) { \\
    const long long c = i % (columns), r = i / (columns) % (rows), item = i / ((rows) * (columns));
KERNEL(copy)(Value* __restrict__ out, const Value* __restrict__ x, long long* status,
    const Nest<2> batch, const Part o, const Part p, const long long way, const long long looks) {
  PB_ELEMENTS(batch.size, o.rows, o.columns)
    if (way == 1 && c > r) continue;
    long long at[2] = {};
    pb_locate(batch, item, at);
    Value value = x[at[1] + pb_place(p, r, c)];
    if (way == 1) {
      const Value other = pb_conj(x[at[1] + pb_place(p, c, r)]);
      value = pb_fused(value, pb_value(Real(0.5)), pb_scale(other, Real(0.5)));
    }
    if (way == 2) value = pb_conj(value);
    out[at[0] + pb_place(o, r, c)] = value;
    if (looks && pb_is_odd(value)) status[item] = -1;
  }
}
KERNEL(take)(Value* __restrict__ out, const Value* __restrict__ x, const Nest<2> batch,
    const Part o, const Part p) {
  PB_ELEMENTS(batch.size, o.rows, o.columns)
    long long at[2] = {};
    pb_locate(batch, item, at);
    Value* const place = out + at[0] + pb_place(o, r, c);
    *place = pb_sub(*place, x[at[1] + pb_place(p, r, c)]);
  }
}
KERNEL(identity)(Value* __restrict__ a, const Nest<1> batch, const Part p) {
  PB_ELEMENTS(batch.size, p.rows, p.columns)
    long long at[1] = {};
    pb_locate(batch, item, at);
    a[at[0] + pb_place(p, r, c)] = pb_value(r == c);
  }
}
KERNEL(trim)(Value* __restrict__ a, const long long* __restrict__ status, const Nest<1> batch,
    const Part p, const long long side) {
  PB_ELEMENTS(batch.size, p.rows, p.columns)
    const bool odd = status[item] != 0;
    if (!odd && !(side > 0 && c > r) && !(side < 0 && c < r)) continue;
    long long at[1] = {};
    pb_locate(batch, item, at);
    a[at[0] + pb_place(p, r, c)] = odd ? pb_scale(pb_value(1), pb_nan()) : pb_value(0);
  }
}
KERNEL(permute)(Value* __restrict__ out, const Value* __restrict__ x,
    const Value* __restrict__ numbers, const Nest<3> batch, const Part o, const Part p,
    const Part n, const long long back) {
  PB_ELEMENTS(batch.size, p.rows, p.columns)
    long long at[3] = {};
    pb_locate(batch, item, at);
    const long long number = (long long)pb_real(numbers[at[2] + pb_place(n, 0, r)]);
    const long long here = back ? r : number, there = back ? number : r;
    out[at[0] + pb_place(o, there, c)] = x[at[1] + pb_place(p, here, c)];
  }
}
KERNEL(exchange)(Value* __restrict__ a, const Value* __restrict__ swaps, const Nest<2> batch,
    const Part p, const Part s, const long long top, const long long first, const long long last) {
  for (long long i = pb_first(); i < batch.size * p.columns; i += pb_step()) {
    long long at[2] = {};
    pb_locate(batch, i / p.columns, at);
    const long long c = i % p.columns;
    for (long long k = first; k < last; ++k) {
      const long long row = (long long)pb_real(swaps[at[1] + pb_place(s, 0, k)]);
      Value* const here = a + at[0] + pb_place(p, k - top, c);
      Value* const there = a + at[0] + pb_place(p, row - top, c);
      const Value held = *here;
      *here = *there;
      *there = held;
    }
  }
}
// The permutation is followed in shared memory, where n numbers fit.
KERNEL(order)(Value* __restrict__ swaps, const long long* __restrict__ status,
    const Nest<1> batch, const Part p, const long long n, const long long count) {
  __shared__ int numbers[FOLLOWED];
  const long long own = threadIdx.x, wide = blockDim.x;
  for (long long item = blockIdx.x; item < batch.size; item += gridDim.x) {
    long long at[1] = {};
    pb_locate(batch, item, at);
    Value* const row = swaps + at[0] + p.at;
    const long long known = status[item] ? 0 : count;
    const bool follows = n <= FOLLOWED;
    for (long long k = own; k < n; k += wide) {
      if (follows) numbers[k] = (int)k;
      else row[n + k] = pb_value((Real)k);
    }
    __syncthreads();
    for (long long k = 0; own == 0 && k < known; ++k) {
      const long long other = (long long)pb_real(row[k]);
      if (follows) {
        const int held = numbers[k];
        numbers[k] = numbers[other];
        numbers[other] = held;
      } else {
        const Value held = row[n + k];
        row[n + k] = row[n + other];
        row[n + other] = held;
      }
    }
    __syncthreads();
    for (long long k = own; follows && k < n; k += wide) row[n + k] = pb_value((Real)numbers[k]);
    for (long long k = known + own; k < n; k += wide) row[k] = pb_value(0);
    __syncthreads();
  }
}
KERNEL(regular)(const Value* __restrict__ a, unsigned long long* status, const Nest<1> batch,
    const Part p) {
  for (long long i = pb_first(); i < batch.size * p.rows; i += pb_step()) {
    long long at[1] = {};
    pb_locate(batch, i / p.rows, at);
    const long long k = i % p.rows;
    if (pb_is_zero(a[at[0] + pb_place(p, k, k)]))
      atomicMax(&status[i / p.rows], (unsigned long long)(p.rows - k));
  }
}
// Of the first matrix with a status above 0, its status, or what is left of `from`.
KERNEL(report)(Record* record, const long long* __restrict__ status, const long long count,
    const long long from, const long long code) {
  __shared__ unsigned long long first;
  if (threadIdx.x == 0) first = 0;
  __syncthreads();
  for (long long i = threadIdx.x; i < count; i += blockDim.x)
    if (status[i] > 0) {
      atomicMax(&first, (unsigned long long)(count - i));
      break;
    }
  __syncthreads();
  if (threadIdx.x == 0 && first && !record->code) {
    record->position = count - (long long)first;
    const long long value = status[record->position];
    record->value = from ? from - value : value;
    record->code = code;
    *record->told = 1;
  }
}
KERNEL(determinant)(Value* __restrict__ out, const Value* __restrict__ packed,
    const Nest<2> batch, const Part p) {
  for (long long item = pb_first(); item < batch.size; item += pb_step()) {
    long long at[2] = {};
    pb_locate(batch, item, at);
    const Value* const f = packed + at[1];
    Value total = pb_value(1);
    for (long long i = 0; i < p.columns; ++i) {
      const Value pivot = f[pb_place(p, i, i)];
      const bool stayed = pb_real(f[pb_place(p, p.columns, i)]) == (Real)i;
      total = pb_mul(total, stayed ? pivot : pb_neg(pivot));
    }
    out[at[0]] = total;
  }
}"""

_LEAVES = """
#define LEAF {leaf}
KERNEL(solve)(Value* __restrict__ b, const Value* __restrict__ t, const Nest<2> batch,
    const Part p, const Part q, const long long unit) {{
  for (long long i = pb_first(); i < batch.size * p.columns; i += pb_step()) {{
    long long at[2] = {{}};
    pb_locate(batch, i / p.columns, at);
    Value* const x = b + at[0] + pb_place(p, 0, i % p.columns);
    const Value* const own = t + at[1] + q.at;
    const int n = (int)q.rows;
    Value y[LEAF];
#pragma unroll
    for (int j = 0; j < LEAF; ++j) y[j] = j < n ? x[j * p.row] : pb_value(0);
#pragma unroll
    for (int j = 0; j < LEAF; ++j) {{
      if (j < n) {{
        const Value* const column = own + j * q.column;
        y[j] = pb_div(y[j], unit ? pb_value(1) : column[j * q.row]);
#pragma unroll
        for (int k = j + 1; k < LEAF; ++k)
          if (k < n) y[k] = pb_less(y[k], column[k * q.row], y[j]);
      }}
    }}
#pragma unroll
    for (int j = 0; j < LEAF; ++j)
      if (j < n) x[j * p.row] = y[j];
  }}
}}
KERNEL(cholesky)(Value* __restrict__ a, long long* status, const Nest<1> batch, const Part p,
    const long long first) {{
  __shared__ Value s[LEAF][LEAF + 1];
  const int i = threadIdx.x, n = (int)p.rows;
  for (long long item = blockIdx.x; item < batch.size; item += gridDim.x) {{
    long long at[1] = {{}};
    pb_locate(batch, item, at);
    Value* const own = a + at[0];
    for (int j = 0; i < n && j <= i; ++j) s[i][j] = own[pb_place(p, i, j)];
    __syncthreads();
    for (int j = 0; j < n; ++j) {{
      const Real square = pb_real(s[j][j]);
      __syncthreads();
      if (i == j && !(square > 0) && status[item] == 0) status[item] = first + j + 1;
      const Real root = pb_root(square);
      if (i == j) s[i][j] = pb_value(root);
      else if (i > j && i < n) s[i][j] = pb_over(s[i][j], root);
      __syncthreads();
      for (int k = j + 1; i < n && k <= i; ++k)
        s[i][k] = pb_fused(s[i][j], pb_neg(pb_conj(s[k][j])), s[i][k]);
      __syncthreads();
    }}
    for (int j = 0; i < n && j <= i; ++j) own[pb_place(p, i, j)] = s[i][j];
    __syncthreads();
  }}
}}
KERNEL(panel)(Value* __restrict__ a, Value* __restrict__ swaps, const Nest<2> batch,
    const Part p, const Part s, const long long first) {{
  __shared__ Real sizes[{threads}];
  __shared__ long long rows[{threads}];
  const int own = threadIdx.x, n = (int)p.columns;
  const long long m = p.rows;
  for (long long item = blockIdx.x; item < batch.size; item += gridDim.x) {{
    long long at[2] = {{}};
    pb_locate(batch, item, at);
    Value* const base = a + at[0] + p.at;
    for (int j = 0; j < n; ++j) {{
      Value* const column = base + j * p.column;
      Real most = -1;
      long long row = j;
      for (long long i = j + own; i < m; i += {threads}) {{
        const Real size = pb_size(column[i]);
        if (size > most) most = size, row = i;
      }}
      sizes[own] = most;
      rows[own] = row;
      for (int width = {threads} / 2; width; width /= 2) {{
        __syncthreads();
        if (own < width) {{
          const Real other = sizes[own + width];
          const long long there = rows[own + width];
          if (other > sizes[own] || (other == sizes[own] && other >= 0 && there < rows[own]))
            sizes[own] = other, rows[own] = there;
        }}
      }}
      __syncthreads();
      row = sizes[0] < 0 ? j : rows[0];
      if (own == 0) swaps[at[1] + pb_place(s, 0, first + j)] = pb_value((Real)(row + first));
      if (own < n && row != j) {{
        Value* const other = base + own * p.column;
        const Value held = other[j];
        other[j] = other[row];
        other[row] = held;
      }}
      __syncthreads();
      const Value pivot = pb_is_zero(column[j]) ? pb_value(1) : column[j];
      for (long long i = j + 1 + own; i < m; i += {threads}) {{
        const Value low = pb_div(column[i], pivot);
        column[i] = low;
        for (int c = j + 1; c < n; ++c) {{
          Value* const place = base + c * p.column;
          place[i] = pb_fused(low, pb_neg(place[j]), place[i]);
        }}
      }}
      __syncthreads();
    }}
  }}
}}"""


@cache
def kernels(dtype: DType) -> tuple[str, str]:
    """The start of the kernels' names, and their source."""
    source, start = source_of(dtype), name_of(dtype, "")
    source.add("moves", named(_MOVES, start))
    source.add("leaves", named(_LEAVES.format(leaf=LEAF, threads=PANEL_THREADS), start))
    return start, source.text()
