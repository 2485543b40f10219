// Products by the tensor cores of a Hopper: BM x BN elements a thread block, sums in float32.
//
// An element is one chain along k, as many products at a time as an instruction takes: the same bits
// whatever the tile. Each warpgroup but the last multiplies 64 rows; the last one copies tiles of 128
// bytes of k to shared memory, STAGES of them on their way. MAPS: by the copy engine, from operands of
// so many axes whose lines (A_LINES, B_LINES) or products lie side by side; 0: element by element.
constexpr int GROUPS = BM / 64, NT = GROUPS * 128 + 128, DEEP = 128 / (int)sizeof(Unit);
constexpr int B_HELD = B_LINES ? (BN + 63) / 64 * 64 : BN;  // lines side by side come 64 at a time
constexpr int A_BYTES = BM * 128, B_BYTES = B_HELD * 128, STAGE = A_BYTES + B_BYTES, SUMS = BN / 2;
constexpr int ATOM = 1024;  // bytes of 8 rows, within which pieces of 16 are exchanged
constexpr int BLOCK_ROWS = 64, BLOCK = BLOCK_ROWS * 128;  // of 64 lines that lie side by side

#ifdef PB_EMULATED
struct Map { u64 words[16]; };
#else
struct alignas(64) Map { u64 words[16]; };  // CUtensorMap
#endif
#ifndef PB_EMULATED
// -- barriers in shared memory ---------------------------------------------------------------------

PB_DEVICE void pb_begin(SharedAddress barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
PB_DEVICE void pb_await(SharedAddress barrier, int turn) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra OVER;\nbra AGAIN;\nOVER:\n}" ::"r"(barrier), "r"(turn) : "memory");
}
PB_DEVICE void pb_expect(SharedAddress barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
PB_DEVICE void pb_arrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// -- tiles of an operand ---------------------------------------------------------------------------

// By the copy engine; `item` are the places along up to three axes of the batch.
template <int BL, bool LINES_LIE> struct Mapped {
  const Map* map;
  int first, item[3];
  PB_MEMBER void load(SharedAddress to, int k, SharedAddress ready) const {
    if (LINES_LIE) {
      for (int i = 0; i < BL; i += BLOCK_ROWS) box(to + i / BLOCK_ROWS * BLOCK, first + i, k, ready);
    } else {
      box(to, k, first, ready);
    }
  }
  PB_MEMBER void box(SharedAddress to, int x, int y, SharedAddress ready) const {
    if (MAPS == 2)
      asm volatile(
          "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
          " [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(ready)
          : "memory");
    else
      asm volatile(
          "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
          " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(item[0]),
          "r"(item[1]), "r"(item[2]), "r"(ready)
          : "memory");
  }
};
// The map of operand `of`, from line `first` on of an item of the batch.
template <int BL, bool LINES_LIE>
PB_DEVICE Mapped<BL, LINES_LIE> pb_mapped(const Map* map, int first, const Nest<2>& batch, int of,
                                          u32 item) {
  Mapped<BL, LINES_LIE> found{map, first, {0, 0, 0}};
  u32 left = item;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int d = (int)batch.rank - 1 - i;
    if (MAPS == 2 || d < 0) break;
    const u32 n = (u32)batch.shape[d], q = left / n;
    if (batch.strides[of][d]) found.item[i] = (int)(left - q * n);
    left = q;
  }
  return found;
}

// Element by element, by a warpgroup.
template <int BL>
PB_DEVICE void pb_fill(SharedAddress to, const Given* p, i64 line, i64 step, int first, i64 lines, i64 k,
                       i64 depth) {
  for (int i = (int)threadIdx.x % 128; i < BL * PIECES; i += 128) {
    const int l = step == 1 ? i / PIECES : i % BL, q = step == 1 ? i % PIECES : i / BL;
    Words x{};
    if (first + l < lines) x = pb_piece(p + (first + l) * line, step, k + q * PER_PIECE, depth);
    pb_leave(to + l * 128 + (q ^ l % 8) * 16, x);
  }
}

// Where a tile is, as the units want it: rows of 128 bytes whose pieces are exchanged. The offsets are
// those of the next 64 lines, and of the next 8 products (or lines, where products lie side by side).
template <bool LINES_LIE> PB_DEVICE u64 pb_matrix(SharedAddress at) {
  const u64 next = LINES_LIE ? BLOCK : 16;
  return (u64)(at & 0x3ffff) / 16 | next / 16 << 16 | (u64)ATOM / 16 << 32 | (u64)1 << 62;
}

// -- sums ------------------------------------------------------------------------------------------

