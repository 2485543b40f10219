// Exact sums in shared memory: contributions are first moved into buckets of neighbouring
// destinations, tile after tile, then one thread block for each bucket adds them up.
// No order is kept inside a bucket, since integer sums need none.
// Definitions: WIDTH (elements of a row), THREADS, ITEMS (of a thread, a multiple of eight), ADDERS
// (threads that add up a bucket).
constexpr int TILE = THREADS * ITEMS;
constexpr u32 NOWHERE = ~0u;
typedef Pack<Value, WIDTH> Item;

// How rows are dealt out: `cells` of them to a bucket; the quotient is a product and a shift.
struct Deal {
  u32 cells, reciprocal, shift;
  __device__ u32 bucket(u32 row) const { return __umulhi(row, reciprocal) >> shift; }
};

DEVICE i64 place(i64 first, int u, int k) {
  return first + ((i64)u * THREADS + threadIdx.x) * 2 + k;
}

template <typename T> DEVICE Pack<T, 2> pair(const T* from, i64 at, i64 n, bool aligned) {
  if (aligned && at + 1 < n) return *reinterpret_cast<const Pack<T, 2>*>(from + at);
  Pack<T, 2> p = {};
  if (at < n) p.at[0] = from[at];
  if (at + 1 < n) p.at[1] = from[at + 1];
  return p;
}

// Items can start at any multiple of a value's size.
DEVICE Pack<Item, 2> items_at(const Value* value, i64 at, i64 n, bool aligned) {
  if (aligned && at + 1 < n) return *reinterpret_cast<const Pack<Item, 2>*>(value + at * WIDTH);
  Pack<Item, 2> p = {};
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int c = 0; c < WIDTH; ++c)
      if (at + k < n) p.at[k].at[c] = value[(at + k) * WIDTH + c];
  return p;
}

// counts[b] becomes the sum of counts[0 .. b-1]; counts[buckets] the sum of all.
DEVICE void scan(u32* counts, u32* sums, int buckets) {
  const int each = (buckets + THREADS) / THREADS, first = threadIdx.x * each;
  const int lane = threadIdx.x % 32;
  u32 own = 0;
  for (int k = first; k < first + each && k <= buckets; ++k) own += counts[k];
  u32 upto = own;
  for (int by = 1; by < 32; by *= 2) {
    const u32 below = __shfl_up_sync(WARP, upto, by, 32);
    upto += lane >= by ? below : 0;
  }
  if (lane == 31) sums[threadIdx.x / 32] = upto;
  __syncthreads();
  u32 running = upto - own;
  for (int w = 0; w < (int)threadIdx.x / 32; ++w) running += sums[w];
  for (int k = first; k < first + each && k <= buckets; ++k) {
    const u32 count = counts[k];
    counts[k] = running;
    running += count;
  }
  __syncthreads();
}

// The rows of a tile's elements, NOWHERE for none, and their ranks in their buckets, two in a word.
struct Arranged {
  u32 row[ITEMS], ranks[ITEMS / 2];
  __device__ u32 slot(int j, u32 bucket, const u32* counts) const {
    return counts[bucket] + (ranks[j / 2] >> (j % 2 * 16) & 0xffffu);
  }
};

DEVICE void arrange(Arranged& to, const Index* index, i64 first, i64 n, i64 rows, const Deal& deal,
                    bool aligned, u32* counts, u32* sums, int buckets, Slot* slot) {
  for (int b = threadIdx.x; b <= buckets; b += THREADS) counts[b] = 0;
  __syncthreads();
#pragma unroll
  for (int u = 0; u < ITEMS / 2; ++u) {
    const Pack<Index, 2> p = pair(index, place(first, u, 0), n, aligned);
    to.ranks[u] = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      u32& row = to.row[2 * u + k];
      row = NOWHERE;
      if (place(first, u, k) >= n) continue;
      i64 found;
      if (!locate(p.at[k], rows, found)) {
        report(slot, place(first, u, k));
        continue;
      }
      row = (u32)found;
      to.ranks[u] |= atomicAdd(counts + deal.bucket(row), 1u) << (16 * k);
    }
  }
  __syncthreads();
  scan(counts, sums, buckets);
}

