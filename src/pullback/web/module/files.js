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
