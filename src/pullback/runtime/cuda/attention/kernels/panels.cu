// What the kernels of attention share. A thread block has OWN rows of one side, TM times 16 for each
// of WARPS, and passes over the other side in steps of STEP rows. D is the width, rounded up to a
// multiple of 16. WIDE: rows are read 16 bytes at a time. KEPT: left matrices stay in registers.
constexpr int NT = WARPS * 32, OWN = WARPS * TM * 16, LD = D + 8, DK = D / 16, DN = D / 8;
constexpr int SN = STEP / 8, SIZE = 2;
constexpr float LOG2E = 0x1.715476p+0f;
#define PB_NOTHING __int_as_float((int)0xff800000)  // -inf: the logarithm of an empty sum
struct alignas(16) Eight { Stored v[8]; };
PB_DEVICE float pb_power(float x) {  // 2^x
#ifdef PB_EMULATED
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
// Strides are of query, key, value, cotangent and mask: from row to row, from number to number, and from
// head to head of a group. A head has `packed` numbers of a result with logarithms, of which the first
// `start` are these.
struct Sizes {
  i64 rows, columns, width, group, blocks, packed, start, row[5], element[5], grouped[5];
  i64 threshold, heads, words;  // of dropout: for each `heads` a key, so many words after the last one
  double scale, factor;
};

// Whether a row sees a column.
PB_DEVICE bool pb_sees(const unsigned char* mask, const Sizes& s, int row, int column) {
  if (column >= (int)s.columns || (CAUSAL && column > row)) return false;
  return !MASK || (row < (int)s.rows && mask[row * s.row[4] + column * s.element[4]] != 0);
}

// Dropout of the weights of a head: those stay whose word of Philox4x32-10 is at least the threshold.
struct Dropout {
  u32 key[2], head, threshold;
  PB_MEMBER Dropout(const u32* words, const Sizes& s, i64 item) {
    if (!DROPOUT) return;
    const u32* own = words + item / s.heads * s.words;
    key[0] = own[0];
    key[1] = own[1];
    head = (u32)(item % s.heads);
    threshold = (u32)s.threshold;
  }
  PB_MEMBER bool keeps(int row, int column) const {
    u32 a = column, b = row, c = head, d = PURPOSE, k0 = key[0], k1 = key[1];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
      const u32 high = __umulhi(a, MULTIPLIER_0), low = a * MULTIPLIER_0;
      a = __umulhi(c, MULTIPLIER_1) ^ b ^ k0;
      b = c * MULTIPLIER_1;
      c = high ^ d ^ k1;
      d = low;
      k0 += WEYL_0;
      k1 += WEYL_1;
    }
    return a >= threshold;
  }
};

// LINES rows of a matrix from row `first` on, LD numbers apart; what is not there is 0.
template <int LINES>
PB_DEVICE void pb_panel(Stored* to, const Stored* from, i64 row, i64 element, int first, int rows,
                        int width) {
  constexpr int CHUNKS = D / 8, ALL = LINES * CHUNKS;
#pragma unroll
  for (int e = 0; e < (ALL + NT - 1) / NT; ++e) {
    const int index = (int)threadIdx.x + e * NT;
    if (ALL % NT && index >= ALL) break;
    const int line = index / CHUNKS, at = index % CHUNKS * 8;
    const bool there = first + line < rows;
    const Stored* source = from + (there ? first + line : 0) * row;
    Stored* place = to + line * LD + at;
    if (WIDE) {
      pb_copy<16>(pb_shared(place), source + (at < width ? at : 0), there && at < width ? 16 : 0);
    } else {
      Eight found = {};
      for (int i = 0; i < 8; ++i)
        if (there && at + i < width) found.v[i] = source[(at + i) * element];
      *reinterpret_cast<Eight*>(place) = found;
    }
  }
}

