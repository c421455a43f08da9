// What a gateway may do wrong, and what an answer makes of it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Breaker, Budget, Gateway, Mlp, Policy, ownThresholds, routerNamed, stream } from "../src/index.js";
import { decode, encode } from "../src/msgpack.js";
import { PROBES, fingerprint, fromGateway } from "../src/protocol.js";

const PROMPT = [72, 105];
const eosIds = new Set([256]);
const vocabulary = { tokenizer: "03dcc9c69416dc10", size: 257, eosIds };
const opened = ["session", 0, 0, "engine", "model"];

/** Writes the letter a, unsure of it. */
const edge = () => ({
  size: 257,
  context: 640,
  eosIds,
  open() {},
  extend() {},
  piece: (id) => Uint8Array.from([id]),
  step: () => ({ size: 257, entropy: 1, top: [{ id: 97, logprob: Math.log(0.5) }] }),
});

/** A gateway: `answer(frame, socket)` returns the frame to reply with, bytes, or nothing. */
function serving(answer, { open = () => [16, 1, ...opened] } = {}) {
  const state = { connections: 0, frames: [] };
  state.connect = () => {
    state.connections += 1;
    const socket = {
      readyState: 1,
      close() {
        socket.readyState = 3;
        queueMicrotask(() => socket.onclose?.({}));
      },
      send(data) {
        const frame = decode(data);
        state.frames.push(frame);
        const reply = frame[0] === 1 ? open(frame) : answer(frame, socket);
        const bytes = reply instanceof Uint8Array ? reply : reply && encode(reply);
        if (bytes) queueMicrotask(() => socket.onmessage?.({ data: bytes.slice().buffer }));
      },
    };
    queueMicrotask(() => (open() ? socket.onopen?.() : socket.onerror?.()));
    return socket;
  };
  return state;
}

const replying = (frame) => (frame[0] === 3 ? [17, frame[1], [98], [null]] : null);

async function answered(state, { reconnect, maxTokens = 6, deadline = 0.2, ...policy } = {}) {
  const gateway = new Gateway("http://127.0.0.1/", vocabulary, { connect: state.connect });
  const events = [];
  const options = { edge: edge(), router: routerNamed("max-prob"), gateway, maxTokens };
  for await (const event of stream(PROMPT, { ...options, policy: new Policy({ threshold: 0.3, deadline, ...policy }) })) {
    events.push(event);
    reconnect?.(gateway, event);
  }
  gateway.close();
  const tokens = events.filter(({ type }) => type === "token");
  return { text: tokens.map(({ text }) => text).join(""), reasons: tokens.map(({ reason }) => reason), events };
}

test("the vocabulary of bytes has the fingerprint that the protocol's page says", () => {
  assert.equal(fingerprint(PROBES.map((text) => [...new TextEncoder().encode(text)])), vocabulary.tokenizer);
});

test("a frame that is not of the protocol is refused", () => {
  const good = encode([17, 5, [1, 2], [-0.5, null], false, 3, 1, 0.25, [[[1, -0.5]], []]]);
  assert.equal(fromGateway(good).ids.length, 2);
  const wrong = [
    ...Array.from({ length: good.length }, (_, end) => good.slice(0, end)),
    Uint8Array.from([...good, 0]),
    Uint8Array.from([0xdd, 255, 255, 255, 255]),
    Uint8Array.from(Array(40).fill(0x91)),
    ...[[17, -1, [], []], [17, 1, ["1"], []], [17, 1, [1.5], [0.5]], [17, 1, [2 ** 32], []], [99], [16, 1, "s".repeat(65), 0, 0, "e"], 7, "text", [18, "1"], [19, null, 1, "m"]].map((one) => {
      try {
        return encode(one);
      } catch {
        return Uint8Array.of(0xc1);
      }
    }),
  ];
  for (const data of wrong) assert.throws(() => fromGateway(data), { name: "CloudError", reason: "protocol" });
});

