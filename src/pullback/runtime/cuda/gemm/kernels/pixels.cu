// What convolutions share: which bits say that a position of the kernel is inside of the image.
//
// A pixel has a bit for each position on each axis, set if that reads inside; a position of the whole
// kernel needs one bit of each axis. Positions beside the image are read as 0, and take part in sums.
PB_DEVICE u32 pb_pixels(const Window& w) {
  return (u32)(w.axes[0].places * w.axes[1].places * w.axes[2].places);
}
// The offset of what a pixel reads, without the kernel's, its bits, and the offset of what it writes.
struct Pixel {
  i64 read, write;
  Mask inside;
  PB_MEMBER Pixel(const Window& w, u32 i) : read(0), write(0), inside(0) {
    int bit = (int)(w.axes[0].taps + w.axes[1].taps + w.axes[2].taps);
#pragma unroll
    for (int d = 2; d >= 0; --d) {
      const Axis& a = w.axes[d];
      const u32 q = i / (u32)a.places, place = i - q * (u32)a.places;
      i = q;
      bit -= (int)a.taps;
      const int first = (int)(place * a.step + a.offset), size = (int)a.size;
      for (int t = 0; t < (int)a.taps; ++t) {
        const int at = first + t * (int)a.offset_step;
        if (at >= 0 && at < size) inside |= Mask(1) << (bit + t);
      }
      read += place * a.step * a.x;
      write += place * a.y;
    }
    read += i * w.x_batch;
    write += i * w.y_batch;
  }
};
// A position of the kernel: the offset of what it reads, the bits it needs, and its weight's place.
struct Tap {
  i64 read, place;
  Mask needs;
  PB_MEMBER Tap(const Window& w, u32 i) : read(0), place(0), needs(0) {
    int bit = (int)(w.axes[0].taps + w.axes[1].taps + w.axes[2].taps);
#pragma unroll
    for (int d = 2; d >= 0; --d) {
      const Axis& a = w.axes[d];
      const u32 q = i / (u32)a.taps, t = i - q * (u32)a.taps;
      i = q;
      bit -= (int)a.taps;
      needs |= Mask(1) << (bit + t);
      read += (a.offset + t * a.offset_step) * a.x;
      place += a.place + t * a.place_step;
    }
  }
};
PB_DEVICE u32 pb_taps(const Window& w) {
  return (u32)(w.axes[0].taps * w.axes[1].taps * w.axes[2].taps);
}
// Threads read along lines (FAST is 0) or along k (1): the lines and the k that a thread takes of a step.
template <int BL> struct Passes {
  static constexpr int LD = FAST ? BL + 4 : BL, BYTES = BK * LD * SIZE;
  static constexpr int ACROSS = FAST ? (BK < 8 ? BK : 8) : BL < NT ? BL : NT;
  static constexpr int ROWS = FAST || NT / ACROSS < BK ? NT / ACROSS : BK;
  static constexpr int LINES = BL / (FAST ? ROWS : ACROSS), DEEP = BK / (FAST ? ACROSS : ROWS);
  static constexpr int EACH = LINES * DEEP;
  static_assert(LINES > 0 && DEEP > 0, "a pass takes some lines of some k");
  int line0, k0;
  PB_MEMBER Passes() {
    const int fast = (int)threadIdx.x % ACROSS, slow = (int)threadIdx.x / ACROSS;
    line0 = FAST ? slow : fast;
    k0 = FAST ? fast : slow;
  }
  PB_MEMBER bool idle() const { return !FAST && NT / ACROSS > BK && k0 >= BK; }
  PB_MEMBER int line(int d) const { return line0 + d * (FAST ? ROWS : ACROSS); }
  PB_MEMBER int k(int j) const { return k0 + j * (FAST ? ACROSS : ROWS); }
  PB_MEMBER int place(int e) const { return (k(e / LINES) * LD + line(e % LINES)) * SIZE; }
};
