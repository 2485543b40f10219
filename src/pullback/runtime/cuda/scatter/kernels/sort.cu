// A stable sort of indices by radix, in one launch: all thread blocks are on the device at the same
// time and wait for each other. A block has a share of neighbouring tiles. In each pass it counts the
// digits of its share, learns those of the others, and moves its tiles one after another; the first
// of them stays in registers meanwhile.
// Definitions: THREADS, ITEMS (of a thread).
constexpr int TILE = THREADS * ITEMS, WARPS = THREADS / 32, MAX_DIGITS = 512;
static_assert(MAX_DIGITS <= THREADS && WARPS <= 32, "a thread for a digit, a lane for a warp");
static_assert(TILE < 1 << 16, "counts of a tile have 16 bits");

#ifndef SPIN
#define SPIN()
DEVICE void add_released(u64* to) {
  asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(to) : "memory");
}
DEVICE u64 acquired(const u64* from) {
  u64 value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
#else
DEVICE void add_released(u64* to) { atomicAdd(to, (u64)1); }
DEVICE u64 acquired(const u64* from) { return *from; }
#endif

// What the threads of a block wrote before `arrive` is there for all threads after `wait`.
struct Barrier {
  u64 *arrived, goal;
  __device__ void arrive() {
    goal += gridDim.x;
    __syncthreads();
    if (threadIdx.x == 0) add_released(arrived);
  }
  __device__ void wait() const {
    if (threadIdx.x == 0)
      while (acquired(arrived) < goal) SPIN();
    __syncthreads();
  }
};

struct Shared {
  union {
    u16 counts[WARPS][MAX_DIGITS];  // of the warps' parts of a tile
    u32 stage[TILE];                // a tile in its new order
  };
  u32 below[MAX_DIGITS], all[MAX_DIGITS];  // counts of the shares before this one, and of all
  u32 start[MAX_DIGITS], base[MAX_DIGITS], sums[WARPS];
};

struct Side { u32 *keys, *order; };

struct Sort {
  const Index* index;
  Slot* slot;
  void* counts;  // of digits, for each share
  i64 n, rows;
  int first, last;  // tiles of this share
  bool narrow;      // whether counts of shares have 16 bits

  __device__ int size(int tile) const {
    const i64 left = n - (i64)tile * TILE;
    return (int)(left < TILE ? left : TILE);
  }
};

struct Digit {
  int shift, bits;
  __device__ int count() const { return 1 << bits; }
  __device__ int of(u32 key) const { return (int)(key >> shift) & (count() - 1); }
};

// What a thread has of a tile: keys, where they come from, and their places in the new order.
struct Items { u32 key[ITEMS], from[ITEMS], at[ITEMS]; };

// The place in the tile of a thread's first item; the others follow 32 places apart, so that a warp
// has neighbours, and its order is theirs.
DEVICE int own_place() { return (int)threadIdx.x / 32 * ITEMS * 32 + threadIdx.x % 32; }

DEVICE u32 key_of(Index index, i64 rows) {
  i64 row;
  return (u32)(locate(index, rows, row) ? row : rows);
}

// Reads one element for each item of a tile, all of them before any is used, so that they are under
// way at the same time; beyond the end, it is the last element.
template <typename T> DEVICE void read(const T* from, int tile, int size, T (&own)[ITEMS]) {
  from += (i64)tile * TILE + own_place();
  const int left = size - own_place();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) own[k] = from[32 * k < left ? 32 * k : left - 1];
}

DEVICE void read_keys(const Sort& s, const u32* keys, int tile, int size, u32 (&own)[ITEMS]) {
  if (keys) return read(keys, tile, size, own);
  Index index[ITEMS];
  read(s.index, tile, size, index);
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) own[k] = key_of(index[k], s.rows);
}

DEVICE void read_items(const Sort& s, const Side& from, int tile, int size, Items& own) {
  if (from.keys) {
    read(from.keys, tile, size, own.key);
    return read(from.order, tile, size, own.from);
  }
  const i64 start = (i64)tile * TILE + own_place();
  const int left = size - own_place();
  int bad = ITEMS;
  read_keys(s, nullptr, tile, size, own.key);
#pragma unroll
  for (int k = ITEMS - 1; k >= 0; --k) {
    own.from[k] = (u32)start + 32 * k;
    bad = own.key[k] == s.rows && 32 * k < left ? k : bad;
  }
  if (bad < ITEMS) report(s.slot, start + 32 * bad);
}

