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
    dispatches: machine.commands.length,
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

// -- the GPU ---------------------------------------------------------------------------------------

function missing(message) {
  return Object.assign(new Error(message), { name: "NoWebGPU" });
}

/** The GPU that all functions of a page use. */
function sharedGpu() {
  const key = Symbol.for("pullback.webgpu");
  if (!globalThis[key]) {
    const opened = openGpu();
    globalThis[key] = opened;
    const forget = () => { if (globalThis[key] === opened) delete globalThis[key]; };
    opened.then((gpu) => gpu.device.lost.then(forget), forget);
  }
  return globalThis[key];
}

async function openGpu() {
  if (!globalThis.navigator?.gpu) {
    throw missing(globalThis.isSecureContext === false
      ? "WebGPU works on https pages and on localhost only."
      : "This browser has no WebGPU. Use a current Chrome, Edge, Firefox or Safari.");
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) {
    throw missing("This browser has WebGPU, but found no GPU that it may use.");
  }
  const requiredLimits = {};
  for (const name of ["maxBufferSize", "maxStorageBufferBindingSize"]) {
    requiredLimits[name] = adapter.limits[name];
  }
  return adopted(await adapter.requestDevice({ requiredLimits }));
}

/** A device, and which of its operations are correctly rounded: those are used as they are. */
async function adopted(device) {
  const gpu = { device, own: { fma: false, div: false, sqrt: false } };
  gpu.own = await probed(gpu);
  return gpu;
}

async function probed(gpu) {
  const count = 4096, given = new Float32Array(3 * count);
  let seed = 1;
  const next = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32;
  for (let k = 0; k < given.length; k += 3) {
    given[k] = (1 + next()) * 2 ** Math.floor(60 * next() - 30);
    given[k + 1] = (1 + next()) * 2 ** Math.floor(60 * next() - 30);
    given[k + 2] = -given[k] * given[k + 1] * [1, 1, 2 ** -20, 2 ** 20][Math.floor(4 * next())];
  }
  const { device } = gpu, { STORAGE, COPY_SRC, COPY_DST, MAP_READ, UNIFORM } = GPUBufferUsage;
  const make = (size, usage) => device.createBuffer({ size, usage });
  const buffers = [make(given.byteLength, STORAGE | COPY_SRC),
    make(given.byteLength, STORAGE | COPY_DST)];
  const records = make(RECORD_LINE, UNIFORM | COPY_DST);
  const staging = make(given.byteLength, MAP_READ | COPY_DST);
  device.queue.writeBuffer(buffers[1], 0, given);
  device.queue.writeBuffer(records, 0, new Uint32Array([0, 0, 0, count]));
  const { pipeline, layout } = await compiled(gpu, probe);
  const encoder = device.createCommandEncoder(), pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, grouped(device, layout, records, probe, buffers), [0]);
  pass.dispatchWorkgroups(count / 64);
  pass.end();
  encoder.copyBufferToBuffer(buffers[0], 0, staging, 0, given.byteLength);
  device.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ);
  const found = new Float32Array(staging.getMappedRange().slice(0));
  [...buffers, records, staging].forEach((b) => b.destroy());
  const own = { fma: true, div: true, sqrt: true };
  for (let k = 0; k < given.length; k += 3) {
    const [a, b, c] = given.subarray(k, k + 3);
    const product = a * b, total = product + c, back = total - product;
    const lost = (product - (total - back)) + (c - back);  // if not 0, `total` is rounded itself
    own.fma &&= lost !== 0 || found[k] === Math.fround(total);
    own.div &&= found[k + 1] === Math.fround(a / b);
    own.sqrt &&= found[k + 2] === Math.fround(Math.sqrt(a));
  }
  return own;
}

/** The pipeline of a kernel, and the layout of its bind groups. */
async function compiled(gpu, kernel, layouts = new Map()) {
  const { device } = gpu, visibility = GPUShaderStage.COMPUTE;
  const key = kernel.written.join();
  if (!layouts.has(key)) {
    const record = { binding: 0, visibility, buffer: { type: "uniform", hasDynamicOffset: true } };
    const arrays = kernel.written.map((written, k) => (
      { binding: k + 1, visibility, buffer: { type: written ? "storage" : "read-only-storage" } }));
    layouts.set(key, device.createBindGroupLayout({ entries: [record, ...arrays] }));
  }
  const layout = layouts.get(key);
  const parts = [kernel.head, ...kernel.uses.map((name) => functions[name]), kernel.body];
  parts.push(...kernel.exact.map((name) => exact[name][gpu.own[name] ? "own" : "soft"]));
  const module = device.createShaderModule({ code: parts.join("\n") });
  try {
    const pipeline = await device.createComputePipelineAsync({
      layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
      compute: { module, entryPoint: "main" },
    });
    return { pipeline, layout };
  } catch (error) {
    const { messages } = await module.getCompilationInfo();
    const why = messages.map((m) => `line ${m.lineNum}: ${m.message}`).join("; ");
    throw new Error(`${program.name}: the GPU's driver refuses a kernel: ${why || error.message}`);
  }
}

