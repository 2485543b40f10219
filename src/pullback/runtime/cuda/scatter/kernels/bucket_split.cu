// Exact sums of narrow rows, the first half: contributions go to the others of their bucket, which has
// neighbouring destinations, tile after tile. No order is kept inside a bucket, since integer sums
// need none; it begins at a multiple of four in every tile, and what is left over belongs to no row.
// Definitions: WIDTH, PLACES, THREADS, ITEMS (of a thread, a multiple of four), SPLITTERS (thread blocks
// of a processor).
constexpr int TILE = THREADS * ITEMS;

// How rows are dealt out: `cells` of them to a bucket; the quotient is a product and a shift. Indices
// that are out of range have a bucket of their own, after all others.
struct Deal {
  u32 cells, reciprocal, shift, buckets;
  __device__ u32 bucket(u32 row) const { return __umulhi(row, reciprocal) >> shift; }
  __device__ u32 nowhere() const { return cells * buckets; }
};

// Elements of a thread lie in pairs.
DEVICE i64 place(i64 first, int j) {
  return first + ((i64)(j / 2) * THREADS + threadIdx.x) * 2 + j % 2;
}

// As `locate`, for fewer than 2**31 rows: no more than 32 bits of an index have to be looked at.
DEVICE bool locate_near(Index index, u32 rows, u32& row) {
  const int high = sizeof(Index) < 8 ? (int)index >> 31 : (int)((i64)index >> 32);
  if (Index(-1) < Index(0)) {
    row = (u32)index + ((u32)high & rows);
    return row < rows && (sizeof(Index) < 8 || (u32)high + 1 < 2);
  }
  row = (u32)index;
  return row < rows && (sizeof(Index) < 8 || high == 0);
}

// The rows of a tile's elements. All loads are under way before the first is used.
DEVICE void load_rows(u32 (&row)[ITEMS], const Index* index, i64 first, i64 n, u32 rows,
                      const Deal& deal, bool aligned, Slot* slot) {
  Index own[ITEMS];
  const bool whole = first + TILE <= n;
  if (aligned && whole) {
#pragma unroll
    for (int j = 0; j < ITEMS; j += 2) {
      const auto p = *reinterpret_cast<const Pack<Index, 2>*>(index + place(first, j));
      own[j] = p.at[0];
      own[j + 1] = p.at[1];
    }
  } else {
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) own[j] = place(first, j) < n ? index[place(first, j)] : Index(0);
  }
  bool bad = !whole;
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const bool found = locate_near(own[j], rows, row[j]);
    row[j] = found ? row[j] : deal.nowhere();
    bad |= !found;
  }
  if (!bad) return;
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const i64 at = place(first, j);
    if (at >= n)
      row[j] = deal.nowhere();
    else if (row[j] == deal.nowhere())
      report(slot, at);
  }
}

// counts[b] becomes the sum of counts[0 .. b-1], each rounded up to a multiple of four; `filled(from,
// to)` for what is added to a bucket by that.
template <typename F> DEVICE void scan(u32* counts, u32* sums, int buckets, F filled) {
  const int each = (buckets + THREADS) / THREADS, first = threadIdx.x * each;
  u32 own = 0;
  for (int k = first; k < first + each && k <= buckets; ++k) own += (counts[k] + 3) / 4 * 4;
  const u32 upto = upto_lane(own);
  if (threadIdx.x % 32 == 31) sums[threadIdx.x / 32] = upto;
  __syncthreads();
  u32 running = upto - own;
  for (int w = 0; w < (int)threadIdx.x / 32; ++w) running += sums[w];
  for (int k = first; k < first + each && k <= buckets; ++k) {
    const u32 count = counts[k];
    counts[k] = running;
    filled(running + count, running + (count + 3) / 4 * 4);
    running += (count + 3) / 4 * 4;
  }
  __syncthreads();
}

