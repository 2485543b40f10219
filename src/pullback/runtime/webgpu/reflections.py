"""The leaf of the tiled QR factorisation as WGSL: reflections of at most LEAF columns.

A workgroup has a matrix, whose columns are dense: blocks 0, 1 and 2 are a, v and t of
`TiledSteps.qr`. Sums along a column are chains of fused multiply-adds, CHAINS of them in turns,
which are joined as `factor_order` says; so many threads are a group that makes one sum at a time.
"""

from __future__ import annotations

import numpy as np

from pullback.compile.kernel.factor_order import FAINT, LEAF, SUMS, VECTOR_BYTES
from pullback.runtime.webgpu.nests import THREADS

__all__ = ["BODY", "SHARED"]

_LANES = VECTOR_BYTES // 4
_CHAINS = SUMS * _LANES
_GROUPS = THREADS // _CHAINS
_FAINT = FAINT["float32"]


def _bits(value: float) -> str:
    return hex(np.float32(value).view(np.int32))


SHARED = f"""var<workgroup> chains: array<Value, {THREADS}>;
var<workgroup> products: array<Value, {LEAF}>;
var<workgroup> sizes: array<f32, {THREADS}>;
// Element i of column j of a, scaled down, or of v.
fn element(of_a: bool, i: u32, j: u32, scale: f32, o0: u32, o1: u32) -> Value {{
  if (!of_a) {{ return get1(i, j, o1); }}
  let x = get0(i, j, o0);
  if (r_is_zero(scale)) {{ return x; }}
  return v_over(x, scale);
}}
// The sum of conj(x) y over [start, stop), of this thread's group; all threads come here. The chain
// of a thread: beyond the last whole turn the vectors of a rest go to the first one.
fn dot(x_of_a: bool, j: u32, y_of_a: bool, k: u32, scale: f32, start: u32, stop: u32, t: u32,
       o0: u32, o1: u32) -> Value {{
  let own = t % {_CHAINS}u;
  let length = select(0u, stop - start, stop > start);
  let whole = start + length / {_CHAINS}u * {_CHAINS}u;
  let rest = (start + length - whole + {_LANES - 1}u) / {_LANES}u;
  let turns = length / {_CHAINS}u;
  var sum = v_value(pb_c(0u));
  for (var n = 0u; n < turns + select(0u, rest, own < {_LANES}u); n++) {{
    let i = select(whole + (n - turns) * {_LANES}u, start + n * {_CHAINS}u, n < turns) + own;
    var x = v_value(pb_c(0u));
    var y = x;
    if (i < stop) {{
      x = v_conj(element(x_of_a, i, j, scale, o0, o1));
      y = element(y_of_a, i, k, scale, o0, o1);
    }}
    sum = v_fused(x, y, sum);
  }}
  chains[t] = sum;
  for (var width = {_CHAINS // 2}u; width > 0u; width /= 2u) {{
    workgroupBarrier();
    if (own < width) {{ chains[t] = v_add(chains[t], chains[t + width]); }}
  }}
  workgroupBarrier();
  let found = chains[t - own];
  workgroupBarrier();
  return found;
}}
fn both_barriers() {{
  storageBarrier();
  workgroupBarrier();
}}"""

BODY = f"""  let rows = arg(3u);
  let columns = arg(9u);
  let group = t / {_CHAINS}u;
  let zero = pb_c(0u);
  let one = pb_c(0x3f800000u);
  for (var j = 0u; j < columns; j++) {{
    var most = zero;
    for (var i = j + 1u + t; i < rows; i += {THREADS}u) {{
      let size = v_size(get0(i, j, o0));
      if (size > most) {{ most = size; }}
    }}
    sizes[t] = most;
    for (var width = {THREADS // 2}u; width > 0u; width /= 2u) {{
      workgroupBarrier();
      if (t < width && sizes[t + width] > sizes[t]) {{ sizes[t] = sizes[t + width]; }}
    }}
    workgroupBarrier();
    let rest = sizes[0];
    var alpha = get0(j, j, o0);
    let size = v_size(alpha);
    // What is not finite has something to reflect, so that it goes on as NaN.
    let some = !r_is_zero(rest) || !v_is_real(alpha);
    var scale = select(one, select(rest, size, size > rest), some);
    var lift = one;
    if (scale < pb_c({_bits(_FAINT)}u)) {{
      lift = pb_c({_bits(1 / _FAINT)}u);
      alpha = v_scale(alpha, lift);
      scale = r_mul(scale, lift);
      for (var i = j + 1u + t; i < rows; i += {THREADS}u) {{
        put0(i, j, o0, v_scale(get0(i, j, o0), lift));
      }}
    }}
    both_barriers();
    let scaled = dot(true, j, true, j, scale, j + 1u, select(j + 1u, rows, group == 0u), t, o0, o1);
    if (t == 0u) {{ products[0] = scaled; }}
    workgroupBarrier();
    let below = v_real(products[0]);
    let ratio = v_over(alpha, scale);
    let norm = r_mul(scale, r_root(NORM));
    let beta = select(v_real(alpha), select(norm, f32_neg(norm), v_real(alpha) >= zero), some);
    let tau = v_over(v_sub(v_value(beta), alpha), select(one, beta, some));
    let by = select(v_value(one), v_sub(alpha, v_value(beta)), some);
    for (var i = j + 1u + t; i < rows; i += {THREADS}u) {{
      put1(i, j, o1, v_div(get0(i, j, o0), by));
    }}
    both_barriers();
    if (t == 0u) {{
      put1(j, j, o1, v_value(one));
      put0(j, j, o0, v_value(r_over(beta, lift)));
    }}
    both_barriers();
    for (var first = j + 1u; first < columns; first += {_GROUPS}u) {{
      let k = first + group;
      let along = dot(false, j, true, k, zero, j, select(j, rows, k < columns), t, o0, o1);
      let factor = v_neg(v_mul(v_conj(tau), along));
      for (var i = j + t % {_CHAINS}u; k < columns && i < rows; i += {_CHAINS}u) {{
        put0(i, k, o0, v_fused(get1(i, j, o1), factor, get0(i, k, o0)));
      }}
      both_barriers();
    }}
    // Column j of T is - tau T V^H v_j above the diagonal.
    for (var first = 0u; first < j; first += {_GROUPS}u) {{
      let k = first + group;
      let along = dot(false, k, false, j, zero, j, select(j, rows, k < j), t, o0, o1);
      if (t % {_CHAINS}u == 0u && k < j) {{ products[k] = along; }}
      workgroupBarrier();
    }}
    if (t < columns) {{
      var sum = v_value(zero);
      for (var k = t; k < j; k++) {{ sum = v_fused(get2(t, k, o2), products[k], sum); }}
      let found = select(v_value(zero), v_neg(v_mul(tau, sum)), t < j);
      put2(t, j, o2, select(found, tau, t == j));
    }}
    both_barriers();
  }}"""
