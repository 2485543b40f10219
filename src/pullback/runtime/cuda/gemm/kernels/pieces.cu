// Operands element by element: pieces of 16 bytes along k, of any strides, as the tensor cores take them.
typedef Pack<u32, 4> Words;
constexpr int PER_PIECE = 16 / (int)sizeof(Unit), PIECES = 8;  // elements of one; in a row of 128 bytes

// The products from `k` on of one line, which `p` is the start of; 0 beyond the last of them.
PB_DEVICE Words pb_piece(const Given* __restrict__ p, i64 step, i64 k, i64 depth) {
  const bool whole = sizeof(Given) == sizeof(Unit) && step == 1 && k + PER_PIECE <= depth;
  if (whole && (u64)(p + k) % 16 == 0) return *reinterpret_cast<const Words*>(p + k);
  union { Words all; Unit each[PER_PIECE]; } piece;
#pragma unroll
  for (int i = 0; i < PER_PIECE; ++i) piece.each[i] = k + i < depth ? pb_unit(p[(k + i) * step]) : Unit(0);
  return piece.all;
}
#ifndef PB_EMULATED
PB_DEVICE void pb_leave(SharedAddress to, const Words& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.v[0]), "r"(x.v[1]),
               "r"(x.v[2]), "r"(x.v[3])
               : "memory");
}
#else
PB_DEVICE void pb_leave(SharedAddress to, const Words& x) { *reinterpret_cast<Words*>(to) = x; }
#endif
