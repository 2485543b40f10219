// Few contributions to few rows: a thread block for each row looks at all indices, and folds what goes
// to its row in the order of `segments`, cut where the pieces there would cut it.
// Definitions: THREADS, ITEMS (indices of a thread, at most 32), LANES (across a row, divides THREADS),
// SPAN (see `segments`), SLICES (of the parts of a run).
constexpr int SLACK = SPAN / 2, GROUPS = THREADS / LANES;

DEVICE Sum folded(const Value* value, const u16* places, int from, int to, i64 width) {
  Sum s = start();
  for (; from + 4 <= to; from += 4) {
    Value four[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) four[u] = value[places[from + u] * width];
#pragma unroll
    for (int u = 0; u < 4; ++u) take(s, four[u]);
  }
  for (; from < to; ++from) take(s, value[places[from] * width]);
  return s;
}

// With `fresh` the destinations were not written before, and count as zeros.
KERNEL __launch_bounds__(THREADS)
each_row(const Index* __restrict__ index, const Value* __restrict__ value, Value* out, Slot* slot,
         i64 n, i64 rows, i64 width, i64 fresh) {
  __shared__ u32 sums_of_warps[THREADS / 32];
  __shared__ u16 places[THREADS * ITEMS];
  __shared__ Sum parts[THREADS];
  const i64 row = blockIdx.x;
  u32 own = 0, hits = 0;  // how many come here, and to rows before this one in the high half
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    const i64 i = (i64)threadIdx.x * ITEMS + k;
    i64 to = rows;
    if (i < n && !locate(index[i], rows, to)) {
      to = rows;
      if (row == 0) report(slot, i);
    }
    hits |= (u32)(to == row) << k;
    own += (u32)(to == row) + ((u32)(to < row) << 16);
  }
  u32 all;
  u32 at = before<THREADS / 32>(own, sums_of_warps, all) & 0xffff;
#pragma unroll
  for (int k = 0; k < ITEMS; ++k)
    if (hits >> k & 1) places[at++] = (u16)(threadIdx.x * ITEMS + k);
  __syncthreads();
  const int count = all & 0xffff, from = all >> 16, end = from + count - SLACK;
  if (count == 0 && !fresh) return;
  const int piece = from / SPAN, cuts = end / SPAN > piece ? end / SPAN - piece : 0;
  const int each = (cuts + SLICES - 1) / SLICES;
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  for (i64 column = lane; column - lane < width; column += LANES) {
    Sum s = start(), slice = start();
    for (int first = 0; first <= cuts; first += GROUPS) {
      const int part = first + group;
      if (part <= cuts && column < width) {
        const int low = part ? (piece + part) * SPAN - from : 0;
        const int high = part < cuts ? (piece + part + 1) * SPAN - from : count;
        parts[threadIdx.x] = folded(value + column, places, low, high, width);
      }
      __syncthreads();
      for (int k = first; group == 0 && k <= cuts && k < first + GROUPS; ++k) {
        const Sum next = parts[(k - first) * LANES + lane];
        if (k == 0) s = next;
        else slice = join(slice, next);
        if (k && (k % each == 0 || k == cuts)) {
          s = join(s, slice);
          slice = start();
        }
      }
      __syncthreads();
    }
    Value* to = out + row * width + column;
    if (group == 0 && column < width) *to = result(fresh ? Value() : *to, s);
  }
}
