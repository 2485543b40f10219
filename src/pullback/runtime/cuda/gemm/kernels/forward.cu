// Convolutions as products of matrices: pixels times weights, whose rows are the positions of the
// kernel for the channels of a block, block by block. `pack` arranges the weights so, and notes where
// each row reads: GRAIN rows at a time, as many channels of one position.
struct Entry { Distance read; Mask needs; };

template <int BL> struct Reads : Passes<BL> {
  typedef Passes<BL> Base;
  const Value* p;
  const Entry* table;
  Entry now;  // of the step, where it is in one entry
  Distance at[Base::LINES], channel;
  Mask inside[Base::LINES];
  SharedAddress to;
  PB_MEMBER Reads(const Window& w, const Value* base, const Entry* entries, int first, int lines,
                  Value* shared)
      : p(base), table(entries), now(entries[0]), channel((Distance)w.x_channel), to(pb_shared(shared)) {
#pragma unroll
    for (int d = 0; d < Base::LINES; ++d) {
      const int line = first + this->line(d) < lines ? first + this->line(d) : lines - 1;
      const Pixel pixel(w, (u32)line);
      at[d] = (Distance)pixel.read;
      inside[d] = pixel.inside;
    }
  }
  template <bool FULL> PB_MEMBER void load(int e, int stage, int left) const {
    if (this->idle()) return;
    const int d = e % Base::LINES, own = this->k(e / Base::LINES);
    const int k = FULL || own < left ? own : left - 1;
    const Entry entry = GRAIN > 1 ? now : table[k];
    const Distance offset = at[d] + entry.read + (GRAIN > 1 ? k * channel : 0);
    const bool reads = (inside[d] & entry.needs) == entry.needs;
    pb_copy<SIZE>(to + stage + this->place(e), p + offset, reads ? SIZE : 0);
  }
  PB_MEMBER void next() {
    table += BK / GRAIN;
    if (GRAIN > 1) now = *table;
  }
};

// Where outputs are. LAST: channels lie side by side and are the columns, else pixels are.
struct Outputs {
  Stored* p;
  const Window* w;
  int m, n;
  bool fours;  // of columns lie side by side, where they may be written at once
  template <int COUNT> PB_MEMBER bool wide() const { return fours && (u64)p % 16 == 0; }
  PB_MEMBER Stored* row(int i) const {
    return p + (LAST ? Pixel(*w, (u32)i).write : i * w->y_channel);
  }
  template <int COUNT> PB_MEMBER Columns<COUNT> columns(int j) const {
    Columns<COUNT> found;
    found.count = n - j;
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      found.at[i] = LAST ? j + i : Pixel(*w, (u32)(j + i < n ? j + i : n - 1)).write;
    return found;
  }
};

extern "C" __global__ void __launch_bounds__(NT, RESIDENT) NAME_forward(Stored* __restrict__ y,
    const Value* __restrict__ x, const Value* __restrict__ packed, const Entry* __restrict__ table,
    const Window w, const i64 tiles, const i64 width,
    const i64 fours) {
  PB_SHARED(Value, shared);
  const u32 group = blockIdx.x / (u32)tiles;
  const int pixels = (int)(w.batch * pb_pixels(w)), outs = (int)w.outs, depth = (int)(w.ins * pb_taps(w));
  const int m = LAST ? pixels : outs, n = LAST ? outs : pixels;
  const Place place = pb_place((int)(blockIdx.x % (u32)tiles), m, n);
  const Outputs to{y + group * w.y_group, &w, m, n, fours != 0};
  const Value* from = x + group * w.x_group;
  const Value* weights = packed + (i64)group * depth * width;
#if LAST
  Reads<BM> a(w, from, table, place.m, m, shared);
  Operand<BN, 0> b(weights, 1, width, place.n, (int)width, shared + STAGES * (Reads<BM>::BYTES / SIZE));
#else
  Operand<BM, 0> a(weights, 1, width, place.m, (int)width, shared);
  Reads<BN> b(w, from, table, place.n, n, shared + STAGES * (Operand<BM, 0>::BYTES / SIZE));
#endif
  pb_tile(a, b, to, shared, place, depth, 0, Company{});
}

// Row k of the weights of a group: the block of channels, the position, the channel in the block.
extern "C" __global__ void NAME_pack(Value* __restrict__ packed, Entry* __restrict__ table,
    const Value* __restrict__ weights, const Window w, const i64 width) {
  const u32 taps = pb_taps(w), ins = (u32)w.ins, depth = ins * taps, outs = (u32)w.outs;
  const i64 count = w.groups * depth * width;
  for (i64 i = pb_first(); i < count; i += pb_step()) {
    const u32 out = (u32)(i % width);
    const i64 rest = i / width, group = rest / depth;
    const u32 k = (u32)(rest % depth), block = (u32)w.block, start = k / (block * taps) * block;
    const u32 size = ins - start < block ? ins - start : block, in = k - start * taps;
    const Tap tap(w, in / size);
    const u32 channel = start + in % size;
    packed[i] = out < outs ? weights[group * w.w_group + out * w.w_out + channel * w.w_in + tap.place]
                           : Value(0);
    if (group || out || k % GRAIN) continue;
    const Entry entry{(Distance)(tap.read + channel * w.x_channel), tap.needs};
    table[k / GRAIN] = entry;
    if (k + GRAIN == depth) table[k / GRAIN + 1] = entry;  // which is read, and not used
  }
}
