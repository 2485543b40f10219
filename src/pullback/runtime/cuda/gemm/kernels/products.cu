// A batch of products. Blocks of a tile follow each other, then tiles, then the batch.
PB_CLUSTERED(MERGE == 1 ? SPLIT : 1)
extern "C" __global__ void PB_CLUSTER(MERGE == 1 ? SPLIT : 1) __launch_bounds__(NT, RESIDENT) NAME(
    Stored* __restrict__ out, const Value* __restrict__ a, const Value* __restrict__ b,
    const Nest<2> batch, const Sides s, Piece* __restrict__ scratch, int* __restrict__ counters MORE) {
  PB_SHARED(Value, shared);
  // clusters are blocks side by side; else all tiles have their first chains made first
  const u32 block = blockIdx.x, tiles = (u32)s.tiles, all = (u32)batch.size * tiles;
  const u32 index = MERGE == 1 ? block / SPLIT : MERGE ? block % all : block;
  const int rank = (int)(MERGE == 1 ? block % SPLIT : MERGE ? block / all : 0);
  if (MERGE == 1 && !PB_CLUSTERS && rank) return;
  constexpr bool CUT = MERGE > 1 || (MERGE == 1 && PB_CLUSTERS);
  const i64 first = CUT ? rank * (i64)CHAIN : 0, left = s.k - first;
  const int count = (int)(CUT && left > CHAIN ? CHAIN : left), m = (int)s.m, n = (int)s.n;
  const u32 item = batch.size == 1 ? 0 : index / tiles;
  i64 at[2] = {};
  pb_locate(batch, item, at);
  const Place place = pb_place((int)(index - item * tiles), m, n);
#ifdef ENDS
  const Finished to(item, m, n, ENDS);
#else
  const Output to{out + ((MERGE == 2 ? rank * batch.size : 0) + item) * s.m * s.n, m, n};
#endif
  typedef Operand<BM, A_KIND> OA;
  typedef Operand<BN, B_KIND> OB;
  OA oa(a + at[0] + first * s.a_k, s.a_line, s.a_k, place.m, m, shared);
  OB ob(b + at[1] + first * s.b_k, s.b_line, s.b_k, place.n, n,
        shared + STAGES * (OA::BYTES / SIZE));
  const int chains = (int)((s.k + CHAIN - 1) / CHAIN);
  const Company company{scratch + (i64)index * chains * (BM * BN / PIECE), counters + index, chains};
  pb_tile(oa, ob, to, shared, place, count, rank, company);
}
// Before launches with MERGE 3: nobody has arrived.
extern "C" __global__ void NAME_begin(int* __restrict__ counters, const i64 count) {
  for (i64 i = pb_first(); i < count; i += pb_step()) counters[i] = 0;
}