// The rows of a warp, as left matrices.
struct Left {
  SharedAddress at;
  u32 kept[KEPT ? TM : 1][KEPT ? DK : 1][4];
  PB_MEMBER Left(const Stored* panel) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    at = pb_shared(panel + (warp * TM * 16 + lane % 16) * LD + lane / 16 * 8);
  }
  PB_MEMBER void load() {
    if (!KEPT) return;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int k = 0; k < DK; ++k) pb_matrices(kept[KEPT ? i : 0][KEPT ? k : 0], at + (i * 16 * LD + k * 16) * SIZE);
  }
  PB_MEMBER void get(u32 (&m)[4], int i, int k) const {
    if (!KEPT) return pb_matrices(m, at + (i * 16 * LD + k * 16) * SIZE);
#pragma unroll
    for (int e = 0; e < 4; ++e) m[e] = kept[KEPT ? i : 0][KEPT ? k : 0][e];
  }
};

// What a sum starts with, everywhere.
struct Zero {
  PB_MEMBER float operator()(int, int, int) const { return 0; }
};

// The rows of a warp times those of a panel, along the width; number e of tile i, j starts with
// `start(i, j, e)`.
template <typename F = Zero>
PB_DEVICE void pb_scores(float (&c)[TM][SN][4], const Left& left, const Stored* panel, F start = F()) {
  const int lane = threadIdx.x % 32;
  const SharedAddress at = pb_shared(panel + (lane / 16 * 8 + lane % 8) * LD + lane / 8 % 2 * 8);
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < SN; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[i][j][e] = start(i, j, e);
#pragma unroll
  for (int k = 0; k < DK; ++k) {
    u32 a[TM][4];
#pragma unroll
    for (int i = 0; i < TM; ++i) left.get(a[i], i, k);
#pragma unroll
    for (int j = 0; j < SN; j += 2) {
      u32 b[4];
      pb_matrices(b, at + (j * 8 * LD + k * 16) * SIZE);
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        pb_multiply(c[i][j], a[i], b[0], b[1]);
        pb_multiply(c[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// Adds what a thread has of weights, rounded, times the rows of a panel. Those below 0 were dropped.
template <bool DROPPED = false>
PB_DEVICE void pb_weigh(float (&c)[TM][DN][4], const float (&p)[TM][SN][4], const Stored* panel) {
  const int lane = threadIdx.x % 32;
  const SharedAddress at = pb_shared(panel + lane % 16 * LD + lane / 16 * 8);
#pragma unroll
  for (int j = 0; j < SN; j += 2) {
    u32 a[TM][4];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float(&two)[4] = p[i][j + e / 2];
        const float x = two[e % 2 * 2], y = two[e % 2 * 2 + 1];
        a[i][e] = DROPPED ? pb_pair(x < 0 ? 0 : x, y < 0 ? 0 : y) : pb_pair(x, y);
      }
#pragma unroll
    for (int n = 0; n < DN; n += 2) {
      u32 b[4];
      pb_transposed(b, at + (j * 8 * LD + n * 8) * SIZE);
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        pb_multiply(c[i][n], a[i], b[0], b[1]);
        pb_multiply(c[i][n + 1], a[i], b[2], b[3]);
      }
    }
  }
}

PB_DEVICE void pb_clear(float (&c)[TM][DN][4]) {
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int n = 0; n < DN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[i][n][e] = 0;
}

// Writes the rows of a warp, which start at `first`, times a factor for each.
template <typename F>
PB_DEVICE void pb_leave(Stored* out, const float (&c)[TM][DN][4], int first, int rows, int width,
                        F factor) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first + i * 16 + h * 8 + lane / 4;
      if (row >= rows) continue;
      Stored* to = out + (i64)row * width + lane % 4 * 2;
      const float by = factor(i, h);
#pragma unroll
      for (int n = 0; n < DN; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        const u32 both = pb_pair(c[i][n][h * 2] * by, c[i][n][h * 2 + 1] * by);
        if (WIDE) {
          if (column < width) *reinterpret_cast<u32*>(to + n * 8) = both;
        } else {
          if (column < width) to[n * 8] = (Stored)both;
          if (column + 1 < width) to[n * 8 + 1] = (Stored)(both >> 16);
        }
      }
    }
}
