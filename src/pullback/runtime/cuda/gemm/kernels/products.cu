// A batch of products. Blocks of a tile follow each other, then tiles, then the batch.
PB_CLUSTERED(MERGE == 1 ? SPLIT : 1)
extern "C" __global__ void PB_CLUSTER(MERGE == 1 ? SPLIT : 1) __launch_bounds__(NT, RESIDENT) NAME(
    Stored* __restrict__ out, const Value* __restrict__ a, const Value* __restrict__ b,
    const Nest<2> batch, const Sides s, Piece* __restrict__ scratch, int* __restrict__ counters) {
  PB_SHARED(Value, shared);
  const i64 chains = MERGE ? (s.k + CHAIN - 1) / CHAIN : 1, index = blockIdx.x / chains;
  const int rank = (int)(blockIdx.x % chains);
  if (MERGE == 1 && !PB_CLUSTERS && rank) return;
  const i64 item = index / s.tiles;
  const bool all = MERGE == 0 || (MERGE == 1 && !PB_CLUSTERS);
  const i64 first = all ? 0 : rank * (i64)CHAIN, left = s.k - first;
  const int count = (int)(all || left < CHAIN ? left : CHAIN), m = (int)s.m, n = (int)s.n;
  i64 at[2] = {};
  pb_locate(batch, item, at);
  const Place place = pb_place((int)(index % s.tiles), m, n);
  const Output to{out + ((MERGE == 2 ? rank * (batch.size) : 0) + item) * s.m * s.n, m, n};
  typedef Operand<BM, A_KIND> OA;
  typedef Operand<BN, B_KIND> OB;
  OA oa(a + at[0] + first * s.a_k, s.a_line, s.a_k, place.m, m, shared);
  OB ob(b + at[1] + first * s.b_k, s.b_line, s.b_k, place.n, n,
        shared + STAGES * (OA::BYTES / SIZE));
  const Company company{scratch + index * chains * (BM * BN / (16 / sizeof(Value))), counters + index,
                        (int)chains};
  pb_tile(oa, ob, to, shared, place, count, rank, company);
}
// Before launches with MERGE 3: nobody has arrived.
extern "C" __global__ void NAME_begin(int* __restrict__ counters, const i64 count) {
  for (i64 i = pb_first(); i < count; i += pb_step()) counters[i] = 0;
}
