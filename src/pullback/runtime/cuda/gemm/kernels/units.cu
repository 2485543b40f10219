// Tiles of float64 products by the matrix units, whose sums are chains of fused multiply-adds in the
// order of k on the devices that `units.py` lets through. Constants as in tiles.cu, but a warp makes
// BM / WM x BN / WN elements in blocks of 16 x 8.
constexpr int NT = WM * WN * 32, TM = BM / WM / 16, TN = BN / WN / 8, DEPTH = 4;
constexpr int SIZE = 8;

// An operand's tiles: [line][k] where products are read along k (kinds 1 and 3), else [k][line]. Kinds
// 0 and 1 lie side by side and are read 16 bytes at a time, the others have any strides. Products
// beyond the last are made 0 x -0, which changes no sum; PAD is one of these.
template <int BL, int KIND> struct Operand {
  static constexpr bool ALONG = KIND % 2 == 1, WIDE = KIND < 2;
  static constexpr int LD = ALONG ? BK + 4 : BL + 4, BYTES = (ALONG ? BL : BK) * LD * SIZE;
  static constexpr int EACH_COPY = WIDE ? 2 : 1, ACROSS = (ALONG ? BK : BL) / EACH_COPY;
  static constexpr int FAST = ACROSS < NT ? ACROSS : NT, TURNS = ACROSS / FAST;
  static constexpr int ROWS = NT / FAST, EACH = (ALONG ? BL : BK) / ROWS * TURNS;
  static_assert(ROWS * FAST == NT && EACH > 0 && TURNS * FAST == ACROSS, "passes");
  const double* p;
  double* memory;
  i64 line, step;
  Shared to;
  int fast, slow, in;  // of the tile: along the axis that neighbouring threads read, and the other
  PB_MEMBER Operand(const double* base, i64 by, i64 k, int first, int lines, double* shared)
      : p(base + first * by), memory(shared), line(WIDE && !ALONG ? 1 : by),
        step(WIDE && ALONG ? 1 : k), to(pb_shared(shared)) {
    fast = (int)threadIdx.x % FAST * EACH_COPY;
    slow = (int)threadIdx.x / FAST;
    in = lines - first;
  }
  template <bool FULL> PB_MEMBER void load(int e, int stage, int left, double pad) const {
    const int f = fast + e % TURNS * FAST * EACH_COPY, s = slow + e / TURNS * ROWS;
    const int l = ALONG ? s : f, k = ALONG ? f : s, own = l < in ? l : in - 1;
    const int place = s * LD + f;
    if (!FULL && k + (ALONG ? EACH_COPY : 1) > left) {
#pragma unroll
      for (int i = 0; i < EACH_COPY; ++i) {
        const int at = ALONG ? k + i : k, other = ALONG || l + i < in ? l + (ALONG ? 0 : i) : in - 1;
        memory[stage / SIZE + place + i] =
            at < left ? p[(ALONG ? own : other) * line + at * step] : pad;
      }
    } else if (!WIDE) {
      pb_copy_all<SIZE>(to + stage + place * SIZE, p + own * line + k * step);
    } else if (ALONG) {
      pb_copy_all<16>(to + stage + place * SIZE, p + own * line + k);
    } else {
      const int given = in - l >= 2 ? 16 : in > l ? 8 : 0;
      pb_copy<16>(to + stage + place * SIZE, p + (given ? l : 0) + k * step, given);
    }
  }
  PB_MEMBER void next() { p += BK * step; }
  static PB_MEMBER double at(const double* s, int l, int k) {
    return ALONG ? s[l * LD + k] : s[k * LD + l];
  }
};

// See tiles.cu.
template <typename OA, typename OB, typename Out>
PB_DEVICE void pb_tile(OA& oa, OB& ob, const Out& out, double* shared, Place place, int count,
                       int rank, const Company& company) {
  const double* As = shared;
  const double* Bs = shared + STAGES * OA::BYTES / SIZE;
  Piece* totals = reinterpret_cast<Piece*>(shared + STAGES * (OA::BYTES + OB::BYTES) / SIZE) + threadIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t4 = lane % 4;
  const int wm = warp % WM * (BM / WM), wn = warp / WM * (BN / WN);
  const int steps = (count + BK - 1) / BK;
  constexpr bool KEPT = TOTALS == 1;
  double acc[TM][TN][4], total[KEPT ? TM : 1][KEPT ? TN : 1][4];
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        acc[i][j][e] = 0;
        if (KEPT) total[KEPT ? i : 0][KEPT ? j : 0][e] = -0.0;
      }
  bool begun = false;
  auto add = [&]() {  // a chain to the totals
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          double(&x)[4] = acc[i][j];
          if (TOTALS == 2) {
            Piece* at = totals + ((i * TN + j) * 2 + e / 2) * NT;
            Piece t;
            if (begun) t = *at;
            t.v[0] = begun ? t.v[0] + x[e] : x[e];
            t.v[1] = begun ? t.v[1] + x[e + 1] : x[e + 1];
            *at = t;
          } else {
            double(&t)[4] = total[KEPT ? i : 0][KEPT ? j : 0];
            t[e] += x[e];
            t[e + 1] += x[e + 1];
          }
          x[e] = x[e + 1] = 0;
        }
    begun = true;
  };
  auto load = [&](int step, int stage) {
    const int left = count - step * BK;
    if (left >= BK) {
#pragma unroll
      for (int e = 0; e < OA::EACH; ++e) oa.template load<true>(e, stage * OA::BYTES, 0, 0);
#pragma unroll
      for (int e = 0; e < OB::EACH; ++e) ob.template load<true>(e, stage * OB::BYTES, 0, 0);
    } else {
#pragma unroll
      for (int e = 0; e < OA::EACH; ++e) oa.template load<false>(e, stage * OA::BYTES, left, -0.0);
#pragma unroll
      for (int e = 0; e < OB::EACH; ++e) ob.template load<false>(e, stage * OB::BYTES, left, 0.0);
    }
    oa.next();
    ob.next();
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) load(s, s);
    pb_commit();
  }
  pb_wait<STAGES - 2>();
  __syncthreads();
  double a[2][TM][2], b[2][TN];
  auto fetch = [&](int side, int stage, int k) {
    const double *pa = As + stage * (OA::BYTES / SIZE), *pb = Bs + stage * (OB::BYTES / SIZE);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) a[side][i][e] = OA::at(pa, wm + i * 16 + g + e * 8, k + t4);
