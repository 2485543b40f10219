// A stable sort of indices by radix, in one launch: all thread blocks are on the device at the same
// time and wait for each other at barriers.
// Definitions: THREADS, ITEMS (of a thread).
#ifndef SPIN
#define SPIN()
#endif
constexpr int TILE = THREADS * ITEMS, WARPS = THREADS / 32, MAX_DIGITS = 512;
static_assert(MAX_DIGITS <= THREADS, "a thread for every digit");

struct Shared {
  u32 key[TILE], order[TILE];
  u16 counts[WARPS][MAX_DIGITS];
  u32 start[MAX_DIGITS], base[MAX_DIGITS], sums[WARPS];
};

struct Sort {
  const Index* index;
  u32 *keys, *order, *other_keys, *other_order;  // where it ends, and the other side
  u32 *counts, *totals;                          // of digits: for each tile, and of all
  Slot* slot;
  i64 n, rows, bits, passes;
};

DEVICE void barrier(Slot* slot) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const u64 ticket = atomicAdd(&slot->arrived, (u64)1);
    const u64 goal = (ticket / gridDim.x + 1) * gridDim.x;
    while (*(volatile u64*)&slot->arrived < goal) SPIN();
    __threadfence();
  }
  __syncthreads();
}

// The sum over the threads before this one; `all` is the sum over all.
DEVICE u32 before(u32 own, u32* sums, u32& all) {
  const int lane = threadIdx.x % 32;
  u32 upto = own;
  for (int by = 1; by < 32; by *= 2) {
    const u32 below = __shfl_up_sync(WARP, upto, by, 32);
    upto += lane >= by ? below : 0;
  }
  __syncthreads();
  if (lane == 31) sums[threadIdx.x / 32] = upto;
  __syncthreads();
  u32 sum = upto - own;
  all = 0;
  for (int w = 0; w < WARPS; ++w) {
    sum += w < (int)threadIdx.x / 32 ? sums[w] : 0;
    all += sums[w];
  }
  return sum;
}

// The row of an index; `rows` for one that is out of range.
DEVICE u32 key_of(const Sort& s, i64 i, bool reporting) {
  i64 row;
  if (locate(s.index[i], s.rows, row)) return (u32)row;
  if (reporting) report(s.slot, i);
  return (u32)s.rows;
}

DEVICE void count_digits(const Sort& s, Shared& shared, const u32* keys, int shift, u32 mask) {
  const i64 tiles = (s.n + TILE - 1) / TILE;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    for (u32 d = threadIdx.x; d <= mask; d += THREADS) shared.start[d] = 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const i64 i = tile * TILE + k * THREADS + threadIdx.x;
      if (i < s.n)
        atomicAdd(&shared.start[((keys ? keys[i] : key_of(s, i, true)) >> shift) & mask], 1u);
    }
    __syncthreads();
    for (u32 d = threadIdx.x; d <= mask; d += THREADS) s.counts[d * tiles + tile] = shared.start[d];
    __syncthreads();
  }
}

// For every digit, by a warp, the counts of the tiles before each tile.
DEVICE void scan_digits(const Sort& s, u32 mask) {
  constexpr int EACH = 8;
  const i64 tiles = (s.n + TILE - 1) / TILE;
  const int lane = threadIdx.x % 32;
  for (i64 d = blockIdx.x + (i64)gridDim.x * (threadIdx.x / 32); d <= mask;
       d += (i64)gridDim.x * WARPS) {
    u32* counts = s.counts + d * tiles;
    u32 running = 0;
    for (i64 t0 = 0; t0 < tiles; t0 += 32 * EACH) {
      const i64 t = t0 + lane * EACH;
      u32 count[EACH], own = 0;
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        count[e] = t + e < tiles ? counts[t + e] : 0;
        own += count[e];
      }
      u32 upto = own;
      for (int by = 1; by < 32; by *= 2) {
        const u32 below = __shfl_up_sync(WARP, upto, by, 32);
        upto += lane >= by ? below : 0;
      }
      u32 sum = running + upto - own;
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        if (t + e < tiles) counts[t + e] = sum;
        sum += count[e];
      }
      running += __shfl_sync(WARP, upto, 31, 32);
    }
    if (lane == 0) s.totals[d] = running;
  }
}

