// Tiles of float64 products by the matrix units, whose sums are chains of fused multiply-adds in the
// order of k on the devices that `units.py` lets through. Constants as in tiles.cu, but a warp makes
// BM / WM x BN / WN elements in blocks of 16 x 8; REST: k is no multiple of BK.
constexpr int NT = WM * WN * 32, TM = BM / WM / 16, TN = BN / WN / 8, DEPTH = 4;
constexpr int SIZE = 8, PIECE = 2;

// An operand's tiles: [line][k] where products are read along k (kinds 1 and 3), else [k][line]. Kinds
// 0 and 1 lie side by side and are read 16 bytes at a time, in even numbers; the others have any
// strides. Products beyond the last are made -0 x 0, which changes no sum.
template <int BL, int KIND> struct Operand {
  static constexpr bool ALONG = KIND % 2 == 1, WIDE = KIND < 2;
  static constexpr int LD = ALONG ? BK + 4 : BL + 4, BYTES = (ALONG ? BL : BK) * LD * SIZE;
  static constexpr int EACH_COPY = WIDE ? 2 : 1, ACROSS = (ALONG ? BK : BL) / EACH_COPY;
  static constexpr int ROWS = NT / ACROSS, EACH = (ALONG ? BL : BK) / ROWS;
  static_assert(ROWS * ACROSS == NT && EACH * ROWS == (ALONG ? BL : BK), "a pass takes some rows of the tile");
  const double* p;
  i64 step, row;  // from one row of the tile in shared memory to the next: a line, or a k
  SharedAddress to;
  int slow, last;  // the thread's row of a pass, the last one that is there
  PB_MEMBER Operand(const double* base, i64 line, i64 k, int first, int lines, double* shared) {
    const int fast = (int)threadIdx.x % ACROSS * EACH_COPY, most = lines - (WIDE ? 2 : 1);
    slow = (int)threadIdx.x / ACROSS;
    step = WIDE && ALONG ? 1 : k;
    row = ALONG ? line : k;
    last = ALONG ? lines - 1 - first : BK;
    p = ALONG ? base + first * line + fast * step
              : base + (first + fast < most ? first + fast : most) * (WIDE ? 1 : line);
    to = pb_shared(shared) + (slow * LD + fast) * SIZE;
  }
  PB_MEMBER const double* from(int e) const {
    const int own = slow + e * ROWS;
    return p + (!ALONG || own < last ? own : last) * row;
  }
  PB_MEMBER void load(int e, int stage) const {
    pb_copy_all<8 * EACH_COPY>(to + stage + e * ROWS * LD * SIZE, from(e));
  }
  // The last products, and `pad` after them.
  PB_MEMBER void rest(double* shared, int left, double pad) const {
    const int fast = (int)threadIdx.x % ACROSS * EACH_COPY;
#pragma unroll 1
    for (int e = 0; e < EACH; ++e)
      for (int i = 0; i < EACH_COPY; ++i) {
        const int own = slow + e * ROWS, k = ALONG ? fast + i : own;
        shared[own * LD + fast + i] = k < left ? from(e)[i] : pad;
      }
  }
  PB_MEMBER void next() { p += BK * step; }
  static PB_MEMBER double at(const double* s, int l, int k) {
    return ALONG ? s[l * LD + k] : s[k * LD + l];
  }
};

// Writes the sums of a thread, which are in registers, or where TOTALS says.
template <bool WIDE, typename Out>
PB_DEVICE void pb_store(const Out& out, int row0, int column0, const double (*sums)[4],
                        const Piece* totals) {
  constexpr int UNROLL = TOTALS == 2 ? 1 : TM * TN;  // what is in registers has to be unrolled
#pragma unroll UNROLL
  for (int j = 0; j < TN; ++j) {
    const Columns<2> columns = out.template columns<2>(column0 + j * 8);
#pragma unroll UNROLL
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = row0 + i * 16 + e * 8;
        if (row >= out.m) continue;
        if constexpr (TOTALS == 2) {
          pb_put<WIDE>(out.row(row), columns, totals[((i * TN + j) * 2 + e) * NT].v);
        } else {
          const double(&t)[4] = sums[i * TN + j];
          const double both[2] = {t[e * 2], t[e * 2 + 1]};
          pb_put<WIDE>(out.row(row), columns, both);
        }
      }
  }
}

// See tiles.cu.
template <typename OA, typename OB, typename Out>
PB_DEVICE void pb_tile(OA& oa, OB& ob, const Out& out, double* shared, Place place, int count,
                       int rank, const Company& company) {
  const double* As = shared;
  const double* Bs = shared + STAGES * OA::BYTES / SIZE;
  Piece* totals = reinterpret_cast<Piece*>(shared + STAGES * (OA::BYTES + OB::BYTES) / SIZE) + threadIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t4 = lane % 4;
  const int wm = warp % WM * (BM / WM), wn = warp / WM * (BN / WN);
  const int steps = count / BK, left = REST ? count - steps * BK : 0;
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
  // A loop that first filled totals in shared memory, or sums that the compiler may fold, cost it so
  // many registers that it waits for each number from shared memory: a quarter of the time.
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
            Piece t = begun ? *at : Piece{{-0.0, -0.0}};
            t.v[0] = pb_add(t.v[0], x[e]);
            t.v[1] = pb_add(t.v[1], x[e + 1]);
            *at = t;
          } else {
            double(&t)[4] = total[KEPT ? i : 0][KEPT ? j : 0];
            t[e] = pb_add(t[e], x[e]);
            t[e + 1] = pb_add(t[e + 1], x[e + 1]);
          }
          x[e] = x[e + 1] = 0;
        }
    begun = true;
  };
  auto load = [&](int stage) {
#pragma unroll
    for (int e = 0; e < OA::EACH; ++e) oa.load(e, stage * OA::BYTES);
#pragma unroll
    for (int e = 0; e < OB::EACH; ++e) ob.load(e, stage * OB::BYTES);
    oa.next();
    ob.next();
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) load(s);
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
        if (s == 0 && t + STAGES - 1 < steps) load(fill);
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
  if (left) {
    __syncthreads();
    oa.rest(shared, left, -0.0);
    ob.rest(shared + STAGES * (OA::BYTES / SIZE), left, 0.0);
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < left; k += DEPTH) {
      fetch(0, 0, k);
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) pb_multiply(acc[i][j], a[0][i], b[0][j]);
    }
  }
  if (TOTALS && (left || until != CHAIN / BK)) add();
  if (MERGE == 3) {
    Piece* own = company.chains + (i64)rank * (BM * BN / 2) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
          pb_leave(own + ((i * TN + j) * 2 + e / 2) * NT, Piece{{acc[i][j][e], acc[i][j][e + 1]}});
    if (!company.is_last(shared)) return;
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
  const int row0 = place.m + wm + g, column0 = place.n + wn + t4 * 2;
  const bool wide = out.template wide<2>();
  if (MERGE != 1 || !PB_CLUSTERS) {
    if (wide) pb_store<true>(out, row0, column0, KEPT ? &total[0][0] : &acc[0][0], totals);
    else pb_store<false>(out, row0, column0, KEPT ? &total[0][0] : &acc[0][0], totals);
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
    const int row = row0 + slot / 2 / TN * 16 + slot % 2 * 8;
    if (row >= out.m) continue;
    const Columns<2> columns = out.template columns<2>(column0 + slot / 2 % TN * 8);
    if (wide) pb_put<true>(out.row(row), columns, t.v);
    else pb_put<false>(out.row(row), columns, t.v);
  }
  pb_cluster_barrier();
}
