// Exact sums of narrow rows, the second half: contributions that lie in buckets, tile after tile (see
// bucket_split.cu), are added up in shared memory, by one thread block for each bucket, or by several
// if it has a large share of all.
// Definitions: WIDTH, ADDERS (threads that add up a bucket), SHARERS (threads of a block that looks at
// the size of a bucket).

// A share of a bucket: every `parts`-th tile. Where there are several, they have tables from `table` on.
struct Share { u32 bucket, part, parts, table; };

// Zeros for `count` destinations from `first` on: for limbs past the second, and what is not finite.
DEVICE void clear_deep(u64* deep, u32* flags, i64 first, i64 count, i64 destinations, int limbs,
                       bool special) {
  const i64 end = first + count < destinations ? first + count : destinations;
  if (limbs <= 2 && !special) return;
  for (i64 k = first + threadIdx.x; k < end; k += blockDim.x) {
    for (int j = 2; j < limbs; ++j) deep[(j - 2) * destinations + k] = 0;
    flags[k] = 0;
  }
}

constexpr int QUAD_BYTES = 4 * sizeof(Item) < 16 ? 4 * sizeof(Item) : 16;
struct alignas(QUAD_BYTES) Quad { Item at[4]; };
constexpr int AHEAD = WIDTH == 1 ? 4 : 2;  // quads of a lane that are loaded at a time
constexpr int BATCH = 2 * ADDERS;          // tiles that are looked at together

