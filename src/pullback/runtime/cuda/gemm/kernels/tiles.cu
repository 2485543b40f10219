// Tiles of products by the arithmetic units: BM x BN elements a thread block, TM x TN a thread.
//
// BK: products between two barriers; STAGES: such steps that are on their way; WM x WN: warps.
// TOTALS: where the sums of chains are: 0 there is one chain, 1 registers, 2 shared memory.
// MERGE: 0 a block makes all chains; 1 one of them, and the blocks of a tile are a cluster of SPLIT
// which adds them up; 2 one of them, which is the output (another kernel adds up); 3 one of them, and
// the last block of a tile to arrive adds them up.
constexpr int NT = WM * WN * 32, LM = 4, LN = 8, GM = TM < 4 ? TM : 4, GN = TN / 4;
static_assert(WM * LM * TM == BM && WN * LN * TN == BN && BK % 2 == 0, "tile");
constexpr int SIZE = sizeof(Value), PIECE = 16 / SIZE;

// An operand's tiles in shared memory: BK rows of BL lines. Lines beyond the last make elements that
// are not stored; products beyond the last are not made. KIND says how it lies in memory: 0 lines are
// side by side, 16 bytes at a time; 1 products are side by side; 2 any strides, read along lines;
// 3 any strides, read along k.
template <int BL, int KIND> struct Operand {  // kinds 1 and 3: transposed on the way
  static constexpr int LD = BL + 4, BYTES = BK * LD * SIZE, EACH = BL * BK / NT;
  static constexpr int ACROSS = BK < 8 ? BK : 8, LINES = NT / ACROSS, DOWN = BL / LINES;
  static_assert(BL % LINES == 0 && BK % ACROSS == 0, "a pass takes 8 k of some lines");
  const Value* p;
  i64 step;
  Distance at[DOWN];
  SharedAddress to;
  int k0;
  PB_MEMBER Operand(const Value* base, i64 line, i64 k, int first, int lines, Value* shared) {
    const int tid = threadIdx.x, l0 = tid / ACROSS, last = lines - 1 - first;
    k0 = tid % ACROSS;
    step = KIND == 1 ? 1 : k;
    p = base + first * line + k0 * step;
#pragma unroll
    for (int d = 0; d < DOWN; ++d)
      at[d] = (Distance)(l0 + d * LINES < last ? l0 + d * LINES : last) * (Distance)line;
    to = pb_shared(shared) + (k0 * LD + l0) * SIZE;
  }
  template <bool FULL> PB_MEMBER void load(int e, int stage, int left) const {
    const int d = e % DOWN, kk = e / DOWN * ACROSS;
    const int k = FULL || kk < left - k0 ? kk : left - 1 - k0;
    const Value* from = p + at[d] + (KIND == 1 ? k : k * step);
    pb_copy_all<SIZE>(to + stage + (kk * LD + d * LINES) * SIZE, from);
  }
  PB_MEMBER void next() { p += BK * step; }
};
template <int BL> struct Operand<BL, 0> {  // the number of lines is a multiple of PIECE
  static constexpr int LD = BL, BYTES = BK * LD * SIZE, ACROSS = BL / PIECE;
  static constexpr int DOWN = NT / ACROSS < BK ? NT / ACROSS : BK, EACH = BK / DOWN;
  static_assert(NT % ACROSS == 0 && BK % DOWN == 0, "a pass takes all lines of some k");
  const Value* p;
  i64 step;
  SharedAddress to;
  int k0;
  PB_MEMBER Operand(const Value* base, i64, i64 k, int first, int lines, Value* shared) {
    const int c = first + (int)threadIdx.x % ACROSS * PIECE, last = lines - PIECE;
    k0 = (int)threadIdx.x / ACROSS;
    p = base + (c < last ? c : last) + k0 * k;
    step = k;
    to = pb_shared(shared) + (k0 * LD + (int)threadIdx.x % ACROSS * PIECE) * SIZE;
  }
  template <bool FULL> PB_MEMBER void load(int e, int stage, int left) const {
    if (NT / ACROSS > BK && k0 >= BK) return;
    const int kk = e * DOWN, k = FULL || kk < left - k0 ? kk : left - 1 - k0;
    pb_copy_all<16>(to + stage + kk * LD * SIZE, p + k * step);
  }
  PB_MEMBER void next() { p += BK * step; }
};
template <int BL> struct Operand<BL, 2> {
  static constexpr int LD = BL, BYTES = BK * LD * SIZE, ACROSS = BL < NT ? BL : NT;
  static constexpr int LINES = BL / ACROSS;
  static constexpr int DOWN = NT / ACROSS < BK ? NT / ACROSS : BK, EACH = LINES * (BK / DOWN);
  static_assert(NT % ACROSS == 0 && BL % ACROSS == 0 && BK % DOWN == 0, "a pass takes some lines");
  const Value* p;
  i64 step;
  Distance at[LINES];
  SharedAddress to;
  int k0;
  PB_MEMBER Operand(const Value* base, i64 line, i64 k, int first, int lines, Value* shared) {
    const int l0 = (int)threadIdx.x % ACROSS, last = lines - 1 - first;
    k0 = (int)threadIdx.x / ACROSS;
    p = base + first * line + k0 * k;
    step = k;
#pragma unroll
    for (int d = 0; d < LINES; ++d)
      at[d] = (Distance)(l0 + d * ACROSS < last ? l0 + d * ACROSS : last) * (Distance)line;
    to = pb_shared(shared) + (k0 * LD + l0) * SIZE;
  }
  template <bool FULL> PB_MEMBER void load(int e, int stage, int left) const {
    if (NT / ACROSS > BK && k0 >= BK) return;
    const int d = e % LINES, kk = e / LINES * DOWN;
    const int k = FULL || kk < left - k0 ? kk : left - 1 - k0;
    pb_copy_all<SIZE>(to + stage + (kk * LD + d * ACROSS) * SIZE, p + at[d] + k * step);
  }
  PB_MEMBER void next() { p += BK * step; }
};