// The lanes of the warp that have the same digit: ballots, since `match` goes from value to value.
DEVICE u32 same_digit(u32 digit, bool inside, int bits) {
  u32 same = __ballot_sync(WARP, inside);
  for (int b = 0; b < bits; ++b) {
    const u32 set = __ballot_sync(WARP, digit >> b & 1);
    same &= digit >> b & 1 ? set : ~set;
  }
  return same;
}

DEVICE void move_tile(const Sort& s, Shared& shared, const u32* keys, const u32* order, u32* to_keys,
                      u32* to_order, int shift, u32 mask, i64 tile, u32 digit_base) {
  const i64 tiles = (s.n + TILE - 1) / TILE;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (u32 d = lane; d <= mask; d += 32) shared.counts[warp][d] = 0;
  __syncwarp();
  u32 key[ITEMS], from[ITEMS];
  u16 rank[ITEMS];
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    const i64 i = tile * TILE + (warp * ITEMS + k) * 32 + lane;
    if (i < s.n) {
      key[k] = keys ? keys[i] : key_of(s, i, false);
      from[k] = order ? order[i] : (u32)i;
    }
  }
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    const bool inside = tile * TILE + (warp * ITEMS + k) * 32 + lane < s.n;
    const u32 digit = inside ? (key[k] >> shift) & mask : 0;
    const u32 same = same_digit(digit, inside, (int)s.bits);
    if (inside) rank[k] = shared.counts[warp][digit] + __popc(same & ((1u << lane) - 1));
    __syncwarp();
    if (inside && (same >> lane) == 1u) shared.counts[warp][digit] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  u32 sum = 0, all;
  if (threadIdx.x <= mask)
    for (int w = 0; w < WARPS; ++w) {
      const u32 count = shared.counts[w][threadIdx.x];
      shared.counts[w][threadIdx.x] = (u16)sum;
      sum += count;
    }
  const u32 start = before(sum, shared.sums, all);
  if (threadIdx.x <= mask) {
    shared.start[threadIdx.x] = start;
    shared.base[threadIdx.x] = digit_base + s.counts[threadIdx.x * tiles + tile] - start;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    if (tile * TILE + (warp * ITEMS + k) * 32 + lane >= s.n) continue;
    const u32 digit = (key[k] >> shift) & mask;
    const u32 at = shared.start[digit] + shared.counts[warp][digit] + rank[k];
    shared.key[at] = key[k];
    shared.order[at] = from[k];
  }
  __syncthreads();
  for (u32 j = threadIdx.x; j < all; j += THREADS) {
    const u32 to = shared.base[(shared.key[j] >> shift) & mask] + j;
    to_keys[to] = shared.key[j];
    to_order[to] = shared.order[j];
  }
  __syncthreads();
}

KERNEL __launch_bounds__(THREADS)
sort_indices(const Index* index, u32* keys_out, u32* order_out, u32* other_keys, u32* other_order,
             u32* counts, u32* totals, Slot* slot, i64 n, i64 rows, i64 bits, i64 passes) {
  const Sort s = {index,  keys_out, order_out, other_keys, other_order, counts,
                  totals, slot,     n,         rows,       bits,        passes};
  DYNAMIC_SHARED(Shared, memory);
  Shared& shared = *memory;
  const i64 tiles = (s.n + TILE - 1) / TILE;
  const u32* keys = nullptr;
  const u32* order = nullptr;
  for (i64 pass = 0; pass < s.passes; ++pass) {
    if (pass > 0) barrier(s.slot);
    // Sides are taken in turn, such that the last pass ends in `keys`.
    const bool here = (s.passes - pass) % 2 == 1;
    u32 *to_keys = here ? s.keys : s.other_keys, *to_order = here ? s.order : s.other_order;
    const int shift = (int)(pass * s.bits);
    const u32 mask = (1u << s.bits) - 1;
    count_digits(s, shared, keys, shift, mask);
    barrier(s.slot);
    scan_digits(s, mask);
    barrier(s.slot);
    u32 all;
    const u32 base = before(threadIdx.x <= mask ? s.totals[threadIdx.x] : 0, shared.sums, all);
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x)
      move_tile(s, shared, keys, order, to_keys, to_order, shift, mask, tile, base);
    keys = to_keys;
    order = to_order;
  }
}
