// Matrix units on floats of 16 bits, with sums in float32. A lane of a warp has g = lane / 4 and
// t = lane % 4; of a left matrix 16 x 16 it has rows g and g + 8, of the right one column g, of the
// sum columns 2 t and 2 t + 1 of both rows. An emulator brings its own matrix units.
#ifndef PB_EMULATED
#if __CUDA_ARCH__ >= 800
// Two numbers, the first one in the lower half.
PB_DEVICE u32 pb_pair(float low, float high) {
  u32 both;
#if FLOAT16
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
  return both;
}
PB_DEVICE float pb_power(float x) {  // 2^x
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Four matrices of 8 x 8, whose rows are at the addresses of lanes 0 to 7, 8 to 15 and so on.
PB_DEVICE void pb_matrices(u32 (&m)[4], SharedAddress at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at));
}
PB_DEVICE void pb_transposed(u32 (&m)[4], SharedAddress at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at));
}
PB_DEVICE void pb_multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if FLOAT16
#define PB_TYPES "f16.f16"
#else
#define PB_TYPES "bf16.bf16"
#endif
  asm("mma.sync.aligned.m16n8k16.row.col.f32." PB_TYPES
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
#error "matrix units take floats of 16 bits from sm_80 on"
#endif
#else
PB_DEVICE u32 pb_pair(float low, float high) { return pb_narrow(low) | (u32)pb_narrow(high) << 16; }
PB_DEVICE float pb_power(float x) { return exp2f(x); }
PB_DEVICE void pb_matrices(u32 (&m)[4], SharedAddress at) { emulated_matrices(m, at, false); }
PB_DEVICE void pb_transposed(u32 (&m)[4], SharedAddress at) { emulated_matrices(m, at, true); }
PB_DEVICE void pb_multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulated_multiply(c, a, b0, b1, pb_wide);
}
#endif