// Cuts buckets of more than `limit` quads into shares, and clears what the thread blocks of such a
// bucket have in common. The block that comes last writes down all shares, and how many there are in
// `shares[most]`.
KERNEL __launch_bounds__(SHARERS)
bucket_share(const u16* __restrict__ starts, u32* quads, Share* shares, u32* arrived, u64* deep,
             u32* flags, Slot* slot, i64 tiles, i64 destinations, i64 cells, i64 most, i64 limit,
             i64 bits) {
  DYNAMIC_SHARED(u32, sums);
  u32* is_last = sums + SHARERS / 32;
  const u16 *begins = starts + blockIdx.x * tiles, *ends = begins + tiles;
  u32 own = 0, all;
#pragma unroll 4
  for (i64 t = threadIdx.x; t < tiles; t += SHARERS) own += (ends[t] - begins[t]) / 4u;
  before<SHARERS / 32>(own, sums, all);
  if (all > limit) {
    const Layout l = layout_of(slot, (int)bits);
    const i64 first = blockIdx.x * cells * WIDTH;
    clear_deep(deep, flags, first, cells * WIDTH, destinations, l.limbs, slot->special);
  }
  if (threadIdx.x == 0) {
    quads[blockIdx.x] = all;
    arrived[blockIdx.x] = 0;
    __threadfence();
    *is_last = atomicAdd(&slot->done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!*is_last) return;
  __threadfence();
  u32 running = 0, tables = 0;
  for (u32 b0 = 0; b0 < gridDim.x; b0 += SHARERS) {
    const u32 b = b0 + threadIdx.x;
    const u32 parts = b < gridDim.x ? (u32)((quads[b] + limit - 1) / limit) : 0;
    const u32 at = running + before<SHARERS / 32>(parts, sums, all);
    running += all;
    const u32 table = tables + before<SHARERS / 32>(parts > 1 ? parts : 0, sums, all);
    tables += all;
    for (u32 p = 0; p < parts; ++p) shares[at + p] = {b, p, parts, table};
  }
  if (threadIdx.x == 0) shares[most].bucket = running;
}

// The first two limbs of a bucket's cells are in shared memory, and one cell more, for elements that
// belong to no row. Deeper limbs, which hardly any data needs, and what is not finite, are in device
// memory.
struct Bucket {
  u32* words;  // low words of the first limb, its high words, then those of the second
  u64* deep;
  u32* flags;
  int size, stride;
  i64 first, destinations;
  Layout layout;
  Near near;

  __device__ void add(int limb, int cell, u64 piece) const {
    if (limb > 1) {
      atomicAdd(deep + (limb - 2) * destinations + first + cell, piece);
      return;
    }
    u32 *at = words + 2 * limb * stride + cell, low = (u32)piece;
    const u32 sum = atomicAdd(at, low) + low;
    atomicAdd(at + stride, (u32)(piece >> 32) + (sum < low));  // seldom zero
  }
  // What is not near, of a row.
  __device__ void add_slowly(int row, const Item& item) const {
    for (int c = 0; c < WIDTH; ++c) {
      const u32 bits = single(item.at[c]);
      const int cell = row * WIDTH + c;
      if (near.two(bits) || cell >= size) continue;
      if ((bits & 0x7fffffffu) >= 0x7f800000u) {
        atomicOr(flags + first + cell, special_of(bits));
        continue;
      }
      int at;
      i64 a, b;
      cut(bits, layout, at, a, b);
      if (a) add(at, cell, (u64)a);
      if (b) add(at + 1, cell, (u64)b);
    }
  }
  // Adds four rows whose values all need the first limb only: most of them. False if they do not.
  __device__ bool add_four(const Pack<u16, 4>& row, const Quad& quad) const {
    u32 worst = 0;
#pragma unroll
    for (int k = 0; k < 4 * WIDTH; ++k) {
      const u32 over = near.over(single(quad.at[k / WIDTH].at[k % WIDTH]));
      worst = over > worst ? over : worst;
    }
    if (worst >= near.finite()) return false;
#pragma unroll
    for (int k = 0; k < 4 * WIDTH; ++k) {
      const double high = near.high(single(quad.at[k / WIDTH].at[k % WIDTH]));
      add(0, row.at[k / WIDTH] * WIDTH + k % WIDTH, bits_of(high) - MAGIC_BITS);
    }
    return true;
  }
  // Adds what is near, which is nearly everything; whether there is more.
  __device__ bool add(int row, const Item& item) const {
    bool more = false;
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
      const u32 bits = single(item.at[c]);
      if (near.two(bits)) {
        const double high = near.high(bits);
        add(0, row * WIDTH + c, bits_of(high) - MAGIC_BITS);
        if (!near.one(bits)) add(1, row * WIDTH + c, bits_of(near.low(bits, high)) - MAGIC_BITS);
      } else {
        more |= bits << 1 != 0;
      }
    }
    return more;
  }
  // The same for a whole warp, many of whose elements have one row: these are added up first.
  __device__ bool add_together(bool active, int row, const Item& item) const {
    const int leader = __shfl_sync(WARP, row, 0, 32);
    const bool follows = active && row == leader;
    if (__popc(__ballot_sync(WARP, follows)) < 8) return active && add(row, item);
    bool more = false;
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
      const u32 bits = single(item.at[c]);
      const bool is_near = active && near.two(bits);
      const double high = near.high(bits);
      u64 a = is_near ? bits_of(high) - MAGIC_BITS : 0;
      u64 b = is_near ? bits_of(near.low(bits, high)) - MAGIC_BITS : 0;
      more |= active && !is_near && bits << 1 != 0;
      u64 sum_a = follows ? a : 0, sum_b = follows ? b : 0;
      for (int by = 16; by > 0; by /= 2) {
        sum_a += __shfl_down_sync(WARP, sum_a, by, 32);
        sum_b += __shfl_down_sync(WARP, sum_b, by, 32);
      }
      a = threadIdx.x % 32 == 0 ? sum_a : follows ? 0 : a;
      b = threadIdx.x % 32 == 0 ? sum_b : follows ? 0 : b;
      const int cell = (threadIdx.x % 32 == 0 ? leader : row) * WIDTH + c;
      if (a) add(0, cell, a);
      if (b) add(1, cell, b);
    }
    return more;
  }
  __device__ i64 limb(int j, int cell) const {
    const u32* at = words + 2 * j * stride + cell;
    return (i64)((u64)at[stride] << 32 | at[0]);
  }
};

// x plus a sum, for the few that are not near.
static __device__ __noinline__ Value settle_deep(Value x, i64 high, i64 low, const u64* deep,
                                                 i64 destinations, const Layout& l, u32 special) {
  i64 all[MAX_LIMBS] = {high, low};
  for (int j = 2; j < l.limbs; ++j) all[j] = (i64)deep[(j - 2) * destinations];
  return settle(x, all, l, special);
}

