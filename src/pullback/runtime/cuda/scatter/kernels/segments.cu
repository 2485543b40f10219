// The fold of sorted contributions: a group of lanes for each task, its contributions in order.
// Tasks that are pieces of a longer run of equal indices leave parts, which are joined afterwards.
// Definitions: VECTOR (elements of one load), COLUMNS (lanes across a row), LANES (along a task;
// COLUMNS * LANES divides 32), UNROLL (rows in flight), RESIDENT (thread blocks of a processor),
// SPAN (as in the sort), LONG (spans of a run that a whole block joins, at most 32).
constexpr int GROUP = COLUMNS * LANES;
typedef Pack<Value, VECTOR> Chunk;
struct Sums { Sum at[VECTOR]; };

struct Tasks {
  const u32 *order, *start, *row, *count, *edge_first, *edge_last;
  i64 n, rows, spans;
};

#define TASKS                                                                              \
  const u32 *order, const u32 *starts, const u32 *row_of, const u32 *count_of,             \
      const u32 *edge_first, const u32 *edge_last, i64 n, i64 rows, i64 spans, i64 width

// Parts of a span: of a run that began before it (0), of one that goes on after it (1).
DEVICE Sum* part(Sum* parts, i64 span, int which, i64 width) {
  return parts + (2 * span + which) * width;
}

DEVICE void finish(Value* out, const Sums& s) {
  Chunk x = *reinterpret_cast<Chunk*>(out);
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) x.at[v] = result(x.at[v], s.at[v]);
  *reinterpret_cast<Chunk*>(out) = x;
}

// Rows are read as soon as their numbers are there, and the next numbers along with them.
DEVICE void fold_rows(Sums& s, const Value* value, const u32* order, u32 from, u32 to, i64 width) {
  u32 at[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u)
    if (from + u * LANES < to) at[u] = order[from + u * LANES];
  for (u32 p = from; p < to; p += LANES * UNROLL) {
    Chunk chunk[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (p + u * LANES < to) chunk[u] = *reinterpret_cast<const Chunk*>(value + at[u] * width);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (p + (UNROLL + u) * LANES < to) at[u] = order[p + (UNROLL + u) * LANES];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (p + u * LANES < to)
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) take(s.at[v], chunk[u].at[v]);
  }
}

// One task; all lanes of a warp come here together, also those that have none.
DEVICE void fold_task(const Value* value, Value* out, Sum* parts, const Tasks& tasks, i64 width,
                      u32 task, u32 count, i64 column, u32 along) {
  Sums s;
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) s.at[v] = start();
  u32 from = 0, before = ~0u, row = ~0u, after = ~0u;
  if (task < count && column < width) {
    from = tasks.start[task];
    const u32 to = tasks.start[task + 1];
    row = tasks.row[task];
    before = task > 0 ? tasks.row[task - 1] : ~0u;
    after = task + 1 < count ? tasks.row[task + 1] : ~0u;
    if (row < tasks.rows) fold_rows(s, value + column, tasks.order, from + along, to, width);
  }
  if (LANES > 1)
#pragma unroll
    for (int v = 0; v < VECTOR; ++v)
      for (int by = GROUP / 2; by >= COLUMNS; by /= 2)
        s.at[v] = join(s.at[v], below(s.at[v], by, GROUP));
  if (row >= tasks.rows || along != 0) return;
  if (before != row && after != row) {
    finish(out + row * width + column, s);
    return;
  }
  Sum* to_part = part(parts, from / SPAN, before == row ? 0 : 1, width) + column;
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) to_part[v] = s.at[v];
}

KERNEL __launch_bounds__(256, RESIDENT)
segments(const Value* __restrict__ value, Value* out, Sum* parts, TASKS) {
  const Tasks tasks = {order, starts, row_of, count_of, edge_first, edge_last, n, rows, spans};
  const u32 lane = threadIdx.x % GROUP, groups = gridDim.x * blockDim.x / GROUP;
  const i64 column = ((i64)blockIdx.y * COLUMNS + lane % COLUMNS) * VECTOR;
  const u32 own = (blockIdx.x * blockDim.x + threadIdx.x) / GROUP, count = *count_of;
  // a warp goes on while any of its groups has a task
  const u32 first = own - threadIdx.x % 32 / GROUP;
  for (u32 k = 0; first + k < count; k += groups)
    fold_task(value, out, parts, tasks, width, own + k, count, column, lane / COLUMNS);
}

