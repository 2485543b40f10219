// float64 in integers, to the bit; a value is (low, high) words. Every NaN is the same one.

fn f64_is_number(a: vec2<u32>) -> bool {
  let high = a.y & 0x7fffffffu;
  return high < 0x7ff00000u || (high == 0x7ff00000u && a.x == 0u);
}

fn f64_is_zero(a: vec2<u32>) -> bool { return ((a.y & 0x7fffffffu) | a.x) == 0u; }

fn f64_abs(a: vec2<u32>) -> vec2<u32> { return vec2<u32>(a.x, a.y & 0x7fffffffu); }

fn f64_neg(a: vec2<u32>) -> vec2<u32> { return vec2<u32>(a.x, a.y ^ 0x80000000u); }

fn f64_copysign(a: vec2<u32>, sign: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x, (a.y & 0x7fffffffu) | (sign.y & 0x80000000u));
}

fn f64_eq(a: vec2<u32>, b: vec2<u32>) -> bool {
  return f64_is_number(a) && (u64_eq(a, b) || (f64_is_zero(a) && f64_is_zero(b)));
}

fn f64_lt(a: vec2<u32>, b: vec2<u32>) -> bool {
  if (!f64_is_number(a) || !f64_is_number(b) || (f64_is_zero(a) && f64_is_zero(b))) {
    return false;
  }
  let left = a.y >> 31u;
  let right = b.y >> 31u;
  if (left != right) { return left > right; }
  return select(u64_lt(a, b), u64_lt(b, a), left != 0u);
}

fn f64_le(a: vec2<u32>, b: vec2<u32>) -> bool { return f64_lt(a, b) || f64_eq(a, b); }

// m has its leading bit at bit 63 and 2**(exponent - 1023) as the value of that bit; bits that were
// lost are gathered in its last one. Rounds to the nearest, ties to even.
fn f64_packed(sign: u32, exponent: i32, m: vec2<u32>) -> vec2<u32> {
  if (exponent >= 2047) { return vec2<u32>(0u, sign | 0x7ff00000u); }
  var v = m;
  if (exponent <= 0) { v = u64_shr_sticky(m, u32(1 - exponent)); }
  let kept = u64_shr(v, 11u);
  let rest = v.x & 0x7ffu;
  let up = rest > 0x400u || (rest == 0x400u && (kept.x & 1u) != 0u);
  let base = select(0u, u32(max(exponent, 1) - 1) << 20u, exponent > 0);
  let found = u64_add(vec2<u32>(kept.x, kept.y + base), vec2<u32>(select(0u, 1u, up), 0u));
  return vec2<u32>(found.x, found.y | sign);
}

// The mantissa of a finite number that is not 0, with its leading bit at bit 63, and its exponent.
fn f64_normal(a: vec2<u32>) -> vec3<u32> {
  let exponent = (a.y >> 20u) & 0x7ffu;
  let fraction = vec2<u32>(a.x, a.y & 0xfffffu);
  if (exponent != 0u) {
    return vec3<u32>(u64_shl(vec2<u32>(a.x, fraction.y | 0x100000u), 11u), exponent);
  }
  let zeros = u64_zeros(fraction);
  return vec3<u32>(u64_shl(fraction, zeros), 12u - zeros);
}

fn f64_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let swap = u64_lt(f64_abs(a), f64_abs(b));
  let x = select(a, b, swap);
  let y = select(b, a, swap);
  let sign = x.y & 0x80000000u;
  let top = (x.y >> 20u) & 0x7ffu;
  if (top == 0x7ffu) {
    let differ = ((x.y ^ y.y) >> 31u) != 0u && ((y.y >> 20u) & 0x7ffu) == 0x7ffu;
    return select(x, vec2<u32>(0u, 0x7ff80000u), !f64_is_number(x) || differ);
  }
  let low = (y.y >> 20u) & 0x7ffu;
  let one = vec2<u32>(x.x, (x.y & 0xfffffu) | select(0u, 0x100000u, top != 0u));
  let two = vec2<u32>(y.x, (y.y & 0xfffffu) | select(0u, 0x100000u, low != 0u));
  let first = max(top, 1u);
  let m = u64_shl(one, 10u);
  let n = u64_shr_sticky(u64_shl(two, 10u), first - max(low, 1u));
  let total = select(u64_sub(m, n), u64_add(m, n), (x.y ^ y.y) < 0x80000000u);
  if ((total.x | total.y) == 0u) { return vec2<u32>(0u, x.y & y.y & 0x80000000u); }
  let zeros = u64_zeros(total);
  let exponent = bitcast<i32>(first) + 1 - bitcast<i32>(zeros);
  return f64_packed(sign, exponent, u64_shl(total, zeros));
}

