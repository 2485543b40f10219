// float32: what compilers must not rearrange, and what adapters may compute inexactly.

fn pb_f(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ pb_zero()); }

fn pb_c(bits: u32) -> f32 { return bitcast<f32>(bits ^ pb_zero()); }

fn f32_is_number(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) <= 0x7f800000u; }

fn f32_abs(x: f32) -> f32 { return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) ^ pb_zero()); }

fn f32_neg(x: f32) -> f32 { return bitcast<f32>((bitcast<u32>(x) ^ 0x80000000u) ^ pb_zero()); }

fn f32_copysign(x: f32, sign: f32) -> f32 {
  return pb_c((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(sign) & 0x80000000u));
}

fn f32_to_i32(x: f32) -> i32 {
  if (!f32_is_number(x)) { return 0; }
  if (x >= pb_c(0x4f000000u)) { return 0x7fffffff; }
  if (x <= pb_c(0xcf000000u)) { return bitcast<i32>(0x80000000u); }
  return i32(x);
}

fn f32_to_u32(x: f32) -> u32 {
  if (!(x > pb_c(0u))) { return 0u; }
  if (x >= pb_c(0x4f800000u)) { return 0xffffffffu; }
  return u32(x);
}

// m has its leading bit at bit 63 and 2**(exponent - 127) as the value of that bit; bits that were
// lost are gathered in its last one. Rounds to the nearest, ties to even.
fn f32_packed(sign: u32, exponent: i32, m: vec2<u32>) -> u32 {
  if (exponent >= 255) { return sign | 0x7f800000u; }
  var v = m;
  if (exponent <= 0) { v = u64_shr_sticky(m, u32(1 - exponent)); }
  let kept = v.y >> 8u;
  let rest = (v.y << 24u) | select(0u, 1u, v.x != 0u);
  let up = rest > 0x80000000u || (rest == 0x80000000u && (kept & 1u) != 0u);
  let base = select(0u, u32(max(exponent, 1) - 1) << 23u, exponent > 0);
  return sign | (base + kept + select(0u, 1u, up));
}

fn f32_normal(x: u32) -> vec2<u32> {
  let magnitude = x & 0x7fffffffu;
  let exponent = magnitude >> 23u;
  let zeros = countLeadingZeros(magnitude & 0x7fffffu);
  let low = vec2<u32>((magnitude & 0x7fffffu) << zeros, 9u - zeros);
  return select(vec2<u32>((magnitude | 0x800000u) << 8u, exponent), low, exponent == 0u);
}

// The rounding error of a * b, where neither it nor the product is too large or too small: the
// factors are cut into halves whose products are exact.
fn f32_mul_error(a: f32, b: f32, product: f32) -> f32 {
  let a1 = pb_c(bitcast<u32>(a) & 0xfffff000u);
  let b1 = pb_c(bitcast<u32>(b) & 0xfffff000u);
  let a2 = pb_f(a - a1);
  let b2 = pb_f(b - b1);
  let one = pb_f(pb_f(a1 * b1) - product);
  let two = pb_f(one + pb_f(a1 * b2));
  return pb_f(pb_f(two + pb_f(a2 * b1)) + pb_f(a2 * b2));
}

// The rounding error of a + b, given the sum.
fn f32_add_error(a: f32, b: f32, sum: f32) -> f32 {
  let part = pb_f(sum - a);
  return pb_f(pb_f(a - pb_f(sum - part)) + pb_f(b - part));
}

// The sum of a product and its error with c: that of the small parts is made odd in its last place
// if it was rounded, so that it is no tie when the whole is rounded.
fn f32_fma_soft(a: f32, b: f32, c: f32) -> f32 {
  let x = (bitcast<u32>(a) >> 23u) & 255u;
  let y = (bitcast<u32>(b) >> 23u) & 255u;
  let z = (bitcast<u32>(c) >> 23u) & 255u;
  if (max(max(x, y), z) > 220u || min(min(x, y), z) < 70u || x + y < 200u || x + y > 340u) {
    return f32_fma_integers(a, b, c);
  }
  let product = pb_f(a * b);
  let error = f32_mul_error(a, b, product);
  let low = pb_f(c + error);
  let high = pb_f(product + low);
  let one = f32_add_error(c, error, low);
  let two = f32_add_error(product, low, high);
  let rest = pb_f(one + two);
  let lost = f32_add_error(one, two, rest);
  let bits = bitcast<u32>(rest);
  let up = (bitcast<u32>(lost) >> 31u) == (bits >> 31u);
  let odd = select(bits - 1u, bits + 1u, up);
  let is_even = (bits & 1u) == 0u && (bitcast<u32>(lost) << 1u) != 0u;
  return pb_f(high + pb_c(select(bits, odd, is_even)));
}

