"""The leaves and moves of tiled factorisations as WGSL, in the order of `factor_order`.

A kernel sees blocks: array k is that of block k, `get{k}(r, c, o{k})` an element of the matrix of
the thread's `item`. The words are the number of threads, matrices, five words of each
block, more of the kernel's own (`own(j)`), and the nest of the batch. A thread has an element of
copies, a column of `solve`, `exchange` and `cofactors`, a matrix of `order`, `determinant` and
`minors`; a workgroup has a matrix of the other leaves. The `way` of a copy: 0 as it is, 1 the lower
triangle of (x + x^H) / 2, 2 conjugated.
"""

from __future__ import annotations

from functools import cache

from pullback.compile.kernel.factor_order import LEAF, MINORS, SMALL, minors
from pullback.compile.kernel.steps import Statements
from pullback.core.dtypes import DType
from pullback.runtime.webgpu import reflections
from pullback.runtime.webgpu.matrix_numbers import element_functions, numbers_text
from pullback.runtime.webgpu.nests import MAIN, THREADS, locate

__all__ = ["PART_WORDS", "kernel"]

PART_WORDS = 5  # of a block: where it begins, rows, columns, from row to row, column to column

_ELEMENT = """  let c = i % arg(4u);
  let r = i / arg(4u) % arg(3u);
  let item = i / (arg(3u) * arg(4u));"""
_COLUMN = """  let c = i % arg(4u);
  let item = i / arg(4u);"""
_MATRIX = "  let item = i;"
_GROUP = """@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>,
        @builtin(local_invocation_id) l: vec3<u32>) {
  let item = w.x + w.y * n.x;
  if (item >= arg(1u)) { return; }
  let t = l.x;"""


def _minors(n: int) -> str:
    """The cofactors of n rows."""
    words = "v_mul({0}, {1})", "v_add({0}, {1})", "v_sub({0}, {1})", "v_neg({0})"
    steps = Statements("  let {0} = {1};", *words)
    one = steps.value("v_value(pb_c(0x3f800000u))")
    found = minors(n, lambda i, j: steps.value(f"get1({i}u, {j}u, o1)"), one)
    ends = [f"  put0({k // n}u, {k % n}u, o0, {v.name});" for k, v in enumerate(found)]
    return "\n".join([*steps.lines, *ends])


