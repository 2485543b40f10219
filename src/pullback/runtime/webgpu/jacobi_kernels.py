"""Eigenvalues and singular values of matrices of any size by Jacobi's method, as WGSL.

A workgroup has a matrix, and turns pairs of rows and columns that have none in common side by side,
round after round of a tournament, until a sweep over all pairs leaves nothing to do. `begin`,
rounds of a sweep (`turn`) and `end` are kernels of their own: drivers stop what takes too long. A
matrix that is not done has a status above 0. The method is that of `cuda.linalg.jacobi_kernels`;
the CPU calls LAPACK.
"""

from __future__ import annotations

from functools import cache

from pullback.compile.kernel.factor_order import JACOBI_NOTHING
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.block_kernels import EPSILON, ODD, THREADS, block_source, literal

__all__ = [
    "completing_rounds", "eigh_room", "eigh_rounds", "eigh_source", "svd_room", "svd_rounds",
    "svd_source", "valuing_rounds",
]  # fmt: skip

_LANES = 32  # threads that make a sum together, each a chain: its order
_NONE = literal(JACOBI_NOTHING["float32"])

_TURNS = """
// Opponents of a round among an even number of players, of whom the last one stays where he is.
fn pair_of(players: u32, round: u32, i: u32) -> vec2<u32> {
  let others = players - 1u;
  let p = (round + i) % others;
  let q = select(others, (round + others - i) % others, i > 0u);
  return vec2<u32>(min(p, q), max(p, q));
}
// The sine of a rotation, the tangent of half its angle, and what vanishes without its phase.
struct Turn { s: f32, h: f32, a: f32, phase: Value }
// The rotation that makes a Hermitian 2 x 2 matrix diagonal, of its second column times the phase.
fn turn_of(app: f32, aqq: f32, apq: Value) -> Turn {
  var turn: Turn;
PHASE
  let none = turn.a == 0.0;
  let ratio = r_over((aqq - app) * 0.5, select(turn.a, 1.0, none));
  let by = r_abs(ratio) + r_root(r_fused(ratio, ratio, 1.0));
  var tangent = r_over(r_sign(1.0, ratio), by);
  if (r_abs(ratio) > 1e9) { tangent = r_over(0.5, ratio); }  // its square is no number of float32
  if (none) { tangent = 0.0; }
  let cosine = r_over(1.0, r_root(r_fused(tangent, tangent, 1.0)));
  turn.s = tangent * cosine;
  turn.h = r_over(turn.s, 1.0 + cosine);
  return turn;
}
fn rotate(turn: Turn, phase: Value, one: u32, two: u32) {
  let x = value_at(one);
  let z = v_mul(phase, value_at(two));
  // what is added is as small as the angle, and so is what rounding takes
  put(two, v_add(z, v_scale(v_sub(x, v_scale(z, turn.h)), turn.s)));
  put(one, v_sub(x, v_scale(v_add(z, v_scale(x, turn.h)), turn.s)));
}"""
_REAL_PHASE = "  turn.phase = 1.0;\n  turn.a = apq;"
# Scaled, so that the phase has length 1 however small the element is.
_COMPLEX_PHASE = """  let most = max(r_abs(apq.x), r_abs(apq.y));
  let direction = v_over(apq, select(most, 1.0, most == 0.0));
  let size = r_root(v_square(direction));
  turn.a = most * size;
  turn.phase = v_value(1.0);
  if (turn.a != 0.0) { turn.phase = v_over(v_conj(direction), size); }"""

# The power of 2 below the largest of `count` elements of array 2 from `first` on, and 1 for zeros.
_POWER = """
fn power_of(first: u32, count: u32, t: u32) -> f32 {
  var most = 0.0;
  EACH(i, count) { most = max(most, v_size(v_of(load2(first + i)))); }
  let power = bitcast<u32>(largest(most, t)) & 0x7f800000u;
  return bitcast<f32>(select(0x3f800000u, power, power > 0u && power < 0x7f800000u));
}"""

# -- eigenvalues: own words are n, elements of `work` for a matrix ---------------------------------

