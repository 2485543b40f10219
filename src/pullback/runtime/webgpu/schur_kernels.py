"""The Schur form, and eigenvalues of any matrix, by the QR algorithm, as WGSL.

A workgroup has a matrix: it is brought to Hessenberg form by reflections (`begin`, `reflect`), then
to triangular form by shifted sweeps (`chase`), of real matrices with blocks of two for conjugate
pairs. What takes long is cut into several dispatches. The method is that of
`cuda.linalg.schur_kernels`; the CPU calls LAPACK.
"""

from __future__ import annotations

from functools import cache

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.block_kernels import EPSILON, ODD, THREADS, block_source, literal

__all__ = [
    "COMPLEX_PARTS", "SWEEPS", "chasing_rounds", "complex_source", "eig_room", "eig_source",
    "narrowed", "reflecting_rounds", "schur_room", "schur_source", "widened",
]  # fmt: skip

SWEEPS = 40  # for an eigenvalue, at most: two or three are usual

# -- the Schur form: own words are n, elements of `work` for a matrix ------------------------------

_SCHUR = """  let n = own(0u);
  let h = item * own(1u);
  let z = h + n * n;
  let v = z + n * n;
  let state = v + n;  // rows of what is no triangle yet, sweeps since it became smaller
"""
_BEGIN = """  if (status == ODD) { return; }
  EACH(i, n * n) {
    put(h + i, v_of(load2(item * n * n + i)));
    put(z + i, v_value(select(0.0, 1.0, i / n == i % n)));
  }
  if (t == 0u) {
    put(state, v_value(f32(n)));
    put(state + 1u, v_value(0.0));
    store1(item, 1u);
  }"""
# More words: the first column, the one after the last.
_REFLECT = """  if (status == ODD) { return; }
  for (var k = own(2u); k < own(3u); k++) {
    let column = h + k;
    var most = 0.0;
    for (var i = k + 2u; i < n; i++) { most = max(most, v_size(value_at(column + i * n))); }
    if (decided(most == 0.0, t)) { continue; }
    let alpha = value_at(column + (k + 1u) * n);
    let scale = max(v_size(alpha), most);
    var square = 0.0;
    for (var i = k + 1u; i < n; i++) {
      square += v_square(v_over(value_at(column + i * n), scale));
    }
    let norm = scale * r_root(square);
    let beta = select(norm, -norm, v_real(alpha) >= 0.0);
    let tau = v_over(v_sub(v_value(beta), alpha), beta);
    let by = v_sub(alpha, v_value(beta));
    EACH(i, n) {
      var x = v_value(select(0.0, 1.0, i == k + 1u));
      if (i > k + 1u) { x = v_div(value_at(column + i * n), by); }
      put(v + i, x);
    }
    meet();
    EACH(c, n) {
      if (c < k) { continue; }
      var sum = v_value(0.0);
      for (var i = k + 1u; i < n; i++) {
        sum = v_fused(v_conj(value_at(v + i)), value_at(h + i * n + c), sum);
      }
      sum = v_neg(v_mul(v_conj(tau), sum));
      for (var i = k + 1u; i < n; i++) {
        put(h + i * n + c, v_fused(value_at(v + i), sum, value_at(h + i * n + c)));
      }
    }
    meet();
    EACH(r, 2u * n) {
      let row = h + r * n;  // z lies behind h
      var sum = v_value(0.0);
      for (var i = k + 1u; i < n; i++) { sum = v_fused(value_at(row + i), value_at(v + i), sum); }
      sum = v_neg(v_mul(tau, sum));
      for (var i = k + 1u; i < n; i++) {
        put(row + i, v_fused(v_conj(value_at(v + i)), sum, value_at(row + i)));
      }
    }
    meet();
    EACH(i, n) {
      if (i > k) { put(column + i * n, v_value(select(0.0, beta, i == k + 1u))); }
    }
    meet();
  }"""