// No sum is moved over this.
PB_DEVICE void pb_hold(float (&c)[SUMS]) {
#pragma unroll
  for (int i = 0; i < SUMS; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

// -- products --------------------------------------------------------------------------------------

// The stages of a block in their order, again and again.
struct Turn {
  int stage = 0, parity = 0;
  PB_MEMBER void next() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

#else
#define __grid_constant__
// The same products, one after the other: an emulator has no such units.
template <typename F>
PB_DEVICE void pb_products(const Given* a, const Given* b, const Nest<2>& batch, const Sides& s, F put) {
  for (u32 index = blockIdx.x; index < (u32)(batch.size * s.tiles); index += gridDim.x) {
    const u32 item = index / (u32)s.tiles;
    i64 at[2] = {};
    pb_locate(batch, item, at);
    const Place place = pb_place((int)(index - item * (u32)s.tiles), (int)s.m, (int)s.n);
    for (int e = threadIdx.x; e < BM * BN; e += NT) {
      const i64 row = place.m + e / BN, column = place.n + e % BN;
      if (row >= s.m || column >= s.n) continue;
      float sum = 0;
      for (i64 k = 0; k < s.k; k += PER_PIECE) {
        union { Words all; Unit each[PER_PIECE]; } x, y;
        x.all = pb_piece(a + at[0] + row * s.a_line, s.a_k, k, s.k);
        y.all = pb_piece(b + at[1] + column * s.b_line, s.b_k, k, s.k);
        for (int i = 0; i < PER_PIECE; ++i) sum = fmaf(pb_wide(x.each[i]), pb_wide(y.each[i]), sum);
      }
      put(item, (int)row, (int)column, sum);
    }
  }
}
#endif

extern "C" __global__ void __launch_bounds__(NT, RESIDENT) NAME(Stored* __restrict__ out,
    const Given* __restrict__ a, const Given* __restrict__ b, const __grid_constant__ Map a_map,
    const __grid_constant__ Map b_map, const Nest<2> batch, const Sides s MORE) {
#ifdef PB_EMULATED
  pb_products(a, b, batch, s, [&](i64 item, int row, int column, float sum) {
#ifdef ENDS
    const Finished to(item, (int)s.m, (int)s.n, ENDS);
#else
    const Output to{out + item * s.m * s.n, (int)s.m, (int)s.n};
#endif
    const float one[1] = {sum};
    pb_put<false>(to.row(row), to.template columns<1>(column), one);
  });
#else
  PB_SHARED(unsigned char, given);
  __shared__ __align__(8) u64 barriers[2 * STAGES];
  const SharedAddress memory = (pb_shared(given) + ATOM - 1) / ATOM * ATOM;
  const SharedAddress full = pb_shared(barriers), empty = full + 8 * STAGES;
  const int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    if (MAPS)
      asm volatile("prefetch.tensormap [%0];\nprefetch.tensormap [%1];" ::"l"(&a_map), "l"(&b_map));
    for (int i = 0; i < STAGES; ++i) {
      pb_begin(full + 8 * i, MAPS ? 1 : 128);
      pb_begin(empty + 8 * i, GROUPS * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  const int steps = (int)((s.k + DEEP - 1) / DEEP);
  const u32 tiles = (u32)s.tiles, all = (u32)batch.size * tiles;
  Turn turn;
  if (group == GROUPS) {
    if (GROUPS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const bool works = !MAPS || threadIdx.x == GROUPS * 128;
    for (u32 index = blockIdx.x; works && index < all; index += gridDim.x) {
      const u32 item = index / tiles;
      i64 at[2] = {};
      pb_locate(batch, item, at);
      const Place place = pb_place((int)(index - item * tiles), (int)s.m, (int)s.n);
      const auto left = pb_mapped<BM, A_LINES>(&a_map, place.m, batch, 0, item);
      const auto right = pb_mapped<BN, B_LINES>(&b_map, place.n, batch, 1, item);
      for (int t = 0; t < steps; ++t) {
        const SharedAddress ready = full + 8 * turn.stage, to = memory + turn.stage * STAGE;
        pb_await(empty + 8 * turn.stage, turn.parity ^ 1);
        if (MAPS) {
          pb_expect(ready, STAGE);
          left.load(to, t * DEEP, ready);
          right.load(to + A_BYTES, t * DEEP, ready);
        } else {
          pb_fill<BM>(to, a + at[0], s.a_line, s.a_k, place.m, s.m, t * DEEP, s.k);
          pb_fill<BN>(to + A_BYTES, b + at[1], s.b_line, s.b_k, place.n, s.n, t * DEEP, s.k);
          asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
          pb_arrive(ready);
        }
        turn.next();
      }
    }
  } else {
    if (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    float c[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; ++i) c[i] = 0;
    auto release = [&](int stage) {
      if (lane == 0) pb_arrive(empty + 8 * stage);
    };
    for (u32 index = blockIdx.x; index < all; index += gridDim.x) {
      const u32 item = index / tiles;
      const Place place = pb_place((int)(index - item * tiles), (int)s.m, (int)s.n);
      int before = 0;
      pb_hold(c);
#pragma unroll 1
      for (int t = 0; t < steps; ++t) {
        pb_await(full + 8 * turn.stage, turn.parity);
        const SharedAddress at = memory + turn.stage * STAGE;
        const u64 left = pb_matrix<A_LINES>(at + group * BLOCK), right = pb_matrix<B_LINES>(at + A_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // a quarter of a row, or of the products
          constexpr int ROW = 32 / 16, ROWS = 2 * ATOM / 16;
          pb_multiply(c, left + i * (A_LINES ? ROWS : ROW), right + i * (B_LINES ? ROWS : ROW), i + t);
        }
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (t) release(before);  // all but the last instructions are done
        before = turn.stage;
        turn.next();
      }
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      pb_hold(c);
      release(before);
      const int row = place.m + group * 64 + warp * 16 + lane / 4;
#ifdef ENDS
      const Finished to(item, (int)s.m, (int)s.n, ENDS);
#else
      const Output to{out + item * s.m * s.n, (int)s.m, (int)s.n};
#endif
      pb_write<BN>(to, c, row, place.n);
    }
  }
#endif
}
