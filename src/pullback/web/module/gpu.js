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
  const way = (name) => gpu.own[name] ? "own" : gpu.own.fma ? "fused" : "soft";
  parts.push(...kernel.exact.map((name) => exact[name][way(name)]));
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