fn f64_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return f64_add(a, f64_neg(b)); }

// The product where an operand is 0, infinite or no number.
fn f64_odd_product(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let sign = (a.y ^ b.y) & 0x80000000u;
  let numbers = f64_is_number(a) && f64_is_number(b);
  let zero = f64_is_zero(a) || f64_is_zero(b);
  let infinite = max(a.y & 0x7fffffffu, b.y & 0x7fffffffu) >= 0x7ff00000u;
  let found = vec2<u32>(0u, sign | select(0u, 0x7ff00000u, infinite));
  return select(found, vec2<u32>(0u, 0x7ff80000u), !numbers || (zero && infinite));
}

fn f64_is_odd(a: vec2<u32>) -> bool {
  return (a.y & 0x7ff00000u) == 0x7ff00000u || f64_is_zero(a);
}

fn f64_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (f64_is_odd(a) || f64_is_odd(b)) { return f64_odd_product(a, b); }
  let one = f64_normal(a);
  let two = f64_normal(b);
  let p = u64_mul_wide(one.xy, two.xy);
  var m = vec2<u32>(p.z | select(0u, 1u, (p.x | p.y) != 0u), p.w);
  var exponent = bitcast<i32>(one.z) + bitcast<i32>(two.z) - 1022;
  if (m.y < 0x80000000u) {
    m = u64_shl(m, 1u);
    exponent -= 1;
  }
  return f64_packed((a.y ^ b.y) & 0x80000000u, exponent, m);
}

fn u128_shl(v: vec4<u32>, count: u32) -> vec4<u32> {
  var w = v;
  if ((count & 64u) != 0u) { w = vec4<u32>(0u, 0u, w.x, w.y); }
  if ((count & 32u) != 0u) { w = vec4<u32>(0u, w.x, w.y, w.z); }
  let n = count & 31u;
  if (n == 0u) { return w; }
  return (w << vec4<u32>(n)) | (vec4<u32>(0u, w.x, w.y, w.z) >> vec4<u32>(32u - n));
}

fn u128_shr_sticky(v: vec4<u32>, count: u32) -> vec4<u32> {
  if (count == 0u) { return v; }
  if (count > 127u) { return vec4<u32>(select(0u, 1u, any(v != vec4<u32>(0u))), 0u, 0u, 0u); }
  let lost = any(u128_shl(v, 128u - count) != vec4<u32>(0u));
  var w = v;
  if ((count & 64u) != 0u) { w = vec4<u32>(w.z, w.w, 0u, 0u); }
  if ((count & 32u) != 0u) { w = vec4<u32>(w.y, w.z, w.w, 0u); }
  let n = count & 31u;
  if (n != 0u) {
    w = (w >> vec4<u32>(n)) | (vec4<u32>(w.y, w.z, w.w, 0u) << vec4<u32>(32u - n));
  }
  w.x |= select(0u, 1u, lost);
  return w;
}

fn u128_add(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
  let low = u64_add(a.xy, b.xy);
  let high = u64_add(a.zw, b.zw);
  let carry = vec2<u32>(select(0u, 1u, u64_lt(low, a.xy)), 0u);
  return vec4<u32>(low, u64_add(high, carry));
}

fn u128_sub(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
  let borrow = vec2<u32>(select(0u, 1u, u64_lt(a.xy, b.xy)), 0u);
  return vec4<u32>(u64_sub(a.xy, b.xy), u64_sub(u64_sub(a.zw, b.zw), borrow));
}

fn u128_lt(a: vec4<u32>, b: vec4<u32>) -> bool {
  return u64_lt(a.zw, b.zw) || (u64_eq(a.zw, b.zw) && u64_lt(a.xy, b.xy));
}

