// Tensor cores of a warp, from sm_80 on: floats of 16 bits, or TF32, with sums in float32. A lane has
// g = lane / 4 and t = lane % 4; of a left matrix of 16 rows of 32 bytes it has words t and t + 4 of
// rows g and g + 8, of the right one those of column g, of the sum columns 2 t and 2 t + 1 of both rows.
// MULTIPLY is the instruction, PAIR the one that rounds to two numbers of 16 bits; TF32 has none. An
// emulator brings its own tensor cores.
#ifndef PB_EMULATED
#if __CUDA_ARCH__ >= 800
PB_DEVICE u32 pb_pair(float low, float high) {  // the first one in the lower half
  u32 both = 0;
#ifdef PAIR
  asm(PAIR " %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
  return both;
}
// Four matrices of 8 rows of 16 bytes, which are at the addresses of lanes 0 to 7, 8 to 15 and so on.
PB_DEVICE void pb_matrices(u32 (&m)[4], SharedAddress at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at));
}
PB_DEVICE void pb_transposed(u32 (&m)[4], SharedAddress at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at));
}
PB_DEVICE u32 pb_word(SharedAddress at) {
  u32 word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at));
  return word;
}
PB_DEVICE void pb_multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm(MULTIPLY " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
#error "these tensor cores are there from sm_80 on"
#endif
#else
#ifdef PAIR
PB_DEVICE u32 pb_pair(float low, float high) { return (u32)pb_narrow(low) | (u32)pb_narrow(high) << 16; }
#else
PB_DEVICE u32 pb_pair(float, float) { return 0; }
#endif
PB_DEVICE void pb_matrices(u32 (&m)[4], SharedAddress at) { emulated_matrices(m, at, false); }
PB_DEVICE void pb_transposed(u32 (&m)[4], SharedAddress at) { emulated_matrices(m, at, true); }
PB_DEVICE u32 pb_word(SharedAddress at) { return *reinterpret_cast<const u32*>(at); }
PB_DEVICE void pb_multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulated_multiply<Unit>(c, a, b0, b1, pb_wide);
}
#endif
