// c += a b: 16 x 4 and 4 x 8. A lane has rows lane / 4 (and 8 later) and k = lane % 4 of a, that k
// and column lane / 4 of b, columns lane % 4 * 2 and the next of both rows of c.
PB_DEVICE void pb_multiply(double (&c)[4], const double (&a)[2], double b) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(b));
#else
  const int lane = threadIdx.x % 32, row = lane / 4 * 4, column = lane % 4 * 8;
  for (int k = 0; k < 4; ++k) {
    const double x[2] = {__shfl_sync(~0u, a[0], row + k, 32), __shfl_sync(~0u, a[1], row + k, 32)};
    const double y[2] = {__shfl_sync(~0u, b, column + k, 32), __shfl_sync(~0u, b, column + 4 + k, 32)};
    for (int e = 0; e < 4; ++e) c[e] = fma(x[e / 2], y[e % 2], c[e]);
  }
#endif
}
