// A dense copy of a batch of operands, line by line, `width` products each with zeros after the last.
extern "C" __global__ void NAME_pack(Unit* __restrict__ out, const Given* __restrict__ x,
    const Nest<1> batch, const i64 lines, const i64 depth, const i64 line, const i64 step,
    const i64 width) {
  const i64 across = width / PER_PIECE, each = lines * across;
  for (i64 i = pb_first(); i < batch.size * each; i += pb_step()) {
    const i64 item = i / each, in = i - item * each;
    // neighbours read what lies side by side
    const i64 l = step == 1 ? in / across : in % lines, q = step == 1 ? in - l * across : in / lines;
    i64 at[1] = {};
    pb_locate(batch, item, at);
    const Words piece = pb_piece(x + at[0] + l * line, step, q * PER_PIECE, depth);
    *reinterpret_cast<Words*>(out + (item * lines + l) * width + q * PER_PIECE) = piece;
  }
}
