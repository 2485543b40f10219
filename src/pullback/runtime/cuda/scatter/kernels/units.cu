// Exact sums of narrow rows by a plan (see unit_plan.cu): values go to the others of their unit, tile
// after tile; then a thread block for each unit puts them in order in shared memory, where every
// thread adds up neighbours. Sums are of integers, so that it does not matter which go together.
// Definitions: WIDTH (elements of a row), THREADS and PLACERS (of the first move: threads of a block,
// blocks of a processor), RESIDENT (such blocks of the second), PLACES, CHUNK (odd, at most 31) and
// ADDERS as in the plan.
constexpr int WARPS = ADDERS / 32;
constexpr i64 UNIT = CHUNK * ADDERS;
constexpr u16 NO_SLOT = 0xffff;
typedef Pack<Value, WIDTH> Item;

// Sums by run: `limbs[(limb * most + run) * WIDTH + c]`. Those of runs that cross units are added to.
struct Runs {
  const u32 *meta, *ends, *first, *row;
  u64* limbs;
  u32* flags;
  i64 most, units;
  // Whether a unit begins inside a run.
  __device__ bool cuts(i64 unit) const {
    return unit > 0 && unit * UNIT < meta[0] && !(ends[unit * ADDERS - 1] >> (CHUNK - 1) & 1);
  }
  __device__ u64* at(int limb, u32 run, int c) const {
    return limbs + (limb * most + run) * WIDTH + c;
  }
};

#define RUNS                                                                                  \
  const u32 *meta, const u32 *ends, const u32 *run_of, const u32 *row_of, u64 *limbs, u32 *flags, \
      i64 most, i64 units

constexpr int BESIDE = sizeof(Item) < 4 ? 4 : 16 / sizeof(Item);  // items of one load
typedef Pack<Item, BESIDE> Items;
static_assert(PLACES % (4 * BESIDE * THREADS) == 0, "a tile is a number of rounds");

// Items can start at any multiple of a value's size.
DEVICE Items items_at(const Value* value, i64 at, i64 n, bool aligned) {
  if (aligned && at + BESIDE <= n) return *reinterpret_cast<const Items*>(value + at * WIDTH);
  Items p = {};
#pragma unroll
  for (int k = 0; k < BESIDE; ++k)
#pragma unroll
    for (int c = 0; c < WIDTH; ++c)
      if (at + k < n) p.at[k].at[c] = value[(at + k) * WIDTH + c];
  return p;
}

DEVICE void see(Range& range, const Item& item) {
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) range.see(item.at[c]);
}

// The items of a tile to their units: a warp has neighbouring units.
DEVICE void send(Item* staged, const Item* items, const u16* starts, const u16* offsets, int units) {
  const int lane = threadIdx.x % 32, each = (units + THREADS / 32 - 1) / (THREADS / 32);
  const int first = threadIdx.x / 32 * each, last = first + each < units ? first + each : units;
  for (int u0 = first; u0 < last; u0 += 32) {
    const int u = u0 + lane < last ? u0 + lane : last;
    const u32 from_of = starts[u], to_of = u < last ? starts[u + 1] : from_of;
    const u32 offset_of = u < last ? offsets[u] : 0;
    for (int j = 0; j < 32 && u0 + j < last; ++j) {
      const u32 from = __shfl_sync(WARP, from_of, j, 32), to = __shfl_sync(WARP, to_of, j, 32);
      Item* at = staged + (u0 + j) * UNIT + __shfl_sync(WARP, offset_of, j, 32);
#pragma unroll 4
      for (u32 k = lane; k < to - from; k += 32) at[k] = items[from + k];
    }
  }
}