/** The same numbers in every run, from 0 to 1. */
function numbers(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const INHERITED = Object.getOwnPropertyNames(Object.prototype);

/** Frames as a hostile gateway may make them: most begin with a kind, or with what looks like one. */
function hostile(random) {
  const one = (of) => of[Math.floor(random() * of.length)];
  const value = (depth) =>
    one([
      () => null,
      () => random() < 0.5,
      () => one([0, 1, 5, 2 ** 32, 0.5, 2n ** 63n]),
      () => one([...INHERITED, "", "16", "\ud83d\ude42"]),
      () => (depth ? Array.from({ length: random() * 5 }, () => value(depth - 1)) : []),
    ])();
  const kind = one([() => one([16, 17, 18, 19]), () => one(INHERITED), () => [17], () => value(1)])();
  return [kind, ...Array.from({ length: random() * 9 }, () => value(3))];
}

test("whatever a gateway sends is read, or is an error of the protocol", () => {
  const random = numbers(1);
  for (let i = 0; i < 20_000; i += 1) {
    const bytes = encode(hostile(random));
    if (i % 2) bytes[Math.floor(random() * bytes.length)] = random() * 256;
    try {
      assert.equal(typeof fromGateway(bytes).kind, "string");
    } catch (error) {
      assert.deepEqual([error.name, error.reason], ["CloudError", "protocol"], `${bytes}`);
    }
  }
});

test("whatever a gateway sends, the edge writes the answer to its end", async () => {
  const random = numbers(2);
  for (let i = 0; i < 300; i += 1) {
    const { text, events } = await answered(serving((frame) => (frame[0] === 3 ? hostile(random) : null)), { deadline: 0.01 });
    assert.match(text, /^.{6}$/);
    assert.equal(events.at(-1).finishReason, "length");
  }
});

test("a router's card that is none is refused in a sentence", () => {
  const cards = [...INHERITED.map((name) => ({ inputs: [name] })), { inputs: "text" }, { inputs: [["text"]] }, {}, { inputs: [], top_k: 1 }, { inputs: ["ranks"], reference: [[0, 1]] }];
  for (const card of [null, "mlp", ...cards.map((one) => ({ kind: "mlp", top_k: 5, ...one }))]) {
    assert.throws(() => new Mlp(card, new ArrayBuffer(0)), { name: "UsageError" });
  }
});

for (const [name, reply] of Object.entries({
  "more tokens than were asked for": (ask) => [17, ask, [98, 98], [null, null]],
  "no token": (ask) => [17, ask, [], []],
  "an id that the vocabulary lacks": (ask) => [17, ask, [300], [null]],
  "other logprobs than tokens": (ask) => [17, ask, [98], []],
  "a probability above 1": (ask) => [17, ask, [98], [0.5]],
  "bytes of no frame": () => Uint8Array.of(0xc1),
})) {
  test(`a reply with ${name} writes nothing`, async () => {
    const { text, reasons } = await answered(serving((frame) => (frame[0] === 3 ? reply(frame[1]) : null)));
    assert.equal(text, "aaaaaa");
    assert.equal(reasons[0], "protocol");
  });
}

test("a gateway that cannot be reached ends no answer, and is waited for once", async () => {
  const state = serving(replying, { open: () => null });
  const { text, reasons } = await answered(state);
  assert.equal(text, "aaaaaa");
  assert.deepEqual(reasons.slice(0, 2), ["unavailable", "circuit_open"]);
});

test("a silent gateway is waited for once", async () => {
  const { text, reasons } = await answered(serving(() => null));
  assert.equal(text, "aaaaaa");
  assert.deepEqual(reasons.slice(0, 2), ["timeout", "circuit_open"]);
});

test("a link that breaks is made anew, and all ids are sent again", async () => {
  let broken = false;
  const state = serving((frame, socket) => {
    if (frame[0] !== 3 || broken) return replying(frame);
    broken = true;
    socket.close();
    return null;
  });
  const { text } = await answered(state, { deadline: 5 });
  assert.equal(text, "bbbbbb");
  assert.equal(state.connections, 2);
  const [, after] = state.frames.filter(([kind]) => kind === 3);
  assert.deepEqual([after[2], after[3]], [0, PROMPT]);
});

test("a gateway that lost the session is given it again", async () => {
  let lost = false;
  const state = serving((frame) => {
    if (frame[0] !== 3 || lost) return replying(frame);
    lost = true;
    return [18, frame[1]];
  });
  const { text } = await answered(state);
  assert.equal(text, "bbbbbb");
});

test("the level of the bucket moves the threshold, a refusal does not", () => {
  const policy = new Policy({ cloudShare: 0.05, threshold: 0.4 });
  assert.equal(policy.thresholdNow(new Budget()), 0.4);
  const empty = new Budget({ bucket: 0 });
  assert.equal(policy.decide(1, empty).reason, "budget");
  assert.ok(policy.thresholdNow(policy.written(empty)) > 0.4);
  let saved = new Budget();
  for (let i = 0; i < 10_000; i += 1) saved = policy.written(saved);
  assert.ok(policy.thresholdNow(saved) > 0.005);
});

test("nothing is sent, and nothing opened, at a share of 0", async () => {
  const state = serving(replying);
  const { text } = await answered(state, { cloudShare: 0 });
  assert.equal(text, "aaaaaa");
  assert.deepEqual([state.connections, state.frames], [0, []]);
});

test("disconnected in the middle, the edge goes on alone and nothing more is sent", async () => {
  let sent = 0;
  const state = serving(replying);
  const { text, reasons } = await answered(state, {
    reconnect(gateway, { index, type }) {
      if (type !== "token" || index !== 2) return;
      gateway.disconnect();
      sent = state.frames.length;
    },
  });
  assert.equal(text, "bbbaaa");
  assert.deepEqual(reasons.slice(3), ["no_cloud", "no_cloud", "no_cloud"]);
  assert.equal(state.frames.length, sent);
});

test("an answer that is stopped while it waits ends", async () => {
  const stopping = new AbortController();
  const gateway = new Gateway("http://127.0.0.1/", vocabulary, { connect: serving(() => null).connect });
  setTimeout(() => stopping.abort(), 20);
  const policy = new Policy({ threshold: 0.3, deadline: 30 });
  const options = { edge: edge(), router: routerNamed("max-prob"), gateway, policy, signal: stopping.signal };
  let last;
  for await (const event of stream(PROMPT, options)) last = event;
  assert.equal(last.finishReason, "stopped");
});

/** The events of an answer that `stopping` stops; its gateway says nothing. */
async function stopped(stopping, { on = edge(), breaker = new Breaker(), state = serving(() => null) } = {}) {
  const gateway = new Gateway("http://127.0.0.1/", vocabulary, { connect: state.connect });
  const policy = new Policy({ threshold: 0.3, deadline: 0.3 });
  const options = { edge: on, router: routerNamed("max-prob"), gateway, policy, breaker, maxTokens: 4, signal: stopping.signal };
  const events = [];
  for await (const event of stream(PROMPT, options)) events.push(event);
  gateway.close();
  return events;
}

test("who stops an answer that waits is told of no failure, and writes no more", async () => {
  const stopping = new AbortController();
  const breaker = new Breaker();
  setTimeout(() => stopping.abort(), 200);
  const events = await stopped(stopping, { breaker });
  assert.deepEqual(events.map(({ type }) => type), ["finished"]);
  const { finishReason, usage } = events[0];
  assert.deepEqual([finishReason, usage.edge, usage.failed], ["stopped", 0, 0]);
  assert.ok(!breaker.isOpen, "that says nothing of the cloud");
});

test("an answer that is stopped while the edge computes asks nobody", async () => {
  const stopping = new AbortController();
  const state = serving(() => null);
  const on = edge();
  const { step } = on;
  on.step = () => (stopping.abort(), step());
  const events = await stopped(stopping, { on, state });
  assert.deepEqual(events.map(({ type }) => type), ["finished"]);
  assert.deepEqual(state.frames.filter(([kind]) => kind === 3), []);
});

test("an answer that is stopped before it begins sends nothing", async () => {
  const stopping = new AbortController();
  const state = serving(() => null);
  stopping.abort();
  await stopped(stopping, { state });
  assert.equal(state.connections, 0);
});

test("a probe that a stop cuts short makes way for the next", async () => {
  let now = 0;
  const breaker = new Breaker(() => now);
  breaker.failed({ silent: true });
  const stopping = new AbortController();
  const on = edge();
  on.extend = () => stopping.abort();
  await stopped(stopping, { on, breaker });
  await new Promise(setImmediate);
  assert.ok(breaker.isOpen && breaker.allow());
});

test("a measurement that is stopped ends, and finds nothing", async () => {
  const stopping = new AbortController();
  const on = { ...edge(), promptIds: async () => PROMPT };
  let tokens = 0;
  const measuring = ownThresholds(on, routerNamed("max-prob"), () => (tokens++, stopping.abort()), stopping.signal);
  assert.deepEqual(await measuring, []);
  assert.equal(tokens, 1);
});

test("an answer that goes round in circles is cut", async () => {
  const { text, events } = await answered(serving(replying), { maxTokens: 600, cloudShare: 0 });
  assert.equal(text.length, 257);
  const { finishReason, usage } = events.at(-1);
  assert.deepEqual([finishReason, usage.repeats], ["length", true]);
});
