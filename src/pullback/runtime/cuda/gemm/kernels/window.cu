// An axis: outputs, inputs, the inputs from one output to the next; positions of the kernel, where
// the first reads, the next, the place of its weight, and of the next; strides; a tile's outputs.
struct Axis {
  long long places, size, step, taps, offset, offset_step, place, place_step, x, y, tile, dilation;
};
struct Window {
  long long batch, groups, outs, ins, block, apart, last;
  long long x_batch, x_group, x_channel, x_out, y_batch, y_group, y_channel, w_group, w_out, w_in;
  Axis axes[3];
};
struct Chunks { long long chunks, chunk, tiles, size; };