fn f32_fma_integers(a: f32, b: f32, c: f32) -> f32 {
  let x = bitcast<u32>(a) & 0x7fffffffu;
  let y = bitcast<u32>(b) & 0x7fffffffu;
  let z = bitcast<u32>(c) & 0x7fffffffu;
  if (x >= 0x7f800000u || y >= 0x7f800000u || z >= 0x7f800000u || x == 0u || y == 0u) {
    return pb_f(pb_f(a * b) + c);
  }
  let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
  let one = f32_normal(x);
  let two = f32_normal(y);
  var product = u32_mul_wide(one.x, two.x);
  var exponent = bitcast<i32>(one.y) + bitcast<i32>(two.y) - 126;
  if (product.y < 0x80000000u) {
    product = u64_shl(product, 1u);
    exponent -= 1;
  }
  product = u64_shr(product, 1u);
  if (z == 0u) { return pb_c(f32_packed(sign, exponent, u64_shl(product, 1u))); }
  let three = f32_normal(z);
  var other = vec2<u32>(0u, three.x >> 1u);
  other.x = (three.x & 1u) << 31u;
  let power = bitcast<i32>(three.y);
  let top = max(exponent, power);
  product = u64_shr_sticky(product, u32(top - exponent));
  other = u64_shr_sticky(other, u32(top - power));
  let own = bitcast<u32>(c) & 0x80000000u;
  var total = u64_add(product, other);
  var side = sign;
  if (sign != own) {
    if (u64_lt(product, other)) {
      total = u64_sub(other, product);
      side = own;
    } else {
      total = u64_sub(product, other);
    }
  }
  if ((total.x | total.y) == 0u) { return pb_c(0u); }
  let zeros = u64_zeros(total);
  return pb_c(f32_packed(side, top + 1 - bitcast<i32>(zeros), u64_shl(total, zeros)));
}

fn f32_div_soft(a: f32, b: f32) -> f32 {
  let x = bitcast<u32>(a) & 0x7fffffffu;
  let y = bitcast<u32>(b) & 0x7fffffffu;
  let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
  if (x > 0x7f800000u || y > 0x7f800000u || (x == 0u && y == 0u)) { return pb_c(0x7fc00000u); }
  if (x == 0x7f800000u) { return pb_c(select(sign | x, 0x7fc00000u, y == x)); }
  if (y == 0x7f800000u || x == 0u) { return pb_c(sign); }
  if (y == 0u) { return pb_c(sign | 0x7f800000u); }
  let one = f32_normal(x);
  let two = f32_normal(y);
  let divisor = two.x >> 8u;
  var rest = one.x >> 8u;
  var quotient = 0u;
  for (var k = 0u; k < 27u; k++) {
    quotient <<= 1u;
    if (rest >= divisor) {
      rest -= divisor;
      quotient |= 1u;
    }
    rest <<= 1u;
  }
  let m = vec2<u32>(select(0u, 1u, rest != 0u), quotient);
  let zeros = u64_zeros(m);
  let exponent = bitcast<i32>(one.y) - bitcast<i32>(two.y) + 132 - bitcast<i32>(zeros);
  return pb_c(f32_packed(sign, exponent, u64_shl(m, zeros)));
}

// With a fused multiply-add, which gives the rest of a quotient exactly: mantissas are divided, and
// the quotient, which is at most a last place off, moves to the nearest one. None lies halfway.
fn f32_div_fused(a: f32, b: f32) -> f32 {
  let x = (bitcast<u32>(a) >> 23u) & 255u;
  let y = (bitcast<u32>(b) >> 23u) & 255u;
  let one = bitcast<u32>(a) & 0x7fffffu;
  let two = bitcast<u32>(b) & 0x7fffffu;
  let less = one < two;
  let power = i32(x) - i32(y) - select(0, 1, less);
  if (x == 0u || x == 255u || y == 0u || y == 255u || abs(power) > 125) {
    return f32_div_soft(a, b);
  }
  let p = pb_c(one | select(0x3f800000u, 0x40000000u, less));
  let q = pb_c(two | 0x3f800000u);
  var r = pb_f(1.0 / q);
  r = fma(fma(-q, r, pb_c(0x3f800000u)), r, r);
  var z = pb_f(p * r);
  z = fma(fma(-q, z, p), r, z);
  z = max(fma(fma(-q, z, p), r, z), pb_c(0x3f800000u));
  let rest = fma(-q, z, p);
  let half = pb_f(q * pb_c(0x33800000u));
  let bits = bitcast<u32>(z) + select(0u, 1u, rest > half) - select(0u, 1u, rest < -half);
  let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
  return pb_c(sign | (bits + (bitcast<u32>(power) << 23u)));
}