// Adds the digits of the share to `base`, except those of its first tile.
DEVICE void count_others(const Sort& s, Shared& shared, const Digit& digit, const u32* keys) {
  for (int tile = s.first + 1; tile < s.last; ++tile) {
    u32 key[ITEMS];
    read_keys(s, keys, tile, s.size(tile), key);
    const int left = s.size(tile) - own_place();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
      if (32 * k < left) atomicAdd(shared.base + digit.of(key[k]), 1u);
  }
}

// The lanes of the warp that have the same digit: ballots, since `match` goes from value to value.
DEVICE u32 same_digit(int digit, bool inside) {
  u32 same = __ballot_sync(WARP, inside);
#pragma unroll
  for (int bit = 1; bit < MAX_DIGITS; bit *= 2) {
    const u32 set = __ballot_sync(WARP, digit & bit);
    same &= digit & bit ? set : ~set;
  }
  return same;
}

// Finds the rank of each item among those of its digit in the tile, up to what `shared.counts` says
// of the warps before; the result is the count of the digit that is this thread's number.
DEVICE u32 rank(Shared& shared, const Digit& digit, int size, Items& own) {
  const int lane = threadIdx.x % 32, left = size - own_place();
  u16* counts = shared.counts[threadIdx.x / 32];
#pragma unroll
  for (int d = 2 * lane; d < MAX_DIGITS; d += 64) *reinterpret_cast<u32*>(counts + d) = 0;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    u16* count = counts + digit.of(own.key[k]);
    const u32 earlier = *count, same = same_digit(digit.of(own.key[k]), 32 * k < left);
    own.at[k] = earlier + __popc(same & ((1u << lane) - 1));
    __syncwarp();
    if (same >> lane == 1u) *count = (u16)(earlier + __popc(same));
    __syncwarp();
  }
  __syncthreads();
  const int d = threadIdx.x;
  if (2 * d < digit.count()) {
    u32* column = reinterpret_cast<u32*>(shared.counts) + d;  // of two digits
    u32 sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const u32 count = column[w * MAX_DIGITS / 2];
      column[w * MAX_DIGITS / 2] = sum;
      sum += count;
    }
    shared.start[2 * d] = sum & 0xffff;
    shared.start[2 * d + 1] = sum >> 16;
  }
  __syncthreads();
  return d < digit.count() ? shared.start[d] : 0;
}

// Puts the keys in their new order; the result is where the digit of this thread's number starts.
DEVICE u32 arrange(Shared& shared, const Digit& digit, int size, u32 count, Items& own) {
  u32 all;
  const u32 start = before<WARPS>(count, shared.sums, all);
  if ((int)threadIdx.x < digit.count()) shared.start[threadIdx.x] = start;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    const int d = digit.of(own.key[k]);
    own.at[k] += shared.start[d] + shared.counts[threadIdx.x / 32][d];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k)
    if (32 * k < size - own_place()) shared.stage[own.at[k]] = own.key[k];
  return start;
}

// Writes a tile that is arranged; `base` plus its place there is where an item goes.
DEVICE void write(Shared& shared, const Digit& digit, int size, const Side& to, const Items& own) {
  const int left = size - threadIdx.x;
  const u32* stage = shared.stage + threadIdx.x;
  u32 target[ITEMS];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    const u32 key = stage[k * THREADS];
    target[k] = shared.base[digit.of(key)] + threadIdx.x + k * THREADS;
    if (k * THREADS < left) to.keys[target[k]] = key;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k)
    if (32 * k < size - own_place()) shared.stage[own.at[k]] = own.from[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k)
    if (k * THREADS < left) to.order[target[k]] = stage[k * THREADS];
  __syncthreads();
}

