// Rows times matrices, of which every element is read once. A thread block takes one chain of LINES
// columns: all of its elements are on their way to shared memory at once, then a warp adds them up.
// Elements are read as Stored and added up as Value. ALONG: products lie side by side, else columns
// do, or nothing does; COPY bytes are copied at a time, or elements one by one where that is 0.
struct Line { i64 n, k, chains, a_k, b_k, b_line; };  // lines are columns of b
constexpr int LINES = 32, PER = COPY ? COPY / (int)sizeof(Stored) : 1;
constexpr int WIDE = 16 / sizeof(Stored);  // elements that a thread reads of a line at a time
constexpr int LD = ALONG ? CHAIN + WIDE : LINES;  // no bank conflicts

extern "C" __global__ void __launch_bounds__(THREADS) NAME(Stored* __restrict__ out,
    Value* __restrict__ partials, const Stored* __restrict__ a, const Stored* __restrict__ b,
    const Nest<2> batch, const Line s) {
  PB_SHARED(Stored, tile);
  __shared__ Value row[CHAIN];
  const u32 groups = (u32)((s.n + LINES - 1) / LINES), chains = (u32)s.chains;
  const u32 group = blockIdx.x % groups, rest = blockIdx.x / groups, chain = rest % chains;
  const u32 item = rest / chains;
  i64 at[2] = {};
  pb_locate(batch, (i64)item, at);
  const i64 first = chain * (i64)CHAIN, left = s.k - first, start = group * (i64)LINES;
  const int count = (int)(left < CHAIN ? left : CHAIN);
  const int lines = (int)(s.n - start < LINES ? s.n - start : LINES);
  a += at[0] + first * s.a_k;
  b += at[1] + first * s.b_k + start * s.b_line;
  constexpr int ACROSS = (ALONG ? CHAIN : LINES) / PER, ALL = LINES * CHAIN / PER;
  const int within = ALONG ? count : lines, others = ALONG ? lines : count;
#pragma unroll 8
  for (int i = threadIdx.x; i < ALL; i += THREADS) {
    const int slow = i / ACROSS, fast = i % ACROSS * PER;
    if (slow >= others || fast >= within) continue;
    const Stored* from = b + (ALONG ? slow * s.b_line + fast * s.b_k : slow * s.b_k + fast * s.b_line);
    Stored* to = tile + slow * LD + fast;
    if constexpr (COPY > 0) {
      const int given = (within - fast) * (int)sizeof(Stored);
      pb_copy<COPY>(pb_shared(to), from, given < COPY ? given : COPY);
    } else {
      *to = *from;
    }
  }
  pb_commit();
  for (int k = threadIdx.x; k < count; k += THREADS) row[k] = pb_wide(a[k * s.a_k]);
  pb_wait<0>();
  __syncthreads();
  const int line = threadIdx.x;
  if (line >= lines) return;
  Value sum = 0;
  int k = 0;
  for (; k + WIDE <= count; k += WIDE) {
    Pack<Stored, WIDE> x;
    if (ALONG) x = *reinterpret_cast<const Pack<Stored, WIDE>*>(tile + line * LD + k);
#pragma unroll
    for (int u = 0; u < WIDE; ++u)
      sum = pb_fma(row[k + u], pb_wide(ALONG ? x.v[u] : tile[(k + u) * LD + line]), sum);
  }
  for (; k < count; ++k) sum = pb_fma(row[k], pb_wide(tile[ALONG ? line * LD + k : k * LD + line]), sum);
  if (s.chains == 1) out[item * s.n + start + line] = pb_narrow(sum);
  else partials[(chain * batch.size + item) * s.n + start + line] = sum;
}
