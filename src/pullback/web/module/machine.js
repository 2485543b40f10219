// -- the program -----------------------------------------------------------------------------------

/** Every dispatch of the program in order, as a step and the bytes where its arrays start. Where
 * a flag decides, its buffer and byte instead: `next` then wants to know whether it is set. */
function* dispatches(steps, places) {
  for (const step of steps) {
    const { flag, test, carries } = step;
    const set = () => ({ buffer: program.slots[flag][0], byte: places[flag] });
    if (step.kernel !== undefined) {
      yield { step, starts: step.arrays.map(([slot, byte]) => places[slot] + byte) };
    } else if (step.then) {
      yield* dispatches((yield set()) ? step.then : step.otherwise, places);
    } else {
      const before = [...places];
      let rounds = 0;
      for (; test || rounds < step.rounds; rounds++) {
        if (test) {
          yield* dispatches(test, places);
          if (!(yield set())) break;
        }
        yield* dispatches(step.steps, places);
        for (const [slot, bytes] of step.moves) places[slot] += bytes;
        for (const [a, b] of carries) [places[a], places[b]] = [places[b], places[a]];
      }
      before.forEach((byte, slot) => { places[slot] = byte; });
      if (rounds % 2) yield* dispatches(step.odd, places);
    }
  }
}

/** The words of dispatches in a buffer of the GPU, where equal ones are stored once. */
class Records {
  constructor(device, pipelines, buffers) {
    Object.assign(this, { device, pipelines, buffers, known: new Map(), groups: [], words: [] });
    this.written = 0;
  }

  /** What a step does with arrays that start at these bytes. */
  command(step, starts) {
    const kernel = kernels[step.kernel];
    const own = [0, ...starts.map((byte, k) => byte / kernel.units[k]), ...step.words];
    const key = `${kernel.record}:${own.join()}`;
    if (!this.known.has(key)) {
      this.known.set(key, 4 * this.words.length);
      while (own.length % (RECORD_LINE / 4) || 4 * own.length < kernel.record) own.push(0);
      for (const word of own) this.words.push(word);
    }
    const x = Math.min(step.groups, MOST_ACROSS), y = Math.ceil(step.groups / x);
    return { kernel: step.kernel, offset: this.known.get(key), x, y };
  }

  /** Let the GPU have the words of all commands so far. */
  flush() {
    const size = 4 * this.words.length;
    if (this.written === size) return;
    if (!this.buffer || this.buffer.size < size) {
      const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
      this.buffer = this.device.createBuffer({ size: this.written ? 2 * size : size, usage });
      [this.groups, this.written] = [[], 0];
    }
    const fresh = new Uint32Array(this.words.slice(this.written / 4));
    this.device.queue.writeBuffer(this.buffer, this.written, fresh);
    this.written = size;
  }

  encode(encoder, commands) {
    this.flush();
    const pass = encoder.beginComputePass();
    let current;
    for (const { kernel, offset, x, y } of commands) {
      const { pipeline, layout } = this.pipelines[kernel];
      this.groups[kernel] ??= grouped(this.device, layout, this.buffer, kernels[kernel], this.buffers);
      if (pipeline !== current) pass.setPipeline(current = pipeline);
      pass.setBindGroup(0, this.groups[kernel], [offset]);
      pass.dispatchWorkgroups(x, y);
    }
    pass.end();
  }
}

