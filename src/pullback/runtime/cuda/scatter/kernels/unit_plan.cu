// A plan for exact sums of narrow rows, after a stable sort: sorted places go into units of UNIT
// neighbours, and it is written down how values get there from where they are, in two moves. First,
// tile after tile of PLACES values, to the others of the same unit; then to their place in the unit.
// Definitions: those of the sort, CHUNK (places of a thread that adds), ADDERS (such threads of a
// block), PLACES.
constexpr u32 UNIT = CHUNK * ADDERS, NOWHERE = ~0u;
constexpr int OF_THREAD = PLACES / THREADS;
constexpr u16 NO_SLOT = 0xffff;

// The sorted place of every value, and in `meta` how many have one.
KERNEL unit_places(const u32* order, const u32* keys, u32* place, u32* meta, i64 n, i64 rows) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 p = (i64)blockIdx.x * blockDim.x + threadIdx.x; p < n; p += step) {
    const bool valid = keys[p] < rows;
    place[order[p]] = valid ? (u32)p : NOWHERE;
    if (valid && (p + 1 == n || keys[p + 1] >= rows)) meta[0] = (u32)(p + 1);
    if (p == 0 && !valid) meta[0] = 0;
  }
}

DEVICE u32 ends_of(const u32* keys, i64 chunk, i64 n, i64 rows) {
  u32 ends = 0;
  for (int j = 0; j < CHUNK; ++j) {
    const i64 p = chunk * CHUNK + j;
    if (p < n && keys[p] < rows && (p + 1 == n || keys[p + 1] != keys[p])) ends |= 1u << j;
  }
  return ends;
}

// Blocks do neighbouring chunks.
struct Share {
  i64 first, last;
  __device__ Share(i64 chunks) {
    const i64 each = (chunks + gridDim.x - 1) / gridDim.x;
    first = blockIdx.x * each;
    last = first + each < chunks ? first + each : chunks;
  }
};

// Where runs of equal indices end, as bits of chunks, and how many do in a block's share.
KERNEL __launch_bounds__(THREADS)
unit_ends(const u32* keys, u32* ends, u32* counts, i64 n, i64 rows, i64 chunks) {
  DYNAMIC_SHARED(u32, sums);
  const Share share(chunks);
  u32 own = 0, all;
  for (i64 c = share.first + threadIdx.x; c < share.last; c += THREADS) {
    const u32 word = ends_of(keys, c, n, rows);
    ends[c] = word;
    own += __popc(word);
  }
  before(own, sums, all);
  if (threadIdx.x == 0) counts[blockIdx.x] = all;
}

// The runs before each chunk, and the rows of runs.
KERNEL __launch_bounds__(THREADS)
unit_runs(const u32* keys, const u32* ends, const u32* counts, u32* run_of, u32* row_of, i64 chunks) {
  DYNAMIC_SHARED(u32, sums);
  const Share share(chunks);
  u32 own = 0, running, all;
  for (u32 b = threadIdx.x; b < blockIdx.x; b += THREADS) own += counts[b];
  before(own, sums, running);
  for (i64 c0 = share.first; c0 < share.last; c0 += THREADS) {
    const i64 c = c0 + threadIdx.x;
    const u32 word = c < share.last ? ends[c] : 0;
    u32 run = running + before(__popc(word), sums, all);
    running += all;
    if (c < share.last) run_of[c] = run;
    for (u32 left = word; left; left &= left - 1)
      row_of[run++] = keys[c * CHUNK + __ffs((int)left) - 1];
  }
  if (share.last == chunks && share.first < chunks && threadIdx.x == 0) run_of[chunks] = running;
}

// The slot of every value among those of its tile, unit after unit; the start of each unit there; and
// the place in the unit of the value in a slot.
KERNEL __launch_bounds__(THREADS)
unit_tiles(const u32* place, u16* slots, u16* ranks_of_slots, u16* starts, i64 n, i64 units) {
  DYNAMIC_SHARED(u32, counts);
  u32* sums = counts + units + 1;
  const i64 tiles = (n + PLACES - 1) / PLACES;
  const int each = (int)(units + THREADS) / THREADS, from = threadIdx.x * each;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    for (int u = threadIdx.x; u <= units; u += THREADS) counts[u] = 0;
    __syncthreads();
    u32 at[OF_THREAD], rank[OF_THREAD], all;
#pragma unroll
    for (int j = 0; j < OF_THREAD; ++j) {
      const i64 i = tile * PLACES + j * THREADS + threadIdx.x;
      at[j] = i < n ? place[i] : NOWHERE;
      if (at[j] != NOWHERE) rank[j] = atomicAdd(counts + at[j] / UNIT, 1u);
    }
    __syncthreads();
    u32 own = 0;
    for (int u = from; u < from + each && u <= units; ++u) own += counts[u];
    u32 running = before(own, sums, all);
    for (int u = from; u < from + each && u <= units; ++u) {
      const u32 count = counts[u];
      counts[u] = running;
      starts[tile * (units + 1) + u] = (u16)running;
      running += count;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < OF_THREAD; ++j) {
      const i64 i = tile * PLACES + j * THREADS + threadIdx.x;
      const u32 to = at[j] == NOWHERE ? NO_SLOT : counts[at[j] / UNIT] + rank[j];
      slots[i] = (u16)to;
      if (at[j] != NOWHERE) ranks_of_slots[tile * PLACES + to] = (u16)(at[j] % UNIT);
    }
    __syncthreads();
  }
}

// Where the values of a tile begin in each unit: those of the tiles before come first.
KERNEL unit_offsets(const u16* starts, u16* offsets, i64 n, i64 units) {
  const i64 u = (i64)blockIdx.x * blockDim.x + threadIdx.x, tiles = (n + PLACES - 1) / PLACES;
  if (u >= units) return;
  u32 sum = 0;
#pragma unroll 8
  for (i64 t = 0; t < tiles; ++t) {
    offsets[t * units + u] = (u16)sum;
    sum += starts[t * (units + 1) + u + 1] - starts[t * (units + 1) + u];
  }
}

// The places of values as they come after the first move.
KERNEL unit_ranks(const u16* ranks_of_slots, const u16* starts, const u16* offsets, u16* ranks, i64 n,
                  i64 units) {
  const i64 tiles = (n + PLACES - 1) / PLACES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x)
    for (i64 u = warp; u < units; u += blockDim.x / 32) {
      const u32 from = starts[tile * (units + 1) + u], to = starts[tile * (units + 1) + u + 1];
      for (u32 k = lane; k < to - from; k += 32)
        ranks[u * UNIT + offsets[tile * units + u] + k] = ranks_of_slots[tile * PLACES + from + k];
    }
}