// The sums of a thread: groups of GM x 4, LM (or LN) groups apart; lanes are numbered in a zigzag, so
// that 8 neighbours read from few rows.
struct alignas(GM * SIZE < 16 ? GM * SIZE : 16) Group { Value v[GM]; };
struct Lanes {
  int m, n;
  PB_MEMBER Lanes() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    m = warp % WM * LM * TM + ((lane & 1) | (lane / 16 << 1)) * GM;
    n = warp / WM * LN * TN + lane / 2 % 8 * 4;
  }
  PB_MEMBER int row(int i) const { return m + i / GM * LM * GM + i % GM; }
  PB_MEMBER int column(int g) const { return n + g * LN * 4; }
};

// The totals of a thread: see TOTALS.
struct Totals {
  Value in[TOTALS == 1 ? TM : 1][TOTALS == 1 ? TN : 1];
  Four* shared;
  PB_MEMBER Totals(void* memory) : shared(static_cast<Four*>(memory) + threadIdx.x) {
    constexpr Value NONE = -Value(0);  // which changes no sum
    if (TOTALS == 1) {
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) in[TOTALS == 1 ? i : 0][TOTALS == 1 ? j : 0] = NONE;
    }
    if (TOTALS == 2)
      for (int q = 0; q < TM * GN; ++q) shared[q * NT] = Four{{NONE, NONE, NONE, NONE}};
  }
  PB_MEMBER void add(Value (&sums)[TM][TN]) {  // of one chain, which become 0
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int g = 0; g < GN; ++g) {
        Four t;
        Four* at = shared + (i * GN + g) * NT;
        if (TOTALS == 2) t = *at;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          Value& sum = sums[i][g * 4 + j];
          if (TOTALS == 1) in[TOTALS == 1 ? i : 0][TOTALS == 1 ? g * 4 + j : 0] += sum;
          else t.v[j] += sum;
          sum = 0;
        }
        if (TOTALS == 2) *at = t;
      }
  }
  PB_MEMBER Four of(const Value (&sums)[TM][TN], int i, int g) const {
    if constexpr (TOTALS == 2) {
      return shared[(i * GN + g) * NT];
    } else {
      Four x;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        x.v[j] = TOTALS ? in[TOTALS ? i : 0][TOTALS ? g * 4 + j : 0] : sums[i][g * 4 + j];
      return x;
    }
  }
};

