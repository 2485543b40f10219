// Exact sums of narrow rows by a plan (see chunk_plan.cu): the values of a tile go to the others of their
// chunk, then a thread block has a chunk in shared memory, and a lane adds up a strip.
// Definitions: WIDTH, PLACES, STRIP, WORD, THREADS and PLACERS (of a block that moves values, and such
// blocks of a processor), ADDERS and RESIDENT (of a block that adds them up).

typedef Pack<Item, WORD> Word;
typedef Pack<u16, WORD> Places;

// Zeros for the sums of rows that have several strips.
DEVICE void clear_sums(const u32* split_rows, u64* sums, u32* flags, i64 splits, i64 limbs) {
  const i64 step = (i64)gridDim.x * THREADS;
#pragma unroll 2
  for (i64 s = (i64)blockIdx.x * THREADS + threadIdx.x; s < splits; s += step) {
    if (split_rows[s] == NOWHERE) continue;
    for (int c = 0; c < WIDTH; ++c) {
      flags[s * WIDTH + c] = 0;
      for (int j = 0; j < limbs; ++j) sums[(j * splits + s) * WIDTH + c] = 0;
    }
  }
}

// Moves values.
KERNEL __launch_bounds__(THREADS, PLACERS)
chunk_place(const u16* __restrict__ sources, const u32* __restrict__ sizes,
            const Value* __restrict__ value, Item* items, const u32* __restrict__ split_rows,
            u64* sums, u32* flags, Slot* slot, i64 n, i64 aligned, i64 tile, i64 pitch, i64 splits,
            i64 limbs) {
  wait_for_others();
  DYNAMIC_SHARED(Item, own);
  constexpr u32 LOADS = 12;
  Range range;
  u32 words = sizes[blockIdx.x];
  for (i64 t = blockIdx.x; t * tile < n; t += gridDim.x) {
    const i64 first = t * tile;
    const int size = (int)(first + tile < n ? tile : n - first);
    const Item* from = reinterpret_cast<const Item*>(value) + first;
    if (WIDTH == PLACES && aligned & 2) {
      for (int k = WORD * threadIdx.x; k < size; k += WORD * THREADS)
        copy_four(own + k, from + k, (int)sizeof(Item) * (k + WORD <= size ? WORD : size - k));
    } else {
      for (int k = threadIdx.x; k < size * WIDTH; k += THREADS)
        own[k / WIDTH].at[k % WIDTH] = value[first * WIDTH + k];
    }
    const volatile u32* next = sizes + ((t + gridDim.x) * tile < n ? t + gridDim.x : t);
    const u32 words_of_next = *next;  // long before it is needed
    const Places* source = reinterpret_cast<const Places*>(sources + t * pitch) + threadIdx.x;
    Word* to = reinterpret_cast<Word*>(items + t * pitch) + threadIdx.x;
    for (u32 w0 = 0; w0 == 0 || w0 < words; w0 += THREADS * LOADS) {
      Places place[LOADS];
#pragma unroll
      for (u32 u = 0; u < LOADS; ++u)
        if (w0 + THREADS * u + threadIdx.x < words) place[u] = source[w0 + THREADS * u];
      if (w0 == 0) {
        if (t == blockIdx.x) clear_sums(split_rows, sums, flags, splits, limbs);  // meanwhile
        copies_done();
        __syncthreads();
      }
#pragma unroll
      for (u32 u = 0; u < LOADS; ++u) {
        if (w0 + THREADS * u + threadIdx.x >= words) break;
        Word word;
#pragma unroll
        for (int j = 0; j < WORD; ++j) {
          word.at[j] = own[place[u].at[j]];
          see(range, word.at[j]);
        }
        to[w0 + THREADS * u] = word;
      }
    }
    words = words_of_next;
    __syncthreads();
  }
  range.tell(slot);
}

// The exact sum of a strip in two doubles: `high` is made of multiples of 2**(top - 53 + log2(STRIP)),
// so small that STRIP of them are still exact, and `low` of what is left of values.
struct Pile {
  double high = 0, low = 0;
  __device__ void add(double value, double magic) {
    const double whole = (value + magic) - magic;
    high += whole;
    low += value - whole;
  }
  __device__ bool is_finite() const { return high - high == 0; }
};

struct alignas(16) Adder {
  Value* out;
  u64* sums;
  u32* flags;
  i64 splits;
  Layout layout;

  __device__ void add(u32 number, int c, int limb, u64 piece) const {
    if (piece) atomicAdd(sums + (limb * splits + number) * WIDTH + c, piece);
  }
};