#pragma unroll
    for (int j = 0; j < TN; ++j) b[side][j] = OB::at(pb, wn + j * 8 + g, k + t4);
  };
  int stage = 0, fill = STAGES - 1, until = CHAIN / BK;
  fetch(0, 0, 0);
  for (int t = 0; t < steps; ++t) {
    const int now = stage;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
    for (int s = 0; s < BK / DEPTH; ++s) {
      if (s == BK / DEPTH - 1) {
        pb_commit();
        pb_wait<STAGES - 2>();
        __syncthreads();
        fetch((s + 1) & 1, stage, 0);
      } else {
        fetch((s + 1) & 1, now, (s + 1) * DEPTH);
        if (s == 0 && t + STAGES - 1 < steps) load(t + STAGES - 1, fill);
      }
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) pb_multiply(acc[i][j], a[s & 1][i], b[s & 1][j]);
    }
    fill = fill + 1 == STAGES ? 0 : fill + 1;
    if (TOTALS && --until == 0) {
      add();
      until = CHAIN / BK;
    }
  }
  if (TOTALS && until != CHAIN / BK) add();
  auto put = [&](int i, int j, int e, double x, double y) {
    const double both[2] = {x, y};
    const int row = place.m + wm + i * 16 + g + e / 2 * 8, column = place.n + wn + j * 8 + t4 * 2;
    if (row < out.m) pb_put<2>(out.row(row), out.template columns<2>(column), both);
  };
  if (MERGE == 3) {
    Piece* own = company.chains + (i64)rank * (BM * BN / 2) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
          pb_leave(own + ((i * TN + j) * 2 + e / 2) * NT, Piece{{acc[i][j][e], acc[i][j][e + 1]}});
    if (!company.is_last()) return;
    const Piece* from = company.chains + threadIdx.x;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      Piece t[TN * 2];  // as many loads on their way
#pragma unroll
      for (int q = 0; q < TN * 2; ++q) t[q] = pb_left(from + (i * TN * 2 + q) * NT);
      for (int c = 1; c < company.members; ++c) {
        Piece x[TN * 2];
#pragma unroll
        for (int q = 0; q < TN * 2; ++q)
          x[q] = pb_left(from + c * (BM * BN / 2) + (i * TN * 2 + q) * NT);
#pragma unroll
        for (int q = 0; q < TN * 2; ++q)
#pragma unroll
          for (int e = 0; e < 2; ++e) t[q].v[e] += x[q].v[e];
      }
#pragma unroll
      for (int q = 0; q < TN * 2; ++q)
#pragma unroll
        for (int e = 0; e < 2; ++e) acc[i][q / 2][q % 2 * 2 + e] = t[q].v[e];
    }
  }
  if (MERGE != 1 || !PB_CLUSTERS) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const Piece* kept = totals + ((i * TN + j) * 2 + e / 2) * NT;
          const double(&t)[4] = total[KEPT ? i : 0][KEPT ? j : 0];
          if (TOTALS == 2) put(i, j, e, kept->v[0], kept->v[1]);
          else if (KEPT) put(i, j, e, t[e], t[e + 1]);
          else put(i, j, e, acc[i][j][e], acc[i][j][e + 1]);
        }
    return;
  }
  Piece* own = reinterpret_cast<Piece*>(shared) + threadIdx.x;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
      for (int e = 0; e < 4; e += 2)
        own[((i * TN + j) * 2 + e / 2) * NT] = Piece{{acc[i][j][e], acc[i][j][e + 1]}};
  pb_cluster_barrier();
  for (int slot = rank; slot < TM * TN * 2; slot += SPLIT) {
    Piece t = pb_of_block(own + slot * NT, 0);
    for (int c = 1; c < SPLIT; ++c) {
      const Piece x = pb_of_block(own + slot * NT, c);
      t.v[0] += x.v[0];
      t.v[1] += x.v[1];
    }
    put(slot / 2 / TN, slot / 2 % TN, slot % 2 * 2, t.v[0], t.v[1]);
  }
  pb_cluster_barrier();
}