DEVICE void settle_all(const Bucket& bucket, Value* out, bool special) {
  constexpr int LOADS = 4;
  for (int k0 = threadIdx.x; k0 < bucket.size; k0 += LOADS * ADDERS) {
    Value x[LOADS];
#pragma unroll
    for (int u = 0; u < LOADS; ++u)
      if (k0 + u * ADDERS < bucket.size) x[u] = out[bucket.first + k0 + u * ADDERS];
#pragma unroll
    for (int u = 0; u < LOADS; ++u) {
      const int k = k0 + u * ADDERS;
      if (k >= bucket.size) break;
      const i64 high = bucket.limb(0, k), low = bucket.limb(1, k);
      const u32 seen = special ? bucket.flags[bucket.first + k] : 0;
      if (seen || !settle_near(x[u], high, low, bucket.layout, bucket.near))
        x[u] = settle_deep(x[u], high, low, bucket.deep + bucket.first + k, bucket.destinations,
                           bucket.layout, seen);
      out[bucket.first + k] = x[u];
    }
  }
}

// Tiles of a batch in shared memory: `upto[t]` quads in those before the t-th, whose quads are
// `offset[t]` further in memory.
struct Batch { u32 *upto, *offset, *sums; };

// The tiles `last`, `last - step`, ...: what was written last is near. The number of their quads.
DEVICE u32 look(const Batch& batch, const u16* begins, const u16* ends, i64 last, i64 step, i64 pitch) {
  u32 begin[2], quads[2], all;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const i64 tile = last - (2 * threadIdx.x + j) * step;
    begin[j] = tile >= 0 ? begins[tile] : 0;
    quads[j] = tile >= 0 ? (ends[tile] - begin[j]) / 4 : 0;
  }
  u32 running = before<ADDERS / 32>(quads[0] + quads[1], batch.sums, all);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const i64 tile = last - (2 * threadIdx.x + j) * step;
    batch.upto[2 * threadIdx.x + j] = running;
    batch.offset[2 * threadIdx.x + j] = (u32)((tile * pitch + begin[j]) / 4) - running;
    running += quads[j];
  }
  if (threadIdx.x == ADDERS - 1) batch.upto[BATCH] = running;
  __syncthreads();
  return all;
}

// What a lane has loaded: the quads, their cells, and where they are.
struct Loaded {
  Quad item[AHEAD];
  Pack<u16, 4> cell[AHEAD];
  u32 at[AHEAD];
};

// The chunk of quads from `base` on. Warps take neighbouring chunks, so that all of them are at work
// in few pages of memory.
DEVICE Loaded load_chunk(const Batch& batch, u32 base, u32 quads, const Quad* items,
                         const Pack<u16, 4>* cells) {
  Loaded found;
  u32 tile = 0;  // one of the last that begin at or before the chunk
  for (u32 step = BATCH / 32; step > 0; step /= 32) {
    const u32 probe = tile + threadIdx.x % 32 * step;
    const bool early = probe < BATCH && batch.upto[probe] <= base;
    tile += (__popc(__ballot_sync(WARP, early)) - 1) * step;
  }
#pragma unroll
  for (int u = 0; u < AHEAD; ++u) {
    const u32 quad = base + 32 * u + threadIdx.x % 32;
    if (quad < quads)
      while (batch.upto[tile + 1] <= quad) ++tile;
    found.at[u] = batch.offset[tile] + (quad < quads ? quad : batch.upto[tile]);
    found.item[u] = items[found.at[u]];
    found.cell[u] = cells[found.at[u]];
  }
  return found;
}

// Adds what was loaded; `count` lanes of the warp's chunk have quads.
template <bool HOT>
DEVICE void add_chunk(const Bucket& bucket, const Loaded& loaded, u32 count, const Quad* items,
                      const Pack<u16, 4>* cells) {
  u32 more = 0;
#pragma unroll
  for (int u = 0; u < AHEAD; ++u) {
    const bool active = 32 * u + threadIdx.x % 32 < count;
    if (!HOT && (!active || bucket.add_four(loaded.cell[u], loaded.item[u]))) continue;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = loaded.cell[u].at[k];
      const Item& item = loaded.item[u].at[k];
      const bool left = HOT ? bucket.add_together(active, row, item) : bucket.add(row, item);
      more |= (u32)left << (4 * u + k);
    }
  }
  if (more == 0) return;
