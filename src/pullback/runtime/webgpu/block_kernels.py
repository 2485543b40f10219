"""Kernels that have a workgroup for each matrix of a batch, as WGSL.

Array 0 is `work`, elements of the kernel's numbers (`value_at`, `put`); array 1 has the statuses,
and those from 2 on belong to the kernel; all are dense. Words: matrices, then the kernel's own
(`own(j)`). A body knows its `item` and the thread `t`; `EACH(i, n) {` shares i < n by threads.

A barrier must be met by all threads, and compilers want to see that: what decides about the way
to one is `agreed` first.
"""

from __future__ import annotations

import re

from pullback.core.dtypes import DType
from pullback.runtime.webgpu.matrix_numbers import numbers_text

__all__ = ["EPSILON", "ODD", "THREADS", "block_source", "literal"]

THREADS = 128  # of a workgroup, which has a matrix: all devices allow 256
ODD = "0xffffffffu"  # the status of a matrix with elements that are no finite numbers
EPSILON = 2.0**-23  # the distance from 1 to the next float32

_FRAME = f"""
var<workgroup> pb_reals: array<f32, {THREADS}>;
var<workgroup> pb_flag: u32;
fn own(j: u32) -> u32 {{ return arg(j + 1u); }}
fn value_at(i: u32) -> Value {{ return v_of(load0(i)); }}
fn put(i: u32, x: Value) {{ store0(i, v_word(x)); }}
fn real_at(i: u32) -> f32 {{ return v_real(value_at(i)); }}
// All that threads have written is seen by all.
fn meet() {{
  storageBarrier();
  workgroupBarrier();
}}
// What the first thread says; threads meet.
fn agreed(x: u32, t: u32) -> u32 {{
  if (t == 0u) {{ pb_flag = x; }}
  storageBarrier();
  return workgroupUniformLoad(&pb_flag);
}}
fn decided(x: bool, t: u32) -> bool {{ return agreed(select(0u, 1u, x), t) != 0u; }}
// The largest number that a thread has, and the sum of all in a fixed order.
fn largest(x: f32, t: u32) -> f32 {{
  pb_reals[t] = x;
  for (var width = {THREADS // 2}u; width > 0u; width /= 2u) {{
    workgroupBarrier();
    if (t < width && pb_reals[t + width] > pb_reals[t]) {{ pb_reals[t] = pb_reals[t + width]; }}
  }}
  workgroupBarrier();
  let found = pb_reals[0];
  workgroupBarrier();
  return found;
}}
fn total(x: f32, t: u32) -> f32 {{
  pb_reals[t] = x;
  for (var width = {THREADS // 2}u; width > 0u; width /= 2u) {{
    workgroupBarrier();
    if (t < width) {{ pb_reals[t] += pb_reals[t + width]; }}
  }}
  workgroupBarrier();
  let found = pb_reals[0];
  workgroupBarrier();
  return found;
}}"""
_MAIN = f"""@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_id) thread: vec3<u32>) {{
  let item = group.x + group.y * groups.x;
  if (item >= arg(0u)) {{ return; }}
  let t = thread.x;
  let status = agreed(load1(item), t);"""
_EACH = re.compile(r"EACH\((\w+), (.+?)\) \{")


def literal(x: float) -> str:
    """A number of float32."""
    return f"{x!r}f"


def block_source(dtype: DType, functions: str, body: str) -> str:
    """The source of a kernel whose numbers are those of a dtype."""
    text = "\n".join([numbers_text(dtype, exact=False), _FRAME, functions, _MAIN, body, "}"])
    return _EACH.sub(rf"for (var \1 = t; \1 < \2; \1 += {THREADS}u) {{", text)
