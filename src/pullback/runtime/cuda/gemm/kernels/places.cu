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

// Where COUNT neighbouring columns of an output are, from the start of a row; the first `count` of them
// are there, and `wide` if they lie side by side.
template <int COUNT> struct Columns {
  i64 at[COUNT];
  int count;
  bool wide;
};
template <int COUNT>
PB_DEVICE void pb_put(Stored* row, const Columns<COUNT>& columns, const Value (&x)[COUNT]) {
  typedef Pack<Stored, COUNT> All;
  if (columns.wide && (u64)(row + columns.at[0]) % sizeof(All) == 0) {
    All all;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) all.v[i] = pb_narrow(x[i]);
    *reinterpret_cast<All*>(row + columns.at[0]) = all;
    return;
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
    if (i < columns.count) row[columns.at[i]] = pb_narrow(x[i]);
}
// A dense matrix.
struct Output {
  Stored* p;
  int m, n;
  PB_MEMBER Stored* row(int i) const { return p + i * (i64)n; }
  template <int COUNT> PB_MEMBER Columns<COUNT> columns(int j) const {
    Columns<COUNT> found;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) found.at[i] = j + i;
    found.count = n - j;
    found.wide = n - j >= COUNT;
    return found;
  }
};

// Blocks that leave what they have made for the last of them to arrive; `arrived` is 0 at first, and
// afterwards.
struct Company {
  Piece* chains;
  int* arrived;
  int members;
  PB_MEMBER bool is_last() const {
    __shared__ int before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before = atomicAdd(arrived, 1);
    __syncthreads();
    if (before != members - 1) return false;
    if (threadIdx.x == 0) *arrived = 0;
    __threadfence();
    return true;
  }
};
PB_DEVICE void pb_leave(Piece* to, const Piece& x) {
#ifdef PB_EMULATED
  *to = x;
#else
  __stcg(reinterpret_cast<float4*>(to), *reinterpret_cast<const float4*>(&x));
#endif
}
PB_DEVICE Piece pb_left(const Piece* from) {
#ifdef PB_EMULATED
  return *from;
#else
  const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
  return *reinterpret_cast<const Piece*>(&x);
#endif
}