# name -> how threads are counted, blocks, which of them are written, body; `S` is the status array
_BODIES: dict[str, tuple[str, int, int, str]] = {
    "copy": (_ELEMENT, 2, 1, """  if (own(0u) == 1u && c > r) { return; }
  var x = get1(r, c, o1);
  if (own(0u) == 1u) {
    let half = pb_c(0x3f000000u);
    x = v_fused(x, v_value(half), v_scale(v_conj(get1(c, r, o1)), half));
  }
  if (own(0u) == 2u) { x = v_conj(x); }
  put0(r, c, o0, x);
  if (own(1u) != 0u && v_is_odd(x)) { store2(item, 0xffffffffu); }"""),
    "take": (_ELEMENT, 2, 1, "  put0(r, c, o0, v_sub(get0(r, c, o0), get1(r, c, o1)));"),
    "identity": (_ELEMENT, 1, 1, """  let one = select(0u, 0x3f800000u, r == c);
  put0(r, c, o0, v_value(pb_c(one)));"""),
    "trim": (_ELEMENT, 1, 1, """  let odd = load1(item) != 0u;
  let side = bitcast<i32>(own(0u));
  if (odd) { put0(r, c, o0, v_nan()); }
  else if ((side > 0 && c > r) || (side < 0 && c < r)) { put0(r, c, o0, v_value(pb_c(0u))); }"""),
    "permute": (_ELEMENT, 3, 1, """  let number = u32(v_real(get2(0u, r, o2)));
  let here = select(number, r, own(0u) != 0u);
  let there = select(r, number, own(0u) != 0u);
  put0(there, c, o0, get1(here, c, o1));"""),
    "exchange": (_COLUMN, 2, 1, """  for (var k = own(1u); k < own(2u); k++) {
    let row = u32(v_real(get1(0u, k, o1))) - own(0u);
    let held = get0(k - own(0u), c, o0);
    put0(k - own(0u), c, o0, get0(row, c, o0));
    put0(row, c, o0, held);
  }"""),
    "order": (_MATRIX, 1, 1, """  let known = select(own(1u), 0u, load1(item) != 0u);
  for (var k = 0u; k < own(0u); k++) { put0(0u, own(0u) + k, o0, v_value(f32(k))); }
  for (var k = 0u; k < known; k++) {
    let other = own(0u) + u32(v_real(get0(0u, k, o0)));
    let held = get0(0u, own(0u) + k, o0);
    put0(0u, own(0u) + k, o0, get0(0u, other, o0));
    put0(0u, other, o0, held);
  }
  for (var k = known; k < own(0u); k++) { put0(0u, k, o0, v_value(pb_c(0u))); }"""),
    "regular": (_MATRIX, 1, 0, """  for (var k = 0u; k < arg(3u); k++) {
    if (v_is_zero(get0(k, k, o0))) {
      store1(item, k + 1u);
      return;
    }
  }"""),
    "determinant": (_MATRIX, 2, 1, """  var total = v_value(pb_c(0x3f800000u));
  for (var k = 0u; k < arg(9u); k++) {
    let pivot = get1(k, k, o1);
    let stayed = v_real(get1(arg(9u), k, o1)) == f32(k);
    total = v_mul(total, select(v_neg(pivot), pivot, stayed));
  }
  put0(0u, 0u, o0, total);"""),
    "cofactors": (_COLUMN, 2, 1, """  let rows = arg(3u);
  var row: array<Value, SMALL>;
  var before = v_value(pb_c(0x3f800000u));
  for (var k = 0u; k < rows; k++) {
    if (v_real(get1(rows, k, o1)) != f32(k)) { before = v_neg(before); }
  }
  for (var k = 0u; k < c; k++) {
    before = v_mul(before, get1(k, k, o1));
    row[k] = v_value(pb_c(0u));
  }
  row[c] = before;
  for (var j = c + 1u; j < rows; j++) {
    var total = v_value(pb_c(0u));
    for (var k = c; k < j; k++) { total = v_less(total, get1(j, k, o1), row[k]); }
    for (var k = c; k < j; k++) { row[k] = v_mul(row[k], get1(j, j, o1)); }
    row[j] = total;
  }
  for (var j = rows; j > 0u; j--) {
    let i = j - 1u;
    var total = row[i];
    for (var k = j; k < rows; k++) { total = v_less(total, get1(i, k, o1), row[k]); }
    row[i] = total;
    put0(u32(v_real(get1(rows + 1u, i, o1))), c, o0, total);
  }""".replace("SMALL", str(SMALL))),
    "solve": (_COLUMN, 2, 1, """  for (var j = 0u; j < arg(3u); j++) {
    var x = get0(j, c, o0);
    if (own(0u) == 0u) { x = v_div(x, get1(j, j, o1)); }
    put0(j, c, o0, x);
    for (var k = j + 1u; k < arg(3u); k++) {
      put0(k, c, o0, v_less(get0(k, c, o0), get1(k, j, o1), x));
    }
  }"""),
    "upper": (_COLUMN, 2, 1, """  for (var j = arg(3u); j > 0u; j--) {
    let r = j - 1u;
    var x = get0(r, c, o0);
    for (var k = j; k < arg(3u); k++) { x = v_less(x, get1(r, k, o1), get0(k, c, o0)); }
    if (own(0u) == 0u) { x = v_div(x, get1(r, r, o1)); }
    put0(r, c, o0, x);
  }"""),
    "cholesky": (_GROUP.replace("THREADS", str(LEAF)), 1, 1, """  let rows = arg(3u);
  for (var j = 0u; t < rows && j <= t; j++) { tile[t][j] = get0(t, j, o0); }
  workgroupBarrier();
  for (var j = 0u; j < rows; j++) {
    let square = v_real(tile[j][j]);
    workgroupBarrier();
    if (t == j && !(square > pb_c(0u)) && load1(item) == 0u) { store1(item, own(0u) + j + 1u); }
    let root = r_root(square);
    if (t == j) { tile[t][j] = v_value(root); }
    else if (t > j && t < rows) { tile[t][j] = v_over(tile[t][j], root); }
    workgroupBarrier();
    for (var k = j + 1u; t < rows && k <= t; k++) {
      tile[t][k] = v_fused(tile[t][j], v_neg(v_conj(tile[k][j])), tile[t][k]);
    }
    workgroupBarrier();
  }
  for (var j = 0u; t < rows && j <= t; j++) { put0(t, j, o0, tile[t][j]); }"""),
    "panel": (_GROUP.replace("THREADS", str(THREADS)), 2, 3, """  let rows = arg(3u);
  for (var j = 0u; j < arg(4u); j++) {
    var most = -1.0;
    var row = j;
    for (var k = j + t; k < rows; k += THREADSu) {
      let size = v_size(get0(k, j, o0));
      if (size > most) { most = size; row = k; }
    }
    sizes[t] = most;
    places[t] = row;
    workgroupBarrier();
    for (var width = THREADSu / 2u; width > 0u; width /= 2u) {
      if (t < width) {
        let other = sizes[t + width];
        let there = places[t + width];
        if (other > sizes[t] || (other == sizes[t] && other >= 0.0 && there < places[t])) {
          sizes[t] = other;
          places[t] = there;
        }
      }
      workgroupBarrier();
    }
    row = select(places[0], j, sizes[0] < 0.0);
    if (t == 0u) { put1(0u, own(0u) + j, o1, v_value(f32(row + own(0u)))); }
    if (t < arg(4u) && row != j) {
      let held = get0(j, t, o0);
      put0(j, t, o0, get0(row, t, o0));
      put0(row, t, o0, held);
    }
    storageBarrier();
    workgroupBarrier();
    var pivot = get0(j, j, o0);
    if (v_is_zero(pivot)) { pivot = v_value(pb_c(0x3f800000u)); }
    for (var k = j + 1u + t; k < rows; k += THREADSu) {
      let low = v_div(get0(k, j, o0), pivot);
      put0(k, j, o0, low);
      for (var c = j + 1u; c < arg(4u); c++) {
        put0(k, c, o0, v_fused(low, v_neg(get0(j, c, o0)), get0(k, c, o0)));
      }
    }
    storageBarrier();
    workgroupBarrier();
  }""".replace("THREADS", str(THREADS))),
    "reflect": (_GROUP.replace("THREADS", str(THREADS)), 3, 7, reflections.BODY),
    **{f"minors{n}": (_MATRIX, 2, 1, _minors(n)) for n in range(2, MINORS + 1)},
}  # fmt: skip

