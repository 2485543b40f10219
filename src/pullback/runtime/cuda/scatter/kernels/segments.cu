// The fold of sorted contributions: a group of lanes walks along one piece of the sorted places,
// and writes a row's result where a run of equal indices ends.
// Pieces have about SPAN places: a piece begins with the first run that starts at a multiple of
// SPAN or soon after. Where there is none, it cuts a long run, whose parts are joined afterwards.
// Definitions: VECTOR (elements of one load), COLUMNS (lanes across a row, divides 32), UNROLL (rows
// in flight), RESIDENT (thread blocks of a processor), SPAN, LONG (pieces of a run that a whole
// block joins, in SLICES).
constexpr int SLACK = SPAN / 2;
constexpr u32 NO_ROW = ~0u;
typedef Pack<Value, VECTOR> Chunk;
struct Sums { Sum at[VECTOR]; };

// Parts of a piece: of a run that began before it (0), of one that goes on after it (1).
DEVICE Sum* part(Sum* parts, i64 piece, int which, i64 width) {
  return parts + (2 * piece + which) * width;
}

DEVICE void clear(Sums& s) {
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) s.at[v] = start();
}

DEVICE void finish(Value* out, Chunk x, const Sums& s) {
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) x.at[v] = result(x.at[v], s.at[v]);
  *reinterpret_cast<Chunk*>(out) = x;
}

DEVICE Sums joined(Sums s, const Sum* next) {
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) s.at[v] = join(s.at[v], next[v]);
  return s;
}

// Where a piece begins, and whether inside a run. All lanes of a warp come here together.
DEVICE u32 piece_start(const u32* keys, i64 piece, i64 n, bool& cut) {
  const i64 begin = piece * SPAN;
  u32 found = SLACK;
#pragma unroll
  for (int j = (SLACK - 1) / COLUMNS * COLUMNS; j >= 0; j -= COLUMNS) {
    const i64 p = begin + j + threadIdx.x % COLUMNS;
    if (j + threadIdx.x % COLUMNS < SLACK && (p == 0 || p >= n || keys[p] != keys[p - 1]))
      found = j + threadIdx.x % COLUMNS;
  }
  for (int by = COLUMNS / 2; by > 0; by /= 2) {
    const u32 other = __shfl_down_sync(WARP, found, by, COLUMNS);
    found = other < found ? other : found;
  }
  found = __shfl_sync(WARP, found, 0, COLUMNS);
  cut = found == SLACK;
  const i64 at = cut ? begin : begin + found;
  return (u32)(at < n ? at : n);
}

struct Walk {
  const Value* value;
  Value* out;
  Sum* parts;
  const u32 *order, *keys;
  i64 rows, width, piece;
  u32 from, to;
  bool head, tail;  // whether the first and the last run are parts of longer ones

  __device__ Chunk before(u32 row) const {
    return row < rows ? *reinterpret_cast<const Chunk*>(out + row * width) : Chunk();
  }
  __device__ void close(u32 row, bool first, bool last, const Chunk& x, const Sums& s) const {
    if (row >= rows) return;
    if ((first && head) || (last && tail)) {
      Sum* to_part = part(parts, piece, first && head ? 0 : 1, width);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) to_part[v] = s.at[v];
    } else {
      finish(out + row * width, x, s);
    }
  }
  // Rows are read as soon as their numbers are there, and the next numbers along with them; a
  // destination is read when its run begins.
  __device__ void go() const {
    u32 at[UNROLL], key[UNROLL + 1];
#pragma unroll
    for (int u = 0; u <= UNROLL; ++u) {
      key[u] = from + u < to ? keys[from + u] : NO_ROW;
      if (u < UNROLL && from + u < to) at[u] = order[from + u];
    }
    Sums s;
    clear(s);
    Chunk x = before(key[0]);
    bool first = true;
    for (u32 p = from; p < to; p += UNROLL) {
      Chunk chunk[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u)
        if (p + u < to) chunk[u] = read_once(reinterpret_cast<const Chunk*>(value + at[u] * width));
      u32 next[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const u32 q = p + UNROLL + u;
        if (q < to) at[u] = order[q];
        next[u] = q + 1 < to ? keys[q + 1] : NO_ROW;
      }
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        if (p + u >= to) break;
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) take(s.at[v], chunk[u].at[v]);
        if (key[u] == key[u + 1]) continue;
        close(key[u], first, p + u + 1 == to, x, s);
        clear(s);
        first = false;
        x = before(key[u + 1]);
      }
      key[0] = key[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) key[u + 1] = next[u];
    }
  }
};

KERNEL __launch_bounds__(256, RESIDENT)
segments(const Value* __restrict__ value, Value* out, Sum* parts, u32* cuts,
         const u32* __restrict__ order, const u32* __restrict__ keys, i64 n, i64 rows, i64 pieces,
         i64 width) {
  wait_for_others();
  const i64 piece = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / COLUMNS;
  const i64 column = ((i64)blockIdx.y * COLUMNS + threadIdx.x % COLUMNS) * VECTOR;
  bool head, tail;
  const u32 from = piece_start(keys, piece, n, head), to = piece_start(keys, piece + 1, n, tail);
  if (piece >= pieces || column >= width) return;
  if (column == 0) cuts[piece] = head ? keys[from] : NO_ROW;
  const Walk walk = {value + column, out + column, parts + column, order, keys, rows, width, piece,
                     from,           to,           head,           tail};
  walk.go();
}