/** The buffers of the function, its compiled kernels, and what a call does. */
class Machine {
  static async create(gpu, tensors) {
    const made = new Machine();
    const { device } = gpu, { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
    Object.assign(made, { device, lost: null, results: [], staging: [], turn: null });
    device.lost.then((info) => { made.lost = info.message || info.reason; });
    const most = device.limits.maxStorageBufferBindingSize;
    if (Math.max(...program.bytes) > most) {
      throw new Error(`${program.name}: needs a buffer of ${Math.max(...program.bytes)} bytes,`
        + ` and this GPU has them of up to ${most}.`);
    }
    device.pushErrorScope("out-of-memory");
    const usage = STORAGE | COPY_SRC | COPY_DST;
    made.buffers = program.bytes.map((n) => device.createBuffer({ size: Math.max(n, 256), usage }));
    const refused = await device.popErrorScope();
    if (refused) throw new Error(`${program.name}: no memory on the GPU: ${refused.message}`);
    const layouts = new Map();
    const pipelines = await Promise.all(kernels.map((k) => compiled(gpu, k, layouts)));
    made.records = new Records(device, pipelines, made.buffers);
    if (!program.waits) {
      made.commands = Array.from(dispatches(program.steps, places()),
        ({ step, starts }) => made.records.command(step, starts));
    }
    for (const weight of program.weights) made.fill(weight, tensors(weight));
    for (const constant of program.constants) made.fill(constant, Uint32Array.from(constant.words));
    return made;
  }

  /** Write the bytes of an array to its place. */
  fill(array, bytes) {
    if (bytes.byteLength % 4) {
      const whole = new Uint8Array(words(bytes.byteLength));
      whole.set(bytes);
      bytes = whole;
    }
    this.device.queue.writeBuffer(this.buffers[array.buffer], array.byte, bytes);
  }

  /** What was given, or an error. */
  checked(inputs) {
    if (this.lost) throw new Error(`${program.name}: the GPU was lost: ${this.lost}`);
    if (!this.buffers) throw new Error(`${program.name}: it was released.`);
    const given = [];
    gathered(program.inputs, inputs, "", given);
    return program.arguments.map((array, k) => checked(array, given[k]));
  }

  /** Begin a call: bring the inputs to their places. */
  begin(values) {
    const encoder = this.device.createCommandEncoder();
    values.forEach((value, k) => {
      const array = program.arguments[k];
      if (isGpuArray(value)) {
        const { buffer } = value, { at, nbytes } = value.array;
        encoder.copyBufferToBuffer(buffer, at, this.buffers[INPUTS], array.byte, words(nbytes));
      } else {
        this.fill(array, new Uint8Array(value.buffer, value.byteOffset, value.byteLength));
      }
    });
    if (program.bytes[FAULTS]) encoder.clearBuffer(this.buffers[FAULTS], 0, program.bytes[FAULTS]);
    return encoder;
  }

  /** End a call: bring the results to a buffer of their own. */
  end(encoder, target) {
    for (const { buffer, byte, at, nbytes } of program.results) {
      encoder.copyBufferToBuffer(this.buffers[buffer], byte, target, at, words(nbytes));
    }
    const faults = program.bytes[FAULTS];
    if (faults) encoder.copyBufferToBuffer(this.buffers[FAULTS], 0, target, program.end, faults);
    this.device.queue.submit([encoder.finish()]);
    return target;
  }

  /** A call in one submission. */
  submitted(values, pool, usage) {
    const encoder = this.begin(values);
    this.records.encode(encoder, this.commands);
    return this.end(encoder, this.taken(pool, usage));
  }

  /** A call that waits wherever a flag decides, when earlier ones are done. */
  async played(values, pool, usage) {
    const before = this.turn;
    let free;
    this.turn = new Promise((done) => { free = done; });
    try {
      await before;
      let encoder = this.begin(values), commands = [], set;
      const walk = dispatches(program.steps, places());
      for (let { value, done } = walk.next(); !done; { value, done } = walk.next(set)) {
        if (value.step) {
          commands.push(this.records.command(value.step, value.starts));
          continue;
        }
        this.records.encode(encoder, commands);
        set = await this.flag(encoder, value);
        [encoder, commands] = [this.device.createCommandEncoder(), []];
      }
      this.records.encode(encoder, commands);
      return this.end(encoder, this.taken(pool, usage));
    } finally {
      free();
    }
  }

  /** Submit, and look at a byte. */
  async flag(encoder, { buffer, byte }) {
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const staging = this.flags ??= this.device.createBuffer({ size: 4, usage });
    encoder.copyBufferToBuffer(this.buffers[buffer], byte - byte % 4, staging, 0, 4);
    this.device.queue.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    const set = new Uint8Array(staging.getMappedRange())[byte % 4] !== 0;
    staging.unmap();
    return set;
  }

  /** A buffer for the results of a call. */
  taken(pool, usage) {
    const size = Math.max(program.end + program.bytes[FAULTS], 256);
    return pool.pop() ?? this.device.createBuffer({ size, usage: usage | GPUBufferUsage.COPY_DST });
  }

  run(inputs) {
    const values = this.checked(inputs);
    const arrays = (buffer) => {
      const result = { buffer, users: 0 };
      return built(program.outputs, program.results.map((array) => new GpuArray(this, result, array)));
    };
    const pool = this.results, usage = GPUBufferUsage.COPY_SRC;
    if (program.waits) return this.played(values, pool, usage).then(arrays);
    return arrays(this.submitted(values, pool, usage));
  }

  async call(inputs) {
    const values = this.checked(inputs), usage = GPUBufferUsage.MAP_READ;
    const submit = program.waits ? "played" : "submitted";
    const bytes = await this.mapped(await this[submit](values, this.staging, usage));
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
    const more = [this.records.buffer, this.flags].filter(Boolean);
    for (const b of [...(this.buffers ?? []), ...this.results, ...this.staging, ...more]) b.destroy();
    Object.assign(this, { buffers: null, results: [], staging: [] });
  }
}

/** The bytes at which slots start. */
function places() {
  return program.slots.map(([, byte]) => byte);
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
