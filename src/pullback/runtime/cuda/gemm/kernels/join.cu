// Adds U chains from number c on to a sum, when it has read them all.
template <int U> PB_DEVICE Value pb_chains(Value sum, const Value* const at, const i64 count) {
  Value x[U];
#pragma unroll
  for (int u = 0; u < U; ++u) x[u] = at[u * count];
#pragma unroll
  for (int u = 0; u < U; ++u) sum = sum + x[u];
  return sum;
}
// What chains have made, added up in their order; `count` elements of each. A thread that has many
// of them to wait for asks for many at a time.
extern "C" __global__ void NAME_join(Stored* __restrict__ out, const Value* __restrict__ partials,
    const i64 chains, const i64 count) {
  for (i64 i = pb_first(); i < count; i += pb_step()) {
    const Value* const at = partials + i;
    Value sum = at[0];
    i64 c = 1;
    for (; c + 64 <= chains; c += 64) sum = pb_chains<64>(sum, at + c * count, count);
    for (; c + 8 <= chains; c += 8) sum = pb_chains<8>(sum, at + c * count, count);
    for (; c < chains; ++c) sum = sum + at[c * count];
    out[i] = pb_narrow(sum);
  }
}
// Complex numbers of the products of parts: each part of the left with each of the right.
extern "C" __global__ void NAME_parts(Value* __restrict__ out, const Value* __restrict__ parts,
    const i64 count) {
  for (i64 i = pb_first(); i < count; i += pb_step()) {
    const Value x[4] = {parts[i], parts[count + i], parts[2 * count + i], parts[3 * count + i]};
    reinterpret_cast<Pack<Value, 2>*>(out)[i] = Pack<Value, 2>{{x[0] - x[3], x[1] + x[2]}};
  }
}
// Both operands in the dtype of sums, each in the order of its nest.
extern "C" __global__ void NAME_widen(Value* __restrict__ left, const Stored* __restrict__ a,
    const Nest<1> of_a, Value* __restrict__ right, const Stored* __restrict__ b, const Nest<1> of_b) {
  for (i64 i = pb_first(); i < of_a.size + of_b.size; i += pb_step()) {
    i64 at[1] = {};
    if (i < of_a.size) {
      pb_locate(of_a, i, at);
      left[i] = pb_wide(a[at[0]]);
    } else {
      pb_locate(of_b, i - of_a.size, at);
      right[i - of_a.size] = pb_wide(b[at[0]]);
    }
  }
}
