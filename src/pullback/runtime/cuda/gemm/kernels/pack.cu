// A dense copy of a batch of operands, line by line, `width` products each with zeros after the last.
// A thread block moves 64 lines of 8 pieces through shared memory: it reads along what lies side by
// side, and writes 128 bytes of each line at once.
extern "C" __global__ void NAME_pack(Unit* __restrict__ out, const Given* __restrict__ x,
    const Nest<1> batch, const i64 lines, const i64 depth, const i64 line, const i64 step,
    const i64 width) {
  constexpr int LINES = 64;
  __shared__ Words tile[LINES][PIECES + 1];
  const i64 across = (width / PER_PIECE + PIECES - 1) / PIECES, down = (lines + LINES - 1) / LINES;
  for (i64 index = blockIdx.x; index < batch.size * down * across; index += gridDim.x) {
    const i64 item = index / (down * across), in = index % (down * across);
    const i64 first = in / across * LINES, start = in % across * PIECES;
    i64 at[1] = {};
    pb_locate(batch, item, at);
    for (int i = threadIdx.x; i < LINES * PIECES; i += blockDim.x) {
      const int l = step == 1 ? i / PIECES : i % LINES, q = step == 1 ? i % PIECES : i / LINES;
      if (first + l < lines)
        tile[l][q] = pb_piece(x + at[0] + (first + l) * line, step, (start + q) * PER_PIECE, depth);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < LINES * PIECES; i += blockDim.x) {
      const i64 l = first + i / PIECES, q = start + i % PIECES;
      if (l < lines && q * PER_PIECE < width)
        *reinterpret_cast<Words*>(out + (item * lines + l) * width + q * PER_PIECE) =
            tile[i / PIECES][i % PIECES];
    }
    __syncthreads();
  }
}