// The first move, the range of values and of x, and zeros where sums are added to.
KERNEL __launch_bounds__(THREADS, PLACERS)
unit_place(const Value* __restrict__ value, const Value* __restrict__ x,
           const u16* __restrict__ slots, const u16* __restrict__ starts,
           const u16* __restrict__ offsets, Item* staged, Slot* slot, i64 n, i64 rows, i64 aligned,
           i64 all_limbs, RUNS) {
  DYNAMIC_SHARED(Item, items);
  const Runs runs = {meta, ends, run_of, row_of, limbs, flags, most, units};
  const i64 own = (i64)blockIdx.x * THREADS + threadIdx.x, step = (i64)gridDim.x * THREADS;
  for (i64 k = own; k < most * WIDTH; k += step) flags[k] = 0;
  for (i64 u = own; u < units; u += step)
    for (int j = 0; j < all_limbs; ++j)
#pragma unroll
      for (int c = 0; c < WIDTH; ++c)
        if (runs.cuts(u)) *runs.at(j, run_of[u * ADDERS], c) = 0;
  Range range;
  for (i64 d = own; d < rows * WIDTH; d += step) range.see(x[d]);
  const i64 tiles = (n + PLACES - 1) / PLACES;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const i64 first = tile * PLACES;
    for (int h = 0; h < PLACES; h += 4 * BESIDE * THREADS) {
      Pack<u16, BESIDE> at[4];
      Items p[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const i64 i = first + h + (u * THREADS + threadIdx.x) * BESIDE;
        at[u] = *reinterpret_cast<const Pack<u16, BESIDE>*>(slots + i);
        p[u] = items_at(value, i, n, aligned & 2);
      }
#pragma unroll
      for (int u = 0; u < 4; ++u)
#pragma unroll
        for (int k = 0; k < BESIDE; ++k)
          if (at[u].at[k] != NO_SLOT) {
            items[at[u].at[k]] = p[u].at[k];
            see(range, p[u].at[k]);
          }
    }
    __syncthreads();
    send(staged, items, starts + tile * (units + 1), offsets + tile * units, (int)units);
    __syncthreads();
  }
  range.tell(slot);
}

// What a block has in shared memory beside its items.
struct Board {
  i64 carry[WARPS][2 * WIDTH];
  u32 any[WARPS], last;
};

// The items of a unit, in order.
DEVICE void collect(Item* items, const Item* staged, const u16* ranks, i64 count) {
  constexpr int LOADS = 4, STEP = ADDERS * BESIDE;
  for (i64 k0 = threadIdx.x * BESIDE; k0 < count; k0 += LOADS * STEP) {
    Items p[LOADS];
    Pack<u16, BESIDE> rank[LOADS];
#pragma unroll
    for (int q = 0; q < LOADS; ++q)
      if (k0 + q * STEP < count) {
        p[q] = *reinterpret_cast<const Items*>(staged + k0 + q * STEP);
        rank[q] = *reinterpret_cast<const Pack<u16, BESIDE>*>(ranks + k0 + q * STEP);
      }
#pragma unroll
    for (int q = 0; q < LOADS; ++q)
#pragma unroll
      for (int k = 0; k < BESIDE; ++k)
        if (k0 + q * STEP + k < count) items[rank[q].at[k]] = p[q].at[k];
  }
  __syncthreads();
}

// Two limbs of the sums of a row's elements, limb `low` and the next.
struct Pair {
  i64 at[2 * WIDTH];
  __device__ void clear() {
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) at[k] = 0;
  }
  __device__ void add(const Pair& other) {
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) at[k] += other.at[k];
  }
  __device__ void add(const Item& item, int low, const Layout& l, const Near& near, u32* flags) {
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
      const u32 bits = single(item.at[c]);
      if (low == 0 && near.two(bits)) {
        i64 a, b;
        near.split(bits, a, b);
        at[2 * c] += a;
        at[2 * c + 1] += b;
      } else if ((bits & 0x7fffffffu) >= 0x7f800000u) {
        if (low == 0) atomicOr(flags + c, special_of(bits));
      } else if (bits << 1) {
        int limb;
        i64 first, second;
        cut(bits, l, limb, first, second);
        at[2 * c] += (limb == low ? first : 0) + (limb + 1 == low ? second : 0);
        at[2 * c + 1] += (limb == low + 1 ? first : 0) + (limb == low ? second : 0);
      }
    }
  }
  __device__ Pair above(int by) const {
    Pair other;
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) other.at[k] = __shfl_up_sync(WARP, at[k], by, 32);
    return other;
  }
  __device__ void store(const Runs& runs, u32 run, int low, const Layout& l, bool adding) const {
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) {
      if (low + k % 2 >= l.limbs) continue;
      u64* to = runs.at(low + k % 2, run, k / 2);
      if (adding)
        atomicAdd(to, (u64)at[k]);
      else
        *to = (u64)at[k];
    }
  }
};