// Of a mantissa from 1 to 4: the root is then from 1 to 2, at most a last place off.
fn f32_sqrt_fused(a: f32) -> f32 {
  let x = bitcast<u32>(a);
  if (x < 0x800000u || x >= 0x7f800000u) { return f32_sqrt_soft(a); }
  let power = (i32(x >> 23u) - 127) >> 1u;
  let m = pb_c(x - (bitcast<u32>(power) << 24u));
  let r = pb_f(inverseSqrt(m));
  let h = pb_f(r * pb_c(0x3f000000u));
  var s = pb_f(m * r);
  s = fma(fma(-s, s, m), h, s);
  s = max(fma(fma(-s, s, m), h, s), pb_c(0x3f800000u));
  let rest = fma(-s, s, m);
  let half = pb_f(s * pb_c(0x34000000u));
  let bits = bitcast<u32>(s) + select(0u, 1u, rest > half) - select(0u, 1u, rest <= -half);
  return pb_c(bits + (bitcast<u32>(power) << 23u));
}

fn f32_sqrt_soft(a: f32) -> f32 {
  let x = bitcast<u32>(a);
  if ((x & 0x7fffffffu) == 0u || x == 0x7f800000u) { return pb_f(a); }
  if (x > 0x7f800000u) { return pb_c(0x7fc00000u); }
  let one = f32_normal(x);
  let power = bitcast<i32>(one.y) - 127;
  var left = select(one.x >> 1u, one.x, (power & 1) != 0);
  var rest = 0u;
  var root = 0u;
  for (var k = 0u; k < 26u; k++) {
    rest = (rest << 2u) | (left >> 30u);
    left <<= 2u;
    root <<= 1u;
    let trial = (root << 1u) | 1u;
    if (rest >= trial) {
      rest -= trial;
      root |= 1u;
    }
  }
  let m = vec2<u32>(select(0u, 1u, rest != 0u), root << 6u);
  return pb_c(f32_packed(0u, (power >> 1u) + 127, m));
}

fn f32_from_f16(h: u32) -> f32 {
  let magnitude = h & 0x7fffu;
  let sign = (h & 0x8000u) << 16u;
  if (magnitude >= 0x7c00u) { return pb_c(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13u)); }
  if (magnitude >= 0x400u) { return pb_c(sign | ((magnitude << 13u) + 0x38000000u)); }
  if (magnitude == 0u) { return pb_c(sign); }
  let zeros = countLeadingZeros(magnitude) - 21u;
  return pb_c(sign | (((magnitude << zeros) & 0x3ffu) << 13u) | ((113u - zeros) << 23u));
}

fn f32_to_f16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let magnitude = bits & 0x7fffffffu;
  let sign = (bits >> 16u) & 0x8000u;
  if (magnitude > 0x7f800000u) { return sign | 0x7e00u; }
  if (magnitude >= 0x47800000u) { return sign | 0x7c00u; }
  if (magnitude >= 0x38800000u) {
    return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u);
  }
  let m = (magnitude & 0x7fffffu) | 0x800000u;
  let count = 126u - (magnitude >> 23u);
  if (count > 24u) { return sign; }
  let kept = m >> count;
  let rest = m << (32u - count);
  let up = rest > 0x80000000u || (rest == 0x80000000u && (kept & 1u) != 0u);
  return sign | (kept + select(0u, 1u, up));
}

fn f32_from_bf16(h: u32) -> f32 { return pb_c(h << 16u); }

fn f32_to_bf16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let high = bits >> 16u;
  return select((bits + 0x7fffu + (high & 1u)) >> 16u, high | 0x40u, !f32_is_number(x));
}

fn f32_from_u64(x: vec2<u32>) -> f32 {
  if ((x.x | x.y) == 0u) { return pb_c(0u); }
  let zeros = u64_zeros(x);
  return pb_c(f32_packed(0u, 190 - bitcast<i32>(zeros), u64_shl(x, zeros)));
}

fn f32_from_i64(x: vec2<u32>) -> f32 {
  let m = bitcast<u32>(f32_from_u64(i64_abs(x)));
  return pb_c(m | (x.y & 0x80000000u));
}

fn f32_from_u32(x: u32) -> f32 { return f32_from_u64(vec2<u32>(x, 0u)); }

fn f32_from_i32(x: i32) -> f32 { return f32_from_i64(i64_from_i32(x)); }

fn f32_to_u64(x: f32) -> vec2<u32> { return f64_to_u64(f64_from_f32(x)); }

fn f32_to_i64(x: f32) -> vec2<u32> { return f64_to_i64(f64_from_f32(x)); }
