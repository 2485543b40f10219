// What both halves of exact sums in buckets know. Definition: WIDTH (elements of a row).
typedef Pack<Value, WIDTH> Item;

// A share of a bucket: every `parts`-th tile. Where there are several, they have tables from `table` on.
struct Share { u32 bucket, part, parts, table; };

// Zeros for `count` destinations from `first` on: for limbs past the second, and what is not finite.
DEVICE void clear_deep(u64* deep, u32* flags, i64 first, i64 count, i64 destinations, int limbs,
                       bool special) {
  const i64 end = first + count < destinations ? first + count : destinations;
  if (limbs <= 2 && !special) return;
  for (i64 k = first + threadIdx.x; k < end; k += blockDim.x) {
    for (int j = 2; j < limbs; ++j) deep[(j - 2) * destinations + k] = 0;
    flags[k] = 0;
  }
}
