// Products by the tensor cores of warps, from sm_80 on: BM x BN elements a thread block, BM / WM x
// BN / WN a warp, sums in float32.
//
// An element is one chain along k, as many products at a time as an instruction takes: the same bits
// whatever the tile. Tiles of BK products are copied to shared memory, STAGES of them on their way.
// A_KIND, B_KIND: 0 products lie side by side, 1 lines do, both are copied 16 bytes at a time; 2 any
// strides, element by element.
constexpr int NT = WM * WN * 32, TM = BM / WM / 16, TN = BN / WN / 8, SIZE = sizeof(Unit);
constexpr int STEP = 32 / SIZE, DEEP = BK / STEP;  // products of an instruction; of these in a stage
static_assert(TM * WM * 16 == BM && TN * WN * 8 == BN && TN % 4 == 0 && DEEP % 2 == 0, "tile");

// An operand's tiles in shared memory: [line][k], or [k][line] where lines lie side by side. Rows are
// so long that eight of them, or four of words, are in different banks.
template <int BL, int KIND> struct Panel {
  static constexpr bool LINES = KIND == 1;
  static constexpr int WIDTH = LINES ? BL : BK, ROWS = LINES ? BK : BL;
  static constexpr int LD = WIDTH * SIZE + (LINES && SIZE == 4 ? 32 : 16), BYTES = ROWS * LD;
  static constexpr int ACROSS = WIDTH / PER_PIECE, DOWN = NT / ACROSS, EACH = ROWS / DOWN;
  static_assert(ACROSS * DOWN == NT && DOWN * EACH == ROWS, "a pass takes some rows of the tile");
  const Given* p;
  i64 line, step;
  SharedAddress to, memory;
  int k, own, bytes;  // of the thread: its first product, its first line, bytes of lines that are there
  i64 at[LINES || KIND == 2 ? 1 : EACH];
  int first, lines;

  PB_MEMBER Panel(const Given* base, i64 line, i64 step, int first, int lines, unsigned char* shared)
      : line(line), step(step), memory(pb_shared(shared)), first(first), lines(lines) {
    const int fast = (int)threadIdx.x % ACROSS * PER_PIECE, slow = (int)threadIdx.x / ACROSS;
    to = memory + slow * LD + fast * SIZE;
    k = LINES ? slow : fast;
    own = first + (LINES ? fast : slow);
    const int rest = lines - own;
    bytes = rest < PER_PIECE ? rest < 0 ? 0 : rest * SIZE : 16;
    p = base;
    if (LINES) p += k * step + (rest > 0 ? own : 0);
    if (KIND == 0) p += k;
    if (KIND == 0) {
#pragma unroll
      for (int e = 0; e < EACH; ++e)
        at[LINES || KIND == 2 ? 0 : e] = (own + e * DOWN < lines ? own + e * DOWN : lines - 1) * line;
    }
  }
  // Of the stage at `stage`, which has `left` products.
  template <bool FULL> PB_MEMBER void load(int e, int stage, int left) const {
    if constexpr (KIND == 0) {
      const Given* from = p + at[LINES || KIND == 2 ? 0 : e];
      const int rest = left - k, given = rest < PER_PIECE ? rest < 0 ? 0 : rest * SIZE : 16;
      if (FULL) pb_copy_all<16>(to + stage + e * DOWN * LD, from);
      else pb_copy<16>(to + stage + e * DOWN * LD, given ? from : p - k, given);
    } else if constexpr (LINES) {
      const bool there = FULL || k + e * DOWN < left;
      pb_copy<16>(to + stage + e * DOWN * LD, there ? p + e * DOWN * step : p - k * step,
                  there ? bytes : 0);
    } else {
      const int i = (int)threadIdx.x + e * NT;
      const int l = step == 1 ? i / ACROSS : i % BL, q = (step == 1 ? i % ACROSS : i / BL) * PER_PIECE;
      Words x{};
      if (first + l < lines) x = pb_piece(p + (i64)(first + l) * line, step, q, left);
      pb_leave(memory + stage + l * LD + q * SIZE, x);
    }
  }
  PB_MEMBER void next() { p += BK * (KIND == 0 ? 1 : step); }
};

// What a warp has of a left operand: 16 lines from `row` on, at 32 bytes of k.
template <int KIND, int LD> PB_DEVICE void pb_left(u32 (&m)[4], SharedAddress at, int row, int k) {
  const int lane = threadIdx.x % 32;
  if constexpr (KIND != 1) {
    pb_matrices(m, at + (row + lane % 16) * LD + k * 32 + lane / 16 * 16);
  } else if constexpr (SIZE == 2) {
    pb_transposed(m, at + (k * 16 + lane / 16 * 8 + lane % 8) * LD + (row + lane / 8 % 2 * 8) * 2);
  } else {
    const SharedAddress own = at + (k * 8 + lane % 4) * LD + (row + lane / 4) * 4;
    m[0] = pb_word(own);
    m[1] = pb_word(own + 8 * 4);
    m[2] = pb_word(own + 4 * LD);
    m[3] = pb_word(own + 4 * LD + 8 * 4);
  }
}
// Of a right operand: 16 lines, two words of the first eight, then two of the others.
template <int KIND, int LD> PB_DEVICE void pb_right(u32 (&m)[4], SharedAddress at, int row, int k) {
  const int lane = threadIdx.x % 32;
  if constexpr (KIND != 1) {
    pb_matrices(m, at + (row + lane / 16 * 8 + lane % 8) * LD + k * 32 + lane / 8 % 2 * 16);
  } else if constexpr (SIZE == 2) {
    pb_transposed(m, at + (k * 16 + lane % 16) * LD + (row + lane / 16 * 8) * 2);
  } else {
    const SharedAddress own = at + (k * 8 + lane % 4) * LD + (row + lane / 4) * 4;
    m[0] = pb_word(own);
    m[1] = pb_word(own + 4 * LD);
    m[2] = pb_word(own + 8 * 4);
    m[3] = pb_word(own + 4 * LD + 8 * 4);
  }
}