// Where the first item of the share goes that has the digit of this thread's number. The counts of
// all shares are added up: a group of threads reads those of one share, eight bytes each.
template <typename Count> DEVICE u32 first_place(const Sort& s, Shared& shared, const Digit& digit) {
  constexpr int LOG_EACH = sizeof(Count) == 2 ? 2 : 1, EACH = 1 << LOG_EACH, IN_FLIGHT = 8;
  typedef Pack<Count, EACH> Word;
  const int log_across = digit.bits - LOG_EACH, lane = threadIdx.x & ((1 << log_across) - 1);
  const int groups = THREADS >> log_across, blocks = gridDim.x;
  const Word* counts = static_cast<const Word*>(s.counts) + lane;
  u32 below[EACH] = {}, total[EACH] = {};
  for (int share = threadIdx.x >> log_across; share < blocks; share += IN_FLIGHT * groups) {
    Word word[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; ++u) {
      const int other = share + u * groups;
      word[u] = counts[(other < blocks ? other : blocks - 1) << log_across];
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; ++u) {
      const int other = share + u * groups;
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        below[e] += other < (int)blockIdx.x ? word[u].at[e] : 0;
        total[e] += other < blocks ? word[u].at[e] : 0;
      }
    }
  }
  // neighbouring lanes add to neighbouring words
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    atomicAdd(shared.below + (e << log_across) + lane, below[e]);
    atomicAdd(shared.all + (e << log_across) + lane, total[e]);
  }
  __syncthreads();
  const int d = threadIdx.x, at = (d % EACH << log_across) + d / EACH;
  u32 all;
  const u32 smaller = before<WARPS>(d < digit.count() ? shared.all[at] : 0, shared.sums, all);
  return d < digit.count() ? smaller + shared.below[at] : 0;
}

DEVICE void sort_digit(const Sort& s, Shared& shared, const Digit& digit, const Side& from,
                       const Side& to, Barrier& barrier) {
  const int d = threadIdx.x;
  const bool inside = d < digit.count();
  if (inside) shared.below[d] = shared.all[d] = shared.base[d] = 0;
  __syncthreads();
  count_others(s, shared, digit, from.keys);
  u32 next = 0;
  // at least once, since others wait
  for (int tile = s.first; tile == s.first || tile < s.last; ++tile) {
    const int size = s.size(tile);
    Items own;
    read_items(s, from, tile, size, own);
    const u32 count = rank(shared, digit, size, own);
    if (tile == s.first) {
      if (inside) {
        const u32 counted = shared.base[d] + count;
        const i64 at = ((i64)blockIdx.x << digit.bits) + d;
        if (s.narrow) static_cast<u16*>(s.counts)[at] = (u16)counted;
        else static_cast<u32*>(s.counts)[at] = counted;
      }
      barrier.arrive();
    }
    const u32 start = arrange(shared, digit, size, count, own);
    if (tile == s.first) {
      barrier.wait();
      next = s.narrow ? first_place<u16>(s, shared, digit) : first_place<u32>(s, shared, digit);
    }
    if (inside) shared.base[d] = next - start;
    next += count;
    write(shared, digit, size, to, own);
  }
}

KERNEL __launch_bounds__(THREADS)
sort_indices(const Index* index, u32* keys, u32* order, u32* other_keys, u32* other_order,
             void* counts, Slot* slot, i64 n, i64 rows, i64 bits, i64 last_bits, i64 passes) {
  DYNAMIC_SHARED(Shared, shared);
  const int tiles = (int)((n + TILE - 1) / TILE), each = (tiles + gridDim.x - 1) / gridDim.x;
  const int first = blockIdx.x * each, last = first + each;
  const bool narrow = (i64)each * TILE < 1 << 16;
  const Sort s = {index, slot, counts, n, rows, first, last < tiles ? last : tiles, narrow};
  const Side here = {keys, order}, there = {other_keys, other_order};
  Barrier barrier = {&slot->arrived, 0};
  Side from = {nullptr, nullptr};
  for (int k = 0; k < passes; ++k) {
    if (k > 0) {
      barrier.arrive();
      barrier.wait();
    }
    const Digit digit = {(int)(k * bits), (int)(k + 1 < passes ? bits : last_bits)};
    const Side to = (passes - k) % 2 ? here : there;  // such that the last pass ends here
    sort_digit(s, *shared, digit, from, to, barrier);
    from = to;
  }
}