function grouped(device, layout, records, kernel, buffers) {
  const resources = [{ buffer: records, size: kernel.record }];
  for (const k of kernel.bindings) resources.push({ buffer: buffers[k] });
  const entries = resources.map((resource, binding) => ({ binding, resource }));
  return device.createBindGroup({ layout, entries });
}

// -- the program -----------------------------------------------------------------------------------

/** Every dispatch of the program in order, with the bytes where its arrays start. */
function* dispatches(steps, places) {
  for (const step of steps) {
    if (step.rounds === undefined) {
      yield [step, step.arrays.map(([slot, byte]) => places[slot] + byte)];
      continue;
    }
    const before = [...places];
    for (let k = 0; k < step.rounds; k++) {
      yield* dispatches(step.steps, places);
      for (const [slot, bytes] of step.moves) places[slot] += bytes;
      for (const [a, b] of step.carries) [places[a], places[b]] = [places[b], places[a]];
    }
    before.forEach((byte, slot) => { places[slot] = byte; });
  }
}

/** The buffers of the function, its compiled kernels, and the commands of a call. */
class Machine {
  static async create(gpu, tensors) {
    const made = new Machine();
    const { device } = gpu, { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
    Object.assign(made, { device, lost: null, results: [], staging: [] });
    device.lost.then((info) => { made.lost = info.message || info.reason; });
    const most = device.limits.maxStorageBufferBindingSize;
    if (Math.max(...program.bytes) > most) {
      throw new Error(`${program.name}: needs a buffer of ${Math.max(...program.bytes)} bytes,`
        + ` and this GPU has them of up to ${most}.`);
    }
    device.pushErrorScope("out-of-memory");
    const usage = STORAGE | COPY_SRC | COPY_DST;
    made.buffers = program.bytes.map((n) => device.createBuffer({ size: Math.max(n, 256), usage }));
    const layouts = new Map();
    const pipelines = await Promise.all(kernels.map((k) => compiled(gpu, k, layouts)));
    made.record(pipelines);
    const refused = await device.popErrorScope();
    if (refused) throw new Error(`${program.name}: no memory on the GPU: ${refused.message}`);
    for (const weight of program.weights) made.fill(weight, tensors(weight));
    return made;
  }

  /** Fix the commands; equal words of dispatches are stored once. */
  record(pipelines) {
    const known = new Map(), groups = new Map(), words = [];
    this.commands = [];
    for (const [step, places] of dispatches(program.steps, program.slots.map(([, byte]) => byte))) {
      const kernel = kernels[step.kernel];
      const own = [0, ...places.map((byte, k) => byte / kernel.units[k]), ...step.words];
      const key = `${kernel.record}:${own.join()}`;
      if (!known.has(key)) {
        known.set(key, 4 * words.length);
        while (own.length % (RECORD_LINE / 4) || 4 * own.length < kernel.record) own.push(0);
        for (const word of own) words.push(word);
      }
      const x = Math.min(step.groups, MOST_ACROSS), y = Math.ceil(step.groups / x);
      this.commands.push([step.kernel, known.get(key), x, y]);
    }
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    this.records = this.device.createBuffer({ size: Math.max(4 * words.length, 256), usage });
    this.device.queue.writeBuffer(this.records, 0, new Uint32Array(words));
    this.commands = this.commands.map(([number, offset, x, y]) => {
      const kernel = kernels[number], { pipeline, layout } = pipelines[number];
      const key = [kernel.record, kernel.bindings, kernel.written].join(";");
      if (!groups.has(key)) {
        groups.set(key, grouped(this.device, layout, this.records, kernel, this.buffers));
      }
      return { pipeline, group: groups.get(key), offset, x, y };
    });
  }

  /** Write the bytes of an array to its place. */
  fill(array, bytes) {
    if (bytes.byteLength % 4) {
      const whole = new Uint8Array(Math.ceil(bytes.byteLength / 4) * 4);
      whole.set(bytes);
      bytes = whole;
    }
    this.device.queue.writeBuffer(this.buffers[array.buffer], array.byte, bytes);
  }

  /** Submit a call, whose results go to a buffer. */
  submit(inputs, target) {
    if (this.lost) throw new Error(`${program.name}: the GPU was lost: ${this.lost}`);
    if (!this.buffers) throw new Error(`${program.name}: it was released.`);
    const given = [];
    gathered(program.inputs, inputs, "", given);
    const values = given.map((value, k) => checked(program.arguments[k], value));
    const encoder = this.device.createCommandEncoder();
    values.forEach((value, k) => {
      const array = program.arguments[k];
      if (!isGpuArray(value)) {
        this.fill(array, new Uint8Array(value.buffer, value.byteOffset, value.byteLength));
      } else {
        const { buffer } = value, { at, nbytes } = value.array;
        encoder.copyBufferToBuffer(buffer, at, this.buffers[INPUTS], array.byte, words(nbytes));
      }
    });
    const [faults, bytes] = [this.buffers[FAULTS], program.bytes[FAULTS]];
    if (bytes) encoder.clearBuffer(faults, 0, bytes);
    const pass = encoder.beginComputePass();
    let current;
    for (const { pipeline, group, offset, x, y } of this.commands) {
      if (pipeline !== current) pass.setPipeline(current = pipeline);
      pass.setBindGroup(0, group, [offset]);
      pass.dispatchWorkgroups(x, y);
    }
    pass.end();
    for (const { buffer, byte, at, nbytes } of program.results) {
      encoder.copyBufferToBuffer(this.buffers[buffer], byte, target, at, words(nbytes));
    }
    if (bytes) encoder.copyBufferToBuffer(faults, 0, target, program.end, bytes);
    this.device.queue.submit([encoder.finish()]);
  }

  /** A buffer for the results of a call. */
  taken(pool, usage) {
    const size = Math.max(program.end + program.bytes[FAULTS], 256);
    return pool.pop() ?? this.device.createBuffer({ size, usage: usage | GPUBufferUsage.COPY_DST });
  }

  run(inputs) {
    const buffer = this.taken(this.results, GPUBufferUsage.COPY_SRC);
    this.submit(inputs, buffer);
    const result = { buffer, users: 0 };
    return built(program.outputs, program.results.map((array) => new GpuArray(this, result, array)));
  }

  async call(inputs) {
    const staging = this.taken(this.staging, GPUBufferUsage.MAP_READ);
    this.submit(inputs, staging);
    const bytes = await this.mapped(staging);
    return built(program.outputs, program.results.map((array) => typed(array, bytes, array.at)));
  }

  /** The bytes of all results that are in a buffer. */
  async contents(buffer) {
    const staging = this.taken(this.staging, GPUBufferUsage.MAP_READ);
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, 0, staging, 0, program.end + program.bytes[FAULTS]);
    this.device.queue.submit([encoder.finish()]);
    return this.mapped(staging);
  }

