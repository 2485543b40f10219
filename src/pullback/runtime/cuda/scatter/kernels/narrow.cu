// What exact sums of narrow rows have in common. Definitions: WIDTH (elements of a row), PLACES (that an
// item has for them, a power of two).
typedef Pack<Value, PLACES> Item;

// Two neighbouring rows, from an even one on; they can start at any multiple of a value's size.
DEVICE Pack<Item, 2> two_items(const Value* value, i64 at, i64 n, bool aligned) {
  Pack<Item, 2> p = {};
  if (aligned && at + 2 <= n) {
    constexpr int BYTES = 2 * WIDTH * sizeof(Value);
    constexpr int SIZE = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : 4;
    typedef Pack<u32, SIZE / 4> Part;
    struct alignas(16) { Part part[BYTES / SIZE]; } own;
#pragma unroll
    for (int k = 0; k < BYTES / SIZE; ++k)
      own.part[k] = reinterpret_cast<const Part*>(value + at * WIDTH)[k];
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k)
      p.at[k / WIDTH].at[k % WIDTH] = reinterpret_cast<const Value*>(&own)[k];
    return p;
  }
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int c = 0; c < WIDTH; ++c)
      if (at + k < n) p.at[k].at[c] = value[(at + k) * WIDTH + c];
  return p;
}

// The first `count` elements, and up to seven more.
template <typename T> DEVICE void write_out(T* to, const T* from, u32 count) {
  const u32 words = (count * (u32)sizeof(T) + 15) / 16;
  for (u32 k = threadIdx.x; k < words; k += blockDim.x)
    reinterpret_cast<Pack<u32, 4>*>(to)[k] = reinterpret_cast<const Pack<u32, 4>*>(from)[k];
}

DEVICE void see(Range& range, const Item& item) {
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) range.see(item.at[c]);
}
