"""Functions of matrices by their Schur forms, the exponential, and factors of Hermitian matrices.

A workgroup has a matrix; all numbers are complex. The own words are m, n, elements of `work` and of
a result for a matrix, then whether `sylvester` solves for the adjoint. Arrays from 2 on are the
operands, Schur forms as `schur` gives them, and the result. The methods are those of the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from pullback.compile.kernel.matrix_functions import LOG_NODES, LOG_NORM, PADE, PADE_NORM
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.block_kernels import THREADS, literal
from pullback.runtime.webgpu.schur_kernels import (
    COMPLEX_PARTS,
    complex_source,
    narrowed,
    widened,
)

__all__ = ["OPERANDS", "function_room", "function_rounds", "function_source"]

# How many operands are looked at, the last ones of a primitive.
OPERANDS = {"sylvester": 3, "sqrtm": 1, "logm": 1, "expm": 1, "ldl": 1}
_MOST_HALVINGS = 140  # more than what the largest finite norm takes to get there
_MOST_ROOTS = 100  # of a number: far more bring every one next to 1

_PARTS = """
// c = a b; with `left` a is conjugated and transposed, with `right` b.
fn multiply(c: u32, a: u32, b: u32, m: u32, n: u32, k: u32, left: bool, right: bool, t: u32) {
  EACH(i, m * n) {
    let r = i / n;
    let s = i % n;
    var sum = v_value(0.0);
    for (var j = 0u; j < k; j++) {
      var x = value_at(a + select(r * k + j, j * m + r, left));
      var y = value_at(b + select(j * n + s, s * k + j, right));
      if (left) { x = v_conj(x); }
      if (right) { y = v_conj(y); }
      sum = v_fused(x, y, sum);
    }
    put(c + i, sum);
  }
  meet();
}
fn copy_square(to: u32, x: u32, n: u32, factor: f32, t: u32) {
  EACH(i, n * n) { put(to + i, v_scale(value_at(x + i), factor)); }
  meet();
}
// An upper triangle replaced by its square root (Bjorck and Hammarling), diagonal by diagonal.
fn make_root(a: u32, n: u32, t: u32) {
  EACH(i, n) { put(a + i * n + i, square_root(value_at(a + i * n + i))); }
  meet();
  for (var d = 1u; d < n; d++) {
    EACH(i, n - d) {
      let j = i + d;
      var sum = value_at(a + i * n + j);
      for (var k = i + 1u; k < j; k++) {
        sum = v_less(sum, value_at(a + i * n + k), value_at(a + k * n + j));
      }
      let by = v_add(value_at(a + i * n + i), value_at(a + j * n + j));
      var x = v_value(0.0);
      if (!v_is_zero(by) || !v_is_zero(sum)) { x = v_div(sum, by); }
      put(a + i * n + j, x);
    }
    meet();
  }
}
// The largest sum of magnitudes in a column of x - by.
fn norm_of(x: u32, by: f32, n: u32, t: u32) -> f32 {
  var most = 0.0;
  for (var j = 0u; j < n; j++) {
    var sum = 0.0;
    EACH(i, n) {
      sum += v_size(v_sub(value_at(x + i * n + j), v_value(select(0.0, by, i == j))));
    }
    most = max(most, total(sum, t));
  }
  return most;
}"""
# A Schur form from array K: T and Z column after column.
_TAKE = """
fn take_schurK(to: u32, item: u32, n: u32, t: u32) {
  let first = item * 2u * n * n;
  EACH(i, n * n) {
    let at = first + i % n * n + i / n;
    put(to + i, givenK(at));
    put(to + n * n + i, givenK(at + n * n));
  }
  meet();
}"""
_HEAD = """  let m = own(0u);
  let n = own(1u);
  let room = item * own(2u);
  let made = item * own(3u);
  if (status == ODD) {
    EACH(i, own(3u)) { keep(made + i, v_nan()); }
    return;
  }
