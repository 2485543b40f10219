// A plan for exact sums of narrow rows, from a stable order of the indices (see sort.cu): chunks of
// neighbours in that order, for every tile the order of its elements by chunk, and for every chunk the
// strips that lanes add up, the longest first.
// Definitions: STRIP, WORD, THREADS.
constexpr int WARPS = THREADS / 32;

// The first place from `from` on, before `to`, whose key is not less.
DEVICE u32 lower_bound(const u32* keys, u32 from, u32 to, u32 key) {
  while (from < to) {
    const u32 middle = from + (to - from) / 2;
    if (keys[middle] < key) from = middle + 1;
    else to = middle;
  }
  return from;
}

// Chunks begin at multiples of `size`, or up to STRIP later if a row begins there: only rows of more
// than one strip are cut. Rows of several strips have numbers of their own, `splits` at most.
KERNEL __launch_bounds__(THREADS)
chunk_cut(const u32* keys, Chunk* chunks, u32* split_rows, i64 n, i64 rows, i64 size, i64 count,
          i64 by_rows, i64 splits) {
  wait_for_others();
  const i64 c = (i64)blockIdx.x * THREADS + threadIdx.x;
  if (c < splits) split_rows[c] = NOWHERE;
  if (c > count) return;
  const u32 inside = lower_bound(keys, 0, (u32)n, (u32)rows);
  u32 begin = c < count ? (u32)(c * size) : inside;
  for (u32 p = begin; c > 0 && p < begin + STRIP; ++p)
    if (p >= inside || keys[p] != keys[p - 1]) {
      begin = p;
      break;
    }
  begin = begin < inside ? begin : inside;
  const u32 row = begin < inside ? keys[begin] : (u32)rows;
  // not less than the strips of all chunks before
  const u32 base = by_rows ? row + begin / STRIP + 2 * (u32)c : begin;
  chunks[c] = {begin, base, 0, 0};
}

// The chunk of every element; what is out of range has one more.
KERNEL __launch_bounds__(THREADS)
chunk_mark(const u32* order, const Chunk* chunks, u16* chunk_of, i64 n, i64 count) {
  wait_for_others();
  const u32 end = blockIdx.x < count ? chunks[blockIdx.x + 1].begin : (u32)n;
  for (u32 p = chunks[blockIdx.x].begin + threadIdx.x; p < end; p += THREADS)
    chunk_of[order[p]] = (u16)blockIdx.x;
}

// The elements of a tile by chunk: every place has the number of its element, and every element its
// place. Chunks begin at words, and places left over have the first element. A run has its
// length and its place in the tile for now.
KERNEL __launch_bounds__(THREADS)
chunk_tile(const u16* chunk_of, u16* places, u16* sources, u32* sizes, Run* runs, i64 n, i64 count,
           i64 tiles, i64 tile, i64 pitch) {
  wait_for_others();
  DYNAMIC_SHARED(u32, counts);
  u32* sums = counts + count;
  const i64 first = blockIdx.x * tile, end = first + tile < n ? first + tile : n;
  sources += blockIdx.x * pitch;
  for (i64 k = threadIdx.x; k < pitch; k += THREADS) sources[k] = 0;
  for (i64 c = threadIdx.x; c < count; c += THREADS) counts[c] = 0;
  __syncthreads();
  for (i64 i = first + threadIdx.x; i < end; i += THREADS)
    if (chunk_of[i] < count) places[i] = (u16)atomicAdd(counts + chunk_of[i], 1u);
  __syncthreads();
  u32 running = 0;
  for (i64 c0 = 0; c0 < count; c0 += THREADS) {
    const i64 c = c0 + threadIdx.x;
    const u32 words = c < count ? (counts[c] + WORD - 1) / WORD : 0;
    u32 all;
    const u32 start = running + before<WARPS>(words, sums, all);
    running += all;
    if (c >= count) continue;
    counts[c] = start * WORD;
    runs[c * (tiles + 1) + blockIdx.x] = {words, start};
  }
  if (threadIdx.x == 0) sizes[blockIdx.x] = running;
  __syncthreads();
  for (i64 i = first + threadIdx.x; i < end; i += THREADS) {
    if (chunk_of[i] >= count) continue;
    places[i] += (u16)counts[chunk_of[i]];
    sources[places[i]] = (u16)(i - first);
  }
}

// The strips of a chunk in shared memory, the longest first. `first[k]` of them have more than k
// contributions.
struct Strips {
  u32 first[STRIP + 1], next[STRIP + 1], sums[WARPS];
  u16 begin[1];  // in the chunk
};

