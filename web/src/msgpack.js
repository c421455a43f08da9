// The part of msgpack that the session protocol uses: arrays, integers, floats, strings, booleans, nil.
// Integers above 2^53 are BigInts. Widths are the smallest that fit, as msgspec writes them.
import { protocolError } from "./errors.js";

const DEPTH = 8;
const SAFE = BigInt(Number.MAX_SAFE_INTEGER);

/** Bytes of a value. A BigInt is an integer; a number with a fraction is a float64. */
export function encode(value) {
  const bytes = [];
  put(bytes, value);
  return Uint8Array.from(bytes);
}

function put(bytes, value) {
  if (value === null || value === undefined) bytes.push(0xc0);
  else if (typeof value === "boolean") bytes.push(value ? 0xc3 : 0xc2);
  else if (typeof value === "bigint" || Number.isInteger(value)) putCount(bytes, BigInt(value));
  else if (typeof value === "number") putBig(bytes, 0xcb, 8, (view) => view.setFloat64(0, value));
  else if (typeof value === "string") putText(bytes, new TextEncoder().encode(value));
  else if (Array.isArray(value)) {
    if (value.length < 16) bytes.push(0x90 | value.length);
    else if (value.length < 1 << 16) bytes.push(0xdc, value.length >> 8, value.length & 255);
    else putBig(bytes, 0xdd, 4, (view) => view.setUint32(0, value.length));
    for (const one of value) put(bytes, one);
  } else throw new TypeError(`no frame holds ${typeof value}`);
}

function putCount(bytes, count) {
  if (count < 0n) throw new RangeError("no frame holds a negative number");
  if (count < 128n) bytes.push(Number(count));
  else if (count < 1n << 8n) bytes.push(0xcc, Number(count));
  else if (count < 1n << 16n) bytes.push(0xcd, Number(count) >> 8, Number(count) & 255);
  else if (count < 1n << 32n) putBig(bytes, 0xce, 4, (view) => view.setUint32(0, Number(count)));
  else putBig(bytes, 0xcf, 8, (view) => view.setBigUint64(0, count));
}

function putText(bytes, text) {
  if (text.length < 32) bytes.push(0xa0 | text.length);
  else if (text.length < 1 << 8) bytes.push(0xd9, text.length);
  else if (text.length < 1 << 16) bytes.push(0xda, text.length >> 8, text.length & 255);
  else throw new RangeError("no frame holds so long a text");
  bytes.push(...text);
}

function putBig(bytes, kind, width, write) {
  const view = new DataView(new ArrayBuffer(width));
  write(view);
  bytes.push(kind, ...new Uint8Array(view.buffer));
}

/** The value of a frame. Throws a `CloudError` (protocol) for anything that is not one. */
export function decode(data) {
  const reader = new Reader(data);
  try {
    const value = reader.value(0);
    if (reader.at !== data.byteLength) throw new RangeError("more bytes than a frame");
    return value;
  } catch (error) {
    throw protocolError(`A frame is not of this protocol (${error.message}).`);
  }
}

class Reader {
  constructor(data) {
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.at = 0;
  }

  /** A DataView's own bounds check ends a frame that is cut short. */
  take(read, width) {
    const value = this.view[read](this.at);
    this.at += width;
    return value;
  }

  value(depth) {
    const kind = this.take("getUint8", 1);
    if (kind < 0x80) return kind;
    if (kind >= 0xe0) return kind - 256;
    if (kind >= 0x90 && kind < 0xa0) return this.array(kind & 15, depth);
    if (kind >= 0xa0 && kind < 0xc0) return this.text(kind & 31);
    switch (kind) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xca: return this.take("getFloat32", 4);
      case 0xcb: return this.take("getFloat64", 8);
      case 0xcc: return this.take("getUint8", 1);
      case 0xcd: return this.take("getUint16", 2);
      case 0xce: return this.take("getUint32", 4);
      case 0xcf: return this.big("getBigUint64");
      case 0xd0: return this.take("getInt8", 1);
      case 0xd1: return this.take("getInt16", 2);
      case 0xd2: return this.take("getInt32", 4);
      case 0xd3: return this.big("getBigInt64");
      case 0xd9: return this.text(this.take("getUint8", 1));
      case 0xda: return this.text(this.take("getUint16", 2));
      case 0xdb: return this.text(this.take("getUint32", 4));
      case 0xdc: return this.array(this.take("getUint16", 2), depth);
      case 0xdd: return this.array(this.take("getUint32", 4), depth);
      default: throw new RangeError(`it holds the byte 0x${kind.toString(16)}`);
    }
  }

  big(read) {
    const value = this.take(read, 8);
    return value > SAFE || value < -SAFE ? value : Number(value);
  }

  text(length) {
    if (this.at + length > this.view.byteLength) throw new RangeError("it is cut short");
    const bytes = new Uint8Array(this.view.buffer, this.view.byteOffset + this.at, length);
    this.at += length;
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  }

  array(length, depth) {
    if (depth >= DEPTH || length > this.view.byteLength - this.at) throw new RangeError("it is cut short");
    return Array.from({ length }, () => this.value(depth + 1));
  }
}