struct Cuts {
  const u32* row;
  i64 rows, pieces;
  // Whether a run that crosses several pieces first does so at the beginning of piece k > 0.
  __device__ bool own(i64 k) const { return row[k] < rows && row[k - 1] != row[k]; }
  __device__ bool is_long(i64 k) const { return k + LONG < pieces && row[k + LONG] == row[k]; }
};

// A run of a few pieces: a group of lanes joins one.
DEVICE void join_short(Value* out, Sum* parts, const Cuts& cuts, i64 width, i64 k) {
  const i64 column = ((i64)blockIdx.y * COLUMNS + threadIdx.x % COLUMNS) * VECTOR;
  if (column >= width) return;
  const u32 row = cuts.row[k];
  int length = 1;
#pragma unroll
  for (int j = 1; j < LONG; ++j) length += k + j < cuts.pieces && cuts.row[k + j] == row;
  Sums s;
  const Sum* from = part(parts, k - 1, 1, width) + column;
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) s.at[v] = from[v];
#pragma unroll 4
  for (int j = 0; j < length; ++j) s = joined(s, part(parts, k + j, 0, width) + column);
  Value* to = out + row * width + column;
  finish(to, *reinterpret_cast<const Chunk*>(to), s);
}

// A long run: a whole block folds its parts.
DEVICE void join_long(Value* out, Sum* parts, const Cuts& cuts, i64 width, i64 k, Sum* sums) {
  const u32 lane_of_warp = threadIdx.x % 32, row = cuts.row[k];
  i64 low = k + LONG, high = cuts.pieces;  // the run reaches `low`, but not `high`
  while (high - low > 1) {
    const i64 step = (high - low + 31) / 32, probe = low + (lane_of_warp + 1) * step;
    low += __popc(__ballot_sync(WARP, probe < high && cuts.row[probe] == row)) * step;
    high = low + step < high ? low + step : high;
  }
  // Slices are neighbouring pieces, so that their order is the order of the contributions.
  const int lane = threadIdx.x % COLUMNS;
  const i64 column = ((i64)blockIdx.y * COLUMNS + lane) * VECTOR;
  const i64 each = (high - k + SLICES - 1) / SLICES;
  Sums s;
  for (int slice = threadIdx.x / COLUMNS; slice < SLICES; slice += blockDim.x / COLUMNS) {
    const i64 from = k + slice * each, to = from + each < high ? from + each : high;
    clear(s);
    if (column < width)
#pragma unroll 4
      for (i64 j = from; j < to; ++j) s = joined(s, part(parts, j, 0, width) + column);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) sums[(slice * COLUMNS + lane) * VECTOR + v] = s.at[v];
  }
  __syncthreads();
  if (threadIdx.x < COLUMNS && column < width) {
    const Sum* first = part(parts, k - 1, 1, width) + column;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) s.at[v] = first[v];
    const int used = (int)((high - k + each - 1) / each);
#pragma unroll 4
    for (int j = 0; j < used; ++j) s = joined(s, sums + (j * COLUMNS + threadIdx.x) * VECTOR);
    Value* at = out + row * width + column;
    finish(at, *reinterpret_cast<const Chunk*>(at), s);
  }
  __syncthreads();
}

// A thread block joins the runs that are first cut at one of `each` pieces, at most as many as it has
// threads: there are none at most places.
KERNEL __launch_bounds__(256)
join_parts(Value* out, Sum* parts, const u32* rows_of_cuts, i64 each, i64 rows, i64 pieces, i64 width) {
  wait_for_others();
  DYNAMIC_SHARED(Sum, sums);
  u32 *found = reinterpret_cast<u32*>(sums + SLICES * COLUMNS * VECTOR), *sums_of_warps = found + 256;
  const Cuts cuts = {rows_of_cuts, rows, pieces};
  const i64 k = blockIdx.x * each + 1 + threadIdx.x;
  const bool own = threadIdx.x < each && k < pieces && cuts.own(k);
  if (!__syncthreads_or(own)) return;
  const bool is_long = own && cuts.is_long(k);
  u32 all;  // short runs, and long ones in the high half
  const u32 at = before<8>((u32)own << 16 * is_long, sums_of_warps, all);
  const u32 shorts = all & 0xffff, longs = all >> 16;
  if (own) found[is_long ? shorts + (at >> 16) : at & 0xffff] = (u32)k;
  __syncthreads();
  for (u32 j = threadIdx.x / COLUMNS; j < shorts; j += 256 / COLUMNS)
    join_short(out, parts, cuts, width, found[j]);
  for (u32 j = shorts; j < shorts + longs; ++j) join_long(out, parts, cuts, width, found[j], sums);
}
