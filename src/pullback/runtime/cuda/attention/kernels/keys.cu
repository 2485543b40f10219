// The cotangents of OWN keys and values of a head, by steps of queries of all heads that share them.
// In a head of the result are those of all its keys, then those of its values.
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
  const int first = (int)(blockIdx.x % (u32)s.blocks) * OWN, own = first + warp * TM * 16;
  i64 at[5] = {};
  pb_locate(heads, head, at);
  query += at[0];
  key += at[1];
  value += at[2];
  cotangent += at[3];
  mask += at[4];
  constexpr int STAGE = 2 * STEP * LD + 2 * STEP * (int)(sizeof(float) / SIZE);
  Stored* other = shared + 2 * OWN * LD;
  const int skipped = CAUSAL ? first / STEP : 0, all = (rows + STEP - 1) / STEP;
  const int each = all > skipped ? all - skipped : 0, steps = each * (int)s.group;
  int member = 0, next = skipped;  // of the group, and its step, that is loaded next
  auto load = [&](int step) {
    Stored* to = other + step % 2 * STAGE;
    const i64 item = head * s.group + member;
    pb_panel<STEP>(to, query + member * s.grouped[0], s.row[0], s.element[0], next * STEP, rows, width);
    pb_panel<STEP>(to + STEP * LD, cotangent + member * s.grouped[3], s.row[3], s.element[3],
                   next * STEP, rows, width);
    float* numbers = reinterpret_cast<float*>(to + 2 * STEP * LD);
    const float* logarithms = reinterpret_cast<const float*>(packed + item * s.packed);
    const float* given = deltas + item * s.rows;
    for (int e = threadIdx.x; e < 2 * STEP; e += NT) {
      const int row = next * STEP + e % STEP;
      const float* from = (e < STEP ? logarithms : given) + (row < rows ? row : 0);
      pb_copy<4>(pb_shared(numbers + e), from, row < rows ? 4 : 0);
    }
    pb_commit();
    if (++next == all) {
      next = skipped;
      ++member;
    }
  };
  pb_panel<OWN>(shared, key, s.row[1], s.element[1], first, columns, width);
  pb_panel<OWN>(shared + OWN * LD, value, s.row[2], s.element[2], first, columns, width);
  if (steps) load(0);
  Left keys(shared), values(shared + OWN * LD);
  float of_keys[TM][DN][4], of_values[TM][DN][4];
  pb_clear(of_keys);
  pb_clear(of_values);
  const float scale = (float)s.scale * LOG2E;
  int now = skipped;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    pb_wait<0>();
    __syncthreads();
    if (step == 0) {
      keys.load();
      values.load();
    }
    if (step + 1 < steps) load(step + 1);
    const int row = now * STEP;
    const unsigned char* seen = mask + step / each * s.grouped[4];
    const Dropout dropout(words, s, head * s.group + step / each);
    now = now + 1 == all ? skipped : now + 1;
    if (CAUSAL && row + STEP <= own) continue;
    const Stored* panel = other + step % 2 * STAGE;
    const float* numbers = reinterpret_cast<const float*>(panel + 2 * STEP * LD) + lane % 4 * 2;
    float p[TM][SN][4], ds[TM][SN][4];
    pb_scores(p, keys, panel);
    if (MASK || (CAUSAL && row < own + TM * 16 - 1)) {
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < SN; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int r = row + j * 8 + lane % 4 * 2 + e % 2, c = own + i * 16 + e / 2 * 8 + lane / 4;
            if (!pb_sees(seen, s, r, c)) p[i][j][e] = PB_NOTHING;
          }
    }
#pragma unroll
    for (int j = 0; j < SN; ++j) {
      float2 origin = *reinterpret_cast<const float2*>(numbers + j * 8);
      if (MASK && origin.x == PB_NOTHING) origin.x = 0;
      if (MASK && origin.y == PB_NOTHING) origin.y = 0;
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = row + j * 8 + lane % 4 * 2 + e % 2, c = own + i * 16 + e / 2 * 8 + lane / 4;
          const float x = pb_power(pb_fma(p[i][j][e], scale, e % 2 ? -origin.y : -origin.x));
          p[i][j][e] = DROPOUT && !dropout.keeps(r, c) ? -x : x;
        }
    }
    pb_weigh<DROPOUT>(of_values, p, panel + STEP * LD);
    pb_scores(ds, values, panel + STEP * LD, [&](int, int j, int e) {
      return DROPOUT ? 0.0f : -numbers[STEP + j * 8 + e % 2];
    });
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < SN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& x = p[i][j][e];
          if (DROPOUT) {
            const float pulled = x < 0 ? 0 : ds[i][j][e] * (float)s.factor;
            x = fabsf(x) * (pulled - numbers[STEP + j * 8 + e % 2]);
          } else {
            x *= ds[i][j][e];
          }
        }
    pb_weigh(of_keys, p, panel);
  }
  out += head * 2 * s.columns * s.width;
  const float by = (float)s.scale;
  pb_leave(out, of_keys, own, columns, width, [=](int, int) { return by; });
  const float factor = DROPOUT ? (float)s.factor : 1.0f;
  pb_leave(out + s.columns * s.width, of_values, own, columns, width,
           [=](int, int) { return factor; });
}