// A tile in shared memory: where buckets begin, and the cells of elements, `cells` for no row.
struct Tile {
  u16* cell;
  u32 *counts, *sums;
  __device__ Tile(void* from, i64 pitch, const Deal& deal)
      : cell(reinterpret_cast<u16*>(from)), counts(reinterpret_cast<u32*>(cell + pitch)),
        sums(counts + deal.buckets + 1) {}
  // The ranks of elements among those of their bucket, two in a word.
  __device__ void rank(u32 (&at)[ITEMS / 2], const u32 (&row)[ITEMS], const Deal& deal) const {
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) {
      const u32 own = atomicAdd(counts + deal.bucket(row[j]), 1u);
      at[j / 2] = j % 2 ? at[j / 2] | own << 16 : own;
    }
  }
  // The same where neighbours have rows that are near: as long as all lanes have one bucket, they would
  // wait for each other, and the first of them counts for all.
  __device__ void rank_near(u32 (&at)[ITEMS / 2], const u32 (&row)[ITEMS], const Deal& deal) const {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) {
      const u32 bucket = deal.bucket(row[j]), first = __shfl_sync(WARP, bucket, 0, 32);
      const bool one = __ballot_sync(WARP, bucket == first) == WARP;
      u32 own = 0;
      if (!one || lane == 0) own = atomicAdd(counts + bucket, one ? 32u : 1u);
      if (one) own = __shfl_sync(WARP, own, 0, 32) + lane;
      at[j / 2] = j % 2 ? at[j / 2] | own << 16 : own;
    }
  }
  // The places of elements, two in a word.
  __device__ void arrange(u32 (&at)[ITEMS / 2], const u32 (&row)[ITEMS], const Deal& deal) const {
    // Two pairs of each lane tell.
    const bool near = row[1] - row[0] + 32u < 64u && row[ITEMS - 1] - row[ITEMS - 2] + 32u < 64u;
    if (__ballot_sync(WARP, near) == WARP)
      rank_near(at, row, deal);
    else
      rank(at, row, deal);
    __syncthreads();
    scan(counts, sums, (int)deal.buckets, [&](u32 from, u32 to) {
      for (u32 k = from; k < to; ++k) cell[k] = (u16)deal.cells;
    });
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) {
      const u32 bucket = deal.bucket(row[j]), start = counts[bucket];
      at[j / 2] += j % 2 ? start << 16 : start;
      cell[at[j / 2] >> (j % 2 * 16) & 0xffffu] = (u16)(row[j] - bucket * deal.cells);
    }
  }
  __device__ void clear(const Deal& deal) const {
    for (u32 b = threadIdx.x; b <= deal.buckets; b += THREADS) counts[b] = 0;
  }
  __device__ void write_starts(u16* starts, i64 tile, i64 tiles, const Deal& deal) const {
    for (u32 b = threadIdx.x; b <= deal.buckets; b += THREADS)
      starts[b * tiles + tile] = (u16)counts[b];
  }
};

// Contributions and their cells into buckets, and the range of values.
KERNEL __launch_bounds__(THREADS, SPLITTERS)
bucket_split(const Index* __restrict__ index, const Value* __restrict__ value, Item* items_out,
             u16* cells_out, u16* starts, Slot* slot, i64 n, i64 rows, i64 aligned, i64 pitch,
             i64 cells, i64 reciprocal, i64 shift, i64 buckets) {
  wait_for_others();
  DYNAMIC_SHARED(Item, items);
  const Deal deal = {(u32)cells, (u32)reciprocal, (u32)shift, (u32)buckets};
  const Tile own(items + pitch, pitch, deal);
  const i64 tiles = (n + TILE - 1) / TILE;
  Range range;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const i64 first = tile * TILE;
    u32 row[ITEMS], at[ITEMS / 2];
    Pack<Item, 2> item[ITEMS / 2];
    own.clear(deal);
    load_rows(row, index, first, n, (u32)rows, deal, aligned & 1, slot);
    // As soon as there are registers for them.
    if (WIDTH == 1)
#pragma unroll
      for (int u = 0; u < ITEMS / 2; ++u)
        item[u] = two_items(value, place(first, 2 * u), n, aligned & 2);
    __syncthreads();
    own.arrange(at, row, deal);
    if (WIDTH > 1)
#pragma unroll
      for (int u = 0; u < ITEMS / 2; ++u)
        item[u] = two_items(value, place(first, 2 * u), n, aligned & 2);
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) {
      items[at[j / 2] >> (j % 2 * 16) & 0xffffu] = item[j / 2].at[j % 2];
      see(range, item[j / 2].at[j % 2]);
    }
    own.write_starts(starts, tile, tiles, deal);
    const u32 count = own.counts[buckets];
    __syncthreads();
    write_out(items_out + tile * pitch, items, count);
    write_out(cells_out + tile * pitch, own.cell, count);
    __syncthreads();
  }
  range.tell(slot);
}
