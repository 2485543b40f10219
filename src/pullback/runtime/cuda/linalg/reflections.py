"""The leaf of the tiled QR factorisation: reflections of at most LEAF columns.

    reflect (a, v, t, Nest<3>, Part a, Part v, Part t)

A thread block has a matrix, whose columns are dense. Sums along a column are chains of fused
multiply-adds, CHAINS of them in turns, which are joined as `factor_order` says; so many threads are
a group that makes one sum at a time.
"""

from __future__ import annotations

from functools import cache

from pullback.compile.kernel.factor_order import FAINT, LEAF, SUMS, VECTOR_BYTES
from pullback.core.dtypes import DType
from pullback.runtime.cuda.linalg.numbers import name_of, named, source_of
from pullback.runtime.cuda.printer import literal

__all__ = ["THREADS", "kernels"]

THREADS = 512  # of a thread block: 8 groups in float32, 16 in float64

_REFLECT = """
#define LEAF {leaf}
#define LANES {lanes}
#define CHAINS ({sums} * LANES)
#define GROUPS ({threads} / CHAINS)
// Element i of x, scaled down, or as it is.
struct Column {{ const Value* x; Real scale; }};
PB_DEVICE Value pb_element(const Column& c, long long i) {{
  return c.scale == 0 ? c.x[i] : pb_over(c.x[i], c.scale);
}}
// The chain of this thread in the sum of conj(x) y over [start, stop); beyond the last whole turn
// the vectors of a rest go to the first one.
PB_DEVICE Value pb_chain(const Column& x, const Column& y, long long start, long long stop,
    int own) {{
  const long long whole = start + (stop - start) / CHAINS * CHAINS;
  Value sum = pb_value(0);
  for (long long i = start + own; i < whole; i += CHAINS)
    sum = pb_fused(pb_conj(pb_element(x, i)), pb_element(y, i), sum);
  for (long long i = whole + own; own < LANES && i - own < stop; i += LANES) {{
    const bool inside = i < stop;
    sum = pb_fused(inside ? pb_conj(pb_element(x, i)) : pb_value(0),
                   inside ? pb_element(y, i) : pb_value(0), sum);
  }}
  return sum;
}}
// The sum of a group from its chains; all threads of the block come here.
PB_DEVICE Value pb_joined(Value (&chains)[GROUPS][CHAINS], int group, int own, Value chain) {{
  chains[group][own] = chain;
  for (int width = CHAINS / 2; width; width /= 2) {{
    __syncthreads();
    if (own < width) chains[group][own] = pb_add(chains[group][own], chains[group][own + width]);
  }}
  __syncthreads();
  return chains[group][0];
}}
KERNEL(reflect)(Value* __restrict__ a, Value* __restrict__ v, Value* __restrict__ t,
    const Nest<3> batch, const Part p, const Part q, const Part r) {{
  __shared__ Value chains[GROUPS][CHAINS];
  __shared__ Value products[LEAF];
  __shared__ Real sizes[{threads}];
  const int thread = threadIdx.x, group = thread / CHAINS, own = thread % CHAINS;
  const long long m = p.rows;
  const int n = (int)q.columns;
  for (long long item = blockIdx.x; item < batch.size; item += gridDim.x) {{
    long long at[3] = {{}};
    pb_locate(batch, item, at);
    Value *const columns = a + at[0] + p.at, *const vectors = v + at[1] + q.at;
    Value* const triangle = t + at[2] + r.at;
    for (int j = 0; j < n; ++j) {{
      Value *const column = columns + j * p.column, *const vector = vectors + j * q.column;
      Real rest = 0;
      for (long long i = j + 1 + thread; i < m; i += {threads}) {{
        const Real size = pb_size(column[i]);
        rest = size > rest ? size : rest;
      }}
      sizes[thread] = rest;
      // What is not finite has something to reflect, so that it goes on as NaN.
      for (int width = {threads} / 2; width; width /= 2) {{
        __syncthreads();
        if (thread < width) {{
          const Real other = sizes[thread + width];
          if (other > sizes[thread]) sizes[thread] = other;
        }}
      }}
      __syncthreads();
      rest = sizes[0];
      Value alpha = column[j];
      const Real size = pb_size(alpha);
      const bool some = rest != 0 || !pb_is_real(alpha);
      Real scale = some ? (size > rest ? size : rest) : Real(1);
      const Real lift = scale < {faint} ? {lift} : Real(1);
      if (lift != 1) {{
        alpha = pb_scale(alpha, lift);
        scale *= lift;
        for (long long i = j + 1 + thread; i < m; i += {threads})
          column[i] = pb_scale(column[i], lift);
        __syncthreads();
      }}
      const Column scaled = {{column, scale}};
      pb_joined(chains, group, own, pb_chain(scaled, scaled, j + 1, group ? j + 1 : m, own));
      const Real below = pb_real(chains[0][0]);
      const Value ratio = pb_over(alpha, scale);
      const Real norm = scale * pb_root({norm});
      const Real beta = some ? (pb_real(alpha) >= 0 ? -norm : norm) : pb_real(alpha);
      const Value tau = pb_over(pb_sub(pb_value(beta), alpha), some ? beta : Real(1));
      const Value by = some ? pb_sub(alpha, pb_value(beta)) : pb_value(1);
      for (long long i = j + 1 + thread; i < m; i += {threads}) vector[i] = pb_div(column[i], by);
      __syncthreads();
      if (thread == 0) {{
        vector[j] = pb_value(1);
        column[j] = pb_value(beta / lift);
      }}
      __syncthreads();
      const Column reflector = {{vector, 0}};
      for (int first = j + 1; first < n; first += GROUPS) {{
        const int k = first + group;
        Value* const other = columns + k * p.column;
        const Column operand = {{other, 0}};
        const Value dot = pb_joined(chains, group, own,
            pb_chain(reflector, operand, j, k < n ? m : j, own));
        const Value factor = pb_neg(pb_mul(pb_conj(tau), dot));
        for (long long i = j + own; k < n && i < m; i += CHAINS)
          other[i] = pb_fused(vector[i], factor, other[i]);
        __syncthreads();
      }}
      // Column j of T is - tau T V^H v_j above the diagonal.
      for (int first = 0; first < j; first += GROUPS) {{
        const int k = first + group;
        const Column before = {{vectors + k * q.column, 0}};
        const Value dot = pb_joined(chains, group, own,
            pb_chain(before, reflector, j, k < j ? m : j, own));
        if (own == 0 && k < j) products[k] = dot;
        __syncthreads();
      }}
      if (thread < n) {{
        Value* const row = triangle + thread * r.row;
        Value sum = pb_value(0);
        for (int k = thread; k < j; ++k) sum = pb_fused(row[k], products[k], sum);
        const Value found = pb_neg(pb_mul(tau, sum));
        row[j] = thread == j ? tau : thread > j ? pb_value(0) : found;
      }}
      __syncthreads();
    }}
  }}
}}"""


@cache
def kernels(dtype: DType) -> tuple[str, str]:
    """The start of the kernels' names, and their source."""
    source, start = source_of(dtype), name_of(dtype, "")
    norm = "pb_square(ratio) + below" if dtype.is_complex else "pb_fused(ratio, ratio, below)"
    faint = FAINT[dtype.real.name]
    sizes = {"faint": literal(faint, dtype.real), "lift": literal(1 / faint, dtype.real)}
    words = {"leaf": LEAF, "sums": SUMS, "lanes": VECTOR_BYTES // dtype.real.itemsize}
    text = _REFLECT.format(threads=THREADS, norm=norm, **words, **sizes)
    source.add("reflect", named(text, start))
    return start, source.text()