extern "C" __global__ void __launch_bounds__(NT, RESIDENT) NAME(Stored* __restrict__ out,
    const Given* __restrict__ a, const Given* __restrict__ b, const Nest<2> batch,
    const Sides s MORE) {
  PB_SHARED(unsigned char, shared);
  typedef Panel<BM, A_KIND> Left;
  typedef Panel<BN, B_KIND> Right;
  const u32 tiles = (u32)s.tiles, item = batch.size == 1 ? 0 : blockIdx.x / tiles;
  i64 from[2] = {};
  pb_locate(batch, item, from);
  const Place place = pb_place((int)(blockIdx.x - item * tiles), (int)s.m, (int)s.n);
  Left left(a + from[0], s.a_line, s.a_k, place.m, (int)s.m, shared);
  Right right(b + from[1], s.b_line, s.b_k, place.n, (int)s.n, shared + STAGES * Left::BYTES);
  const int count = (int)s.k, steps = (count + BK - 1) / BK, warp = threadIdx.x / 32;
  const int row = warp % WM * (BM / WM), column = warp / WM * (BN / WN);
  const SharedAddress of_left = pb_shared(shared), of_right = of_left + STAGES * Left::BYTES;
  float c[TM][TN * 4];
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN * 4; ++j) c[i][j] = 0;
#pragma unroll
  for (int t = 0; t < STAGES - 1; ++t) {
    if (t < steps) {
#pragma unroll
      for (int e = 0; e < Left::EACH; ++e) left.template load<false>(e, t * Left::BYTES, count - t * BK);
#pragma unroll
      for (int e = 0; e < Right::EACH; ++e) right.template load<false>(e, t * Right::BYTES, count - t * BK);
      left.next();
      right.next();
    }
    pb_commit();
  }
  u32 x[2][TM][4], y[2][TN / 2][4];  // what comes next is read while the last is multiplied
  auto fetch = [&](int side, int stage, int k) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
      pb_left<A_KIND, Left::LD>(x[side][i], of_left + stage * Left::BYTES, row + i * 16, k);
#pragma unroll
    for (int j = 0; j < TN / 2; ++j)
      pb_right<B_KIND, Right::LD>(y[side][j], of_right + stage * Right::BYTES, column + j * 16, k);
  };
  pb_wait<STAGES - 2>();
  __syncthreads();
  int stage = 0, fill = STAGES - 1;
  fetch(0, 0, 0);
#pragma unroll 1
  for (int t = 0; t < steps; ++t) {
    const int ahead = t + STAGES - 1, rest = count - ahead * BK;
    const int now = stage;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
    for (int k = 0; k < DEEP; ++k) {
      if (k == DEEP - 1) {
        pb_commit();
        pb_wait<STAGES - 2>();
        __syncthreads();
        fetch((k + 1) % 2, stage, 0);
      } else {
        fetch((k + 1) % 2, now, k + 1);
      }
      if (k == 0) {
        if (rest >= BK) {
#pragma unroll
          for (int e = 0; e < Left::EACH; ++e) left.template load<true>(e, fill * Left::BYTES, BK);
#pragma unroll
          for (int e = 0; e < Right::EACH; ++e) right.template load<true>(e, fill * Right::BYTES, BK);
        } else if (rest > 0) {
#pragma unroll
          for (int e = 0; e < Left::EACH; ++e) left.template load<false>(e, fill * Left::BYTES, rest);
#pragma unroll
          for (int e = 0; e < Right::EACH; ++e) right.template load<false>(e, fill * Right::BYTES, rest);
        }
        left.next();
        right.next();
      }
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
          float(&sum)[4] = *reinterpret_cast<float(*)[4]>(&c[i][j * 4]);
          pb_multiply(sum, x[k % 2][i], y[k % 2][j / 2][j % 2 * 2], y[k % 2][j / 2][j % 2 * 2 + 1]);
        }
    }
    fill = fill + 1 == STAGES ? 0 : fill + 1;
  }
#ifdef ENDS
  const Finished to(item, (int)s.m, (int)s.n, ENDS);
#else
  const Output to{out + item * s.m * s.n, (int)s.m, (int)s.n};
#endif
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < TM; ++i)
    pb_write<TN * 8>(to, c[i], place.m + row + i * 16 + lane / 4, place.n + column);
}