_ROTATIONS = """
struct Rotation { c: f32, s: Value }
// The rotation that takes y to nothing: [[c, s], [-conj(s), c]] (x, y) = (r, 0).
fn rotation_of(x: Value, y: Value) -> Rotation {
  let p = v_length(x);
  let q = v_length(y);
  let most = max(p, q);
  if (q == 0.0) { return Rotation(1.0, v_value(0.0)); }
  let a = r_over(p, most);
  let b = r_over(q, most);
  let norm = r_root(a * a + b * b);
  var phase = v_value(1.0);
  if (p != 0.0) { phase = v_over(x, p); }
  return Rotation(r_over(a, norm), v_over(v_mul(phase, v_over(v_conj(y), most)), norm));
}
// Rows r and r + 1 of h from column `first` on, and columns of h to row `last` and of z, which lies
// behind it, turned by a rotation.
fn rotate(by: Rotation, h: u32, n: u32, r: u32, first: u32, last: u32, t: u32) {
  EACH(j, n) {
    if (j < first) { continue; }
    let at = h + r * n + j;
    let x = value_at(at);
    let y = value_at(at + n);
    put(at, v_add(v_scale(x, by.c), v_mul(by.s, y)));
    put(at + n, v_sub(v_scale(y, by.c), v_mul(v_conj(by.s), x)));
  }
  meet();
  EACH(i, 2u * n) {
    if (i > last && i < n) { continue; }
    let at = h + i * n + r;
    let x = value_at(at);
    let y = value_at(at + 1u);
    put(at, v_add(v_scale(x, by.c), v_mul(v_conj(by.s), y)));
    put(at + 1u, v_sub(v_scale(y, by.c), v_mul(by.s, x)));
  }
  meet();
}"""
_SPLIT = """
// The first row of the part that ends with row `last` and has no small subdiagonal elements.
fn split(h: u32, n: u32, last: u32, t: u32) -> u32 {
  var first = last;
  for (; first > 0u; first--) {
    let at = h + first * n + first;
    let near = v_size(value_at(at)) + v_size(value_at(at - n - 1u));
    let size = v_size(value_at(at - 1u));
    if (size <= EPSILON * near || size < SMALLEST) { break; }
  }
  let found = agreed(first, t);
  if (t == 0u && found > 0u) { put(h + found * n + found - 1u, v_value(0.0)); }
  meet();
  return found;
}"""
# More words: sweeps of this dispatch. `size` counts the rows that are left.
_CHASE = """  if (status != 1u) { return; }
  var size = agreed(u32(real_at(state)), t);
  var round = agreed(u32(real_at(state + 1u)), t);
  for (var sweep = 0u; sweep < own(2u) && size > 1u && round <= SWEEPS; sweep++) {
    let last = size - 1u;
    let first = split(h, n, last, t);
    if (ENDS) {
FOUND
      round = 0u;
      continue;
    }
TURN
    round++;
  }
  if (t == 0u) {
    put(state, v_value(f32(size)));
    put(state + 1u, v_value(f32(round)));
    if (size <= 1u) { store1(item, 0u); }
  }"""

_SQUARE_ROOT = """
fn square_root(z: Value) -> Value {
  let size = v_length(z);
  let large = r_root((size + r_abs(z.x)) * 0.5);
  if (large == 0.0) { return v_value(0.0); }
  let other = r_over(r_abs(z.y) * 0.5, large);
  if (z.x >= 0.0) { return Value(large, r_sign(other, z.y)); }
  return Value(other, r_sign(large, z.y));
}"""
_COMPLEX_SHIFT = """
fn shift_of(h: u32, n: u32, last: u32, round: u32) -> Value {
  let at = h + last * n + last;
  let a = value_at(at - n - 1u);
  let b = value_at(at - n);
  let c = value_at(at - 1u);
  let d = value_at(at);
  if (round % 10u == 9u) { return v_add(d, v_value(v_size(c))); }
  let half = v_scale(v_sub(a, d), 0.5);
  let product = v_mul(b, c);
  var root = square_root(v_add(v_mul(half, half), product));
  if (root.x * half.x + root.y * half.y < 0.0) { root = v_neg(root); }
  let by = v_add(half, root);
  if (v_is_zero(by)) { return d; }
  return v_sub(d, v_div(product, by));
}"""
_COMPLEX_TURN = """    let shift = shift_of(h, n, last, round);
    for (var k = first; k < last; k++) {
      let begins = k == first;
      let at = h + k * n + k - select(1u, 0u, begins);
      var x = value_at(at);
      if (begins) { x = v_sub(x, shift); }
      let by = rotation_of(x, value_at(at + n));
      meet();
      rotate(by, h, n, k, k - select(1u, 0u, begins), min(k + 2u, last), t);
      if (t == 0u && !begins) { put(at + n, v_value(0.0)); }
      meet();
    }"""