  async mapped(staging) {
    await staging.mapAsync(GPUMapMode.READ);
    const bytes = staging.getMappedRange().slice(0);
    staging.unmap();
    this.staging.push(staging);
    raise(bytes);
    return bytes;
  }

  release() {
    for (const b of [...(this.buffers ?? []), ...this.results, ...this.staging]) b.destroy();
    this.records.destroy();
    Object.assign(this, { buffers: null, results: [], staging: [] });
  }
}

/** Raise the error that a kernel noted. */
function raise(bytes) {
  const faults = new Uint32Array(bytes, program.end);
  for (const codes of program.noted) {
    const code = codes.reduce((a, b) => (faults[4 * b] > faults[4 * a] ? b : a));
    const [turned, low, high] = faults.subarray(4 * code);
    if (!turned) continue;
    const { name, size, unsigned, shape, lead } = program.faults[code];
    let position = ~turned >>> 0;
    if (size === undefined) throw new RangeError(`${name}: failed at position ${position}.`);
    const value = BigInt(low) | (BigInt(high) << 32n);
    const index = [];
    for (const n of [...shape].reverse()) {
      index.unshift(position % n);
      position = Math.floor(position / n);
    }
    const where = index.slice(0, lead);
    throw new RangeError(`${name}: index ${unsigned ? value : BigInt.asIntN(64, value)} is out of`
      + ` range for an axis of size ${size}${where.length ? `, at position ${
        where.length === 1 ? where[0] : `(${where.join(", ")})`} of the indices` : ""}.`
      + ` Valid indices are ${-size} to ${size - 1}.`);
  }
}

// -- trees and arrays ------------------------------------------------------------------------------

class Leaf {
  constructor(number) { this.number = number; }
}

function at(number) { return new Leaf(number); }

/** The tree `spec` with values in place of its leaves. */
function built(spec, values) {
  if (spec instanceof Leaf) return values[spec.number];
  if (Array.isArray(spec)) return spec.map((child) => built(child, values));
  if (spec === null || typeof spec !== "object") return spec;
  return Object.fromEntries(Object.entries(spec).map(([k, child]) => [k, built(child, values)]));
}

