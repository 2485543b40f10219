// Gradients of weights as products of matrices: gradients of outputs times what the kernel's positions
// read, along the pixels of a chunk of tiles. `spots` notes where the pixels of one image are, tile by
// tile.
struct Spot { Distance read, write; Mask inside; };

// Lines are output channels (LEFT), or input channels with positions of the kernel.
template <int BL, bool LEFT> struct Sums : Passes<BL> {
  typedef Passes<BL> Base;
  const Value* p;
  const Spot* spots;
  i64 image;  // from one to the next
  int first, count;  // of the image's pixels; the next step starts at the first
  const Value* from[Base::DEEP];  // the pixels of a step
  Mask inside[Base::DEEP];
  Distance at[Base::LINES];
  Mask needs[Base::LINES];
  SharedAddress to;
  PB_MEMBER Sums(const Window& w, const Value* base, const Spot* table, i64 pixel, int start, int lines,
                 Value* shared)
      : spots(table), image(LEFT ? w.y_batch : w.x_batch), count((int)pb_pixels(w)),
        to(pb_shared(shared)) {
    p = base + pixel / count * image;
    first = (int)(pixel % count);
    next();
#pragma unroll
    for (int d = 0; d < Base::LINES; ++d) {
      const u32 line = (u32)(start + this->line(d) < lines ? start + this->line(d) : lines - 1);
      if (LEFT) {
        at[d] = (Distance)(line * w.y_channel);
        needs[d] = 0;
      } else {
        const u32 taps = pb_taps(w), ins = (u32)w.ins;
        const Tap tap(w, FAST ? line % taps : line / ins);
        at[d] = (Distance)((FAST ? line / taps : line % ins) * w.x_channel + tap.read);
        needs[d] = tap.needs;
      }
    }
  }
  template <bool FULL> PB_MEMBER void load(int e, int stage, int left) const {
    if (this->idle()) return;
    const int d = e % Base::LINES, j = e / Base::LINES;
    const bool there = FULL || this->k(j) < left;
    const bool reads = there && (LEFT || (inside[j] & needs[d]) == needs[d]);
    if (LEFT && FULL) pb_copy_all<SIZE>(to + stage + this->place(e), from[j] + at[d]);
    else pb_copy<SIZE>(to + stage + this->place(e), from[j] + at[d], reads ? SIZE : 0);
  }
  PB_MEMBER void next() {
#pragma unroll
    for (int j = 0; j < Base::DEEP; ++j) {
      int pixel = first + this->k(j);
      const Value* own = p;
      while (pixel >= count) {
        pixel -= count;
        own += image;
      }
      from[j] = own + (LEFT ? spots[pixel].write : spots[pixel].read);
      inside[j] = LEFT ? Mask(0) : spots[pixel].inside;
    }
    first += BK;
    while (first >= count) {
      first -= count;
      p += image;
    }
  }
};

struct Weights {
  Stored* p;
  const Window* w;
  int m, n;
  template <int COUNT> PB_MEMBER bool wide() const { return false; }
  PB_MEMBER Stored* row(int i) const { return p + i * w->w_out; }
  template <int COUNT> PB_MEMBER Columns<COUNT> columns(int j) const {
    Columns<COUNT> found;
    const u32 taps = pb_taps(*w), ins = (u32)w->ins;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const u32 line = (u32)(j + i < n ? j + i : n - 1);
      found.at[i] =
          (FAST ? line / taps : line % ins) * w->w_in + Tap(*w, FAST ? line % taps : line / ins).place;
    }
    found.count = n - j;
    return found;
  }
};

// Tiles of pixels are cut from the images, the last axis first; the number of pixels before a tile.
struct Cut {
  u32 across[3], count, pixels;
  PB_MEMBER Cut(const Window& w) : count(1), pixels(pb_pixels(w)) {
    for (int d = 0; d < 3; ++d) {
      across[d] = (u32)((w.axes[d].places + w.axes[d].tile - 1) / w.axes[d].tile);
      count *= across[d];
    }
  }
  PB_MEMBER i64 before(const Window& w, i64 tile) const {
    u32 left = (u32)(tile % count), turn[3];
    for (int d = 2; d >= 0; --d) {
      turn[d] = left % across[d];
      left /= across[d];
    }
    i64 sum = 0, slab = 1;
    for (int d = 0; d < 3; ++d) {
      const Axis& a = w.axes[d];
      i64 rest = slab * turn[d] * a.tile;
      for (int later = d + 1; later < 3; ++later) rest *= w.axes[later].places;
      sum += rest;
      const i64 most = a.places - turn[d] * a.tile;
      slab *= most < a.tile ? most : a.tile;
    }
    return tile / count * pixels + sum;
  }
};

extern "C" __global__ void __launch_bounds__(NT, RESIDENT) NAME_sums(Value* __restrict__ partials,
    const Value* __restrict__ x, const Value* __restrict__ y, const Spot* __restrict__ spots,
    const Window w, const Chunks c, const i64 tiles) {
  PB_SHARED(Value, shared);
  const u32 chunks = (u32)c.chunks, chunk = blockIdx.x % chunks, index = blockIdx.x / chunks;
  const u32 group = index / (u32)tiles;
  const int m = (int)w.outs, n = (int)(w.ins * pb_taps(w));
  const Place place = pb_place((int)(index % (u32)tiles), m, n);
  const Cut cut(w);
  const i64 end = c.tiles < (chunk + i64(1)) * c.chunk ? c.tiles : (chunk + i64(1)) * c.chunk;
  const i64 first = cut.before(w, chunk * c.chunk), depth = cut.before(w, end) - first;
  const Weights to{partials + chunk * c.size + group * w.w_group, &w, m, n};
  Sums<BM, true> a(w, y + group * w.y_group, spots, first, place.m, m, shared);
  Sums<BN, false> b(w, x + group * w.x_group, spots, first, place.n, n,
                    shared + STAGES * (Sums<BM, true>::BYTES / SIZE));
  pb_tile(a, b, to, shared, place, (int)depth, 0, Company{});
}

extern "C" __global__ void NAME_spots(Spot* __restrict__ spots, const Window w) {
  const Cut cut(w);
  for (i64 i = pb_first(); i < (i64)cut.pixels; i += pb_step()) {
    u32 rest = (u32)i, tile = 0, in = 0, across = 1, pixels = 1;
    for (int d = 2; d >= 0; --d) {
      const Axis& a = w.axes[d];
      const u32 place = rest % (u32)a.places, turn = place / (u32)a.tile, start = turn * (u32)a.tile;
      rest /= (u32)a.places;
      tile += turn * across;
      in += (place - start) * pixels;
      across *= cut.across[d];
      pixels *= (u32)(a.places - start < a.tile ? a.places - start : a.tile);
    }
    const Pixel pixel(w, (u32)i);
    spots[cut.before(w, tile) + in] = Spot{(Distance)pixel.read, (Distance)pixel.write, pixel.inside};
  }
}
