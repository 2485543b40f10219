// What chains have made, added up in their order; `count` elements of each.
extern "C" __global__ void NAME_join(Stored* __restrict__ out, const Value* __restrict__ partials,
    const i64 chains, const i64 count) {
  for (i64 i = pb_first(); i < count; i += pb_step()) {
    Value sum = partials[i];
    i64 c = 1;
    for (; c + 8 <= chains; c += 8) {
      Value x[8];
#pragma unroll
      for (int u = 0; u < 8; ++u) x[u] = partials[(c + u) * count + i];
#pragma unroll
      for (int u = 0; u < 8; ++u) sum = sum + x[u];
    }
    for (; c < chains; ++c) sum = sum + partials[c * count + i];
    out[i] = pb_narrow(sum);
  }
}
// The same for many chains of few elements: a thread block has 32 of these, and reads as many chains
// at a time as 32 KB of shared memory take, from where one warp adds them up.
extern "C" __global__ void __launch_bounds__(512) NAME_join_many(Stored* __restrict__ out,
    const Value* __restrict__ partials, const i64 chains, const i64 count) {
  constexpr int MANY = 1024 / (int)sizeof(Value), APART = 512 / 32;
  __shared__ Value x[MANY][32];
  const int e = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32;
  const i64 i = blockIdx.x * (i64)32 + e;
  Value sum = Value(0);
  for (i64 begin = 0; begin < chains; begin += MANY) {
    const int n = chains - begin < MANY ? (int)(chains - begin) : MANY;
    if (i < count) {
      const Value* const at = partials + begin * count + i;
#pragma unroll
      for (int k = 0; k < MANY; k += APART)
        if (k + first < n) x[k + first][e] = at[(k + first) * count];
    }
    __syncthreads();
    if (first == 0 && i < count) {
      int k = 0;
      if (begin == 0) sum = x[k++][e];
#pragma unroll 16
      for (; k < n; ++k) sum = sum + x[k][e];
    }
    __syncthreads();
  }
  if (first == 0 && i < count) out[i] = pb_narrow(sum);
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