"""

_SYLVESTER = """  let ta = room;
  let za = ta + m * m;
  let tb = za + m * m;
  let zb = tb + n * n;
  let y = zb + n * n;
  let w = y + m * n;
  let adjoint = own(4u) != 0u;
  take_schur3(ta, item, m, t);
  take_schur4(tb, item, n, t);
  make_triangle(ta, m, t);
  make_triangle(tb, n, t);
  EACH(i, m * n) { put(y + i, given2(item * m * n + i)); }
  meet();
  multiply(w, za, y, m, n, m, true, false, t);
  multiply(y, w, zb, m, n, n, false, false, t);
  var least = 0.0;
  for (var i = 0u; i < m; i++) { least = max(least, v_size(value_at(ta + i * m + i))); }
  for (var j = 0u; j < n; j++) { least = max(least, v_size(value_at(tb + j * n + j))); }
  least = max(least * EPSILON, SMALLEST);
  var singular = false;
  for (var step = 0u; step < n; step++) {
    let j = select(step, n - 1u - step, adjoint);
    var shift = value_at(tb + j * n + j);
    if (adjoint) { shift = v_conj(shift); }
    EACH(i, m) {
      var sum = value_at(y + i * n + j);
      for (var k = select(0u, j + 1u, adjoint); k < select(j, n, adjoint); k++) {
        var x = value_at(tb + select(k * n + j, j * n + k, adjoint));
        if (adjoint) { x = v_conj(x); }
        sum = v_less(sum, value_at(y + i * n + k), x);
      }
      put(y + i * n + j, sum);
    }
    meet();
    for (var turn = 0u; turn < m; turn++) {
      let i = select(m - 1u - turn, turn, adjoint);
      var by = value_at(ta + i * m + i);
      if (adjoint) { by = v_conj(by); }
      by = v_add(by, shift);
      singular = singular || v_size(by) <= least;
      let found = v_div(value_at(y + i * n + j), by);
      meet();
      EACH(r, m) {
        let place = y + r * n + j;
        if (r == i) { put(place, found); }
        else if ((r > i) == adjoint) {
          var x = value_at(ta + select(r * m + i, i * m + r, adjoint));
          if (adjoint) { x = v_conj(x); }
          put(place, v_less(value_at(place), x, found));
        }
      }
      meet();
    }
  }
  if (t == 0u) { store1(item, select(0u, 1u, singular)); }
  multiply(w, za, y, m, n, m, false, false, t);
  multiply(y, w, zb, m, n, n, false, true, t);
  EACH(i, m * n) { keep(made + i, value_at(y + i)); }"""

_SQRTM = """  let z = room + n * n;
  let w = z + n * n;
  take_schur2(room, item, n, t);
  make_triangle(room, n, t);
  make_root(room, n, t);
  multiply(w, z, room, n, n, n, false, false, t);
  multiply(room, w, z, n, n, n, false, true, t);
  EACH(i, n * n) { keep(made + i, value_at(room + i)); }"""

_LOGM = """  let z = room + n * n;
  let x = z + n * n;
  let sums = x + n * n;
  let w = sums + n * n;
  take_schur2(room, item, n, t);
  make_triangle(room, n, t);
  var factor = 1.0;
  for (var k = 0u; k < MOST_ROOTS; k++) {
    if (decided(!(norm_of(room, 1.0, n, t) > LOG_NORM), t)) { break; }
    make_root(room, n, t);
    factor *= 2.0;
  }
  EACH(i, n * n) {
    put(x + i, v_sub(value_at(room + i), v_value(select(0.0, 1.0, i / n == i % n))));
    put(sums + i, v_value(0.0));
  }
  meet();
  for (var k = 0u; k < NODE_COUNT; k++) {
    let node = nodes[k];
    let weight = weights[k];
    // a row of y with y (1 + node x) = x for each thread
    EACH(r, n) {
      for (var j = 0u; j < n; j++) {
        let at = r * n + j;
        var sum = value_at(x + at);
        for (var i = r; i < j; i++) {
          sum = v_less(sum, value_at(w + r * n + i), v_scale(value_at(x + i * n + j), node));
        }
        let by = v_add(v_value(1.0), v_scale(value_at(x + j * n + j), node));
        var y = v_value(0.0);
        if (j >= r) { y = v_div(sum, by); }
        put(w + at, y);
        put(sums + at, v_add(value_at(sums + at), v_scale(y, weight)));
      }
    }
    meet();
  }
  copy_square(sums, sums, n, factor, t);
  multiply(w, z, sums, n, n, n, false, false, t);
  multiply(sums, w, z, n, n, n, false, true, t);
  EACH(i, n * n) { keep(made + i, value_at(sums + i)); }"""

_SOLVE = """
// The solution of a x = b in place of b, and of a its factors; partial pivoting.
fn solve(a: u32, b: u32, n: u32, t: u32) {
  for (var j = 0u; j < n; j++) {
    var most = -1.0;
    var found = j;
    for (var i = j; i < n; i++) {
      let size = v_size(value_at(a + i * n + j));
      if (size > most) {
        most = size;
        found = i;
      }
    }
    let row = agreed(found, t);
    EACH(c, 2u * n) {
      let x = select(b, a, c < n) + c % n;
      let held = value_at(x + j * n);
      put(x + j * n, value_at(x + row * n));
      put(x + row * n, held);
    }
    meet();
    let pivot = value_at(a + j * n + j);
    EACH(i, n) {
      if (i <= j) { continue; }
      let low = v_div(value_at(a + i * n + j), pivot);
      for (var c = j + 1u; c < n; c++) {
        put(a + i * n + c, v_less(value_at(a + i * n + c), low, value_at(a + j * n + c)));
      }
      for (var c = 0u; c < n; c++) {
        put(b + i * n + c, v_less(value_at(b + i * n + c), low, value_at(b + j * n + c)));
      }
    }
    meet();
  }
  EACH(c, n) {
    for (var k = n; k > 0u; k--) {
      let i = k - 1u;
      var sum = value_at(b + i * n + c);
      for (var j = k; j < n; j++) {
        sum = v_less(sum, value_at(a + i * n + j), value_at(b + j * n + c));
      }
      put(b + i * n + c, v_div(sum, value_at(a + i * n + i)));
    }
  }
  meet();
}
// to = a6 x + a4 y + a2 z + one, with the numbers x, y and z
fn put_terms(to: u32, a2: u32, n: u32, numbers: vec4<f32>, t: u32) {
  let size = n * n;
  EACH(i, size) {
    let two = v_scale(value_at(a2 + i), numbers.z);
    let four = v_add(v_scale(value_at(a2 + size + i), numbers.y), two);
    let sum = v_add(v_scale(value_at(a2 + 2u * size + i), numbers.x), four);
    put(to + i, v_add(sum, v_value(select(0.0, numbers.w, i / n == i % n))));
  }
  meet();
}
fn add_to(to: u32, x: u32, n: u32, t: u32) {
  EACH(i, n * n) { put(to + i, v_add(value_at(to + i), value_at(x + i))); }
  meet();
}"""
_EXPM = """  let size = n * n;
  let a2 = room + size;
  let a4 = a2 + size;
  let a6 = a4 + size;
  let u = a6 + size;
  let v = u + size;
  EACH(i, size) { put(room + i, given2(item * size + i)); }
  meet();
  var norm = norm_of(room, 0.0, n, t);
  var factor = 1.0;
  var count = 0u;
  for (; norm > PADE_NORM && count < MOST_HALVINGS; count++) {
    norm *= 0.5;
    factor *= 0.5;
  }
  let halvings = agreed(count, t);
  copy_square(room, room, n, factor, t);
  multiply(a2, room, room, n, n, n, false, false, t);
  multiply(a4, a2, a2, n, n, n, false, false, t);
  multiply(a6, a4, a2, n, n, n, false, false, t);
  put_terms(u, a2, n, vec4<f32>(PADE13, PADE11, PADE9, 0.0), t);
  multiply(v, a6, u, n, n, n, false, false, t);
  put_terms(u, a2, n, vec4<f32>(PADE7, PADE5, PADE3, PADE1), t);
  add_to(v, u, n, t);
  multiply(u, room, v, n, n, n, false, false, t);
  put_terms(room, a2, n, vec4<f32>(PADE12, PADE10, PADE8, 0.0), t);
  multiply(v, a6, room, n, n, n, false, false, t);
  put_terms(room, a2, n, vec4<f32>(PADE6, PADE4, PADE2, PADE0), t);
  add_to(v, room, n, t);
  EACH(i, size) {
    let even = value_at(v + i);
    put(room + i, v_sub(even, value_at(u + i)));
    put(v + i, v_add(even, value_at(u + i)));
  }
  meet();
  solve(room, v, n, t);
  for (var k = 0u; k < halvings; k++) {
    multiply(u, v, v, n, n, n, false, false, t);
    copy_square(v, u, n, 1.0, t);
  }
  EACH(i, size) { keep(made + i, value_at(v + i)); }"""

# Bunch and Kaufman's choice of pivots, from the first column on; `order` is where rows came from.
_EXCHANGE = """
fn exchange(x: u32, y: u32) {
  let held = value_at(x);
  put(x, value_at(y));
  put(y, held);
}
fn swap_both(a: u32, low: u32, order: u32, n: u32, k: u32, i: u32, j: u32, t: u32) {
  EACH(c, n) {
    exchange(a + i * n + c, a + j * n + c);
    if (c < k) { exchange(low + i * n + c, low + j * n + c); }
  }
  meet();
  EACH(r, n) {
    exchange(a + r * n + i, a + r * n + j);
    if (r == 0u) { exchange(order + i, order + j); }
  }
  meet();
}"""
_LDL = """  let a = room;
  let low = a + n * n;
  let d = low + n * n;
  let order = d + n * n;
  EACH(i, n * n) {
    let two = v_conj(given2(item * n * n + i % n * n + i / n));
    put(a + i, v_scale(v_add(given2(item * n * n + i), two), 0.5));
    put(low + i, v_value(select(0.0, 1.0, i / n == i % n)));
    put(d + i, v_value(0.0));
  }
  EACH(i, n) { put(order + i, v_value(f32(i))); }
  meet();
  for (var k = 0u; k < n;) {
    var most = 0.0;
    var along = 0.0;
    var row = k;
    for (var i = k + 1u; i < n; i++) {
      let size = v_length(value_at(a + i * n + k));
      if (size > most) {
        most = size;
        row = i;
      }
    }
    for (var j = k; j < n; j++) {
      if (j != row) { along = max(along, v_length(value_at(a + row * n + j))); }
    }
    let diagonal = r_abs(real_at(a + k * n + k));
    let other = r_abs(real_at(a + row * n + row));
    let moves = diagonal < ALPHA * most && diagonal * along < ALPHA * most * most;
    let width = agreed(select(1u, 2u, moves && other < ALPHA * along), t);
    let pivot = agreed(select(k, row, moves), t);
    if (pivot != k + width - 1u) { swap_both(a, low, order, n, k, k + width - 1u, pivot, t); }
    let at = a + k * n + k;
    if (width == 1u) {
      let by = v_value(real_at(at));
      EACH(i, n) {
        let x = value_at(a + i * n + k);
        if (i > k && !v_is_zero(x)) { put(low + i * n + k, v_div(x, by)); }
      }
      if (t == 0u) { put(d + k * n + k, by); }
      meet();
      EACH(i, n * n) {
        let r = i / n;
        let c = i % n;
        if (r > k && c > k) {
          let other = v_conj(value_at(a + c * n + k));
          put(a + i, v_less(value_at(a + i), value_at(low + r * n + k), other));
        }
      }
    } else {
      let one = real_at(at);
      let two = real_at(at + n + 1u);
      let corner = value_at(at + n);
      let size = v_length(corner);
      let by = r_over(one, size) * r_over(two, size) - 1.0;
      let turn = v_over(corner, size);
      EACH(i, n) {
        if (i < k + 2u) { continue; }  // the row times the inverse of the block
        let x1 = v_over(value_at(a + i * n + k), size);
        let x2 = v_over(value_at(a + i * n + k + 1u), size);
        let y1 = v_sub(v_scale(x1, r_over(two, size)), v_mul(x2, turn));
        let y2 = v_sub(v_scale(x2, r_over(one, size)), v_mul(x1, v_conj(turn)));
        put(low + i * n + k, v_over(y1, by));
        put(low + i * n + k + 1u, v_over(y2, by));
      }
      if (t == 0u) {
        put(d + k * n + k, v_value(one));
        put(d + (k + 1u) * n + k + 1u, v_value(two));
        put(d + (k + 1u) * n + k, corner);
        put(d + k * n + k + 1u, v_conj(corner));
      }
      meet();
      EACH(i, n * n) {
        let r = low + i / n * n + k;
        let c = a + i % n * n + k;
        if (i / n < k + 2u || i % n < k + 2u) { continue; }
        let part = v_less(value_at(a + i), value_at(r), v_conj(value_at(c)));
        put(a + i, v_less(part, value_at(r + 1u), v_conj(value_at(c + 1u))));
      }
    }
    meet();
    k += width;
  }
  var odd = 0.0;
  EACH(i, 2u * n * n) { if (v_is_odd(value_at(low + i))) { odd = 1.0; } }
  odd = largest(odd, t);
  if (t == 0u) { store1(item, u32(odd)); }
  EACH(i, 2u * n * n + n) { keep(made + i, value_at(low + i)); }"""

_BODIES = {"sylvester": _SYLVESTER, "sqrtm": _SQRTM, "logm": _LOGM, "expm": _EXPM, "ldl": _LDL}
_NEEDS: dict[str, Sequence[str]] = {
    "sylvester": (COMPLEX_PARTS, _PARTS, _TAKE.replace("K", "3"), _TAKE.replace("K", "4")),
    "sqrtm": (COMPLEX_PARTS, _PARTS, _TAKE.replace("K", "2")),
    "logm": (COMPLEX_PARTS, _PARTS, _TAKE.replace("K", "2")),
    "expm": (COMPLEX_PARTS, _PARTS, _SOLVE),
    "ldl": (_EXCHANGE,),
}


def _constants() -> str:
    """The nodes and weights of the logarithm."""
    arrays = (("nodes", [x for x, _ in LOG_NODES]), ("weights", [w for _, w in LOG_NODES]))
    return "\n".join(
        f"var<private> {name}: array<f32, {len(own)}> = array<f32, {len(own)}>"
        f"({', '.join(map(literal, own))});"
        for name, own in arrays
    )


@cache
def function_source(name: str, dtype: DType) -> str:
    """The kernel of a function of matrices of a dtype."""
    given = range(2, 2 + OPERANDS[name])
    functions = [widened(dtype, k) for k in given] + [narrowed(dtype, given.stop)]
    functions += [*_NEEDS[name], _constants() if name == "logm" else ""]
    text = complex_source("\n".join(functions), _HEAD + _BODIES[name])
    words = {
        "LOG_NORM": literal(LOG_NORM),
        "PADE_NORM": literal(PADE_NORM),
        "MOST_ROOTS": f"{_MOST_ROOTS}u",
        "MOST_HALVINGS": f"{_MOST_HALVINGS}u",
        "NODE_COUNT": f"{len(LOG_NODES)}u",
        "ALPHA": literal((1 + 17**0.5) / 8),
        **{f"PADE{k}": literal(PADE[k] / PADE[0]) for k in reversed(range(len(PADE)))},
    }
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def function_rounds(name: str, m: int, n: int) -> int:
    """What loops of a thread go round, about: with a dozen roots or squares, and once more for each
    loop, which is where it ends.
    """
    own, rows = -(-n * n // THREADS), -(-n // THREADS)
    root = n * n // 2 * (rows + 1)
    if name == "sylvester":
        below = -(-m // THREADS)
        columns = n * (n * (below + 1) // 2 + m * (2 + below))
        rounds = 2 * -(-m * n // THREADS) * (m + n + 4) + columns + 8 * (m + n)
    elif name == "ldl":
        rounds = n * (2 * n + own + 4 * rows + 20)
    elif name == "sqrtm":
        rounds = 2 * own * (n + 2) + root + 8 * n
    elif name == "logm":
        rounds = 2 * own * (n + 2) + (len(LOG_NODES) + 12) * root + 100 * n
    else:
        rounds = 18 * own * (n + 2) + n * n * (1 + 3 * rows)
    return rounds


def function_room(name: str, m: int, n: int) -> int:
    """Complex elements that a kernel works in for a matrix."""
    if name == "sylvester":
        return 2 * m * m + 2 * n * n + 2 * m * n
    return {"sqrtm": 3, "logm": 5, "expm": 6, "ldl": 3}[name] * n * n + n * (name == "ldl")
