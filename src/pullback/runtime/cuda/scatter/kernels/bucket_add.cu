// Exact sums of narrow rows, the second half: contributions that lie in buckets, tile after tile (see
// bucket_split.cu), are added up in shared memory, by one thread block for each bucket, or by several
// if it has a large share of all.
// Definitions: WIDTH, PLACES, ADDERS (threads that add up a bucket), LOOKS (tiles that each of them looks
// at at a time), RESTS (values that can wait in a warp), SHARERS (threads of a block that looks at the
// size of a bucket), WORDS and BITS (of a sum).

// A share of a bucket: every `parts`-th tile. Where there are several, they have tables from `table` on.
struct Share { u32 bucket, part, parts, table; };

constexpr int QUAD_BYTES = 4 * sizeof(Item) < 16 ? 4 * sizeof(Item) : 16;
struct alignas(QUAD_BYTES) Quad { Item at[4]; };
constexpr int AHEAD = 4 / PLACES;         // quads of a lane that are loaded at a time
constexpr int ROWS = PLACES < 4 ? 4 : 2;  // of a quad that are added at a time
constexpr int BATCH = LOOKS * ADDERS;     // tiles that are looked at together

// Of values in units of the second word: what all are less than, the least that need no other word,
// and no more than three of them; and of `over`, what those of one word are less than.
constexpr float RADIX = 2147483648.0f, BEYOND = RADIX, ONE_WORD = 8388608.0f;
constexpr float THREE_WORDS = ONE_WORD / RADIX / RADIX;
constexpr u32 WHOLE = 8u << 24;
static_assert(WORDS == 4 && BITS == 31, "as RADIX and the words of a sum have it");

// Zeros for `count` destinations from `first` on: for limbs past the words, and what is not finite.
DEVICE void clear_deep(u64* deep, u32* flags, i64 first, i64 count, i64 destinations, int limbs,
                       bool special) {
  const i64 end = first + count < destinations ? first + count : destinations;
  if (limbs < WORDS && !special) return;
  for (i64 k = first + threadIdx.x; k < end; k += blockDim.x) {
    for (int j = WORDS - 1; j < limbs; ++j) deep[(j - WORDS + 1) * destinations + k] = 0;
    flags[k] = 0;
  }
}

// Cuts buckets of more than `limit` quads into shares, and clears what the thread blocks of such a
// bucket have in common. The block that comes last writes down all shares, and how many there are in
// `shares[most]`.
KERNEL __launch_bounds__(SHARERS)
bucket_share(const u16* __restrict__ starts, u32* quads, Share* shares, u32* arrived, u64* deep,
             u32* flags, Slot* slot, i64 tiles, i64 destinations, i64 cells, i64 most, i64 limit) {
  wait_for_others();
  DYNAMIC_SHARED(u32, sums);
  u32* is_last = sums + SHARERS / 32;
  const u16 *begins = starts + blockIdx.x * tiles, *ends = begins + tiles;
  u32 own = 0, all;
#pragma unroll 4
  for (i64 t = threadIdx.x; t < tiles; t += SHARERS) own += (ends[t] - begins[t]) / 4u;
  before<SHARERS / 32>(own, sums, all);
  if (all > limit) {
    const Layout l = layout_of(slot, BITS);
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
    const u32 wanted = b < gridDim.x ? (u32)((quads[b] + limit - 1) / limit) : 0;
    const u32 parts = wanted < tiles ? wanted : (u32)tiles;  // others would have no tile
    const u32 at = running + before<SHARERS / 32>(parts, sums, all);
    running += all;
    const u32 table = tables + before<SHARERS / 32>(parts > 1 ? parts : 0, sums, all);
    tables += all;
    for (u32 p = 0; p < parts; ++p) shares[at + p] = {b, p, parts, table};
  }
  if (threadIdx.x == 0) shares[most].bucket = running;
}

// Whether a word goes around if a piece is added to it, by the sign.
DEVICE int around(u32 old, int piece) {
  const u32 sum = old + (u32)piece;
  return (int)((old ^ sum) & ((u32)piece ^ sum));
}

