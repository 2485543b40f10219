// A stable sort of indices by radix, in one launch: all thread blocks are on the device at the same
// time and wait for each other. If ranges of keys are even, blocks sort one each. Otherwise digits
// are sorted by one after another, the lowest first: a block has a share of neighbouring tiles; in
// each pass it counts the digits of its share, learns those of the others, and moves its tiles one
// after another; the first of them stays in registers meanwhile.

// Adds the digits of the share to `base`, except those of its first tile.
DEVICE void count_others(const Sort& s, Shared& shared, const Digit& digit, const u32* keys) {
  for (int tile = s.first() + 1; tile < s.last(); ++tile) {
    u32 key[ITEMS];
    read_keys(s, keys, tile, s.size(tile), key);
    const int left = s.size(tile) - own_place();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
      if (32 * k < left) atomicAdd(shared.totals.base + digit.of(key[k]), 1u);
  }
}

// Writes a tile that is arranged; `base` plus its place there is where an item goes.
DEVICE void write_tile(Shared& shared, const Digit& digit, int size, const Side& to,
                       const Items& own) {
  const int left = size - threadIdx.x;
  const u32* stage = shared.stage + threadIdx.x;
  u32 target[ITEMS];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    const u32 key = stage[k * THREADS];
    target[k] = shared.totals.base[digit.of(key)] + threadIdx.x + k * THREADS;
    if (k * THREADS < left) to.keys[target[k]] = key;
  }
  arrange(shared, size, own, own.from);
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
  const int groups = THREADS >> log_across, shares = s.shares();
  const Word* counts = static_cast<const Word*>(s.counts) + lane;
  u32 below[EACH] = {}, total[EACH] = {};
  for (int share = threadIdx.x >> log_across; share < shares; share += IN_FLIGHT * groups) {
    Word word[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; ++u) {
      const int other = share + u * groups;
      word[u] = counts[(other < shares ? other : shares - 1) << log_across];
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; ++u) {
      const int other = share + u * groups;
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        below[e] += other < (int)blockIdx.x ? word[u].at[e] : 0;
        total[e] += other < shares ? word[u].at[e] : 0;
      }
    }
  }
  // neighbouring lanes add to neighbouring words
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    atomicAdd(shared.totals.below + (e << log_across) + lane, below[e]);
    atomicAdd(shared.totals.all + (e << log_across) + lane, total[e]);
  }
  __syncthreads();
  const int d = threadIdx.x, at = (d % EACH << log_across) + d / EACH;
  const bool inside = d < digit.count();
  u32 all;
  const u32 smaller = before<WARPS>(inside ? shared.totals.all[at] : 0, shared.sums, all);
  return inside ? smaller + shared.totals.below[at] : 0;
}

DEVICE void sort_digit(const Sort& s, Shared& shared, const Digit& digit, const Side& from,
                       const Side& to, Barrier& barrier) {
  const int d = threadIdx.x;
  const bool inside = d < digit.count();
  auto& totals = shared.totals;
  if (inside) totals.below[d] = totals.all[d] = totals.base[d] = 0;
  __syncthreads();
  count_others(s, shared, digit, from.keys);
  u32 next = 0;
  // at least once, since others wait
  for (int tile = s.first(); tile == s.first() || tile < s.last(); ++tile) {
    const int size = s.size(tile);
    Items own;
    read_items(s, from, tile, size, own);
    const u32 count = rank(shared, digit, size, own);
    if (tile == s.first()) {
      if (inside) {
        const u32 counted = totals.base[d] + count;
        const i64 at = ((i64)blockIdx.x << digit.bits) + d;
        if (s.narrow()) static_cast<u16*>(s.counts)[at] = (u16)counted;
        else static_cast<u32*>(s.counts)[at] = counted;
      }
      barrier.arrive();
    }
    const u32 start = settle(shared, digit, count, own);
    arrange(shared, size, own, own.key);
    if (tile == s.first()) {
      barrier.wait();
      next = s.narrow() ? first_place<u16>(s, shared, digit) : first_place<u32>(s, shared, digit);
    }
    if (inside) totals.base[d] = next - start;
    next += count;
    write_tile(shared, digit, size, to, own);
  }
}

// Without ranges, digits are sorted by. The next launch is not let begin early (`wait_for_others`): that
// takes longer.
KERNEL __launch_bounds__(THREADS)
sort_indices(const Index* index, u32* keys, u32* order, u32* other_keys, u32* other_order,
             void* counts, Slot* slot, i64 n, i64 rows, i64 bits, i64 last_bits, i64 passes,
             i64 ranges, i64 width, i64 reciprocal, i64 shift, i64 range_bits, i64 digit_bits) {
  DYNAMIC_SHARED(Shared, shared);
  const int tiles = (int)((n + TILE - 1) / TILE), each = (tiles + gridDim.x - 1) / gridDim.x;
  const Sort s = {index, slot, counts, n, rows, tiles, each};
  const Side here = {keys, order}, there = {other_keys, other_order};
  Barrier barrier = {&slot->arrived, 0};
  const Ranges even = {other_keys, static_cast<u16*>(counts), (int)ranges,     (u32)width,
                       (u32)reciprocal, (int)shift,           (int)range_bits, (int)digit_bits};
  if (ranges > 0 && sort_ranges(s, *shared, even, here, barrier)) return;
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
