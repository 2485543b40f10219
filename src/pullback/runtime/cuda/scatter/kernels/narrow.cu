// What exact sums of narrow rows have in common. Definition: WIDTH (elements of a row).
typedef Pack<Value, WIDTH> Item;

// `COUNT` neighbouring items; they can start at any multiple of a value's size.
template <int COUNT> DEVICE Pack<Item, COUNT> items_at(const Value* value, i64 at, i64 n, bool aligned) {
  Pack<Item, COUNT> p = {};
  if (aligned && at + COUNT <= n) {
    constexpr int SIZE = COUNT * sizeof(Item) < 16 ? COUNT * sizeof(Item) : 16;
    typedef Pack<u32, SIZE / 4> Part;
    Part* to = reinterpret_cast<Part*>(&p);
#pragma unroll
    for (int k = 0; k < COUNT * (int)sizeof(Item) / SIZE; ++k)
      to[k] = reinterpret_cast<const Part*>(value + at * WIDTH)[k];
    return p;
  }
#pragma unroll
  for (int k = 0; k < COUNT; ++k)
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