template <bool WIDE, typename Out>
PB_DEVICE void pb_store(const Out& out, Place place, const Lanes& lanes, const Totals& totals,
                        const Value (&acc)[TM][TN]) {
  constexpr int UNROLL = TOTALS == 2 ? 1 : TM * GN;  // what is in registers has to be unrolled
#pragma unroll UNROLL
  for (int g = 0; g < GN; ++g) {
    const Columns<4> columns = out.template columns<4>(place.n + lanes.column(g));
#pragma unroll UNROLL
    for (int i = 0; i < TM; ++i) {
      const int row = place.m + lanes.row(i);
      if (row < out.m) pb_put<WIDE>(out.row(row), columns, totals.of(acc, i, g).v);
    }
  }
}

// The tile that starts at row and column `place`, and `count` products of each of its elements;
// `oa` and `ob` stand at the first of them.
template <typename OA, typename OB, typename Out>
PB_DEVICE void pb_tile(OA& oa, OB& ob, const Out& out, Value* shared, Place place, int count,
                       int rank, const Company& company) {
  const Value* As = shared;
  const Value* Bs = shared + STAGES * OA::BYTES / SIZE;
  const Lanes lanes;
  const int whole = count / BK, steps = (count + BK - 1) / BK;
  Value acc[TM][TN];
  Totals totals(shared + STAGES * (OA::BYTES + OB::BYTES) / SIZE);
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) acc[i][j] = 0;
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) {
#pragma unroll
      for (int e = 0; e < OA::EACH; ++e) oa.template load<false>(e, s * OA::BYTES, count - s * BK);
#pragma unroll
      for (int e = 0; e < OB::EACH; ++e) ob.template load<false>(e, s * OB::BYTES, count - s * BK);
      oa.next();
      ob.next();
    }
    pb_commit();
  }
  pb_wait<STAGES - 2>();
  __syncthreads();
  Value a[2][TM], b[2][TN];  // what comes next is read while the last is multiplied
  As += lanes.m;
  Bs += lanes.n;
  auto fetch = [&](int side, const Value* pa, const Value* pb) {
#pragma unroll
    for (int i = 0; i < TM; i += GM) {
      const Group x = *reinterpret_cast<const Group*>(pa + i * LM);
#pragma unroll
      for (int e = 0; e < GM; ++e) a[side][i + e] = x.v[e];
    }
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      const Four x = *reinterpret_cast<const Four*>(pb + j * LN);
#pragma unroll
      for (int e = 0; e < 4; ++e) b[side][j + e] = x.v[e];
    }
  };
  auto multiply = [&](int side) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) {
        const int jj = i & 1 ? TN - 1 - j : j;
        acc[i][jj] = pb_fma(a[side][i], b[side][jj], acc[i][jj]);
      }
  };
  int stage = 0, fill = STAGES - 1, until = CHAIN / BK;
  fetch(0, As, Bs);
  for (int t = 0; t < whole; ++t) {
    const Value *pa = As + stage * (OA::BYTES / SIZE), *pb = Bs + stage * (OB::BYTES / SIZE);
    const int ahead = t + STAGES - 1, fa = fill * OA::BYTES, fb = fill * OB::BYTES;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
    for (int kk = 0; kk < BK; ++kk) {
      if (kk == BK - 1) {
        pb_commit();
        pb_wait<STAGES - 2>();
        __syncthreads();
        fetch((kk + 1) & 1, As + stage * (OA::BYTES / SIZE), Bs + stage * (OB::BYTES / SIZE));
      } else {
        fetch((kk + 1) & 1, pa + (kk + 1) * OA::LD, pb + (kk + 1) * OB::LD);
        if (ahead < whole) {  // the copies are spread over the first half of the step
#pragma unroll
          for (int e = 0; e < OA::EACH; ++e)
            if (e * (BK / 2) / OA::EACH == kk) oa.template load<true>(e, fa, 0);
#pragma unroll
          for (int e = 0; e < OB::EACH; ++e)
            if (e * (BK / 2) / OB::EACH == kk) ob.template load<true>(e, fb, 0);
        } else if (ahead < steps && kk == 0) {
          const int left = count - ahead * BK;
#pragma unroll
          for (int e = 0; e < OA::EACH; ++e) oa.template load<false>(e, fa, left);
#pragma unroll
          for (int e = 0; e < OB::EACH; ++e) ob.template load<false>(e, fb, left);
        }
      }
      multiply(kk & 1);
    }
    oa.next();
    ob.next();
    fill = fill + 1 == STAGES ? 0 : fill + 1;
    if (TOTALS && --until == 0) {
      totals.add(acc);
      until = CHAIN / BK;
    }
  }
  const int left = count - whole * BK;  // the first of these are in a[0] and b[0]
  const Value *pa = As + stage * (OA::BYTES / SIZE), *pb = Bs + stage * (OB::BYTES / SIZE);
