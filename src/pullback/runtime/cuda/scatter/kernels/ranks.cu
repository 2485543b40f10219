// What both ways of the sort are made of: a barrier over the grid, tiles of indices, and stable ranks
// of items by digit.
// Definitions: THREADS, ITEMS (of a thread, in a tile), DIGITS (at most), ROUNDS (items of a thread,
// in a range), SHARED (bytes).
constexpr int TILE = THREADS * ITEMS, CAPACITY = THREADS * ROUNDS, WARPS = THREADS / 32;
static_assert(DIGITS <= THREADS && WARPS <= 32, "a thread for a digit, a lane for a warp");
static_assert(TILE < 1 << 16 && CAPACITY < 1 << 16, "places and counts have 16 bits");

// What a host that stands in for a device has in other words.
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
// The lanes of the warp that have the same bit.
DEVICE u32 same_bit(int number, int bit) {
  u32 same;
  asm volatile(
      "{ .reg .pred set; .reg .b32 own; and.b32 own, %1, %2; setp.ne.u32 set, own, 0;"
      " vote.sync.ballot.b32 %0, set, 0xffffffff; @!set not.b32 %0, %0; }"
      : "=r"(same)
      : "r"(number), "r"(bit));
  return same;
}
#else
DEVICE void add_released(u64* to) { atomicAdd(to, (u64)1); }
DEVICE u64 acquired(const u64* from) { return *from; }
DEVICE u32 same_bit(int number, int bit) {
  const u32 set = __ballot_sync(WARP, number & bit);
  return number & bit ? set : ~set;
}
#endif

// What the threads of a block wrote before `arrive` is there for all threads after `wait`.
struct Barrier {
  u64* arrived;  // blocks that came; in the high half, those that voted against
  u32 goal;
  __device__ void arrive() {
    goal += gridDim.x;
    __syncthreads();
    if (threadIdx.x == 0) add_released(arrived);
  }
  // Arrives with an opinion; what the block wrote need not be there for others.
  __device__ void vote(bool objects) {
    goal += gridDim.x;
    if (threadIdx.x == 0) atomicAdd(arrived, (u64)objects << 32 | 1);
  }
  // Waits in the first thread, which learns whether a block has objected so far.
  __device__ bool wait_first() const {
    u64 seen = 0;
    if (threadIdx.x == 0)
      for (seen = acquired(arrived); (u32)seen < goal; seen = acquired(arrived)) SPIN();
    return seen >> 32;
  }
  __device__ void wait() const {
    wait_first();
    __syncthreads();
  }
};

struct Shared {
  union {
    u16 counts[WARPS][DIGITS];  // of the warps' parts of a tile or a range
    u32 stage[TILE];            // a tile in its new order
    struct {
      u32 heads[CAPACITY / 32];    // a bit for each place of a range where a run begins
      u32 earlier[CAPACITY / 32];  // how many begin before those
      u32 source[THREADS];         // of a run, less its place
    } runs;
  };
  union {
    struct {
      u32 below[DIGITS], all[DIGITS];  // counts of the shares before this one, and of all
      u32 base[DIGITS];
    } totals;
    struct {
      u32 words[CAPACITY];
      u16 tiles[CAPACITY];   // where they come from
      u16 places[CAPACITY];  // of both, in their new order
    } range;
  };
  u64 packed_sums[WARPS];
  u32 start[DIGITS], sums[WARPS];
};
static_assert(sizeof(Shared) == SHARED, "what the launch provides");

struct Side { u32 *keys, *order; };

struct Sort {
  const Index* index;
  Slot* slot;
  void* counts;  // of digits, for each share
  i64 n, rows;
  int tiles, each;  // a share has `each` neighbouring tiles, or what is left