// The sum of a cell is in shared memory, WORDS signed words, each of which counts in units of 2**BITS of
// those of the next. Values begin in the second; the first is for what they add up to. There is one
// cell more, for elements that belong to no row. What is too small for these words, which hardly any
// data has, and what is not finite, is in device memory.
struct alignas(16) Bucket {
  u64* deep;
  u32* flags;
  int size, stride;
  i64 first, destinations;
  Layout layout;
  float units;  // of the second word in one, or zero if that is no float

  // The first words of all cells come right after the struct, then the second.
  __device__ u32* at(int word, int cell) const {
    DYNAMIC_SHARED(Bucket, bucket);
    return reinterpret_cast<u32*>(bucket + 1) + word * stride + cell;
  }
  // If a word goes around, which is 2**32 of it, two go to the word before.
  __device__ void add(int word, int cell, int piece) const {
    while (around(atomicAdd(at(word, cell), (u32)piece), piece) < 0) {
      piece = piece < 0 ? -2 : 2;
      --word;
    }
  }
};

// Less than WHOLE if the second word holds all of a value, which is in units of it.
DEVICE u32 over(float value) {
  return ((u32)__float_as_int(value) << 1) - ((u32)__float_as_int(ONE_WORD) << 1);
}

// A value, in bits, of which the second word holds but a part.
struct alignas(8) Rest { u32 value; int cell; };

static __device__ __noinline__ void add_rest(const Bucket& bucket, Rest rest) {
  const float value = __int_as_float((int)rest.value) * bucket.units;
  if (fabs(value) >= THREE_WORDS && fabs(value) < BEYOND) {
    const float third = (value - (float)(int)value) * RADIX;
    const float fourth = (third - (float)(int)third) * RADIX;
    bucket.add(2, rest.cell, (int)third);
    if (fourth != 0) bucket.add(3, rest.cell, (int)fourth);
    return;
  }
  if (rest.cell >= bucket.size) return;
  if ((rest.value & 0x7fffffffu) >= 0x7f800000u) {
    atomicOr(bucket.flags + bucket.first + rest.cell, special_of(rest.value));
    return;
  }
  int limb;
  i64 piece[2];
  cut(rest.value, bucket.layout, limb, piece[0], piece[1]);
  for (int j = 0; j < 2; ++j, ++limb) {
    if (piece[j] == 0) continue;
    const i64 deep = (limb - WORDS + 1) * bucket.destinations + bucket.first + rest.cell;
    if (limb < WORDS - 1)
      bucket.add(limb + 1, rest.cell, (int)piece[j]);
    else
      atomicAdd(bucket.deep + deep, (u64)piece[j]);
  }
}

// Adds the elements that a warp has loaded: all lanes call it together.
struct Adder {
  const Bucket* bucket;  // in shared memory
  u32* second;           // words of all cells
  int stride;
  float units;
  Rest* rests;  // of the warp, which wait until there are enough of them
  u32 waiting;

  __device__ float scaled(const Value& v) const { return __int_as_float((int)single(v)) * units; }

