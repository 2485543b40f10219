// Products of matrices: extents, the steps along lines (rows of a, columns of b) and along k.
struct Sides { i64 m, n, k, a_line, a_k, b_line, b_k, tiles; };

// Which tile a thread block makes: strips of 8 rows of tiles, so that neighbours in time share
// operands.
struct Place { int m, n; };
PB_DEVICE Place pb_place(int tile, int m, int n) {
  const int down = (m + BM - 1) / BM, across = (n + BN - 1) / BN;
  const int strip = tile / (8 * across), in = tile % (8 * across), left = down - strip * 8;
  const int high = left < 8 ? left : 8;
  return {(strip * 8 + in % high) * BM, in / high * BN};
}