template <typename T> DEVICE void write_tile(T* to, const T* from) {
  constexpr int words = TILE * sizeof(T) / 16;
  for (int k = threadIdx.x; k < words; k += THREADS)
    reinterpret_cast<Pack<u32, 4>*>(to)[k] = reinterpret_cast<const Pack<u32, 4>*>(from)[k];
}

DEVICE void write_starts(u16* starts, const u32* counts, int buckets, i64 tile, i64 tiles) {
  for (int b = threadIdx.x; b <= buckets; b += THREADS) starts[b * tiles + tile] = (u16)counts[b];
}

DEVICE void see(Range& range, const Item& item) {
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) range.see(item.at[c]);
}

DEVICE void see_all(Range& range, const Value* x, i64 size) {
  for (i64 d = (i64)blockIdx.x * THREADS + threadIdx.x; d < size; d += (i64)gridDim.x * THREADS)
    range.see(x[d]);
}

// Contributions and their cells into buckets, and the range of values.
KERNEL __launch_bounds__(THREADS, 1024 / THREADS)
bucket_split(const Index* __restrict__ index, const Value* __restrict__ value,
             const Value* __restrict__ x, Item* items_out, u16* cells_out, u16* starts, Slot* slot,
             i64 n, i64 rows, i64 cells, i64 reciprocal, i64 shift, i64 buckets, i64 aligned) {
  DYNAMIC_SHARED(Item, items);
  u16* in_cell = reinterpret_cast<u16*>(items + TILE);
  u32* counts = reinterpret_cast<u32*>(in_cell + TILE);
  u32* sums = counts + buckets + 1;
  const Deal deal = {(u32)cells, (u32)reciprocal, (u32)shift};
  const i64 tiles = (n + TILE - 1) / TILE;
  Range range;
  see_all(range, x, rows * WIDTH);
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const i64 first = tile * TILE;
    Arranged to;
    arrange(to, index, first, n, rows, deal, aligned & 1, counts, sums, (int)buckets, slot);
#pragma unroll
    for (int u = 0; u < ITEMS / 2; ++u) {
      const Pack<Item, 2> p = items_at(value, place(first, u, 0), n, aligned & 2);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const u32 row = to.row[2 * u + k];
        if (row == NOWHERE) continue;
        const u32 bucket = deal.bucket(row), at = to.slot(2 * u + k, bucket, counts);
        items[at] = p.at[k];
        in_cell[at] = (u16)(row - bucket * deal.cells);
        see(range, p.at[k]);
      }
    }
    write_starts(starts, counts, (int)buckets, tile, tiles);
    __syncthreads();
    write_tile(items_out + first, items);
    write_tile(cells_out + first, in_cell);
    __syncthreads();
  }
  range.tell(slot);
}

// The first two limbs of a bucket's cells are in shared memory; deeper ones, which hardly any
// data needs, and what is not finite, are in device memory.
struct Bucket {
  u32* words;  // limbs of two words: word[2 * (limb * size + cell)] and the next
  u64* deep;
  u32* flags;
  int size;
  i64 first, destinations;
  Layout layout;
  Near near;

