// Exact sums in device memory, by integer atomics, whose order does not matter: for any number of
// destinations, and any width.

KERNEL exact_range(const Value* __restrict__ value, const Value* __restrict__ x, Slot* slot,
                   i64 values, i64 destinations) {
  wait_for_others();
  Range range;
  const i64 step = (i64)gridDim.x * blockDim.x, first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  constexpr int N = 16 / sizeof(Value);
  const i64 whole = (u64)value % 16 ? 0 : values / N;
#pragma unroll 4
  for (i64 i = first; i < whole; i += step) {
    const Pack<Value, N> p = reinterpret_cast<const Pack<Value, N>*>(value)[i];
#pragma unroll
    for (int k = 0; k < N; ++k) range.see(p.at[k]);
  }
  for (i64 i = whole * N + first; i < values; i += step) range.see(value[i]);
#pragma unroll 4
  for (i64 i = first; i < destinations; i += step) range.see(x[i]);
  range.tell(slot);
}

KERNEL exact_clear(u64* limbs, u32* flags, const Slot* slot, i64 bits, i64 destinations) {
  wait_for_others();
  const i64 size = destinations * layout_of(slot, (int)bits).limbs;
  const i64 step = (i64)gridDim.x * blockDim.x, first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  for (i64 i = first; i < size; i += step) limbs[i] = 0;
  if (slot->special)
    for (i64 i = first; i < destinations; i += step) flags[i] = 0;
}

DEVICE void add_to(u64* limbs, u32* flags, const Layout& l, i64 destinations, i64 d, Value v) {
  const u32 bits = single(v);
  if ((bits & 0x7fffffffu) >= 0x7f800000u) {
    atomicOr(flags + d, special_of(bits));
    return;
  }
  int at;
  i64 first, second;
  cut(bits, l, at, first, second);
  if (first) atomicAdd(limbs + at * destinations + d, (u64)first);
  if (second) atomicAdd(limbs + (at + 1) * destinations + d, (u64)second);
}

KERNEL exact_add(const Index* __restrict__ index, const Value* __restrict__ value, u64* limbs,
                 u32* flags, Slot* slot, i64 bits, i64 n, i64 rows, i64 width) {
  wait_for_others();
  const Layout l = layout_of(slot, (int)bits);
  const i64 step = (i64)gridDim.x * blockDim.x, size = n * width;
#pragma unroll 4
  for (i64 e = (i64)blockIdx.x * blockDim.x + threadIdx.x; e < size; e += step) {
    const i64 i = width == 1 ? e : e / width;
    i64 row;
    if (locate(index[i], rows, row))
      add_to(limbs, flags, l, rows * width, row * width + (e - i * width), value[e]);
    else
      report(slot, i);
  }
}

KERNEL exact_finish(const u64* limbs, const u32* flags, Value* out, const Slot* slot, i64 bits,
                    i64 destinations) {
  wait_for_others();
  const Layout l = layout_of(slot, (int)bits);
  const i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 d = (i64)blockIdx.x * blockDim.x + threadIdx.x; d < destinations; d += step) {
    const u32 special = slot->special ? flags[d] : 0;
    if (l.limbs <= 2) {
      i64 limb[2] = {(i64)limbs[d], l.limbs > 1 ? (i64)limbs[destinations + d] : 0};
      out[d] = settle(out[d], limb, l, special);
    } else {
      i64 limb[MAX_LIMBS];
      for (int j = 0; j < MAX_LIMBS; ++j)
        limb[j] = j < l.limbs ? (i64)limbs[j * destinations + d] : 0;
      out[d] = settle(out[d], limb, l, special);
    }
  }
}
