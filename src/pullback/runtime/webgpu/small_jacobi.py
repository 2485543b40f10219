"""Eigenvalues and singular values of many real matrices of up to four rows, by Jacobi's method.

A thread has a matrix; the arithmetic is that of the CPU, to the bit. Array 0 is the result, array 1
has dense matrices; the only word is the number of matrices.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from pullback.compile.kernel.factor_order import (
    JACOBI_LARGE,
    JACOBI_NOTHING,
    JACOBI_ROUNDS,
    JACOBI_SWEEPS,
)
from pullback.core import dtypes as dt
from pullback.runtime.webgpu.matrix_numbers import numbers_text
from pullback.runtime.webgpu.nests import MAIN

__all__ = ["small_source"]

# Rows are arrays; a result has rows of N numbers.
_COMMON = """
alias Row = array<f32, N>;
alias Matrix = array<Row, N>;
struct Turn { t: f32, c: f32, s: f32 }
// Tangent, cosine and sine of the rotation that makes a symmetric 2 x 2 matrix diagonal.
fn turn_of(app: f32, aqq: f32, apq: f32) -> Turn {
  let one = pb_c(0x3f800000u);
  let none = r_is_zero(apq);
  let ratio = r_over(r_mul(r_add(aqq, f32_neg(app)), pb_c(0x3f000000u)), select(apq, one, none));
  let root = r_root(r_fused(ratio, ratio, one));
  let made = r_over(r_sign(one, ratio), r_add(r_abs(ratio), root));
  let t = select(made, pb_c(0u), none);
  let c = r_over(one, r_root(r_fused(t, t, one)));
  return Turn(t, c, r_mul(t, c));
}
fn turned(turn: Turn, x: f32, y: f32) -> vec2<f32> {
  return vec2<f32>(r_fused(turn.c, x, f32_neg(r_mul(turn.s, y))),
                   r_fused(turn.s, x, r_mul(turn.c, y)));
}
fn make(item: u32, row: u32, column: u32, x: f32, odd: bool) {
  let number = select(bitcast<u32>(x), 0x7fc00000u, odd);
  store0((item * ROWS + row) * N + column, number);
}"""
_READ = """  let n = N + pb_zero();  // that no compiler knows: none shall write all loops out
  var given: Matrix;
  var odd = false;
  var largest = pb_c(0u);
  for (var i = 0u; i < n; i++) {
    for (var j = 0u; j < n; j++) {
      given[i][j] = bitcast<f32>(load1((item * N + i) * N + j));
      odd = odd || r_is_odd(given[i][j]);
      let size = r_abs(given[i][j]);
      if (largest < size) { largest = size; }
    }
  }"""

_EIGH = """  let usual = largest < pb_c(LARGE);
  let half = pb_c(select(0x3d000000u, 0x3f000000u, usual));  // 1 / 32, 1 / 2
  let whole = pb_c(select(0x41800000u, 0x3f800000u, usual));  // 16, 1
  var a: Matrix;
  var v: Matrix;
  var values: Row;
  for (var i = 0u; i < n; i++) {
    for (var j = 0u; j < n; j++) {
      a[i][j] = r_add(r_mul(given[i][j], half), r_mul(given[j][i], half));
      v[i][j] = select(0.0, 1.0, i == j);
    }
  }
  for (var sweep = 0u; sweep < SWEEPS + pb_zero(); sweep++) {
    for (var p = 0u; p < n; p++) {
      for (var q = p + 1u; q < n; q++) {
        let turn = turn_of(a[p][p], a[q][q], a[p][q]);
        let shift = r_mul(turn.t, a[p][q]);
        a[p][p] = r_add(a[p][p], f32_neg(shift));
        a[q][q] = r_add(a[q][q], shift);
        a[p][q] = pb_c(0u);
        a[q][p] = pb_c(0u);
        for (var r = 0u; r < n; r++) {
          if (r != p && r != q) {
            let both = turned(turn, a[r][p], a[r][q]);
            a[r][p] = both.x;
            a[p][r] = both.x;
            a[r][q] = both.y;
            a[q][r] = both.y;
          }
          if (VECTORS) {
            let both = turned(turn, v[p][r], v[q][r]);
            v[p][r] = both.x;
            v[q][r] = both.y;
          }
        }
      }
    }
  }
  for (var i = 0u; i < n; i++) { values[i] = r_mul(a[i][i], whole); }
  for (var last = n - 1u; last > 0u; last--) {
    for (var i = 0u; i < last; i++) {
      if (values[i + 1u] < values[i]) {
        let held = values[i];
        values[i] = values[i + 1u];
        values[i + 1u] = held;
        let row = v[i];
        v[i] = v[i + 1u];
        v[i + 1u] = row;
      }
    }
  }
  for (var j = 0u; j < n; j++) {
    make(item, 0u, j, values[j], odd);
    for (var i = 0u; i < n && VECTORS; i++) { make(item, 1u + i, j, v[i][j], odd); }
  }"""

# Columns are turned in pairs until all are orthogonal, and then are U times the singular values. A
# matrix with nothing in a column gets a unit vector orthogonal to those before from `completed`:
# what is left of the axis that they are farthest from.
_SVD_PARTS = """
fn dot(x: Row, y: Row) -> f32 {
  var sum = r_mul(x[0], y[0]);
  var one = x;
  var two = y;
  for (var k = 1u; k < N + pb_zero(); k++) { sum = r_fused(one[k], two[k], sum); }
  return sum;
}
fn completed(known: Matrix, i: u32) -> Row {
  var g = known;
  var best = pb_c(0xbf800000u);
  var kept: Row;
  for (var axis = 0u; axis < N + pb_zero(); axis++) {
    var rest: Row;
    for (var k = 0u; k < N; k++) { rest[k] = select(0.0, 1.0, k == axis); }
    for (var again = 0u; again < 2u; again++) {  // the second time takes away what rounding left
      for (var before = 0u; before < i; before++) {
        let along = f32_neg(dot(g[before], rest));
        for (var k = 0u; k < N; k++) { rest[k] = r_fused(along, g[before][k], rest[k]); }
      }
    }
    let square = dot(rest, rest);
    if (best < square) {
      best = square;
      kept = rest;
    }
  }
  let length = r_root(select(pb_c(0x3f800000u), best, best > 0.0));
  for (var k = 0u; k < N; k++) { kept[k] = r_over(kept[k], length); }
  return kept;
}"""
_SVD = """  // The power of 2 below the largest element, or the least normal number, which is one.
  let power = max(bitcast<u32>(largest) & 0x7f800000u, 0x00800000u);
  let scale = pb_c(select(0x3f800000u, power, power < 0x7f800000u));
  var g: Matrix;
  var v: Matrix;
  var values: Row;
  for (var i = 0u; i < n; i++) {
    for (var j = 0u; j < n; j++) {
      g[i][j] = r_over(given[j][i], scale);  // row i of g and v is column i
      v[i][j] = select(0.0, 1.0, i == j);
    }
  }
  for (var round = 0u; round < ROUNDS + pb_zero(); round++) {
    for (var p = 0u; p < n; p++) {
      for (var q = p + 1u; q < n; q++) {
        let turn = turn_of(dot(g[p], g[p]), dot(g[q], g[q]), dot(g[p], g[q]));
        for (var k = 0u; k < n; k++) {
          let both = turned(turn, g[p][k], g[q][k]);
          g[p][k] = both.x;
          g[q][k] = both.y;
          if (VECTORS) {
            let others = turned(turn, v[p][k], v[q][k]);
            v[p][k] = others.x;
            v[q][k] = others.y;
          }
        }
      }
    }
  }
  for (var i = 0u; i < n; i++) { values[i] = dot(g[i], g[i]); }
  for (var last = n - 1u; last > 0u; last--) {
    for (var i = 0u; i < last; i++) {
      if (values[i] < values[i + 1u]) {
        let held = values[i];
        values[i] = values[i + 1u];
        values[i + 1u] = held;
        var row = g[i];
        g[i] = g[i + 1u];
        g[i + 1u] = row;
        row = v[i];
        v[i] = v[i + 1u];
        v[i + 1u] = row;
      }
    }
  }
  for (var i = 0u; i < n; i++) {
    let square = values[i];
    let length = r_root(square);
    make(item, 0u, i, r_mul(length, scale), odd);
    if (VECTORS) {
      if (square < pb_c(NOTHING)) {
        g[i] = completed(g, i);
      } else {
        for (var j = 0u; j < n; j++) { g[i][j] = r_over(g[i][j], length); }
      }
      for (var j = 0u; j < n; j++) {
        make(item, 1u + j, i, g[i][j], odd);
        make(item, 1u + n + i, j, v[i][j], odd);
      }
    }
  }"""


@cache
def small_source(name: str, n: int, vectors: bool) -> str:
    """`eigh`: n x n -> eigenvalues, then eigenvectors; `svd`: singular values, then U and V^T."""
    single = dt.float32
    nothing, large = (
        int(np.float32(size["float32"]).view(np.uint32)) for size in (JACOBI_NOTHING, JACOBI_LARGE)
    )
    words = {
        "VECTORS": str(vectors).lower(),
        "SWEEPS": f"{JACOBI_SWEEPS['float32']}u",
        "ROUNDS": f"{JACOBI_ROUNDS['float32']}u",
        "ROWS": f"{1 + vectors * (n if name == 'eigh' else 2 * n)}u",
        "NOTHING": f"{nothing}u",
        "LARGE": f"{large}u",
        "N": f"{n}u",
    }
    body = {"eigh": _EIGH, "svd": _SVD}[name]
    parts = _SVD_PARTS if name == "svd" else ""
    head = [numbers_text(single, exact=True), _COMMON, parts, MAIN, "  let item = i;"]
    text = "\n".join([*head, "  {", _READ, body, "  }", "}"])
    return re.sub(rf"\b({'|'.join(words)})\b", lambda found: words[found[1]], text)
