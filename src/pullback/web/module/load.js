const INPUTS = 0, WEIGHTS = 1, WORK = 2, FAULTS = 3;  // the buffers in which all arrays are
const RECORD_LINE = 256;  // bytes at a multiple of which the words of a dispatch start
const MOST_ACROSS = 65535;  // workgroups along one axis of a grid

/** What typed arrays hold each dtype; results have the first one. Half floats without a type of
 * their own are bits, bools are 0 or 1, complex numbers are pairs. */
const TYPES = {
  float32: [Float32Array], complex64: [Float32Array],
  float16: [globalThis.Float16Array, Uint16Array].filter(Boolean), bfloat16: [Uint16Array],
  int8: [Int8Array], int16: [Int16Array], int32: [Int32Array], int64: [BigInt64Array],
  uint8: [Uint8Array, Uint8ClampedArray], uint16: [Uint16Array], uint32: [Uint32Array],
  uint64: [BigUint64Array], bool: [Uint8Array, Uint8ClampedArray],
};

/**
 * The function, ready to be called: `const out = await f(inputs)`.
 *
 * Its weights, if it has any, come from `from`: a folder (by default that of this file), a
 * .safetensors file, or the bytes of one. All functions of a page share a GPU unless they are
 * given a `device`. The bits are Python's; `exact: false` takes the GPU's own quotients, roots and
 * fused products where they are not correctly rounded, which is faster there.
 *
 *   f(inputs)         a promise of the results, as typed arrays that have a `shape`
 *   f.run(inputs)     the results as GpuArrays, at once: inputs of the next call, say
 *                     (a promise of them where a loop or a choice waits for computed values)
 *   f.example()       a promise of { inputs, outputs } that were exported with the function
 *   f.inputs, f.outputs    dtype and shape of every array
 *   f.release()       gives the memory back
 */
export async function load(from = new URL(".", import.meta.url), { device, exact = true } = {}) {
  const shared = await (device ? adopted(device) : sharedGpu());
  const gpu = exact ? shared : { ...shared, own: { fma: true, div: true, sqrt: true } };
  const machine = await Machine.create(gpu, program.weights.length ? await tensorsOf(from) : null);
  const call = async (inputs = {}) => machine.call(inputs);
  return Object.assign(call, {
    run: (inputs = {}) => machine.run(inputs),
    example: () => example(from),
    inputs: built(program.inputs, described(program.arguments)),
    outputs: built(program.outputs, described(program.results)),
    dispatches: machine.commands?.length,
    device: gpu.device,
    release: () => machine.release(),
  });
}

/** Release every GpuArray in a tree of them. */
export function release(tree) {
  if (tree instanceof GpuArray || typeof tree?.release === "function") tree.release();
  else if (tree && typeof tree === "object") Object.values(tree).forEach(release);
}

/** A result that stays on the GPU until it is released. */
export class GpuArray {
  constructor(owner, result, array) {
    Object.assign(this, { owner, result, array, dtype: array.dtype, shape: array.shape });
    result.users += 1;
  }

  /** A promise of its contents as a typed array. */
  async read() {
    const bytes = await this.owner.contents(this.buffer);
    return typed(this.array, bytes, this.array.at);
  }

  /** Its memory; an error if that was given back. */
  get buffer() {
    if (!this.result) throw new Error(`${program.name}: a result is used after its release.`);
    return this.result.buffer;
  }

  release() {
    const result = this.result;
    this.result = null;
    if (result && (result.users -= 1) === 0) this.owner.results.push(result.buffer);
  }
}