  __device__ int shares() const { return (tiles + each - 1) / each; }
  __device__ int first() const { return blockIdx.x * each; }
  __device__ int last() const { return first() + each < tiles ? first() + each : tiles; }
  // Whether counts of shares have 16 bits.
  __device__ bool narrow() const { return (i64)each * TILE < 1 << 16; }
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

// The place of a thread's first item among those of the block, of which every thread has `items`; its
// others follow 32 places apart, so that a warp has neighbours, and its order is theirs.
DEVICE int own_place(int items = ITEMS) {
  return (int)threadIdx.x / 32 * items * 32 + threadIdx.x % 32;
}

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

// Clears the counts of this thread's warp, and those of few more digits.
DEVICE void clear_counts(Shared& shared, int digits) {
  typedef Pack<u16, 8> Word;
  Word* counts = reinterpret_cast<Word*>(shared.counts[threadIdx.x / 32]);
  for (int k = threadIdx.x % 32; 8 * k < digits; k += 32) counts[k] = Word();
  __syncwarp();
}

// The lanes of the warp that have the same digit: ballots, since `match` goes from value to value.
DEVICE u32 same_digit(int digit, int digits, bool inside) {
  u32 same = __ballot_sync(WARP, inside);
#pragma unroll
  for (int bit = 1; bit < 256; bit *= 2) same &= same_bit(digit, bit);
  if (digits > 256)
#pragma unroll
    for (int bit = 256; bit < DIGITS; bit *= 2) same &= same_bit(digit, bit);
  return same;
}

// The rank of the next item of a lane among those of its digit in the warp's part.
DEVICE u32 next_rank(Shared& shared, int digit, int digits, bool inside) {
  const int lane = threadIdx.x % 32;
  u16* count = shared.counts[threadIdx.x / 32] + digit;
  const u32 earlier = *count, same = same_digit(digit, digits, inside);
  const u32 rank = earlier + __popc(same & ((1u << lane) - 1));
  __syncwarp();
  if (same >> lane == 1u) *count = (u16)(rank + 1);
  __syncwarp();
  return rank;
}

// Once all items have their ranks: `shared.counts` becomes the counts of the warps before. The result
// is the count of the digit that is this thread's number.
DEVICE u32 count_digits(Shared& shared, int digits) {
  __syncthreads();
  const int d = threadIdx.x;
  if (2 * d < digits) {
    u32* column = reinterpret_cast<u32*>(shared.counts) + d;  // of two digits
    u32 sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const u32 count = column[w * DIGITS / 2];
      column[w * DIGITS / 2] = sum;
      sum += count;
    }
    shared.start[2 * d] = sum & 0xffff;
    shared.start[2 * d + 1] = sum >> 16;
  }
  __syncthreads();
  return d < digits ? shared.start[d] : 0;
}

// Where the digit that is this thread's number starts, and for `warp_start` all of them.
DEVICE u32 start_digits(Shared& shared, int digits, u32 count) {
  u32 all;
  const u32 start = before<WARPS>(count, shared.sums, all);
  if ((int)threadIdx.x < digits) shared.start[threadIdx.x] = start;
  __syncthreads();
  return start;
}

// Where the items of a digit start that this thread's warp has.
DEVICE u32 warp_start(const Shared& shared, int digit) {
  return shared.start[digit] + shared.counts[threadIdx.x / 32][digit];
}

// Finds the rank of each item among those of its digit in the warp's part of a tile; the result is
// the count of the digit that is this thread's number.
template <typename Digits>
DEVICE u32 rank(Shared& shared, const Digits& digits, int size, Items& own) {
  clear_counts(shared, digits.count());
#pragma unroll
  for (int k = 0; k < ITEMS; ++k)
    own.at[k] = next_rank(shared, digits.of(own.key[k]), digits.count(), 32 * k < size - own_place());
  return count_digits(shared, digits.count());
}

// From ranks to places in the tile; the result is where the digit of this thread's number starts.
template <typename Digits>
DEVICE u32 settle(Shared& shared, const Digits& digits, u32 count, Items& own) {
  const u32 start = start_digits(shared, digits.count(), count);
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) own.at[k] += warp_start(shared, digits.of(own.key[k]));
  return start;
}

// Puts something of each item of a tile in the new order.
DEVICE void arrange(Shared& shared, int size, const Items& own, const u32 (&what)[ITEMS]) {
  __syncthreads();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k)
    if (32 * k < size - own_place()) shared.stage[own.at[k]] = what[k];
}
