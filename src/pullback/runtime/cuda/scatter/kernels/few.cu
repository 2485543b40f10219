// Few destinations: every thread owns a column of accumulators in shared memory, so that nothing
// is shared while contributions come in; then a fixed tree over threads, and over thread blocks.
// The order is that of `scattered_in_streams`.
// Definitions: THREADS, RESIDENT (thread blocks of a processor), VECTOR (elements of one load),
// UNROLL (loads in flight), CUT (whether a thread block has room for some of the rows alone, `each`
// of them), JOIN_LANES, JOIN_SLICES.
static_assert(JOIN_LANES == 32, "a warp joins single elements");

struct Batch {
  Pack<Index, VECTOR> index[UNROLL];
  Pack<Value, VECTOR> value[UNROLL];
};
constexpr i64 TILE = (i64)THREADS * VECTOR * UNROLL;
constexpr int AT_ONCE = 8;  // parts of a lane that are read at a time

DEVICE i64 place(i64 first, int u) { return first + ((i64)u * THREADS + threadIdx.x) * VECTOR; }

DEVICE void fetch(Batch& b, const Index* index, const Value* value, i64 first, i64 n, bool whole) {
  if (whole && first + TILE <= n) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      b.index[u] = *reinterpret_cast<const Pack<Index, VECTOR>*>(index + place(first, u));
      b.value[u] = *reinterpret_cast<const Pack<Value, VECTOR>*>(value + place(first, u));
    }
    return;
  }
#pragma unroll
  for (int u = 0; u < UNROLL; ++u)
#pragma unroll
    for (int k = 0; k < VECTOR; ++k)
      if (place(first, u) + k < n) {
        b.index[u].at[k] = index[place(first, u) + k];
        b.value[u].at[k] = value[place(first, u) + k];
      }
}

// The rows of a thread block.
struct Part {
  int from, count;
  __device__ bool has(int row) const { return !CUT || (u32)(row - from) < (u32)count; }
};

DEVICE Part part_of(i64 number, int rows, int each) {
  const int from = CUT ? (int)number * each : 0;
  return {from, rows - from < each ? rows - from : each};
}

DEVICE void absorb(Sum* columns, const Batch& b, i64 first, i64 n, int rows, Part part, Slot* slot) {
  const i64 left = n - first;
#pragma unroll
  for (int u = 0; u < UNROLL; ++u)
#pragma unroll
    for (int k = 0; k < VECTOR; ++k) {
      if (left < TILE && place(0, u) + k >= left) continue;
      i64 row;
      if (!locate(b.index[u].at[k], rows, row))
        report(slot, place(first, u) + k);
      else if (part.has((int)row))
        take(columns[((int)row - part.from) * THREADS + threadIdx.x], b.value[u].at[k]);
    }
}

// The fold of a row's parts, `blocks` of them side by side, by one warp.
DEVICE void merge(const Sum* parts, Value* out, i64 row, int blocks) {
  const int lane = threadIdx.x % 32;
  Sum s = start();
  for (int first = lane; first < blocks; first += 32 * AT_ONCE) {
    Sum part[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
      part[k] = first + 32 * k < blocks ? parts[row * blocks + first + 32 * k] : start();
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) s = join(s, part[k]);
  }
  s = tree(s, 32);
  if (lane == 0) out[row] = result(out[row], s);
}