// Each thread adds up neighbours. A run that begins in one thread and ends in another is put
// together from what threads carry over, within the warp and then the block.
DEVICE void add_unit(const Item* items, Board& board, const Runs& runs, i64 unit, int low,
                     const Layout& l) {
  const Near near(l);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 chunk = unit * ADDERS + threadIdx.x, left = (i64)runs.meta[0] - chunk * CHUNK;
  const u32 ends = runs.ends[chunk];
  u32 run = runs.first[chunk];
  Pair head, s;
  head.clear();
  s.clear();
  const u32 head_run = run;
#pragma unroll 4
  for (int j = 0; j < CHUNK; ++j) {
    if (j < left)
      s.add(items[threadIdx.x * CHUNK + j], low, l, near, runs.flags + (i64)run * WIDTH);
    if (ends >> j & 1) {
      if (run == head_run)
        head = s;
      else
        s.store(runs, run, low, l, false);
      ++run;
      s.clear();
    }
  }
  // `s` becomes what is carried out of this thread: a scan that restarts where a run ended.
  bool any = ends != 0;
  for (int by = 1; by < 32; by *= 2) {
    const Pair other = s.above(by);
    const bool other_any = __shfl_up_sync(WARP, (int)any, by, 32);
    if (lane >= by && !any) s.add(other);
    any |= lane >= by && other_any;
  }
  if (lane == 31) {
    board.any[warp] = any;
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) board.carry[warp][k] = s.at[k];
  }
  Pair in = s.above(1);
  bool ended = __shfl_up_sync(WARP, (int)any, 1, 32);
  if (lane == 0) {
    in.clear();
    ended = false;
  }
  __syncthreads();
  for (int w = warp - 1; w >= 0 && !ended; --w) {
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) in.at[k] += board.carry[w][k];
    ended = board.any[w];
  }
  if (ends) {
    head.add(in);
    head.store(runs, head_run, low, l, !ended && runs.cuts(unit));
  }
  if (threadIdx.x == ADDERS - 1 && runs.cuts(unit + 1)) {
    // `any` and `s` are of this warp alone
    if (!any)
      for (int w = warp - 1; w >= 0; --w) {
#pragma unroll
        for (int k = 0; k < 2 * WIDTH; ++k) s.at[k] += board.carry[w][k];
        if (board.any[w]) break;
      }
    s.store(runs, run, low, l, true);
  }
  __syncthreads();
}

DEVICE void settle_run(const Runs& runs, Value* out, u32 run, const Layout& l, bool special) {
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) {
    Value* to = out + (i64)runs.row[run] * WIDTH + c;
    const u32 flags = special ? runs.flags[(i64)run * WIDTH + c] : 0;
    if (l.limbs <= 2) {
      i64 limb[2] = {(i64)*runs.at(0, run, c), l.limbs > 1 ? (i64)*runs.at(1, run, c) : 0};
      *to = settle(*to, limb, l, flags);
    } else {
      i64 limb[MAX_LIMBS];
      for (int j = 0; j < MAX_LIMBS; ++j) limb[j] = j < l.limbs ? (i64)*runs.at(j, run, c) : 0;
      *to = settle(*to, limb, l, flags);
    }
  }
}

KERNEL __launch_bounds__(ADDERS, RESIDENT)
unit_add(const Item* __restrict__ staged, const u16* __restrict__ ranks, Value* out, Slot* slot,
         i64 bits, RUNS) {
  DYNAMIC_SHARED(Item, items);
  Board& board = *reinterpret_cast<Board*>(items + UNIT);
  const Runs runs = {meta, ends, run_of, row_of, limbs, flags, most, units};
  const Layout l = layout_of(slot, (int)bits);
  const i64 unit = blockIdx.x;
  const bool special = slot->special;
  const i64 left = (i64)meta[0] - unit * UNIT;
  collect(items, staged + unit * UNIT, ranks + unit * UNIT, left < UNIT ? left : UNIT);
  for (int low = 0; low < l.limbs; low += 2) add_unit(items, board, runs, unit, low, l);
  // Runs that are in this unit alone are done.
  const u32 first = run_of[unit * ADDERS] + runs.cuts(unit), last = run_of[(unit + 1) * ADDERS];
  for (u32 run = first + threadIdx.x; run < last; run += ADDERS)
    settle_run(runs, out, run, l, special);
  // The block that comes last does the others.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) board.last = atomicAdd(&slot->done, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!board.last) return;
  __threadfence();
  for (i64 u = 1 + threadIdx.x; u < units; u += ADDERS) {
    const u32 run = run_of[u * ADDERS];
    if (runs.cuts(u) && !(runs.cuts(u - 1) && run_of[(u - 1) * ADDERS] == run))
      settle_run(runs, out, run, l, special);
  }
}