// `emit(row, begin, end)` for every row of the chunk.
template <typename F> DEVICE void each_row(const u32* keys, u32 from, u32 to, F emit) {
  for (u32 p = from + threadIdx.x; p < to; p += THREADS)
    if (p == from || keys[p] != keys[p - 1])
      emit(keys[p], p, lower_bound(keys, p + 1, to, keys[p] + 1));
}

// Strips, and for each group of them the places of its contributions in the chunk; a lane that has fewer
// than the first of its group reads `capacity`, where a zero is.
KERNEL __launch_bounds__(THREADS)
chunk_strips(const u32* keys, const u32* order, const u16* places, Run* runs_of_all, Chunk* chunks,
             u16* groups, u16* entries, u32* targets, u32* split_rows, i64 n, i64 tiles, i64 tile,
             i64 pitch, i64 capacity) {
  wait_for_others();
  DYNAMIC_SHARED(Strips, own);
  const Chunk chunk = chunks[blockIdx.x];
  const u32 from = chunk.begin, to = chunks[blockIdx.x + 1].begin;
  Run* runs = runs_of_all + blockIdx.x * (tiles + 1);
  u32 running = 0, all;
  for (i64 t0 = 0; t0 <= tiles; t0 += THREADS) {
    const i64 t = t0 + threadIdx.x;
    const u32 length = t < tiles ? runs[t].at : 0;
    const u32 at = running + before<WARPS>(length, own->sums, all);
    running += all;
    if (t > tiles) continue;
    runs[t].at = at;
    runs[t].shift += (u32)(t * pitch / WORD) - at;
  }
  for (int k = threadIdx.x; k <= STRIP; k += THREADS) own->next[k] = 0;
  __syncthreads();
  each_row(keys, from, to, [&](u32, u32 begin, u32 end) {
    const u32 length = end - begin;
    if (length >= STRIP) atomicAdd(own->next + STRIP, length / STRIP);
    if (length % STRIP) atomicAdd(own->next + length % STRIP, 1u);
  });
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 longer = 0;
    for (int k = STRIP; k >= 0; --k) {
      const u32 count = own->next[k];
      own->first[k] = own->next[k] = longer;
      longer += count;
    }
    chunks[blockIdx.x].strips = longer;
  }
  __syncthreads();
  const u32 strips = own->first[0];
  each_row(keys, from, to, [&](u32 row, u32 begin, u32 end) {
    const bool early = begin == from && begin > 0 && keys[begin - 1] == row;
    const bool late = end < n && keys[end] == row;
    u32 target = row;
    if (early || late || end - begin > STRIP) {
      // rows of several strips begin more than STRIP places apart
      const u32 number = (early ? lower_bound(keys, 0, begin, row) : begin) / STRIP;
      if (!early) split_rows[number] = row;
      target = SPLIT | number;
    }
    for (u32 p = begin; p < end; p += STRIP) {
      const u32 s = atomicAdd(own->next + (end - p < STRIP ? end - p : STRIP), 1u);
      own->begin[s] = (u16)(p - from);
      targets[chunk.base + s] = target;
    }
  });
  __syncthreads();
  // the length of a strip
  const auto length_of = [&](u32 s) {
    int low = 0, high = STRIP;  // `first[low]` is more than s, `first[high]` is not
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (own->first[middle] > s) low = middle;
      else high = middle;
    }
    return (u32)high;
  };
  const u32 count = (strips + 31) / 32;
  groups += first_group(chunk, blockIdx.x);
  entries += first_entry(chunk, blockIdx.x);
  running = 0;
  for (u32 g0 = 0; g0 <= count; g0 += THREADS) {
    const u32 g = g0 + threadIdx.x;
    const u32 longest = g < count ? length_of(32 * g) : 0;
    const u32 start = running + before<WARPS>(longest, own->sums, all);
    running += all;
    if (g <= count) groups[g] = (u16)start;
  }
  if (threadIdx.x == 0) chunks[blockIdx.x].rows = running;
  __syncthreads();
  const u32 lane = threadIdx.x % 32;
  const auto place_of = [&](u32 p) {
    const u32 i = order[p], t = i / (u32)tile;
    return (u16)(places[i] + WORD * (t * (u32)pitch / WORD - runs[t].shift));
  };
  for (u32 g = threadIdx.x / 32; g < count; g += WARPS) {
    const u32 s = 32 * g + lane, length = s < strips ? length_of(s) : 0;
    const u32 begin = s < strips ? from + own->begin[s] : 0;
    for (u32 k = 0; k < (u32)(groups[g + 1] - groups[g]); ++k)
      entries[(groups[g] + k) * 32 + lane] = k < length ? place_of(begin + k) : (u16)capacity;
  }
}
