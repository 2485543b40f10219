// The sort of indices that are spread over the rows: keys fall into ranges, each of which one thread
// block can sort in shared memory. First a tile is arranged by range, in place, so that the items of
// a range are one run of each tile. Then a block collects the runs of a range, in the order of tiles.
// An item is on its way as a word: the key less the first of the range, and the place in the tile.
static_assert((i64)THREADS * TILE < 1 << 24, "sums over tiles, of which a thread has one");
static_assert(CAPACITY / 32 <= THREADS, "a thread for 32 places");

struct Ranges {
  u32* words;
  u16* starts;  // of runs in their tiles: for each range one of every tile, then the tiles' ends
  int number;
  u32 width, reciprocal;
  int shift;             // of the division by `width`
  int bits, digit_bits;  // of a key in its range, and of them those that one pass sorts by

  __device__ int count() const { return number; }
  __device__ int of(u32 key) const { return (int)(__umulhi(key, reciprocal) >> shift); }
};

DEVICE void split(const Sort& s, Shared& shared, const Ranges& ranges) {
  for (int tile = s.first(); tile < s.last(); ++tile) {
    const int size = s.size(tile), d = threadIdx.x;
    Items own;
    read_items(s, {nullptr, nullptr}, tile, size, own);
    const u32 count = rank(shared, ranges, size, own);
    const u32 start = settle(shared, ranges, count, own);
    if (d <= ranges.number) ranges.starts[d * s.tiles + tile] = (u16)start;
    u32 word[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
      word[k] = (own.key[k] - ranges.of(own.key[k]) * ranges.width) << 16 | (own_place() + 32 * k);
    arrange(shared, size, own, word);
    __syncthreads();
    u32* to = ranges.words + (i64)tile * TILE;
#pragma unroll
    for (int p = threadIdx.x; p < TILE; p += THREADS)
      if (p < size) to[p] = shared.stage[p];
    __syncthreads();
  }
}

// The runs of a range: one of the tile that is this thread's number, and all of them together.
struct Runs {
  u32 from, length, number, place;  // in the tile; among those that are not empty; in the range
  u32 size, base;                   // of the range, and its place in the result
};

DEVICE Runs runs_of(const Sort& s, Shared& shared, const Ranges& ranges, int range) {
  const int tile = threadIdx.x;
  const u16* start = ranges.starts + range * s.tiles + tile;
  const u32 from = tile < s.tiles ? start[0] : 0, to = tile < s.tiles ? start[s.tiles] : 0;
  // three sums at a time; what lies before the range in all tiles lies before it in the result
  const u64 own = (u64)from << 40 | (u64)(from < to) << 24 | (to - from);
  u64 all;
  const u64 earlier = before<WARPS>(own, shared.packed_sums, all);
  const u32 lengths = (1 << 24) - 1;
  return {from,
          to - from,
          (u32)(earlier >> 24) & 0xffff,
          (u32)earlier & lengths,
          (u32)all & lengths,
          (u32)(all >> 40)};
}

// Collects the words of a range, which are there after `copies_done`. The run of a place is the last one
// that begins there or before.
DEVICE void collect(Shared& shared, const Ranges& ranges, const Runs& runs) {
  auto& found = shared.runs;
  const int word = threadIdx.x, lane = threadIdx.x % 32;
  const bool inside = word < CAPACITY / 32;
  if (inside) found.heads[word] = 0;
  __syncthreads();
  if (runs.length > 0) {
    atomicOr(found.heads + runs.place / 32, 1u << runs.place % 32);
    found.source[runs.number] = threadIdx.x * TILE + runs.from - runs.place;
  }
  __syncthreads();
  const u32 count = inside ? __popc(found.heads[word]) : 0;
  u32 all;
  const u32 earlier = before<WARPS>(count, shared.sums, all);
  if (inside) found.earlier[word] = earlier;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < ROUNDS; ++k) {
    const u32 p = threadIdx.x + k * THREADS;
    if (p >= runs.size) break;
    const u32 upto = found.heads[p / 32] & (WARP >> (31 - lane));
    const u32 source = found.source[found.earlier[p / 32] + __popc(upto) - 1] + p;
    shared.range.tiles[p] = (u16)(source / TILE);
    copy_word(shared.range.words + p, ranges.words + source);
  }
}

// Sorts the places of a range by a digit of their keys; at first they are in order.
DEVICE void sort_places(Shared& shared, u32 size, const Digit& digit, bool first) {
  const int rounds = (size + THREADS - 1) / THREADS, left = (int)size - own_place(rounds);
  auto& range = shared.range;
  u32 moving[ROUNDS];  // places as they were, and ranks
  clear_counts(shared, digit.count());
#pragma unroll
  for (int k = 0; k < ROUNDS; ++k) {
    if (k >= rounds) break;
    const bool inside = 32 * k < left;
    const u32 p = inside ? own_place(rounds) + 32 * k : 0, place = first ? p : range.places[p];
    const u32 rank = next_rank(shared, digit.of(range.words[place] >> 16), digit.count(), inside);
    moving[k] = place << 16 | rank;
  }
  start_digits(shared, digit.count(), count_digits(shared, digit.count()));
#pragma unroll
  for (int k = 0; k < ROUNDS; ++k) {
    if (32 * k >= left || k >= rounds) break;
    const u32 place = moving[k] >> 16, start = warp_start(shared, digit.of(range.words[place] >> 16));
    range.places[start + (moving[k] & 0xffff)] = (u16)place;
  }
  __syncthreads();
}

DEVICE void write_range(const Shared& shared, const Runs& runs, u32 first_key, const Side& to) {
#pragma unroll
  for (int k = 0; k < ROUNDS; ++k) {
    const u32 p = threadIdx.x + k * THREADS;
    if (p >= runs.size) break;
    const u32 place = shared.range.places[p];
    const u32 word = shared.range.words[place];
    to.keys[runs.base + p] = first_key + (word >> 16);
    to.order[runs.base + p] = shared.range.tiles[place] * TILE + (word & 0xffff);
  }
}

// Sorts all indices, or says that a range is too large.
DEVICE bool sort_ranges(const Sort& s, Shared& shared, const Ranges& ranges, const Side& to,
                        Barrier& barrier) {
  split(s, shared, ranges);
  barrier.arrive();
  barrier.wait();
  const int own = blockIdx.x, step = gridDim.x;
  Runs runs = runs_of(s, shared, ranges, own);
  u32 largest = runs.size;
  for (int range = own + step; range < ranges.number; range += step) {
    const u32 size = runs_of(s, shared, ranges, range).size;
    largest = size > largest ? size : largest;
  }
  barrier.vote(largest > CAPACITY);
  for (int range = own; range < ranges.number; range += step) {
    if (range > own) runs = runs_of(s, shared, ranges, range);
    if (runs.size <= CAPACITY) collect(shared, ranges, runs);
    // The others have looked at their ranges meanwhile. Once one has objected, others may write
    // where this one reads, which does not matter any more.
    const bool objected = range == own && barrier.wait_first();
    copies_done();
    if (__syncthreads_or(objected)) return false;
    for (int shift = 0; shift < ranges.bits; shift += ranges.digit_bits)
      sort_places(shared, runs.size, {shift, ranges.digit_bits}, shift == 0);
    write_range(shared, runs, range * ranges.width, to);
  }
  return true;
}