// A strip whose sum does not round at once, or with values that need more than two limbs, or that are
// not finite.
static __device__ __noinline__ void add_slowly(const Adder& adder, const Item* own, const u16* entries,
                                               u32 begin, u32 end, u32 target) {
  const Layout& l = adder.layout;
  for (int c = 0; c < WIDTH; ++c) {
    i64 limb[MAX_LIMBS] = {};
    u32 special = 0;
    for (u32 k = begin; k < end; ++k) {
      const u32 bits = single(own[entries[k * 32 + threadIdx.x % 32]].at[c]);
      if ((bits & 0x7fffffffu) >= 0x7f800000u) {
        special |= special_of(bits);
        continue;
      }
      int at;
      i64 first, second;
      cut(bits, l, at, first, second);
      if (first) limb[at] += first;
      if (second) limb[at + 1] += second;
    }
    if (target < SPLIT) {
      Value* to = adder.out + (i64)target * WIDTH + c;
      *to = settle_far(*to, limb, l, special);
    } else {
      for (int j = 0; j < l.limbs; ++j) adder.add(target & ~SPLIT, c, j, (u64)limb[j]);
      if (special) atomicOr(adder.flags + (i64)(target & ~SPLIT) * WIDTH + c, special);
    }
  }
}

// Strips of rows that have several, as limbs. All lanes of a warp come here, NOWHERE being the target of
// those that have none.
static __device__ __noinline__ void add_parts(const Adder& adder, int c, Pile pile, u32 target) {
  const double units = power_of_two(adder.layout.bits - adder.layout.top);
  const double finer = power_of_two(adder.layout.bits);
  const u32 common = __shfl_sync(WARP, target, 0, 32);
  const bool together = __ballot_sync(WARP, target == common) == WARP;
  const double whole = rint(pile.high * units), rest = fma(pile.high, units, -whole);
  i64 high = (i64)whole, low = (i64)(rest * finer) + (i64)(pile.low * units * finer);
  const i64 over = low >> adder.layout.bits;
  high += over;
  low -= (i64)((u64)over << adder.layout.bits);
  if (together)  // one row has all strips of the warp
    for (int by = 16; by > 0; by /= 2) {
      high += __shfl_down_sync(WARP, high, by, 32);
      low += __shfl_down_sync(WARP, low, by, 32);
    }
  if (target == NOWHERE || (together && threadIdx.x % 32 > 0)) return;
  adder.add(target & ~SPLIT, c, 0, (u64)high);
  adder.add(target & ~SPLIT, c, 1, (u64)low);
}

// What a lane has to do: its strip, and the element of x that the sum is added to.
struct Job {
  u32 begin, end, target;  // rows of entries, and where the sum goes
  Value x[WIDTH];
};

// Adds up the strips of a group. If some values need more than two limbs (WIDE), these are below `second`
// by their exponents.
template <bool WIDE>
DEVICE void add_group(const Adder& adder, double magic, u32 second, const Item* own,
                      const u16* entries, Job& job) {
  Pile pile[WIDTH];
  bool far = false;
  const u16* entry = entries + job.begin * 32 + threadIdx.x % 32;
#pragma unroll 4
  for (u32 k = job.begin; k < job.end; ++k, entry += 32) {
    const Item item = own[*entry];
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
      const u32 bits = single(item.at[c]);
      if (WIDE) far |= bits << 1 && (bits << 1) < second << 24;
      pile[c].add((double)__int_as_float((int)bits), magic);
    }
  }
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) far |= !pile[c].is_finite();
  const bool some = job.target != NOWHERE, split = some && job.target >= SPLIT;
  if (__ballot_sync(WARP, split))
#pragma unroll
    for (int c = 0; c < WIDTH; ++c)
      add_parts(adder, c, pile[c], split && !far ? job.target : NOWHERE);
  if (some && !split && !far) {
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) far |= !round_once(job.x[c], pile[c].high, pile[c].low);
    if (!far)
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) adder.out[(i64)job.target * WIDTH + c] = job.x[c];
  }
  if (some && far) add_slowly(adder, own, entries, job.begin, job.end, job.target);
}

// What a plan says of the strips of a chunk.
struct Strips {
  const Chunk& chunk;
  const u16* groups;
  const u32* targets;

  __device__ Job job(u32 group, const Value* x) const {
    const u32 s = 32 * group + threadIdx.x % 32;
    Job job = {0, 0, s < chunk.strips ? targets[s] : NOWHERE, {}};
    if (32 * group < chunk.strips) {
      job.begin = groups[group];
      job.end = groups[group + 1];
    }
#pragma unroll
    for (int c = 0; c < WIDTH; ++c)
      if (job.target < SPLIT) job.x[c] = x[(i64)job.target * WIDTH + c];
    return job;
  }
};