_EIGH = """  let n = own(0u);
  let players = n + n % 2u;
  let a = item * own(1u);
  let v = a + n * n;
  let turns = v + n * n;
  let state = turns + 2u * players;  // the scale, the largest element, what a sweep has met so far
"""
_EIGH_BEGIN = """  if (status == ODD) { return; }
  let scale = power_of(item * n * n, n * n, t);
  var most = 0.0;
  EACH(i, n * n) {
    let r = i / n;
    let c = i % n;
    let one = v_over(v_of(load2(item * n * n + i)), scale);
    let two = v_conj(v_over(v_of(load2(item * n * n + c * n + r)), scale));
    let x = v_scale(v_add(one, two), 0.5);
    put(a + i, x);
    put(v + i, v_value(select(0.0, 1.0, r == c)));
    most = max(most, v_size(x));
  }
  most = largest(most, t);
  if (t == 0u) {
    put(state, v_value(scale));
    put(state + 1u, v_value(most));
    put(state + 2u, v_value(0.0));
    store1(item, select(n, 0u, n == 1u));
  }"""
# More words: the first round, the one after the last, whether there are vectors.
_EIGH_TURN = """  if (status == 0u || status == ODD) { return; }
  let half = players / 2u;
  var most = real_at(state + 2u);
  for (var round = own(2u); round < own(3u); round++) {
    EACH(i, half) {
      let rc = pair_of(players, round, i);
      var turn: Turn;
      if (rc.y < n) {
        let row = a + rc.x * n;
        turn = turn_of(real_at(row + rc.x), real_at(a + rc.y * n + rc.y), value_at(row + rc.y));
        most = max(most, r_abs(turn.a));
      }
      put(turns + 4u * i, v_value(turn.s));
      put(turns + 4u * i + 1u, v_value(turn.h));
      put(turns + 4u * i + 2u, v_value(turn.a));
      put(turns + 4u * i + 3u, turn.phase);
    }
    meet();
    EACH(k, half * n) {
      let rc = pair_of(players, round, k / n);
      let turn = kept_turn(turns + k / n * 4u);
      if (rc.y < n && turn.a != 0.0) {
        rotate(turn, v_conj(turn.phase), a + rc.x * n + k % n, a + rc.y * n + k % n);
        if (own(4u) != 0u) { rotate(turn, turn.phase, v + rc.x * n + k % n, v + rc.y * n + k % n); }
      }
    }
    meet();
    EACH(k, half * n) {
      let rc = pair_of(players, round, k % half);
      let turn = kept_turn(turns + k % half * 4u);
      let row = a + k / half * n;
      if (rc.y < n && turn.a != 0.0) { rotate(turn, turn.phase, row + rc.x, row + rc.y); }
    }
    meet();
    EACH(i, half) {
      let rc = pair_of(players, round, i);
      if (rc.y < n && real_at(turns + 4u * i + 2u) != 0.0) {
        put(a + rc.x * n + rc.y, v_value(0.0));
        put(a + rc.y * n + rc.x, v_value(0.0));
        put(a + rc.x * n + rc.x, v_value(real_at(a + rc.x * n + rc.x)));
        put(a + rc.y * n + rc.y, v_value(real_at(a + rc.y * n + rc.y)));
      }
    }
    meet();
  }
  most = largest(most, t);
  let ends = own(3u) == players - 1u;
  if (t == 0u) {
    put(state + 2u, v_value(select(most, 0.0, ends)));
    if (ends && most <= real_at(state + 1u) * EPSILON) { store1(item, 0u); }
  }"""
_KEPT_TURN = """
fn kept_turn(i: u32) -> Turn {
  return Turn(real_at(i), real_at(i + 1u), real_at(i + 2u), value_at(i + 3u));
}"""
# More words: elements of a result, whether there are vectors. Array 2 is the result.
_EIGH_END = """  let first = item * own(2u);
  if (status == ODD) {
    EACH(i, own(2u)) { keep(first + i, v_nan()); }
    return;
  }
  let scale = real_at(state);
  EACH(i, n) {
    let value = real_at(a + i * n + i);
    var rank = 0u;
    for (var k = 0u; k < n; k++) {
      let other = real_at(a + k * n + k);
      rank += select(0u, 1u, other < value || (other == value && k < i));
    }
    keep(first + rank, v_value(value * scale));
    for (var j = 0u; j < n && own(3u) != 0u; j++) {
      keep(first + n + rank * n + j, value_at(v + i * n + j));
    }
  }"""

