// The session protocol between a device and a gateway, version 1: docs/protocol.md.
import { CloudError, protocolError } from "./errors.js";
import { decode, encode } from "./msgpack.js";

export const VERSION = 1;
export const PATH = "/v1/session";
export const SUBPROTOCOL = "edgewise.v1";
/** A page cannot set `Authorization`: the key travels as one more subprotocol, which is never answered. */
export const KEY_PROTOCOL = "edgewise.key.";
export const MAX_IDS = 1 << 17;
export const MAX_FRAME = 1 << 20;
const MOST_CANDIDATES = 20;

/** The strings whose ids identify a vocabulary. */
export const PROBES = [
  "Hello world",
  "The quick brown fox's 12345 jumps, doesn't it?",
  "  two  spaces\n\n\tand a tab",
  "naïve café — 日本語 русский 🙂",
  "def f(x):\n    return x ** 2  # 0.5e-10",
];

const PRIME = (1n << 61n) - 1n;
const BASE = 1000003n;
const extended = (check, id) => (check * BASE + BigInt(id) + 1n) % PRIME;

/** Ids by the rule of positions, with the check of every prefix: 12 bytes an id or so. */
export class Ledger {
  constructor() {
    /** @type {number[]} */
    this.ids = [];
    this.checks = [];
  }

  get check() {
    return this.checks.at(-1) ?? 0n;
  }

  /** How many ids `ids` and this begin with in common. */
  shared(ids) {
    let count = 0;
    while (count < this.ids.length && count < ids.length && this.ids[count] === ids[count]) count++;
    return count;
  }

  /** Replace what stands from `position` on, which is at most the end. */
  put(position, ids) {
    this.ids.length = this.checks.length = position;
    for (const id of ids) {
      this.checks.push(extended(this.check, id));
      this.ids.push(id);
    }
  }
}

/** What `open` says of a vocabulary: the check of what it makes of the probes, their lengths between. */
export function fingerprint(idsOfProbes) {
  const check = idsOfProbes.flatMap((ids) => [...ids, ids.length]).reduce(extended, 0n);
  return check.toString(16).padStart(16, "0");
}

export const frames = {
  open: (tokenizer, session) => encode([1, VERSION, tokenizer, session]),
  push: (position, ids, check) => encode([2, position, ids, check]),
  /** Greedy: `sampling` is nil. Nothing is to be verified: 0. */
  ask: ({ ask, position, ids, check, n, deadline, top }) =>
    encode([3, ask, position, ids, check, n, deadline, top, null, 0]),
  cancel: (ask) => encode([4, ask]),
  close: () => encode([5]),
};

/** A frame from a gateway, checked. Throws a `CloudError` (protocol) for anything else. */
export function fromGateway(data) {
  if (data.byteLength > MAX_FRAME) throw protocolError(`A frame has more than ${MAX_FRAME} bytes.`);
  const parts = decode(data);
  const [kind, ...rest] = Array.isArray(parts) ? parts : [];
  const read = READERS.get(kind);
  if (!read) throw protocolError("Unknown gateway frame.");
  try {
    return read(rest);
  } catch (error) {
    // An answer goes on after any frame, also after one that a reader did not foresee.
    throw error instanceof CloudError ? error : protocolError(`The gateway's frame is not valid: ${error.message}.`);
  }
}

/** By kind. A Map, since an object also has the members that every object inherits. */
const READERS = new Map([
  [16, ([version, session, known, check, engine, model = ""]) => ({
    kind: "opened",
    version: count(version, "version"),
    session: text(session, 64, "session"),
    known: count(known, "known"),
    check: BigInt(whole(check, "check")),
    engine: text(engine, 64, "engine"),
    model: text(model, MAX_FRAME, "model"),
  })],
  [17, ([ask, ids, logprobs, stopped = false, cached = null, computed = null, seconds = null, top = []]) => ({
    kind: "reply",
    ask: count(ask, "ask"),
    ids: list(ids, "ids").map((id) => count(id, "ids")),
    logprobs: list(logprobs, "logprobs").map((one) => (one === null ? null : number(one, "logprobs"))),
    stopped: must(typeof stopped === "boolean", "stopped") && stopped,
    cached: cached === null ? null : count(cached, "cached"),
    computed: computed === null ? null : count(computed, "computed"),
    engineSeconds: seconds === null ? null : number(seconds, "engine_seconds"),
    top: list(top, "top").map((one) => list(one, "top").map(candidate)),
  })],
  [18, ([ask = null]) => ({ kind: "need full", ask: ask === null ? null : count(ask, "ask") })],
  [19, ([ask, reason, message, retryAfter = null, requestId = null]) => ({
    kind: "failed",
    ask: ask === null ? null : count(ask, "ask"),
    reason: text(reason, 64, "reason"),
    message: text(message, MAX_FRAME, "message"),
    retryAfter: retryAfter === null ? null : count(retryAfter, "retry_after"),
    requestId: requestId === null ? null : text(requestId, 64, "request_id"),
  })],
]);

/** A reply as a completion, or a `CloudError`: `n` tokens were asked for after `prefix` ids. */
export function completionOf(reply, { n, prefix, size, eosIds }) {
  const { ids, logprobs, top } = reply;
  if (reply.stopped && ids.length < n && !eosIds.has(ids.at(-1))) {
    // The engine left out the end token.
    ids.push(Math.min(...eosIds));
    logprobs.push(null);
    if (top.length) top.push([]);
  }
  must(ids.length > 0 && ids.length <= n, "ids");
  must(logprobs.length === ids.length && (!top.length || top.length === ids.length), "logprobs");
  must(top.every((one) => one.length <= MOST_CANDIDATES), "top");
  const all = [...ids, ...top.flat().map((one) => one.id)];
  must(all.every((id) => id < size), "ids");
  const given = [...logprobs, ...top.flat().map((one) => one.logprob)];
  must(given.every((one) => one === null || one <= 1e-3), "logprobs");
  must((reply.cached ?? 0) <= prefix && (reply.computed ?? 0) <= prefix, "meter");
  const seconds = reply.engineSeconds;
  must(seconds === null || (seconds >= 0 && seconds <= 3600), "engine_seconds");
  return { ids, logprobs, top, stopped: reply.stopped, engineSeconds: seconds, computed: reply.computed };
}

function must(holds, what) {
  if (!holds) throw protocolError(`The gateway's frame is not valid: ${what}.`);
  return true;
}

function whole(value, what) {
  must((typeof value === "bigint" || Number.isInteger(value)) && value >= 0, what);
  return value;
}

function count(value, what) {
  must(Number.isInteger(value) && value >= 0 && value < 2 ** 32, what);
  return value;
}

function number(value, what) {
  must(typeof value === "number" && Number.isFinite(value), what);
  return value;
}

function text(value, most, what) {
  must(typeof value === "string" && value.length <= most, what);
  return value;
}

function list(value, what) {
  must(Array.isArray(value) && value.length <= MAX_IDS, what);
  return value;
}

function candidate(pair) {
  must(Array.isArray(pair) && pair.length === 2, "top");
  return { id: count(pair[0], "top"), logprob: number(pair[1], "top") };
}