// Whether a run that crosses several spans first does so at the beginning of span k > 0.
DEVICE bool owns(const Tasks& t, i64 k) {
  const u32 row = t.edge_first[k];
  return row < t.rows && t.edge_last[k - 1] == row && (k < 2 || t.edge_last[k - 2] != row);
}

DEVICE bool is_long(const Tasks& t, i64 k) {
  return k + LONG < t.spans && t.edge_first[k + LONG] == t.edge_first[k];
}

// The runs of a few spans: a group of lanes joins one.
DEVICE void join_short(Value* out, Sum* parts, const Tasks& tasks, i64 width, i64 block) {
  const i64 k = (block * blockDim.x + threadIdx.x) / COLUMNS + 1;
  const i64 column = ((i64)blockIdx.y * COLUMNS + threadIdx.x % COLUMNS) * VECTOR;
  if (k >= tasks.spans || column >= width || !owns(tasks, k) || is_long(tasks, k)) return;
  const u32 row = tasks.edge_first[k];
  int length = 1;
#pragma unroll
  for (int j = 1; j < LONG; ++j)
    length += k + j < tasks.spans && tasks.edge_first[k + j] == row;
  Sums s;
  const Sum* from = part(parts, k - 1, 1, width) + column;
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) s.at[v] = from[v];
#pragma unroll 4
  for (int j = 0; j < length; ++j) {
    from = part(parts, k + j, 0, width) + column;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) s.at[v] = join(s.at[v], from[v]);
  }
  finish(out + row * width + column, s);
}

// At most one long run begins in LONG neighbouring spans: a whole block folds its parts.
DEVICE void join_long(Value* out, Sum* parts, const Tasks& tasks, i64 width, i64 block, Sum* sums) {
  const u32 lane_of_warp = threadIdx.x % 32;
  i64 k = block * LONG + 1 + lane_of_warp;
  const bool found = lane_of_warp < LONG && k < tasks.spans && owns(tasks, k) && is_long(tasks, k);
  const u32 which = __ballot_sync(WARP, found);
  if (which == 0) return;
  k = block * LONG + __ffs((int)which);
  const u32 row = tasks.edge_first[k];
  i64 low = k + LONG, high = tasks.spans;  // the run reaches `low`, but not `high`
  while (high - low > 1) {
    const i64 middle = (low + high) / 2;
    (tasks.edge_first[middle] == row ? low : high) = middle;
  }
  const int lanes = COLUMNS * VECTOR < 32 ? COLUMNS * VECTOR : 32, slices = blockDim.x / lanes;
  const int lane = threadIdx.x % lanes, slice = threadIdx.x / lanes;
  for (i64 column = (i64)blockIdx.y * COLUMNS * VECTOR + lane;
       column - lane < (i64)(blockIdx.y + 1) * COLUMNS * VECTOR; column += lanes) {
    const bool inside = column < width;
    // Slices are neighbouring spans, so that their order is the order of the contributions.
    const i64 each = (high - k + slices - 1) / slices;
    const i64 from = k + slice * each, to = from + each < high ? from + each : high;
    Sum s = start();
    if (inside)
#pragma unroll 4
      for (i64 j = from; j < to; ++j) s = join(s, part(parts, j, 0, width)[column]);
    __syncthreads();
    sums[threadIdx.x] = s;
    __syncthreads();
    if (slice != 0 || !inside) continue;
    s = part(parts, k - 1, 1, width)[column];
    for (int j = 0; j < slices; ++j) s = join(s, sums[j * lanes + lane]);
    out[row * width + column] = result(out[row * width + column], s);
  }
}

// The first `short_blocks` thread blocks join short runs, the others long ones.
KERNEL join_parts(Value* out, Sum* parts, i64 short_blocks, TASKS) {
  const Tasks tasks = {order, starts, row_of, count_of, edge_first, edge_last, n, rows, spans};
  DYNAMIC_SHARED(Sum, sums);
  if (blockIdx.x < short_blocks)
    join_short(out, parts, tasks, width, blockIdx.x);
  else
    join_long(out, parts, tasks, width, blockIdx.x - short_blocks, sums);
}