  // Those of the COUNT rows of each lane that have to wait.
  template <int COUNT> __device__ void note(bool active, const u16* row, const Item* item) {
    constexpr int ALL = COUNT * WIDTH;
    const auto bits = [&](int k) { return single(item[k / WIDTH].at[k % WIDTH]); };
    const auto cell = [&](int k) { return row[k / WIDTH] * WIDTH + k % WIDTH; };
    u32 left = 0;
#pragma unroll
    for (int k = 0; k < ALL; ++k)
      left |= (u32)(over(scaled(item[k / WIDTH].at[k % WIDTH])) >= WHOLE && bits(k) << 1) << k;
    left = active ? left : 0;
    while (const u32 mask = __ballot_sync(WARP, left != 0)) {
      Rest own = {bits(0), cell(0)};
#pragma unroll
      for (int k = 1; k < ALL; ++k)
        if (left >> k & 1 && (left & ((1u << k) - 1)) == 0) own = {bits(k), cell(k)};
      if (left) rests[waiting + __popc(mask & ((1u << threadIdx.x % 32) - 1))] = own;
      waiting += __popc(mask);
      left &= left - 1;
      if (waiting >= 32) {
        waiting -= 32;
        add_rests(32);
      }
    }
  }
  // The `count` that come after those that go on waiting.
  __device__ void add_rests(u32 count) const {
    __syncwarp();
    const u32 lane = threadIdx.x % 32;
    if (lane < count) add_rest(*bucket, rests[waiting + lane]);
    __syncwarp();
  }
  // Adds COUNT rows of each lane.
  template <int COUNT> __device__ void add(bool active, const u16* row, const Item* item) {
    constexpr int ALL = COUNT * WIDTH;
    const auto value = [&](int k) { return scaled(item[k / WIDTH].at[k % WIDTH]); };
    const auto cell = [&](int k) { return row[k / WIDTH] * WIDTH + k % WIDTH; };
    if (active) {
      u32 old[ALL];
#pragma unroll
      for (int k = 0; k < ALL; ++k)  // what is not finite makes the sum so, whatever is added here
        old[k] = atomicAdd(second + cell(k), (u32)(int)value(k));
      int carries = 0;
#pragma unroll
      for (int k = 0; k < ALL; ++k) carries |= around(old[k], (int)value(k));
      if (carries < 0)
#pragma unroll
        for (int k = 0; k < ALL; ++k)
          if (around(old[k], (int)value(k)) < 0)
            atomicAdd(second - stride + cell(k), value(k) < 0 ? -2u : 2u);
    }
    note<COUNT>(active, row, item);
  }
  // Adds a row of each lane, many of which are one: these are added up first.
  __device__ void add_together(bool active, u16 row, const Item& item) {
    const u16 leader = (u16)__shfl_sync(WARP, (int)row, 0, 32);
    const bool follows = active && row == leader;
    if (__popc(__ballot_sync(WARP, follows)) < 8) {
      add<1>(active, &row, &item);
      return;
    }
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
      const int piece = (int)scaled(item.at[c]), own = follows ? piece : 0;
      const i64 sum = (i64)sum_of_lanes(own >> 16) * 65536 + sum_of_lanes(own & 65535);
      const int cell = row * WIDTH + c;
      if (threadIdx.x % 32 == 0) {
        const int low = (int)sum, high = (int)((sum - low) >> 32);
        bucket->add(1, leader * WIDTH + c, low);
        if (high) bucket->add(0, leader * WIDTH + c, 2 * high);
      } else if (active && !follows) {
        bucket->add(1, cell, piece);
      }
    }
    note<1>(active, &row, &item);
  }
};

// x plus a sum, for the few that are not near.
static __device__ __noinline__ Value settle_slowly(const Bucket& bucket, int cell, Value x,
                                                   u32 special) {
  const auto word = [&](int j) { return (i64)(int)*bucket.at(j, cell); };
  const i64 at = bucket.first + cell;
  i64 limb[MAX_LIMBS] = {word(0) * (1ll << BITS) + word(1), word(2), word(3)};
  for (int j = WORDS - 1; j < bucket.layout.limbs; ++j)
    limb[j] = (i64)bucket.deep[(j - WORDS + 1) * bucket.destinations + at];
  return settle_far(x, limb, bucket.layout, special);
}

DEVICE void settle_all(const Bucket& bucket, Value* out, bool special) {
  constexpr int LOADS = 4;
  const double unit = power_of_two(bucket.layout.top - BITS), finer = unit / RADIX / RADIX;
  const bool near = bucket.layout.limbs < WORDS;
  const int size = bucket.size;
  Value* to = out + bucket.first;
  for (int k0 = threadIdx.x; k0 < size; k0 += LOADS * ADDERS) {
    Value x[LOADS];
#pragma unroll
    for (int u = 0; u < LOADS; ++u)
      if (k0 + u * ADDERS < size) x[u] = to[k0 + u * ADDERS];
#pragma unroll
    for (int u = 0; u < LOADS; ++u) {
      const int k = k0 + u * ADDERS;
      if (k >= size) break;
      int word[WORDS];
#pragma unroll
      for (int j = 0; j < WORDS; ++j) word[j] = (int)*bucket.at(j, k);
      const double high = (word[0] * (double)RADIX + word[1]) * unit;
      const double low = (word[2] * (double)RADIX + word[3]) * finer;
      // Doubles of 53 bits hold `high` if its first word is not large, and `low` if there is no fourth.
      const bool exact = word[0] + (1 << 21) >= 0 && word[0] <= 1 << 21;
      const u32 seen = special ? bucket.flags[bucket.first + k] : 0;
      if (seen || !near || !exact || !round_once(x[u], high, low, word[3] == 0))
        x[u] = settle_slowly(bucket, k, x[u], seen);
      to[k] = x[u];
    }
  }
}

