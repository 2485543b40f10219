// Where COUNT neighbouring columns of an output are, from the start of a row; the first `count` of them
// are there.
template <int COUNT> struct Columns {
  i64 at[COUNT];
  int count;
};
template <int COUNT> PB_DEVICE Columns<COUNT> pb_columns(int j, int n) {  // of a dense matrix
  Columns<COUNT> found;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) found.at[i] = j + i;
  found.count = n - j;
  return found;
}
// COUNT elements of a row: side by side, or where they are.
template <bool WIDE, int COUNT>
PB_DEVICE void pb_set(Stored* row, const Columns<COUNT>& columns, const Pack<Stored, COUNT>& x) {
  if (WIDE) {
    if (columns.count > 0) *reinterpret_cast<Pack<Stored, COUNT>*>(row + columns.at[0]) = x;
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      if (i < columns.count) row[columns.at[i]] = x.v[i];
  }
}
template <bool WIDE, typename Row, int COUNT>
PB_DEVICE void pb_put(const Row& row, const Columns<COUNT>& columns, const Value (&x)[COUNT]) {
  Pack<Stored, COUNT> all;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) all.v[i] = pb_narrow(x[i]);
  pb_set<WIDE>(row, columns, all);
}
// A dense matrix.
struct Output {
  Stored* p;
  int m, n;
  // Whether COUNT columns are written at once.
  template <int COUNT> PB_MEMBER bool wide() const {
    return n % COUNT == 0 && (u64)p % sizeof(Pack<Stored, COUNT>) == 0;
  }
  PB_MEMBER Stored* row(int i) const { return p + i * (i64)n; }
  template <int COUNT> PB_MEMBER Columns<COUNT> columns(int j) const { return pb_columns<COUNT>(j, n); }
};

// Blocks that leave what they have made for the last of them to arrive; `arrived` is 0 at first, and
// afterwards.
struct Company {
  Piece* chains;
  int* arrived;
  int members;
  PB_MEMBER bool is_last(void* shared) const {  // which is free
    volatile int* before = static_cast<int*>(shared);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *before = atomicAdd(arrived, 1);
    __syncthreads();
    if (*before != members - 1) return false;
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