#pragma unroll 1
  for (int kk = 0; kk < left; ++kk) {
    multiply(0);
    if (kk + 1 < left) fetch(0, pa + (kk + 1) * OA::LD, pb + (kk + 1) * OB::LD);
  }
  if (TOTALS && (left || until != CHAIN / BK)) totals.add(acc);
  constexpr int PIECES = sizeof(Four) / 16;
  if (MERGE == 3) {
    Piece* own = company.chains + (i64)rank * (BM * BN / PIECE) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; j += PIECE) {
        Piece piece;
#pragma unroll
        for (int e = 0; e < PIECE; ++e) piece.v[e] = acc[i][j + e];
        pb_leave(own + (i * TN + j) / PIECE * NT, piece);
      }
    if (!company.is_last(shared)) return;
    // half of them at a time, so that many loads are on their way
    constexpr int ALL = TM * TN / PIECE, HALF = ALL / 2;
    const Piece* from = company.chains + threadIdx.x;
#pragma unroll
    for (int h = 0; h < ALL; h += HALF) {
      Piece t[HALF];
#pragma unroll
      for (int q = 0; q < HALF; ++q) t[q] = pb_left(from + (h + q) * NT);
      for (int c = 1; c < company.members; ++c) {
        Piece x[HALF];
#pragma unroll
        for (int q = 0; q < HALF; ++q) x[q] = pb_left(from + c * (BM * BN / PIECE) + (h + q) * NT);
#pragma unroll
        for (int q = 0; q < HALF; ++q)
#pragma unroll
          for (int e = 0; e < PIECE; ++e) t[q].v[e] += x[q].v[e];
      }
#pragma unroll
      for (int q = 0; q < HALF; ++q)
#pragma unroll
        for (int e = 0; e < PIECE; ++e) acc[(h + q) * PIECE / TN][(h + q) * PIECE % TN + e] = t[q].v[e];
    }
  }
  if (MERGE != 1 || !PB_CLUSTERS) {
    if (out.template wide<4>()) pb_store<true>(out, place, lanes, totals, acc);
    else pb_store<false>(out, place, lanes, totals, acc);
    return;
  }
  // each block leaves its chain in its shared memory, and adds up a share of the tile
  Piece* own = reinterpret_cast<Piece*>(shared) + threadIdx.x;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; j += PIECE) {
      Piece piece;
#pragma unroll
      for (int e = 0; e < PIECE; ++e) piece.v[e] = acc[i][j + e];
      own[(i * TN + j) / PIECE * NT] = piece;
    }
  pb_cluster_barrier();
  const bool wide = out.template wide<4>();
  for (int slot = rank; slot < TM * GN; slot += SPLIT) {
    Four t;
    for (int c = 0; c < SPLIT; ++c)
#pragma unroll
      for (int q = 0; q < PIECES; ++q) {
        const Piece x = pb_of_block(own + (slot * PIECES + q) * NT, c);
#pragma unroll
        for (int e = 0; e < PIECE; ++e) {
          Value& sum = t.v[q * PIECE + e];
          sum = c ? sum + x.v[e] : x.v[e];
        }
      }
    const int row = place.m + lanes.row(slot / GN);
    if (row >= out.m) continue;
    const Columns<4> columns = out.template columns<4>(place.n + lanes.column(slot % GN));
    if (wide) pb_put<true>(out.row(row), columns, t.v);
    else pb_put<false>(out.row(row), columns, t.v);
  }
  pb_cluster_barrier();
}
