// A pair of npy files as one safetensors body. The numbers stay where they are on disk: a header is
// made, and the browser sends the slices of the files after it.

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

// What the header of an npy file says: { file, dtype, shape, start, size }.
export async function readHeader(file) {
  const head = new Uint8Array(await file.slice(0, LONGEST_HEADER).arrayBuffer());
  const text = String.fromCharCode(...head);
  if (!text.startsWith(MAGIC) || head.length < 12) {
    throw new Unreadable(file, "It is not an npy file.", "Save it by np.save.");
  }
  const words = new DataView(head.buffer);
  const start = head[6] === 1 ? 10 + words.getUint16(8, true) : 12 + words.getUint32(8, true);
  if (start > LONGEST_HEADER) throw unlike(file);
  return layout(file, text.slice(head[6] === 1 ? 10 : 12, start), start);
}

function layout(file, header, start) {
  const described = /'descr':\s*'([^']*)'/.exec(header)?.[1];
  const order = /'fortran_order':\s*(True|False)/.exec(header)?.[1];
  const sizes = /'shape':\s*\(([\d\s,]*)\)/.exec(header)?.[1];
  if (order === undefined || sizes === undefined) throw unlike(file);
  if (described?.endsWith("O")) {
    throw new Unreadable(file, "It holds Python objects, which are never read.",
      "Save plain numbers: np.save(file, array.astype('float32')).");
  }
  if (!(described in DTYPES)) {
    throw new Unreadable(file, `Its numbers are of the type ${described ?? "of a table"}, which is not taken here.`,
      "Save it as little-endian numbers: np.save(file, array.astype('<f4')), labels as '<i8'.");
  }
  if (order === "True") {
    throw new Unreadable(file, "Its numbers are stored by columns (Fortran order).",
      "Save it by rows: np.save(file, np.ascontiguousarray(array)).");
  }
  const shape = sizes.split(",").filter((one) => one.trim()).map(Number);
  const size = shape.reduce((all, one) => all * one, 1) * Number(described.slice(2));
  if (start + size !== file.size) {
    throw new Unreadable(file, `Its header describes ${start + size} bytes, but it has ${file.size}.`,
      "Copy it again: it is not whole.");
  }
  return { file, dtype: DTYPES[described], shape, start, size, width: Number(described.slice(2)) };
}

function unlike(file) {
  return new Unreadable(file, "Its header cannot be read.", "Save it again by np.save.");
}

// Which of two headers is the labels': the one so named, or else the one list of whole numbers.
export function labelsFirst(pair) {
  const named = pair.filter((one) => /label|target/i.test(one.file.name));
  const whole = pair.filter((one) => /^[IU]/.test(one.dtype) && one.shape.length === 1);
  const found = named.length === 1 ? named[0] : whole.length === 1 ? whole[0] : null;
  if (found === null) {
    throw new Unreadable(pair[0].file, "Neither name says which of the two files are the labels.",
      "Call it labels.npy.");
  }
  return [found, pair.find((one) => one !== found)];
}

// The body: a safetensors header, then both files' numbers, the widest first so that all are aligned.
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