fn f64_fma(a: vec2<u32>, b: vec2<u32>, c: vec2<u32>) -> vec2<u32> {
  if (f64_is_odd(a) || f64_is_odd(b)) { return f64_add(f64_odd_product(a, b), c); }
  if ((c.y & 0x7ff00000u) == 0x7ff00000u) { return f64_add(c, vec2<u32>(0u, 0u)); }
  if (f64_is_zero(c)) { return f64_mul(a, b); }
  let sign = (a.y ^ b.y) & 0x80000000u;
  let one = f64_normal(a);
  let two = f64_normal(b);
  let three = f64_normal(c);
  var product = u64_mul_wide(one.xy, two.xy);
  var exponent = bitcast<i32>(one.z) + bitcast<i32>(two.z) - 1022;
  if (product.w < 0x80000000u) { exponent -= 1; } else { product = u128_shr_sticky(product, 1u); }
  let power = bitcast<i32>(three.z);
  let own = c.y & 0x80000000u;
  // Leading bits are at bit 126; the mantissas have zeros enough behind them.
  var other = vec4<u32>(0u, three.x << 31u, (three.x >> 1u) | (three.y << 31u), three.y >> 1u);
  let top = max(exponent, power);
  product = u128_shr_sticky(product, u32(top - exponent));
  other = u128_shr_sticky(other, u32(top - power));
  var total = u128_add(product, other);
  var side = sign;
  if (sign != own) {
    if (u128_lt(product, other)) {
      total = u128_sub(other, product);
      side = own;
    } else {
      total = u128_sub(product, other);
    }
  }
  if (all(total == vec4<u32>(0u))) { return vec2<u32>(0u, 0u); }
  let high = u64_zeros(total.zw);
  let zeros = select(high, 64u + u64_zeros(total.xy), (total.z | total.w) == 0u);
  let m = u128_shl(total, zeros);
  let kept = vec2<u32>(m.z | select(0u, 1u, (m.x | m.y) != 0u), m.w);
  return f64_packed(side, top + 1 - bitcast<i32>(zeros), kept);
}

fn f64_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let sign = (a.y ^ b.y) & 0x80000000u;
  if (f64_is_odd(a) || f64_is_odd(b)) {
    let x = a.y & 0x7fffffffu;
    let y = b.y & 0x7fffffffu;
    let both = (f64_is_zero(a) && f64_is_zero(b)) || (x == 0x7ff00000u && y == 0x7ff00000u);
    if (!f64_is_number(a) || !f64_is_number(b) || both) { return vec2<u32>(0u, 0x7ff80000u); }
    let large = x == 0x7ff00000u || f64_is_zero(b);
    return vec2<u32>(0u, sign | select(0u, 0x7ff00000u, large));
  }
  let one = f64_normal(a);
  let two = f64_normal(b);
  let divisor = u64_shr(two.xy, 11u);
  var rest = u64_shr(one.xy, 11u);
  var quotient = vec2<u32>(0u, 0u);
  for (var k = 0u; k < 56u; k++) {
    quotient = u64_shl(quotient, 1u);
    if (u64_le(divisor, rest)) {
      rest = u64_sub(rest, divisor);
      quotient.x |= 1u;
    }
    rest = u64_shl(rest, 1u);
  }
  let zeros = u64_zeros(quotient);
  var m = u64_shl(quotient, zeros);
  m.x |= select(0u, 1u, (rest.x | rest.y) != 0u);
  let exponent = bitcast<i32>(one.z) - bitcast<i32>(two.z) + 1031 - bitcast<i32>(zeros);
  return f64_packed(sign, exponent, m);
}

fn f64_sqrt(a: vec2<u32>) -> vec2<u32> {
  if (f64_is_zero(a) || (a.x == 0u && a.y == 0x7ff00000u)) { return a; }
  if (a.y >= 0x7ff00000u) { return vec2<u32>(0u, 0x7ff80000u); }
  let one = f64_normal(a);
  let power = bitcast<i32>(one.z) - 1023;
  var left = select(u64_shr(one.xy, 1u), one.xy, (power & 1) != 0);
  var rest = vec2<u32>(0u, 0u);
  var root = vec2<u32>(0u, 0u);
  for (var k = 0u; k < 55u; k++) {
    rest = u64_shl(rest, 2u);
    rest.x |= left.y >> 30u;
    left = u64_shl(left, 2u);
    root = u64_shl(root, 1u);
    var trial = u64_shl(root, 1u);
    trial.x |= 1u;
    if (u64_le(trial, rest)) {
      rest = u64_sub(rest, trial);
      root.x |= 1u;
    }
  }
  var m = u64_shl(root, 9u);
  m.x |= select(0u, 1u, (rest.x | rest.y) != 0u);
  return f64_packed(0u, (power >> 1u) + 1023, m);
}

