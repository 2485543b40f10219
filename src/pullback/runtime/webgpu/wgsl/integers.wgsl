// Integers of 64 bits as (low, high) words; they wrap.

fn u32_mul_wide(a: u32, b: u32) -> vec2<u32> {
  let a0 = a & 0xffffu;
  let a1 = a >> 16u;
  let b0 = b & 0xffffu;
  let b1 = b >> 16u;
  let low = a0 * b0;
  let one = a0 * b1;
  let two = a1 * b0;
  let middle = (low >> 16u) + (one & 0xffffu) + (two & 0xffffu);
  let high = a1 * b1 + (one >> 16u) + (two >> 16u) + (middle >> 16u);
  return vec2<u32>((low & 0xffffu) | (middle << 16u), high);
}

fn u64_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn u64_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn u64_neg(a: vec2<u32>) -> vec2<u32> { return u64_sub(vec2<u32>(0u, 0u), a); }

fn i64_abs(a: vec2<u32>) -> vec2<u32> { return select(a, u64_neg(a), a.y >= 0x80000000u); }

fn u64_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let p = u32_mul_wide(a.x, b.x);
  return vec2<u32>(p.x, p.y + a.x * b.y + a.y * b.x);
}

fn u64_eq(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x == b.x && a.y == b.y; }

fn u64_lt(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn u64_le(a: vec2<u32>, b: vec2<u32>) -> bool { return !u64_lt(b, a); }

fn i64_lt(a: vec2<u32>, b: vec2<u32>) -> bool {
  return u64_lt(vec2<u32>(a.x, a.y ^ 0x80000000u), vec2<u32>(b.x, b.y ^ 0x80000000u));
}

fn i64_le(a: vec2<u32>, b: vec2<u32>) -> bool { return !i64_lt(b, a); }

// Counts are from 0 to 63.
fn u64_shl(v: vec2<u32>, count: u32) -> vec2<u32> {
  let n = count & 31u;
  let carry = select(v.x >> ((32u - n) & 31u), 0u, n == 0u);
  let near = vec2<u32>(v.x << n, (v.y << n) | carry);
  return select(near, vec2<u32>(0u, v.x << n), count >= 32u);
}

fn u64_shr(v: vec2<u32>, count: u32) -> vec2<u32> {
  let n = count & 31u;
  let carry = select(v.y << ((32u - n) & 31u), 0u, n == 0u);
  let near = vec2<u32>((v.x >> n) | carry, v.y >> n);
  return select(near, vec2<u32>(v.y >> n, 0u), count >= 32u);
}

fn i64_shr(v: vec2<u32>, count: u32) -> vec2<u32> {
  let n = count & 31u;
  let carry = select(v.y << ((32u - n) & 31u), 0u, n == 0u);
  let high = bitcast<u32>(bitcast<i32>(v.y) >> n);
  let sign = bitcast<u32>(bitcast<i32>(v.y) >> 31u);
  return select(vec2<u32>((v.x >> n) | carry, high), vec2<u32>(high, sign), count >= 32u);
}

// The bits that leave are gathered in the last one; any count.
fn u64_shr_sticky(v: vec2<u32>, count: u32) -> vec2<u32> {
  if (count == 0u) { return v; }
  if (count > 63u) { return vec2<u32>(select(0u, 1u, (v.x | v.y) != 0u), 0u); }
  let moved = u64_shr(v, count);
  let lost = u64_shl(v, 64u - count);
  return vec2<u32>(moved.x | select(0u, 1u, (lost.x | lost.y) != 0u), moved.y);
}

fn u64_zeros(v: vec2<u32>) -> u32 {
  return select(countLeadingZeros(v.y), 32u + countLeadingZeros(v.x), v.y == 0u);
}

fn u64_mul_wide(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  let low = u32_mul_wide(a.x, b.x);
  let one = u32_mul_wide(a.x, b.y);
  let two = u32_mul_wide(a.y, b.x);
  let high = u32_mul_wide(a.y, b.y);
  let s = u64_add(vec2<u32>(low.y, 0u), one);
  let t = s.x + two.x;
  let carry = u64_add(vec2<u32>(s.y, 0u), vec2<u32>(two.y, 0u));
  let c = u64_add(carry, vec2<u32>(select(0u, 1u, t < s.x), 0u));
  let top = u64_add(high, c);
  return vec4<u32>(low.x, t, top.x, top.y);
}

// Quotient and remainder; both are 0 where the divisor is.
fn u64_divided(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  if ((b.x | b.y) == 0u) { return vec4<u32>(0u, 0u, 0u, 0u); }
  if ((a.y | b.y) == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  var quotient = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  var left = a;
  for (var k = 0u; k < 64u; k++) {
    let over = rest.y >> 31u;
    rest = vec2<u32>((rest.x << 1u) | (left.y >> 31u), (rest.y << 1u) | (rest.x >> 31u));
    left = u64_shl(left, 1u);
    quotient = u64_shl(quotient, 1u);
    if (over != 0u || u64_le(b, rest)) {
      rest = u64_sub(rest, b);
      quotient.x |= 1u;
    }
  }
  return vec4<u32>(quotient, rest);
}

fn u64_quot(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return u64_divided(a, b).xy; }

fn u64_rem(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return u64_divided(a, b).zw; }

fn i64_quot(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let q = u64_divided(i64_abs(a), i64_abs(b)).xy;
  return select(q, u64_neg(q), ((a.y ^ b.y) >> 31u) != 0u);
}

fn i64_rem(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = u64_divided(i64_abs(a), i64_abs(b)).zw;
  return select(r, u64_neg(r), (a.y >> 31u) != 0u);
}

fn u32_quot(a: u32, b: u32) -> u32 { return select(a / max(b, 1u), 0u, b == 0u); }

fn u32_rem(a: u32, b: u32) -> u32 { return select(a % max(b, 1u), 0u, b == 0u); }

fn i32_quot(a: i32, b: i32) -> i32 {
  let q = bitcast<i32>(u32_quot(bitcast<u32>(abs(a)), bitcast<u32>(abs(b))));
  return select(q, -q, (a < 0) != (b < 0));
}

fn i32_rem(a: i32, b: i32) -> i32 {
  let r = bitcast<i32>(u32_rem(bitcast<u32>(abs(a)), bitcast<u32>(abs(b))));
  return select(r, -r, a < 0);
}

fn i64_from_i32(x: i32) -> vec2<u32> {
  return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u));
}