  __device__ static void add_words(u32* at, u32 low, u32 high) {
    const u32 sum = atomicAdd(at, low) + low;
    high += sum < low;
    if (high) atomicAdd(at + 1, high);
  }
  __device__ void add(int limb, int cell, i64 piece) const {
    if (limb > 1)
      atomicAdd(deep + (limb - 2) * destinations + first + cell, (u64)piece);
    else
      add_words(words + 2 * (limb * size + cell), (u32)piece, (u32)((u64)piece >> 32));
  }
  __device__ void add_slowly(int cell, u32 bits) const {
    if ((bits & 0x7fffffffu) >= 0x7f800000u) {
      atomicOr(flags + first + cell, special_of(bits));
      return;
    }
    int at;
    i64 a, b;
    cut(bits, layout, at, a, b);
    if (a) add(at, cell, a);
    if (b) add(at + 1, cell, b);
  }
  __device__ void add(int cell, u32 bits) const {
    if (near.one(bits)) {
      u32 low, high;
      near.words(bits, low, high);
      add_words(words + 2 * cell, low, high);
    } else if (near.two(bits)) {
      i64 a, b;
      near.split(bits, a, b);
      if (a) add_words(words + 2 * cell, (u32)a, (u32)((u64)a >> 32));
      add_words(words + 2 * (size + cell), (u32)b, (u32)((u64)b >> 32));
    } else if (bits << 1) {
      add_slowly(cell, bits);
    }
  }
  __device__ void add(int row, const Item& item) const {
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) add(row * WIDTH + c, single(item.at[c]));
  }
  // A whole warp's contributions to one cell, where long runs of equal indices meet.
  __device__ void add_together(int cell, u32 bits) const {
    int at = 0;
    i64 a = 0, b = 0;
    const bool finite = (bits & 0x7fffffffu) < 0x7f800000u;
    if (finite) cut(bits, layout, at, a, b);
    if (!finite || at > 0) {
      add_slowly(cell, bits);
      a = b = 0;
    }
    for (int by = 16; by > 0; by /= 2) {
      a += __shfl_down_sync(WARP, a, by, 32);
      b += __shfl_down_sync(WARP, b, by, 32);
    }
    if (threadIdx.x % 32 == 0) {
      if (a) add(0, cell, a);
      if (b) add(1, cell, b);
    }
  }
  __device__ Value settled(int cell, Value x, u32 special) const {
    i64 limb[2];
    for (int j = 0; j < 2; ++j) {
      const u32* at = words + 2 * (j * size + cell);
      limb[j] = (i64)((u64)at[1] << 32 | at[0]);
    }
    if (layout.limbs <= 2) return settle(x, limb, layout, special);
    i64 all[MAX_LIMBS];
    for (int j = 0; j < MAX_LIMBS; ++j)
      all[j] = j < 2 ? limb[j]
               : j < layout.limbs ? (i64)deep[(j - 2) * destinations + first + cell] : 0;
    return settle(x, all, layout, special);
  }
};

constexpr int AHEAD = 4;                   // tiles whose runs a warp reads at a time
constexpr int PARTS = WIDTH == 1 ? 3 : 2;  // of 32 contributions that it takes of each
constexpr int LISTED = 4096;               // tiles with longer runs that a block remembers
constexpr int CHUNK = 4;                   // contributions of a lane, of such a run

// The rest of a run, from `from` on: every `warps`-th chunk, beginning with chunk number `own`.
DEVICE void add_rest(const Bucket& bucket, const Item* items, const u16* cells, u32 from, u32 to, u32 own,
                     u32 warps) {
  const u32 lane = threadIdx.x % 32;
  for (u32 p = from + own * 32 * CHUNK; p < to; p += warps * 32 * CHUNK) {
    Item item[CHUNK];
    int cell[CHUNK];
#pragma unroll
    for (int u = 0; u < CHUNK; ++u) {
      const u32 at = p + 32 * u + lane < to ? p + 32 * u + lane : from;
      item[u] = items[at];
      cell[u] = cells[at];
    }
#pragma unroll
    for (int u = 0; u < CHUNK; ++u) {
      const bool active = p + 32 * u + lane < to;
      const int leader = __shfl_sync(WARP, cell[u], 0, 32);
      const bool same = __all_sync(WARP, active && cell[u] == leader);
      if (same)
        for (int c = 0; c < WIDTH; ++c)
          bucket.add_together(cell[u] * WIDTH + c, single(item[u].at[c]));
      else if (active)
        bucket.add(cell[u], item[u]);
    }
  }
}