_REAL_PAIR = """
fn pair_of_roots(h: u32, n: u32, last: u32, t: u32) {
  let r = last - 1u;
  let at = h + last * n + last;
  let x = value_at(at - 1u);
  let p = (value_at(at - n - 1u) - value_at(at)) * 0.5;
  let q = p * p + value_at(at - n) * x;
  if (decided(q < 0.0, t)) { return; }  // a conjugate pair
  let by = rotation_of(p + r_sign(r_root(q), p), x);
  rotate(by, h, n, r, r, last, t);
  if (t == 0u) { put(at - 1u, 0.0); }
  meet();
}"""
_REAL_TURN = """    let corner = h + last * n + last;
    let top = h + first * n + first;
    var x = value_at(corner);
    var y = value_at(corner - n - 1u);
    var w = value_at(corner - 1u) * value_at(corner - n);
    if (round % 10u == 9u) {
      let size = r_abs(value_at(corner - 1u)) + r_abs(value_at(corner - n - 2u));
      x = 0.75 * size + x;
      y = x;
      w = -0.4375 * size * size;
    }
    let one = x - value_at(top);
    let two = y - value_at(top);
    var p = r_over(one * two - w, value_at(top + n)) + value_at(top + 1u);
    var q = value_at(top + n + 1u) - value_at(top) - one - two;
    var r = value_at(top + 2u * n + 1u);
    for (var k = first; k < last; k++) {
      let three = k + 1u < last;
      let begins = k == first;
      let before = h + k * n + k - 1u;
      if (!begins) {
        p = value_at(before);
        q = value_at(before + n);
        r = 0.0;
        if (three) { r = value_at(before + 2u * n); }
      }
      let scale = r_abs(p) + r_abs(q) + r_abs(r);
      if (decided(scale == 0.0, t)) { continue; }
      p = r_over(p, scale);
      q = r_over(q, scale);
      r = r_over(r, scale);
      let s = r_sign(r_root(p * p + q * q + r * r), p);
      p += s;
      let u = r_over(p, s);
      let v1 = r_over(q, s);
      let v2 = r_over(r, s);
      q = r_over(q, p);
      r = r_over(r, p);
      EACH(j, n) {
        if (j < k) { continue; }
        let at = h + k * n + j;
        var sum = value_at(at) + q * value_at(at + n);
        if (three) { sum += r * value_at(at + 2u * n); }
        put(at, value_at(at) - sum * u);
        put(at + n, value_at(at + n) - sum * v1);
        if (three) { put(at + 2u * n, value_at(at + 2u * n) - sum * v2); }
      }
      meet();
      let below = min(k + 3u, last);
      EACH(i, 2u * n) {
        if (i > below && i < n) { continue; }
        let at = h + i * n + k;
        var sum = u * value_at(at) + v1 * value_at(at + 1u);
        if (three) { sum += v2 * value_at(at + 2u); }
        put(at, value_at(at) - sum);
        put(at + 1u, value_at(at + 1u) - sum * q);
        if (three) { put(at + 2u, value_at(at + 2u) - sum * r); }
      }
      if (t == 0u && !begins) {
        put(before, -s * scale);
        put(before + n, 0.0);
        if (three) { put(before + 2u * n, 0.0); }
      }
      meet();
    }"""
# Column after column: T, then Z. Array 2 is the result.
_END = """  EACH(i, n * n) {
    let at = item * 2u * n * n + i % n * n + i / n;
    if (status == ODD) {
      store2(at, v_word(v_nan()));
      store2(at + n * n, v_word(v_nan()));
    } else {
      store2(at, v_word(value_at(h + i)));
      store2(at + n * n, v_word(value_at(z + i)));
    }
  }"""


def _named(text: str) -> str:
    words = {
        "EPSILON": literal(EPSILON),
        "SMALLEST": literal(2.0**-103),  # the least normal number, by EPSILON
        "SWEEPS": f"{SWEEPS}u",
        "ODD": ODD,
    }
    for word, value in words.items():
        text = text.replace(word, value)
    return text