// The runs of a chunk come from all tiles, the last first: they may still be in the cache. Warps have
// neighbouring tiles, so that all of them are at work in few pages of memory.
DEVICE void collect(Word* own, const Word* items, const Run* runs, int tiles) {
  constexpr int ACROSS = 8, GROUPS = ADDERS / ACROSS, AHEAD = 8;
  const u32 lane = threadIdx.x % ACROSS;
  for (int t0 = tiles - 1 - threadIdx.x / ACROSS; t0 >= 0; t0 -= GROUPS * AHEAD) {
    Run run[AHEAD];
    u32 end[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const int t = t0 - u * GROUPS;
      run[u] = runs[t < 0 ? 0 : t];
      end[u] = t < 0 ? 0 : runs[t + 1].at;
    }
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      u32 k = run[u].at + lane;
      if (k < end[u]) copy_four(own + k, items + (run[u].shift + k), 16);
#pragma unroll 1
      while ((k += ACROSS) < end[u]) copy_four(own + k, items + (run[u].shift + k), 16);
    }
  }
}

template <bool WIDE>
DEVICE void add_chunk(const Strips& strips, const Adder& adder, const Item* own, const u16* entries,
                      Job job) {
  const double magic = 1.5 * STRIP / 2 * power_of_two(adder.layout.top);
  const int field = 150 + adder.layout.top - 2 * adder.layout.bits;
  const u32 second = field > 1 ? (u32)field : 1u;
  for (u32 group = threadIdx.x / 32; 32 * group < strips.chunk.strips; group += ADDERS / 32) {
    const Job next = strips.job(group + ADDERS / 32, adder.out);
    add_group<WIDE>(adder, magic, second, own, entries, job);
    job = next;
  }
}

// Chunks are added up by thread blocks of their own: while one waits for memory, another adds.
KERNEL __launch_bounds__(ADDERS, RESIDENT)
chunk_add(const Word* __restrict__ items, const Run* __restrict__ runs,
          const Chunk* __restrict__ chunks, const u16* __restrict__ groups,
          const u16* __restrict__ entries, const u32* __restrict__ targets, Value* out, u64* sums,
          u32* flags, const Slot* slot, i64 tiles, i64 capacity, i64 splits, i64 bits) {
  DYNAMIC_SHARED(Adder, adder);  // for calls, which would have it in local memory otherwise
  Item* own = reinterpret_cast<Item*>(adder + 1);
  u16* places = reinterpret_cast<u16*>(own + capacity + WORD);
  const Chunk chunk = chunks[blockIdx.x];
  const Strips strips = {chunk, groups + first_group(chunk, blockIdx.x), targets + chunk.base};
  // What a plan says, and x, are there before values have been moved.
  entries += first_entry(chunk, blockIdx.x);
  for (u32 k = threadIdx.x; k < 4 * chunk.rows; k += ADDERS)
    copy_four(places + 8 * k, entries + 8 * k, 16);
  const Job job = strips.job(threadIdx.x / 32, out);
  wait_for_others();
  if (threadIdx.x == 0) {
    *adder = {out, sums, flags, splits, layout_of(slot, (int)bits)};
    own[capacity] = Item();
  }
  collect(reinterpret_cast<Word*>(own), items, runs + blockIdx.x * (tiles + 1), (int)tiles);
  copies_done();
  __syncthreads();
  if (adder->layout.limbs > 2)
    add_chunk<true>(strips, *adder, own, places, job);
  else
    add_chunk<false>(strips, *adder, own, places, job);
}

// Rows that have several strips.
KERNEL __launch_bounds__(THREADS)
chunk_settle(const u32* __restrict__ split_rows, const u64* __restrict__ sums,
             const u32* __restrict__ flags, Value* out, const Slot* slot, i64 splits, i64 bits) {
  wait_for_others();
  const i64 s = (i64)blockIdx.x * THREADS + threadIdx.x;
  const u32 row = s < splits ? split_rows[s] : NOWHERE;
  if (row == NOWHERE) return;
  const Layout layout = layout_of(slot, (int)bits);
  for (int c = 0; c < WIDTH; ++c) {
    const u32 special = flags[s * WIDTH + c];
    const auto sum = [&](int j) { return (i64)sums[(j * splits + s) * WIDTH + c]; };
    Value* to = out + (i64)row * WIDTH + c;
    Value x = *to;
    const int unit = layout.top - layout.bits, finer = unit - layout.bits;
    if (special || layout.limbs > 2 ||
        !round_once(x, sum(0), layout.limbs > 1 ? sum(1) : 0, unit, finer)) {
      i64 limb[MAX_LIMBS] = {};
      for (int j = 0; j < layout.limbs; ++j) limb[j] = sum(j);
      x = settle_far(x, limb, layout, special);
    }
    *to = x;
  }
}