/** Find the leaves of `spec` in what was given. */
function gathered(spec, given, path, found) {
  if (spec instanceof Leaf) {
    found[spec.number] = given;
    return;
  }
  if (spec === null || typeof spec !== "object") return;
  const keys = Object.keys(spec);
  const fits = given !== null && typeof given === "object" && !ArrayBuffer.isView(given)
    && !isGpuArray(given);
  if (!fits) {
    throw new TypeError(`${program.name}: ${path ? `"${path}"` : "its argument"} must be`
      + ` ${Array.isArray(spec) ? "a list" : "an object"} with ${keys.join(", ")}, got`
      + ` ${word(given)}.`);
  }
  const surplus = Object.keys(given).filter((key) => !(key in spec));
  if (surplus.length) {
    throw new TypeError(`${program.name}: it has no input "${path ? `${path}.` : ""}${surplus[0]}".`
      + ` There ${keys.length === 1 ? "is" : "are"} ${keys.join(", ")}.`);
  }
  for (const key of keys) gathered(spec[key], given[key], path ? `${path}.${key}` : key, found);
}

const sized = (array) => array.shape.reduce((a, b) => a * b, 1);
const length = (array) => sized(array) * (array.dtype === "complex64" ? 2 : 1);
const words = (nbytes) => Math.ceil(nbytes / 4) * 4;
const isGpuArray = (value) => value?.array !== undefined && typeof value.read === "function";
const described = (arrays) => arrays.map(({ dtype, shape }) => ({ dtype, shape }));

function word(value) {
  if (value === undefined) return "nothing";
  if (isGpuArray(value)) return `${value.dtype} of shape [${value.shape.join(", ")}]`;
  const kind = value === null ? "null" : value.constructor?.name ?? typeof value;
  return value?.length === undefined ? kind : `${kind} of ${value.length}`;
}

/** What was given for an argument, or an error. */
function checked(array, value) {
  const types = TYPES[array.dtype];
  if (array.shape.length === 0 && /number|bigint|boolean/.test(typeof value)) {
    if (types[0] === BigInt64Array || types[0] === BigUint64Array) return types[0].of(BigInt(value));
    if (!/16$/.test(array.dtype) || types[0] !== Uint16Array || array.dtype === "uint16") {
      return types[0].of(Number(value));
    }
  }
  const sameShape = !value?.shape || value.shape.join() === array.shape.join();
  if (isGpuArray(value)) {
    if (sameShape && value.dtype === array.dtype) return value;
  } else if (types.some((type) => value instanceof type)) {
    if (sameShape && value.length === length(array)) return value;
  }
  throw new TypeError(`${program.name}: "${array.path}" must be a ${types[0].name} of`
    + ` ${length(array)} (${array.dtype} of shape [${array.shape.join(", ")}]), got`
    + ` ${word(value)}${value?.shape && !isGpuArray(value) && !sameShape
      ? ` with shape [${value.shape.join(", ")}]` : ""}.`);
}

function typed(array, bytes, start) {
  return Object.assign(new TYPES[array.dtype][0](bytes, start, length(array)), { shape: array.shape });
}

// -- files -----------------------------------------------------------------------------------------

async function fetched(from, ending) {
  if (from instanceof ArrayBuffer) return from;
  let url = new URL(from, globalThis.document?.baseURI ?? import.meta.url);
  if (!url.pathname.endsWith(".safetensors")) {
    if (!url.pathname.endsWith("/")) url.pathname += "/";
    url = new URL(program.name + ending, url);
  }
  const response = await fetch(url);
  if (!response.ok) {
    throw new Error(`${program.name}: could not load ${url}: ${response.status}`
      + ` ${response.statusText}`);
  }
  return response.arrayBuffer();
}

/** A function that gives the bytes of an array of a safetensors file, by `file` and shape. */
async function tensorsOf(from, ending = ".safetensors") {
  const bytes = await fetched(from, ending);
  const size = Number(new DataView(bytes).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, size)));
  return ({ file, nbytes, tensor, shape }) => {
    const found = header[file];
    const [begin, end] = found?.data_offsets ?? [0, -1];
    const fits = end - begin === nbytes && (!tensor
      || (found.dtype === tensor && found.shape.join() === shape.join()));
    if (!fits) {
      throw new Error(`${program.name}: the file lacks "${file}" as ${tensor} of shape`
        + ` [${shape.join(", ")}].`);
    }
    return new Uint8Array(bytes, 8 + size + begin, nbytes);
  };
}

async function example(from) {
  const own = typeof from === "string" || from instanceof URL ? from : import.meta.url;
  const folder = new URL(".", new URL(own, globalThis.document?.baseURI ?? import.meta.url));
  const tensors = await tensorsOf(folder, ".example.safetensors");
  const all = (arrays, kind) => arrays.map((array) => {
    const bytes = tensors({ ...array, file: `${kind}.${array.path}` });
    return typed(array, bytes.slice().buffer, 0);
  });
  return {
    inputs: built(program.inputs, all(program.arguments, "inputs")),
    outputs: built(program.outputs, all(program.results, "outputs")),
  };
}

// -- what was compiled -----------------------------------------------------------------------------