@cache
def schur_source(dtype: DType, part: str) -> str:
    """The kernel `begin`, `reflect`, `chase` or `end`: x (n x n) -> T and Z."""
    body = {"begin": _BEGIN, "reflect": _REFLECT, "chase": _CHASE, "end": _END}[part]
    functions = ""
    if part == "chase":
        functions = _ROTATIONS + _SPLIT
        if dtype.is_complex:
            functions += _SQUARE_ROOT + _COMPLEX_SHIFT
            ends, found, turn = "first == last", "      size = last;", _COMPLEX_TURN
        else:
            functions += _REAL_PAIR
            pair = "      if (first + 1u == last) { pair_of_roots(h, n, last, t); }\n"
            ends, found, turn = "first + 1u >= last", f"{pair}      size = first;", _REAL_TURN
        body = body.replace("ENDS", ends).replace("FOUND", found).replace("TURN", turn)
    return _named(block_source(dtype, functions, _SCHUR + body))


def reflecting_rounds(n: int) -> int:
    """What loops of a thread go round for a column of `reflect`."""
    return 2 * n + 2 * n * -(-n // THREADS) + 2 * n * -(-2 * n // THREADS) + 4


def chasing_rounds(n: int) -> int:
    """What they go round for a sweep of `chase`."""
    return n * (2 + -(-n // THREADS) + -(-2 * n // THREADS))


def schur_room(n: int) -> int:
    """Elements that `schur` works in for a matrix."""
    return 2 * n * n + n + 2


# -- eigenvalues, and whatever takes a Schur form: complex numbers ---------------------------------

# Blocks of two of a real matrix become triangles; complex ones have none.
_TRIANGLE = """
fn make_triangle(h: u32, n: u32, t: u32) {
  for (var k = n - 1u; k > 0u; k--) {
    let at = h + k * n + k;
    let x = value_at(at - 1u);
    if (decided(v_is_zero(x), t)) { continue; }
    let half = v_scale(v_sub(value_at(at - n - 1u), value_at(at)), 0.5);
    var root = square_root(v_add(v_mul(half, half), v_mul(value_at(at - n), x)));
    if (root.y < 0.0) { root = v_neg(root); }  // the positive imaginary part comes first
    let by = rotation_of(v_add(half, root), x);
    meet();
    rotate(by, h, n, k - 1u, k - 1u, k, t);
    if (t == 0u) { put(at - 1u, v_value(0.0)); }
    meet();
  }
}"""
COMPLEX_PARTS = _ROTATIONS + _SQUARE_ROOT + _TRIANGLE


def widened(dtype: DType, k: int) -> str:
    """`given{k}(i)`: an element of array k, of a dtype, as a complex number."""
    value = f"v_of(load{k}(i))"
    if not dtype.is_complex:
        value = f"v_value(bitcast<f32>(load{k}(i)))"
    return f"fn given{k}(i: u32) -> Value {{ return {value}; }}"


def narrowed(dtype: DType, k: int) -> str:
    """`keep(i, x)`: a complex number as an element of array k, of a dtype."""
    word = "v_word(x)" if dtype.is_complex else "bitcast<u32>(x.x)"
    return f"fn keep(i: u32, x: Value) {{ store{k}(i, {word}); }}"


def complex_source(functions: str, body: str) -> str:
    """The source of a kernel of complex numbers."""
    return _named(block_source(dt.complex64, functions, body))


# Own words: n, elements of `work`, of what `schur` worked in, of a result. Arrays 2 and 3: the work
# of `schur`, the result. Vectors lie in rows of the result.
_EIG = """  let n = own(0u);
  let at = item * own(1u);
  let z = at + n * n;
  let values = z + n * n;
  let y = values + n;
  let h = item * own(2u);
  let first = item * own(3u);
  if (status != 0u) { return; }
"""
_VALUES = """  EACH(i, 2u * n * n) { put(at + i, given2(h + i)); }
  EACH(i, own(3u)) { store3(first + i, v_word(v_value(0.0))); }
  meet();
  make_triangle(at, n, t);
  EACH(k, n) {
    // A conjugate pair is one to the bit, the one with the positive imaginary part first.
    let second = PAIRS && k > 0u && !v_is_zero(given2(h + k * n + max(k, 1u) - 1u));
    let begins = PAIRS && k + 1u < n && !v_is_zero(given2(h + min(k + 1u, n - 1u) * n + k));
    let place = k - select(0u, 1u, second);
    var x = value_at(at + place * n + place);
    if (PAIRS) { x.y = select(0.0, select(r_abs(x.y), -r_abs(x.y), second), second || begins); }
    put(values + k, x);
    store3(first + k, v_word(x));
  }"""
# More words: the row after the first one, the last one. A vector of the triangle for each thread.
_VECTORS = """  var norm = 0.0;
  for (var i = 0u; i < n; i++) { norm = max(norm, v_size(value_at(at + i * n + i))); }
  for (var i = own(4u); i > own(5u); i--) {
    let r = i - 1u;
    EACH(k, n) {
      let row = first + n + k * n;
      if (k == r) { store3(row + r, v_word(v_value(1.0))); }
      if (k <= r) { continue; }
      var sum = v_value(0.0);
      for (var j = i; j <= k; j++) {
        sum = v_fused(value_at(at + r * n + j), v_of(load3(row + j)), sum);
      }
      var by = v_sub(value_at(at + k * n + k), value_at(at + r * n + r));
      if (v_size(by) <= EPSILON * norm) { by = v_value(EPSILON * norm + SMALLEST); }
      let x = v_div(sum, by);
      store3(row + r, v_word(x));
      let size = v_size(x);
      for (var j = r; j <= k && size > 1e15; j++) {
        store3(row + j, v_word(v_over(v_of(load3(row + j)), size)));
      }
    }
  }"""
# More words: the first element, the one after the last. Product k of the vectors: the triangle's
# are zero after element k.
_PRODUCTS = """  for (var i = own(4u) + t; i < own(5u); i += THREADSu) {
    let k = i / n;
    var sum = v_value(0.0);
    for (var j = 0u; j <= k; j++) {
      sum = v_fused(value_at(z + i % n * n + j), v_of(load3(first + n + k * n + j)), sum);
    }
    put(y + i, sum);
  }""".replace("THREADS", str(THREADS))
_LENGTHS = """  EACH(k, n) {
    let row = y + k * n;
    var most = 0.0;
    var place = 0u;
    for (var j = 0u; j < n; j++) {
      let size = v_length(value_at(row + j));
      if (size > most) {
        most = size;
        place = j;
      }
    }
    var square = 0.0;
    for (var j = 0u; j < n; j++) { square += v_square(v_over(value_at(row + j), most)); }
    let length = most * r_root(square);
    let phase = v_over(v_conj(value_at(row + place)), most);
    let is_real = PAIRS && value_at(values + k).y == 0.0;
    for (var j = 0u; j < n; j++) {
      var part = v_mul(v_over(value_at(row + j), length), phase);
      if (j == place || is_real) { part.y = 0.0; }
      store3(first + n + k * n + j, v_word(part));
    }
  }
  meet();
  EACH(i, n * n) {
    if (PAIRS && value_at(values + i / n).y < 0.0) {
      store3(first + n + i, v_word(v_conj(v_of(load3(first + i)))));
    }
  }"""
_FAILED = """  let first = item * own(3u);
  if (status == 0u) { return; }
  EACH(i, own(3u)) { store3(first + i, v_word(v_nan())); }"""


@cache
def eig_source(dtype: DType, part: str) -> str:
    """The kernels that make complex eigenvalues of what `schur` worked in (`values`), eigenvectors
    behind them (`vectors`, `products`, `lengths`), and NaN where there is no Schur form (`failed`).
    """
    parts = {
        "values": _EIG + _VALUES,
        "vectors": _EIG + _VECTORS,
        "products": _EIG + _PRODUCTS,
        "lengths": _EIG + _LENGTHS,
        "failed": _FAILED,
    }
    body = parts[part].replace("PAIRS", str(not dtype.is_complex).lower())
    needs = "\n".join([COMPLEX_PARTS, widened(dtype, 2)]) if part == "values" else ""
    return complex_source(needs, body)


def eig_room(n: int) -> int:
    """Complex elements that `eig` works in for a matrix."""
    return 3 * n * n + n