KERNEL __launch_bounds__(THREADS, RESIDENT)
few_narrow(const Index* __restrict__ index, const Value* __restrict__ value, Value* out, Sum* parts,
           Slot* slot, i64 n, i64 rows, i64 each, i64 aligned, i64 merging) {
  wait_for_others();
  DYNAMIC_SHARED(Sum, columns);
  const Part own = part_of(blockIdx.y, (int)rows, (int)each);
  for (int r = 0; r < own.count; ++r) columns[r * THREADS + threadIdx.x] = start();
  const i64 step = gridDim.x * TILE;
  i64 first = blockIdx.x * TILE;
  Batch now, next;
  fetch(now, index, value, first, n, aligned == 3);
  while (first < n) {
    if (first + step < n) fetch(next, index, value, first + step, n, aligned == 3);
    absorb(columns, now, first, n, rows, own, slot);
    now = next;
    first += step;
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  for (int r = threadIdx.x / 32; r < own.count; r += THREADS / 32) {
    Sum s = start();
#pragma unroll
    for (int t = 0; t < THREADS; t += 32) s = join(s, columns[r * THREADS + t + lane]);
    s = tree(s, 32);
    if (lane == 0) parts[(i64)(own.from + r) * gridDim.x + blockIdx.x] = s;
  }
  if (!merging) return;
  // The block that comes last folds the parts of all: a launch less for small calls.
  u32* last = reinterpret_cast<u32*>(columns);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) *last = atomicAdd(&slot->done, 1u) == gridDim.x * gridDim.y - 1;
  __syncthreads();
  if (!*last) return;
  __threadfence();
  for (int r = threadIdx.x / 32; r < rows; r += THREADS / 32) merge(parts, out, r, gridDim.x);
}

KERNEL few_merge(const Sum* parts, Value* out, i64 rows, i64 blocks) {
  wait_for_others();
  const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row < rows) merge(parts, out, row, blocks);
}

// Rows of several elements: a thread owns a column of one of them; as many index streams as fit.
KERNEL __launch_bounds__(THREADS, RESIDENT)
few_wide(const Index* __restrict__ index, const Value* __restrict__ value, Sum* parts, Slot* slot,
         i64 n, i64 rows, i64 each, i64 width) {
  wait_for_others();
  DYNAMIC_SHARED(Sum, columns);
  const u32 chunks = (u32)((width + THREADS - 1) / THREADS);
  const i64 before = (i64)(CUT ? blockIdx.y % chunks : blockIdx.y) * THREADS;
  const Part own = part_of(CUT ? blockIdx.y / chunks : 0, (int)rows, (int)each);
  for (int r = 0; r < own.count; ++r) columns[r * THREADS + threadIdx.x] = start();
  const int lanes = width < THREADS ? width : THREADS, streams = THREADS / lanes;
  const int stream = threadIdx.x / lanes;
  const i64 column = before + threadIdx.x % lanes;
  const i64 step = (i64)gridDim.x * streams;
  if (stream < streams && column < width)
    for (i64 i = (i64)blockIdx.x * streams + stream; i < n; i += step * UNROLL) {
      Index at[UNROLL];
      Value v[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u)
        if (i + u * step < n) {
          at[u] = index[i + u * step];
          v[u] = value[(i + u * step) * width + column];
        }
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        if (i + u * step >= n) continue;
        i64 row;
        if (!locate(at[u], rows, row))
          report(slot, i + u * step);
        else if (own.has((int)row))
          take(columns[((int)row - own.from) * THREADS + threadIdx.x], v[u]);
      }
    }
  __syncthreads();
  for (int k = threadIdx.x; k < own.count * lanes; k += THREADS) {
    const int row = k / lanes, c = k % lanes;
    if (before + c >= width) continue;
    Sum s = start();
    for (int t = 0; t < streams; ++t) s = join(s, columns[row * THREADS + t * lanes + c]);
    parts[((i64)blockIdx.x * rows + own.from + row) * width + before + c] = s;
  }
}

// Parts lie block after block: 32 destinations side by side, and slices of the blocks for each.
KERNEL few_merge_wide(const Sum* parts, Value* out, i64 destinations, i64 blocks) {
  wait_for_others();
  DYNAMIC_SHARED(Sum, slices);
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
  const i64 d = (i64)blockIdx.x * 32 + lane;
  Sum s = start();
  if (d < destinations)
    for (i64 b = slice; b < blocks; b += JOIN_SLICES) s = join(s, parts[b * destinations + d]);
  slices[threadIdx.x] = s;
  __syncthreads();
  if (slice != 0 || d >= destinations) return;
  for (int k = 1; k < JOIN_SLICES; ++k) s = join(s, slices[k * 32 + lane]);
  out[d] = result(out[d], s);
}