#pragma unroll
  for (int u = 0; u < AHEAD; ++u)
#pragma unroll 1
    for (u32 left = more >> 4 * u & 15; left; left &= left - 1) {
      const int k = __ffs((int)left) - 1;
      bucket.add_slowly(cells[loaded.at[u]].at[k], items[loaded.at[u]].at[k]);
    }
}

// All quads of a batch.
template <bool HOT>
DEVICE void add_batch(const Bucket& bucket, const Batch& batch, u32 quads, const Quad* items,
                      const Pack<u16, 4>* cells) {
  constexpr u32 CHUNK = 32 * AHEAD, STEP = ADDERS * AHEAD;
  for (u32 base = threadIdx.x / 32 * CHUNK; base < quads; base += STEP)
    add_chunk<HOT>(bucket, load_chunk(batch, base, quads, items, cells), quads - base, items, cells);
}

KERNEL __launch_bounds__(ADDERS, 1)
bucket_add(const Quad* __restrict__ items, const Pack<u16, 4>* __restrict__ cells_in,
           const u16* __restrict__ starts, const Share* __restrict__ shares, u32* arrived, u32* parts,
           Value* out, u64* deep, u32* flags, const Slot* slot, i64 tiles, i64 pitch,
           i64 destinations, i64 cells, i64 most, i64 bits) {
  if (blockIdx.x >= shares[most].bucket) return;
  DYNAMIC_SHARED(u32, words);
  const Share share = shares[blockIdx.x];
  const int stride = (int)(cells + 1) * WIDTH;
  u32* upto = words + 4 * stride;
  const Batch batch = {upto, upto + BATCH + 1, upto + 2 * BATCH + 1};
  const i64 first = share.bucket * cells * WIDTH, left = destinations - first;
  const int size = (int)(left < cells * WIDTH ? left : cells * WIDTH);
  const Layout layout = layout_of(slot, (int)bits);
  const Bucket bucket = {words, deep, flags, size, stride, first, destinations, layout, Near(layout)};
  for (int k = threadIdx.x; k < stride; k += ADDERS)
    reinterpret_cast<Pack<u32, 4>*>(words)[k] = {};
  if (share.parts == 1)
    clear_deep(deep, flags, first, size, destinations, layout.limbs, slot->special);
  const u16 *begins = starts + share.bucket * tiles, *ends = begins + tiles;
  for (i64 tile = tiles - 1 - share.part; tile >= 0; tile -= (i64)BATCH * share.parts) {
    const u32 quads = look(batch, begins, ends, tile, share.parts, pitch);
    if (share.parts > 1)
      add_batch<true>(bucket, batch, quads, items, cells_in);
    else
      add_batch<false>(bucket, batch, quads, items, cells_in);
    __syncthreads();
  }
  if (share.parts > 1) {
    // The block that comes last adds what the others have put down.
    u32 *tables = parts + (i64)share.table * 4 * stride, *own = tables + (i64)share.part * 4 * stride;
    for (int k = threadIdx.x; k < 4 * stride; k += ADDERS) own[k] = words[k];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *batch.sums = atomicAdd(arrived + share.bucket, 1u) == share.parts - 1;
    __syncthreads();
    if (!*batch.sums) return;
    __threadfence();
    for (int k = threadIdx.x; k < 2 * stride; k += ADDERS) {
      const int low = k < stride ? k : k + stride;
      u64 sum = 0;
      for (u32 p = 0; p < share.parts; ++p) {
        const u32* from = tables + (i64)p * 4 * stride + low;
        sum += (u64)from[stride] << 32 | from[0];
      }
      words[low] = (u32)sum;
      words[low + stride] = (u32)(sum >> 32);
    }
    __syncthreads();
  }
  settle_all(bucket, out, slot->special);
}