// Towards 0 (0), down (1), up (2) or to the nearest, ties to even (3).
fn f64_rounded(a: vec2<u32>, way: u32) -> vec2<u32> {
  let exponent = (a.y >> 20u) & 0x7ffu;
  let sign = a.y & 0x80000000u;
  if (exponent >= 1075u || f64_is_zero(a)) { return a; }
  let away = (way == 1u && sign != 0u) || (way == 2u && sign == 0u);
  if (exponent < 1023u) {
    let magnitude = f64_abs(a);
    let half = vec2<u32>(0u, 0x3fe00000u);
    let one = away || (way == 3u && u64_lt(half, magnitude));
    return vec2<u32>(0u, sign | select(0u, 0x3ff00000u, one));
  }
  let count = 1075u - exponent;
  let mask = u64_sub(u64_shl(vec2<u32>(1u, 0u), count), vec2<u32>(1u, 0u));
  var v = a;
  if (away) { v = u64_add(a, mask); }
  if (way == 3u) {
    let unit = u64_shr(a, count).x & 1u;
    let half = u64_shl(vec2<u32>(1u, 0u), count - 1u);
    v = u64_add(u64_add(a, u64_sub(half, vec2<u32>(1u, 0u))), vec2<u32>(unit, 0u));
  }
  return v & ~mask;
}

fn f64_from_u64(x: vec2<u32>) -> vec2<u32> {
  if ((x.x | x.y) == 0u) { return x; }
  let zeros = u64_zeros(x);
  return f64_packed(0u, 1086 - bitcast<i32>(zeros), u64_shl(x, zeros));
}

fn f64_from_i64(x: vec2<u32>) -> vec2<u32> {
  let m = f64_from_u64(i64_abs(x));
  return vec2<u32>(m.x, m.y | (x.y & 0x80000000u));
}

fn f64_from_f32(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  let sign = bits & 0x80000000u;
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) { return vec2<u32>(0u, 0x7ff80000u | sign); }
  if (magnitude == 0x7f800000u) { return vec2<u32>(0u, 0x7ff00000u | sign); }
  if (magnitude == 0u) { return vec2<u32>(0u, sign); }
  let n = f32_normal(magnitude);
  let exponent = n.y + 896u;
  return vec2<u32>(n.x << 21u, sign | (exponent << 20u) | ((n.x >> 11u) & 0xfffffu));
}

fn f64_to_f32(a: vec2<u32>) -> f32 {
  let sign = a.y & 0x80000000u;
  if (f64_is_odd(a)) {
    let large = (a.y & 0x7ff00000u) != 0u;
    let odd = select(0x7f800000u, 0x7fc00000u, !f64_is_number(a));
    return pb_c(sign | select(0u, odd, large));
  }
  let n = f64_normal(a);
  return pb_c(f32_packed(sign, bitcast<i32>(n.z) - 896, n.xy));
}

// The nearest float32 towards 0, with its last bit set where it is inexact.
fn f64_to_f32_odd(a: vec2<u32>) -> f32 {
  if (f64_is_odd(a)) { return f64_to_f32(a); }
  let sign = a.y & 0x80000000u;
  let n = f64_normal(a);
  let exponent = bitcast<i32>(n.z) - 896;
  if (exponent >= 255) { return pb_c(sign | 0x7f7fffffu); }
  var v = n.xy;
  if (exponent <= 0) { v = u64_shr_sticky(v, u32(1 - exponent)); }
  let base = select(0u, u32(max(exponent, 1) - 1) << 23u, exponent > 0);
  let lost = (v.x | (v.y & 0xffu)) != 0u;
  return pb_c(sign | ((base + (v.y >> 8u)) | select(0u, 1u, lost)));
}

fn f64_to_u64(a: vec2<u32>) -> vec2<u32> {
  if (!f64_is_number(a) || a.y >= 0x80000000u) { return vec2<u32>(0u, 0u); }
  let exponent = a.y >> 20u;
  if (exponent < 1023u) { return vec2<u32>(0u, 0u); }
  if (exponent >= 1087u) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  return u64_shr(f64_normal(a).xy, 1086u - exponent);
}

fn f64_to_i64(a: vec2<u32>) -> vec2<u32> {
  let m = f64_to_u64(f64_abs(a));
  let negative = a.y >= 0x80000000u;
  let most = vec2<u32>(select(0xffffffffu, 0u, negative), select(0x7fffffffu, 0x80000000u, negative));
  return select(select(m, u64_neg(m), negative), most, m.y >= 0x80000000u);
}

fn f64_to_i32(a: vec2<u32>) -> i32 {
  let x = f64_to_i64(a);
  let most = select(0x7fffffff, bitcast<i32>(0x80000000u), x.y >= 0x80000000u);
  let fits = x.y == bitcast<u32>(bitcast<i32>(x.x) >> 31u);
  return select(most, bitcast<i32>(x.x), fits);
}

fn f64_to_u32(a: vec2<u32>) -> u32 {
  let x = f64_to_u64(a);
  return select(x.x, 0xffffffffu, x.y != 0u);
}