// Adds up the tables of several shares, word by word from the last on.
DEVICE void join(const Bucket& bucket, const u32* tables, u32 parts) {
  const i64 table = (i64)WORDS * bucket.stride;
  for (int k = threadIdx.x; k < bucket.stride; k += ADDERS) {
    i64 sum = 0;
    for (int word = WORDS - 1; word >= 0; --word) {
      const u32* from = tables + word * bucket.stride + k;
      for (u32 p = 0; p < parts; ++p) sum += (int)from[p * table];
      *bucket.at(word, k) = (u32)sum;
      sum = 2 * ((sum - (int)sum) >> 32);
    }
  }
}

// The runs of a bucket in the tiles of a batch, of those that have any: `upto[r]` quads in runs before
// the r-th, whose quads are `offset[r]` further in memory; `upto[count]` are all.
struct Runs { u32 *upto, *offset, count; };

// Runs in the tiles `last`, `last - step`, ...: what was written last is near.
DEVICE Runs look(u32* upto, u64* sums, const u16* begins, const u16* ends, i64 last, i64 step, i64 pitch) {
  u32 begin[LOOKS], quads[LOOKS];
  u64 own = 0, all;  // the number of runs, and that of quads in the low half
#pragma unroll
  for (int j = 0; j < LOOKS; ++j) {
    const i64 tile = last - ((i64)LOOKS * threadIdx.x + j) * step;
    begin[j] = tile >= 0 ? begins[tile] : 0;
    quads[j] = tile >= 0 ? (ends[tile] - begin[j]) / 4 : 0;
    own += (u64)(quads[j] > 0) << 32 | quads[j];
  }
  u64 running = before<ADDERS / 32>(own, sums, all);
  const Runs runs = {upto, upto + BATCH + 1, (u32)(all >> 32)};
#pragma unroll
  for (int j = 0; j < LOOKS; ++j) {
    if (quads[j] == 0) continue;
    const i64 tile = last - ((i64)LOOKS * threadIdx.x + j) * step;
    runs.upto[running >> 32] = (u32)running;
    runs.offset[running >> 32] = (u32)((tile * pitch + begin[j]) / 4) - (u32)running;
    running += 1ull << 32 | quads[j];
  }
  if (threadIdx.x == 0) runs.upto[runs.count] = (u32)all;
  __syncthreads();
  return runs;
}

// What a lane has loaded.
struct Loaded {
  Quad item[AHEAD];
  Pack<u16, 4> cell[AHEAD];
};

// The quads from `base` on. Warps take neighbouring ones, so that all of them are at work in few pages
// of memory.
DEVICE Loaded load(const Runs& runs, u32 base, const Quad* items, const Pack<u16, 4>* cells) {
  Loaded found;
  const u32 lane = threadIdx.x % 32;
  u32 run = 0;  // the last that begins at or before `base`
  u32 step = BATCH;
  do {
    step = step > 32 ? step / 32 : 1;
    const u32 probe = run + lane * step;
    const bool early = probe < runs.count && runs.upto[probe] <= base;
    run += (__popc(__ballot_sync(WARP, early)) - 1) * step;
  } while (step > 1);
#pragma unroll
  for (int u = 0; u < AHEAD; ++u) {
    // Where runs begin among the quads of the warp, as bits.
    const u32 next = run + 1 + lane < runs.count ? run + 1 + lane : runs.count;
    const u32 start = runs.upto[next] - (base + 32 * u);
    const u32 starts = any_of_lanes(start < 32 ? 1u << start : 0);
    const u32 own = run + __popc(starts << (31 - lane));
    run += __popc(starts);
    const u32 last = own < runs.count ? own : runs.count - 1;  // for lanes that are beyond the end
    const u32 quad = base + 32 * u + lane < runs.upto[runs.count] ? base + 32 * u + lane : runs.upto[last];
    found.item[u] = items[runs.offset[last] + quad];
    found.cell[u] = cells[runs.offset[last] + quad];
  }
  return found;
}