_SHARED = {
    "cholesky": f"var<workgroup> tile: array<array<Value, {LEAF + 1}>, {LEAF}>;",
    "panel": f"var<workgroup> sizes: array<f32, {THREADS}>;\n"
    f"var<workgroup> places: array<u32, {THREADS}>;",
    "reflect": reflections.SHARED,
}


@cache
def kernel(name: str, dtype: DType, rank: int, more: int) -> tuple[str, tuple[str, ...], bool]:
    """The source of a kernel with so many words of its own, the modes of its blocks, and whether a
    workgroup has a matrix. Those of real matrices have the bits of the CPU.
    """
    walk, blocks, written, body = _BODIES[name]
    lines = [numbers_text(dtype, exact=not dtype.is_complex)]
    for k in range(blocks):
        lines += element_functions(k, 2 + PART_WORDS * k, bool(written >> k & 1))
    lines.append(_SHARED.get(name, ""))
    first = 2 + PART_WORDS * blocks
    lines.append(f"fn own(j: u32) -> u32 {{ return arg(j + {first}u); }}")
    whole = "@compute" in walk
    lines += [walk] if whole else [MAIN, walk]
    lines += [locate(rank, [f"o{k}" for k in range(blocks)], first + more, "item"), body, "}"]
    modes = tuple("write" if written >> k & 1 else "read" for k in range(blocks))
    norm = "r_add(v_square(ratio), below)" if dtype.is_complex else "r_fused(ratio, ratio, below)"
    return "\n".join(lines).replace("NORM", norm), modes, whole
