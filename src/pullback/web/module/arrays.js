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
