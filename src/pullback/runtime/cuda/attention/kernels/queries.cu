// The cotangent of OWN queries of a head.
extern "C" __global__ void __launch_bounds__(NT, RESIDENT) NAME(
    Stored* __restrict__ out, const Stored* __restrict__ query, const Stored* __restrict__ key,
    const Stored* __restrict__ value, const Stored* __restrict__ cotangent,
    const Stored* __restrict__ packed, const float* __restrict__ deltas,
    const unsigned char* __restrict__ mask, const u32* __restrict__ words, const Nest<5> heads,
    const Sizes s) {
  PB_SHARED(Stored, shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rows = (int)s.rows, columns = (int)s.columns, width = (int)s.width;
  const u32 head = blockIdx.x / (u32)s.blocks;
  const int first = (int)(s.blocks - 1 - blockIdx.x % (u32)s.blocks) * OWN;  // long rows first
  i64 at[5] = {};
  pb_locate(heads, head, at);
  query += at[0];
  key += at[1];
  value += at[2];
  cotangent += at[3];
  mask += at[4];
  Stored* other = shared + 2 * OWN * LD;
  auto load = [&](int step) {
    Stored* to = other + step % 2 * (2 * STEP * LD);
    pb_panel<STEP>(to, key, s.row[1], s.element[1], step * STEP, columns, width);
    pb_panel<STEP>(to + STEP * LD, value, s.row[2], s.element[2], step * STEP, columns, width);
    pb_commit();
  };
  const int seen = CAUSAL && first + OWN < columns ? first + OWN : columns;
  const int steps = (seen + STEP - 1) / STEP, own = first + warp * TM * 16;
  pb_panel<OWN>(shared, query, s.row[0], s.element[0], first, rows, width);
  pb_panel<OWN>(shared + OWN * LD, cotangent, s.row[3], s.element[3], first, rows, width);
  load(0);
  Left left(shared), pulled(shared + OWN * LD);
  const Dropout dropout(words, s, head);
  const float* logarithms = reinterpret_cast<const float*>(packed + head * s.packed);
  float sums[TM][DN][4], origin[TM][2], delta[TM][2];
  pb_clear(sums);
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = own + i * 16 + h * 8 + lane / 4;
      const float sum = row < rows ? logarithms[row] : 0.0f;
      origin[i][h] = MASK && sum == PB_NOTHING ? 0.0f : sum;
      delta[i][h] = row < rows ? deltas[head * s.rows + row] : 0.0f;
    }
  const float scale = (float)s.scale * LOG2E;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    pb_wait<0>();
    __syncthreads();
    if (step == 0) {
      left.load();
      pulled.load();
    }
    if (step + 1 < steps) load(step + 1);
    const int column = step * STEP;
    if (CAUSAL && column >= own + TM * 16) continue;
    const Stored* panel = other + step % 2 * (2 * STEP * LD);
    float p[TM][SN][4], ds[TM][SN][4];
    pb_scores(p, left, panel);
    if (MASK || column + STEP > columns || (CAUSAL && column + STEP > own + 1)) {
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < SN; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int c = column + j * 8 + lane % 4 * 2 + e % 2, r = own + i * 16 + e / 2 * 8 + lane / 4;
            if (!pb_sees(mask, s, r, c)) p[i][j][e] = PB_NOTHING;
          }
    }
    pb_scores(ds, pulled, panel + STEP * LD,
              [&](int i, int, int e) { return DROPOUT ? 0.0f : -delta[i][e / 2]; });
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < SN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int c = column + j * 8 + lane % 4 * 2 + e % 2, r = own + i * 16 + e / 2 * 8 + lane / 4;
          float& x = ds[i][j][e];
          if (DROPOUT) x = (dropout.keeps(r, c) ? x * (float)s.factor : 0.0f) - delta[i][e / 2];
          x *= pb_power(pb_fma(p[i][j][e], scale, -origin[i][e / 2]));
        }
    pb_weigh(sums, ds, panel);
  }
  const float by = (float)s.scale;
  pb_leave(out + head * s.rows * s.width, sums, own, rows, width, [=](int, int) { return by; });
}