// All quads of a batch; HOT if many of them may have one row.
template <bool HOT>
DEVICE void add_runs(const Runs& runs, Adder& adder, const Quad* items, const Pack<u16, 4>* cells) {
  constexpr u32 CHUNK = 32 * AHEAD, STEP = ADDERS * AHEAD;
  const u32 quads = runs.upto[runs.count];
  for (u32 base = threadIdx.x / 32 * CHUNK; base < quads; base += STEP) {
    const Loaded loaded = load(runs, base, items, cells);
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const bool active = base + 32 * u + threadIdx.x % 32 < quads;
      if (!HOT)
#pragma unroll
        for (int k = 0; k < 4; k += ROWS)
          adder.add<ROWS>(active, loaded.cell[u].at + k, loaded.item[u].at + k);
      if (HOT)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          adder.add_together(active, loaded.cell[u].at[k], loaded.item[u].at[k]);
    }
  }
  const u32 left = adder.waiting;
  adder.waiting = 0;
  adder.add_rests(left);
}

KERNEL __launch_bounds__(ADDERS, 1)
bucket_add(const Quad* __restrict__ items, const Pack<u16, 4>* __restrict__ cells_in,
           const u16* __restrict__ starts, const Share* __restrict__ shares, u32* arrived, u32* parts,
           Value* out, u64* deep, u32* flags, const Slot* slot, i64 tiles, i64 pitch,
           i64 destinations, i64 cells, i64 most) {
  wait_for_others();
  if (blockIdx.x >= shares[most].bucket) return;
  DYNAMIC_SHARED(Bucket, bucket);
  const Share share = shares[blockIdx.x];
  const int stride = (int)(cells + 1) * WIDTH;
  u32* words = reinterpret_cast<u32*>(bucket + 1);
  Rest* rests = reinterpret_cast<Rest*>(words + WORDS * stride);
  u64* sums = reinterpret_cast<u64*>(rests + ADDERS / 32 * RESTS);
  u32* upto = reinterpret_cast<u32*>(sums + 32);
  const Layout layout = layout_of(slot, BITS);
  const float units = BITS - layout.top < 128 ? (float)power_of_two(BITS - layout.top) : 0;
  const i64 first = share.bucket * cells * WIDTH, left = destinations - first;
  const int size = (int)(left < cells * WIDTH ? left : cells * WIDTH);
  if (threadIdx.x == 0)
    *bucket = {deep, flags, size, stride, first, destinations, layout, units};
  for (int k = threadIdx.x; k < stride; k += ADDERS)
    reinterpret_cast<Pack<u32, WORDS>*>(words)[k] = {};
  __syncthreads();  // a share without a tile comes to no other barrier before its words are read
  if (share.parts == 1)
    clear_deep(deep, flags, first, size, destinations, layout.limbs, slot->special);
  Adder adder = {bucket, words + stride, stride, units, rests + threadIdx.x / 32 * RESTS, 0};
  const u16 *begins = starts + share.bucket * tiles, *ends = begins + tiles;
  for (i64 tile = tiles - 1 - share.part; tile >= 0; tile -= (i64)BATCH * share.parts) {
    const Runs runs = look(upto, sums, begins, ends, tile, share.parts, pitch);
    if (share.parts > 1)
      add_runs<true>(runs, adder, items, cells_in);
    else
      add_runs<false>(runs, adder, items, cells_in);
    __syncthreads();
  }
  if (share.parts > 1) {
    // The block that comes last adds what the others have put down.
    u32 *tables = parts + (i64)share.table * WORDS * stride, *own = tables + share.part * WORDS * stride;
    for (int k = threadIdx.x; k < WORDS * stride; k += ADDERS) own[k] = words[k];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *upto = atomicAdd(arrived + share.bucket, 1u) == share.parts - 1;
    __syncthreads();
    if (!*upto) return;
    __threadfence();
    join(*bucket, tables, share.parts);
    __syncthreads();
  }
  settle_all(*bucket, out, slot->special);
}
