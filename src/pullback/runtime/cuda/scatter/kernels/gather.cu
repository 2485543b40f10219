// Rows of x by index: a group of lanes for each row, in units as wide as its size and place allow.
// Definitions: UNIT (a C type), COLUMNS (lanes across a row, divides 32), UNROLL (rows in flight).
typedef UNIT Unit;

KERNEL gather_rows(const Unit* __restrict__ x, const Index* __restrict__ index, Unit* out,
                   Slot* slot, i64 n, i64 rows, i64 units) {
  const i64 group = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / COLUMNS;
  const i64 groups = (i64)gridDim.x * blockDim.x / COLUMNS;
  const int lane = threadIdx.x % COLUMNS;
  for (i64 first = group; first < n; first += groups * UNROLL) {
    i64 row[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const i64 i = first + u * groups;
      if (i < n && !locate(index[i], rows, row[u])) {
        report(slot, i);
        row[u] = -1;
      }
    }
    for (i64 c = lane; c < units; c += COLUMNS) {
      Unit unit[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        unit[u] = Unit();
        if (first + u * groups < n && row[u] >= 0) unit[u] = x[row[u] * units + c];
      }
#pragma unroll
      for (int u = 0; u < UNROLL; ++u)
        if (first + u * groups < n) out[(first + u * groups) * units + c] = unit[u];
    }
  }
}
