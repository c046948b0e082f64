// Joins a pair of npy files into one safetensors body without reading the numbers: the body is a
// new header, followed by slices of the files.

const MAGIC = "\x93NUMPY";
const LONGEST_HEADER = 4096;
const DTYPES = {
  "<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8",
  "<u8": "U64", "<u4": "U32", "<u2": "U16", "|u1": "U8", "|b1": "BOOL",
};

export class Unreadable extends Error {
  constructor(file, sentence, advice) {
    super(sentence);
    this.file = file.name;
    this.advice = advice;
  }
}

// Parses the header of an npy file: { file, dtype, shape, start, size }.
export async function readHeader(file) {
  const head = new Uint8Array(await file.slice(0, LONGEST_HEADER).arrayBuffer());
  const text = String.fromCharCode(...head);
  if (!text.startsWith(MAGIC) || head.length < 12) {
    throw new Unreadable(file, "It is not an npy file.", "Save it with np.save.");
  }
  const words = new DataView(head.buffer);
  const start = head[6] === 1 ? 10 + words.getUint16(8, true) : 12 + words.getUint32(8, true);
  if (start > LONGEST_HEADER) throw badHeader(file);
  return layout(file, text.slice(head[6] === 1 ? 10 : 12, start), start);
}

function layout(file, header, start) {
  const described = /'descr':\s*'([^']*)'/.exec(header)?.[1];
  const order = /'fortran_order':\s*(True|False)/.exec(header)?.[1];
  const sizes = /'shape':\s*\(([\d\s,]*)\)/.exec(header)?.[1];
  if (order === undefined || sizes === undefined) throw badHeader(file);
  if (described?.endsWith("O")) {
    throw new Unreadable(file, "It contains Python objects, which are not accepted.",
      "Save plain numbers: np.save(file, array.astype('float32')).");
  }
  if (!(described in DTYPES)) {
    throw new Unreadable(file, `Its type, ${described ?? "a structured array"}, is not supported here.`,
      "Save it as little-endian numbers: np.save(file, array.astype('<f4')), labels as '<i8'.");
  }
  if (order === "True") {
    throw new Unreadable(file, "Its numbers are stored in Fortran order (by columns).",
      "Save it in C order: np.save(file, np.ascontiguousarray(array)).");
  }
  const shape = sizes.split(",").filter((one) => one.trim()).map(Number);
  const size = shape.reduce((all, one) => all * one, 1) * Number(described.slice(2));
  if (start + size !== file.size) {
    throw new Unreadable(file, `Its header describes ${start + size} bytes, but it has ${file.size}.`,
      "Copy the file again: it may be incomplete.");
  }
  return { file, dtype: DTYPES[described], shape, start, size, width: Number(described.slice(2)) };
}

function badHeader(file) {
  return new Unreadable(file, "Its header cannot be read.", "Save it again with np.save.");
}

// Returns both headers, labels first: the file named after them, otherwise the only 1-d array of integers.
export function labelsFirst(pair) {
  const named = pair.filter((one) => /label|target/i.test(one.file.name));
  const whole = pair.filter((one) => /^[IU]/.test(one.dtype) && one.shape.length === 1);
  const found = named.length === 1 ? named[0] : whole.length === 1 ? whole[0] : null;
  if (found === null) {
    throw new Unreadable(pair[0].file, "It is not clear which of the two files contains the labels.",
      "Rename that file to labels.npy.");
  }
  return [found, pair.find((one) => one !== found)];
}

// Returns the body: a safetensors header, then the numbers of both files, with the widest type first for alignment.
export function joined(kind, values, labels) {
  const parts = [[kind, values], ["labels", labels]].sort((a, b) => b[1].width - a[1].width);
  const header = {};
  let end = 0;
  for (const [name, one] of parts) {
    header[name] = { dtype: one.dtype, shape: one.shape, data_offsets: [end, end + one.size] };
    end += one.size;
  }
  const text = JSON.stringify(header);
  const padded = text + " ".repeat((8 - (text.length % 8)) % 8);
  const length = new DataView(new ArrayBuffer(8));
  length.setBigUint64(0, BigInt(padded.length), true);
  return new Blob([length, padded, ...parts.map(([, one]) => one.file.slice(one.start))]);
}