// What one warp does: the first contributions of the runs of `count` tiles.
DEVICE void add_runs(const Bucket& bucket, const Item* items, const u16* cells, u32 begin, u32 end,
                     int count) {
  const u32 lane = threadIdx.x % 32;
  for (int j = 0; j < count; j += AHEAD) {
    Item item[AHEAD][PARTS];
    u16 cell[AHEAD][PARTS];
    u32 left[AHEAD];
#pragma unroll
    for (int q = 0; q < AHEAD; ++q) {
      const u32 from = __shfl_sync(WARP, begin, (j + q) % 32, 32);
      const u32 to = __shfl_sync(WARP, end, (j + q) % 32, 32);
      left[q] = j + q < count ? to - from : 0;
      const Item* own_items = items + (i64)(j + q) * TILE + from;
      const u16* own_cells = cells + (i64)(j + q) * TILE + from;
#pragma unroll
      for (int h = 0; h < PARTS; ++h)
        if (32 * h + lane < left[q]) {
          item[q][h] = own_items[32 * h + lane];
          cell[q][h] = own_cells[32 * h + lane];
        }
    }
#pragma unroll
    for (int q = 0; q < AHEAD; ++q)
#pragma unroll
      for (int h = 0; h < PARTS; ++h)
        if (32 * h + lane < left[q]) bucket.add(cell[q][h], item[q][h]);
  }
}

KERNEL __launch_bounds__(ADDERS)
bucket_add(const Item* __restrict__ items, const u16* __restrict__ cells_in,
           const u16* __restrict__ starts, Value* out, u64* deep, u32* flags, const Slot* slot,
           i64 n, i64 rows, i64 cells, i64 bits) {
  DYNAMIC_SHARED(u32, listed);
  u32 *words = listed + LISTED, *count_listed = words + 4 * cells * WIDTH;
  const i64 tiles = (n + TILE - 1) / TILE, first = blockIdx.x * cells * WIDTH;
  const i64 left = rows * WIDTH - first;
  const int size = (int)(left < cells * WIDTH ? left : cells * WIDTH);
  const Layout layout = layout_of(slot, (int)bits);
  const Bucket bucket = {words, deep, flags, size, first, rows * WIDTH, layout, Near(layout)};
  const bool special = slot->special;
  for (int k = threadIdx.x; k < 4 * size; k += ADDERS) words[k] = 0;
  for (int k = threadIdx.x; k < size; k += ADDERS) {
    for (int j = 2; j < layout.limbs; ++j) deep[(j - 2) * bucket.destinations + first + k] = 0;
    if (special) flags[first + k] = 0;
  }
  if (threadIdx.x == 0) *count_listed = 0;
  __syncthreads();
  const u32 warps = ADDERS / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const i64 share = (tiles + warps - 1) / warps, each = share < 32 ? share : 32;
  const u16 *begins = starts + blockIdx.x * tiles, *ends = begins + tiles;
  for (i64 tile = warp * each; tile < tiles; tile += warps * each) {
    const int count = (int)(tiles - tile < each ? tiles - tile : each);
    const u32 begin = lane < count ? begins[tile + lane] : 0;
    const u32 end = lane < count ? ends[tile + lane] : 0;
    add_runs(bucket, items + tile * TILE, cells_in + tile * TILE, begin, end, count);
    u32 place = LISTED;
    if (end - begin > 32 * PARTS) {
      place = atomicAdd(count_listed, 1u);
      if (place < LISTED) listed[place] = (u32)(tile + lane);
    }
    // No place left: the warp does the rest of these runs itself.
    const u32 over = __ballot_sync(WARP, end - begin > 32 * PARTS && place >= LISTED);
    for (int j = 0; j < count; ++j) {
      const u32 from = __shfl_sync(WARP, begin, j, 32) + 32 * PARTS;
      const u32 to = __shfl_sync(WARP, end, j, 32);
      if (over >> j & 1)
        add_rest(bucket, items + (tile + j) * TILE, cells_in + (tile + j) * TILE, from, to, 0, 1);
    }
  }
  __syncthreads();
  const u32 runs = *count_listed < LISTED ? *count_listed : LISTED;
  for (u32 r = 0; r < runs; ++r) {
    const i64 tile = listed[r];
    add_rest(bucket, items + tile * TILE, cells_in + tile * TILE, begins[tile] + 32 * PARTS,
             ends[tile], (warp + r) % warps, warps);
  }
  __syncthreads();
  for (int k = threadIdx.x; k < size; k += ADDERS)
    out[first + k] = bucket.settled(k, out[first + k], special ? flags[first + k] : 0);
}