# -- singular values: own words are n, m, rows of g, elements of `work`, whether rows are fewer ----

# Rows of g are the columns of x, or the conjugated rows if there are fewer of them; they are turned
# in pairs until all are orthogonal. More rows follow that make them a basis.
_SVD = """  let n = own(0u);
  let m = own(1u);
  let wide = own(4u) != 0u;
  let players = n + n % 2u;
  let g = item * own(3u);
  let v = g + own(2u) * m;
  let squares = v + n * n;
  let ranks = squares + n;
  let rest = ranks + n;
  let state = rest + m;  // the scale, whether a sweep has turned something so far
"""
_SVD_BEGIN = """  if (status == ODD) { return; }
  let scale = power_of(item * n * m, n * m, t);
  EACH(i, n * m) {
    let r = i / m;
    let c = i % m;
    let x = v_over(v_of(load2(item * n * m + select(c * n + r, i, wide))), scale);
    put(g + i, select(x, v_conj(x), wide));
  }
  EACH(i, n * n) { put(v + i, v_value(select(0.0, 1.0, i / n == i % n))); }
  if (t == 0u) {
    put(state, v_value(scale));
    put(state + 1u, v_value(0.0));
    store1(item, 1u);
  }"""
_DOT = """
var<workgroup> pb_chains: array<Value, THREADS>;
// The sum of conj(x) y of `count` elements, which the lanes of a group have; all threads come here.
fn dot(x: u32, y: u32, count: u32, t: u32) -> Value {
  let lane = t % LANESu;
  var sum = v_value(0.0);
  for (var i = lane; i < count; i += LANESu) {
    sum = v_fused(v_conj(value_at(x + i)), value_at(y + i), sum);
  }
  pb_chains[t] = sum;
  for (var width = LANESu / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lane < width) { pb_chains[t] = v_add(pb_chains[t], pb_chains[t + width]); }
  }
  workgroupBarrier();
  let found = pb_chains[t - lane];
  workgroupBarrier();
  return found;
}""".replace("THREADS", str(THREADS)).replace("LANES", str(_LANES))
# More words: the first round, the one after the last, whether there are vectors.
_SVD_TURN = """  if (status == 0u || status == ODD) { return; }
  let half = players / 2u;
  let limit = EPSILON * r_root(f32(m));
  var turned = real_at(state + 1u);
  for (var round = own(5u); round < own(6u); round++) {
    for (var base = 0u; base < half; base += GROUPSu) {
      let i = base + t / LANESu;
      var rc = pair_of(players, round, min(i, half - 1u));
      let plays = i < half && rc.y < n;
      rc = select(vec2<u32>(), rc, vec2<bool>(plays));
      let one = g + rc.x * m;
      let two = g + rc.y * m;
      let count = select(0u, m, plays);
      let app = v_real(dot(one, one, count, t));
      let aqq = v_real(dot(two, two, count, t));
      let turn = turn_of(app, aqq, dot(one, two, count, t));
      // what is left of a column that depends on others has no direction
      let some = plays && min(app, aqq) >= NONE;
      if (some && r_abs(turn.a) > limit * r_root(app) * r_root(aqq)) {
        turned = 1.0;
        for (var k = t % LANESu; k < m; k += LANESu) { rotate(turn, turn.phase, one + k, two + k); }
        for (var k = t % LANESu; k < n && own(7u) != 0u; k += LANESu) {
          rotate(turn, turn.phase, v + rc.x * n + k, v + rc.y * n + k);
        }
      }
    }
    meet();
  }
  turned = largest(turned, t);
  let ends = own(6u) == players - 1u;
  if (t == 0u) {
    put(state + 1u, v_value(select(turned, 0.0, ends)));
    if (ends && turned == 0.0) { store1(item, 0u); }
  }""".replace("LANES", str(_LANES)).replace("GROUPS", str(THREADS // _LANES))
_SVD_VALUES = """  if (status == ODD) { return; }
  for (var base = 0u; base < n; base += GROUPSu) {
    let i = base + t / LANESu;
    let row = g + min(i, n - 1u) * m;
    let square = dot(row, row, m, t);
    if (i < n && t % LANESu == 0u) { put(squares + i, square); }
  }
  meet();
  EACH(i, n) {
    let square = real_at(squares + i);
    var rank = 0u;
    for (var k = 0u; k < n; k++) {
      let other = real_at(squares + k);
      rank += select(0u, 1u, other > square || (other == square && k < i));
    }
    put(ranks + i, v_value(f32(rank)));
  }
  EACH(i, n * m) {
    let square = real_at(squares + i / m);
    if (!(square < NONE)) { put(g + i, v_over(value_at(g + i), r_root(square))); }
  }""".replace("LANES", str(_LANES)).replace("GROUPS", str(THREADS // _LANES))
# More words: the first row of g, the one after the last.
_SVD_COMPLETE = """  if (status == ODD) { return; }
  for (var i = own(5u); i < own(6u); i++) {
    let needs = i >= n || real_at(squares + min(i, n - 1u)) < NONE;
    if (decided(needs, t)) { complete(g, squares, rest, i, n, m, t); }
  }"""
# More words: elements of a result, and of singular vectors on the longer side: 0 without vectors.
_SVD_END = """  let first = item * own(5u);
  let basis = own(6u);
  if (status == ODD) {
    EACH(i, own(5u)) { keep(first + i, v_nan()); }
    return;
  }
  let scale = real_at(state);
  EACH(i, n) {
    let size = r_root(real_at(squares + i)) * scale;
    keep(first + u32(real_at(ranks + i)), v_value(size));
  }
  if (basis == 0u) { return; }
  // Both are row-major.
  let u = select(basis, n, wide);
  let us = first + n;
  let vs = us + select(m, n, wide) * u;
  EACH(i, basis * m) {
    let row = i / m;
    let k = i % m;
    var rank = row;
    if (row < n) { rank = u32(real_at(ranks + row)); }
    if (wide) { keep(vs + rank * m + k, v_conj(value_at(g + i))); }
    else { keep(us + k * u + rank, value_at(g + i)); }
  }
  EACH(i, n * n) {
    let rank = u32(real_at(ranks + i / n));
    let k = i % n;
    if (wide) { keep(us + k * u + rank, value_at(v + i)); }
    else { keep(vs + rank * n + k, v_conj(value_at(v + i))); }
  }"""
# What has no direction of its own gets one: what is left of the axis farthest from all others.
_COMPLETE = """
fn is_known(k: u32, i: u32, n: u32, squares: u32) -> bool {
  if (k == i) { return false; }
  if (k >= n || k < i) { return true; }
  return !(real_at(squares + k) < NONE);
}
fn complete(g: u32, squares: u32, rest: u32, i: u32, n: u32, m: u32, t: u32) {
  let others = max(n, i);
  let row = g + i * m;
  var best = -1.0;
  EACH(axis, m) {
    var covered = 0.0;
    for (var k = 0u; k < others; k++) {
      if (is_known(k, i, n, squares)) { covered += v_square(value_at(g + k * m + axis)); }
    }
    put(rest + axis, v_value(2.0 - covered));
    best = max(best, 2.0 - covered);
  }
  best = largest(best, t);
  var chosen = 0.0;  // the first one of them
  EACH(axis, m) { if (real_at(rest + axis) == best) { chosen = max(chosen, f32(m - axis)); } }
  let place = m - u32(largest(chosen, t));
  EACH(k, m) { put(row + k, v_value(select(0.0, 1.0, k == place))); }
  meet();
  for (var again = 0u; again < 2u; again++) {  // the second time takes away what rounding left
    for (var base = 0u; base < others; base += GROUPSu) {
      let k = min(base + t / LANESu, others - 1u);
      let known = is_known(k, i, n, squares);
      let along = dot(g + k * m, row, select(0u, m, known), t);
      if (t % LANESu == 0u) { put(rest + k, along); }
    }
    meet();
    EACH(j, m) {
      var x = value_at(row + j);
      for (var k = 0u; k < others; k++) {
        x = v_less(x, value_at(rest + k), value_at(g + k * m + j));
      }
      put(row + j, x);
    }
    meet();
  }
  let size = r_root(v_real(dot(row, row, m, t)));
  EACH(k, m) { put(row + k, v_over(value_at(row + k), size)); }
  meet();
}""".replace("LANES", str(_LANES)).replace("GROUPS", str(THREADS // _LANES))

_KEEP = "fn keep(i: u32, x: Value) { store2(i, v_word(x)); }"
_KEEP_REAL = "fn keep(i: u32, x: Value) { store2(i, bitcast<u32>(v_real(x))); }"
_BODIES = {
    "eigh": {"begin": _EIGH_BEGIN, "turn": _EIGH_TURN, "end": _EIGH_END},
    "svd": {
        "begin": _SVD_BEGIN,
        "turn": _SVD_TURN,
        "values": _SVD_VALUES,
        "complete": _SVD_COMPLETE,
        "end": _SVD_END,
    },
}


def _source(name: str, dtype: DType, part: str, vectors: bool, needs: str) -> str:
    turns = _TURNS.replace("PHASE", _COMPLEX_PHASE if dtype.is_complex else _REAL_PHASE)
    keep = _KEEP if vectors else _KEEP_REAL
    functions = {"begin": _POWER, "turn": turns, "end": keep}.get(part, "") + needs
    head = {"eigh": _EIGH, "svd": _SVD}[name]
    text = block_source(dtype, functions, head + _BODIES[name][part])
    return text.replace("NONE", _NONE).replace("EPSILON", literal(EPSILON)).replace("ODD", ODD)


@cache
def eigh_source(dtype: DType, part: str, vectors: bool) -> str:
    """The kernel `begin`, `turn` or `end`. Eigenvalues and singular values are elements of the
    matrix's dtype if there are vectors too, else real.
    """
    return _source("eigh", dtype, part, vectors, _KEPT_TURN if part == "turn" else "")


@cache
def svd_source(dtype: DType, part: str, vectors: bool) -> str:
    """The kernel `begin`, `turn`, `values`, `complete` or `end`."""
    needs = {"turn": _DOT, "values": _DOT, "complete": _DOT + _COMPLETE}.get(part, "")
    return _source("svd", dtype, part, vectors, needs)


def eigh_rounds(n: int) -> int:
    """What loops of a thread go round for a round of a sweep."""
    half = (n + 1) // 2
    return 2 * -(-half * n // THREADS) + 2 * -(-half // THREADS) + 4


def svd_rounds(n: int, m: int) -> int:
    """See `eigh_rounds`."""
    chain = -(-m // _LANES)
    return -(-n // (2 * THREADS // _LANES)) * (4 * chain + -(-n // _LANES) + 20)


def valuing_rounds(n: int, m: int) -> int:
    """What loops of a thread go round in `values`."""
    chains = -(-n // (THREADS // _LANES)) * (-(-m // _LANES) + 7)
    return chains + n * -(-n // THREADS) + -(-n * m // THREADS)


def completing_rounds(m: int) -> int:
    """What loops of a thread go round for a row of `complete`."""
    return 3 * m * -(-m // THREADS) + 2 * -(-m // (THREADS // _LANES)) * (-(-m // _LANES) + 7)


def eigh_room(n: int) -> int:
    """Elements that `eigh` works in for a matrix."""
    return 2 * n * n + 2 * (n + n % 2) + 3


def svd_room(n: int, m: int, held: int) -> int:
    """Elements that `svd` works in for a matrix."""
    return held * m + n * n + 2 * n + m + 2
