// Replays what `tests/web/transcripts.py` recorded of the Python loop: steps, scores, decisions, frames, tokens.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Budget, Gateway, Mlp, Policy, routerNamed, stream } from "../src/index.js";

const NEAR = 2e-5;
const root = new URL("../../", import.meta.url);
const read = (path) => readFileSync(new URL(path, root));
const transcripts = JSON.parse(read("web/test/transcripts.json"));
const hex = (bytes) => Buffer.from(bytes).toString("hex");

function router(name) {
  if (!name.includes("/")) return routerNamed(name);
  const weights = read(`${name}/model.safetensors`);
  const { buffer, byteOffset, length } = weights;
  return new Mlp(JSON.parse(read(`${name}/config.json`)), buffer.slice(byteOffset, byteOffset + length));
}

/** Gives the recorded steps; ids are bytes, 256 and 257 end an answer. */
class RecordedEdge {
  size = 258;
  eosIds = new Set([256, 257]);
  ids = [];

  constructor({ context, steps }) {
    this.context = context;
    this.steps = new Map(steps.map((step) => [step.position, step]));
  }

  open(ids) {
    this.ids = [...ids];
  }

  extend(ids) {
    this.ids.push(...ids);
  }

  step() {
    const { top, entropy } = this.steps.get(this.ids.length) ?? assert.fail(`no step at ${this.ids.length}`);
    return { size: this.size, entropy, top: top.map(([id, logprob]) => ({ id, logprob })) };
  }

  piece(id) {
    return Uint8Array.from(id < 256 ? [id] : []);
  }
}

/** A connection on which both sides say what was recorded. */
function recorded(frames) {
  const left = [...frames];
  const socket = {
    readyState: 1,
    send(data) {
      assert.deepEqual(["device", hex(data)], left.shift());
      queueMicrotask(reply);
    },
    close() {},
  };
  function reply() {
    if (left[0]?.[0] !== "gateway") return;
    const data = Uint8Array.from(Buffer.from(left.shift()[1], "hex"));
    socket.onmessage({ data: data.buffer });
    reply();
  }
  const connect = () => {
    queueMicrotask(() => socket.onopen());
    return socket;
  };
  return { connect, left };
}

const near = (got, wanted, what) =>
  wanted === null ? assert.equal(got, null, what) : assert.ok(Math.abs(got - wanted) < NEAR, `${what}: ${got}, not ${wanted}`);

for (const one of transcripts) {
  test(one.name, async () => {
    const edge = new RecordedEdge(one);
    const { connect, left } = recorded(one.frames);
    const vocabulary = { tokenizer: one.tokenizer, size: edge.size, eosIds: edge.eosIds };
    const gateway = new Gateway("http://127.0.0.1/", vocabulary, { connect, now: () => 0, firstAsk: 0 });
    const policy = new Policy(one.policy);
    if (policy.asks) await gateway.open();
    const options = { edge, router: router(one.router), policy, gateway, maxTokens: one.maxTokens };
    const events = [];
    for await (const event of stream(one.prompt, options)) events.push(event);
    const tokens = events.filter(({ type }) => type === "token");
    assert.equal(tokens.length, one.tokens.length);
    one.tokens.forEach(([index, id, text, source, reason, score, threshold, logprob], at) => {
      const told = tokens[at];
      const { index: i, id: token, text: shown, source: by, reason: why } = told;
      assert.deepEqual([i, token, shown, by, why], [index, id, text, source, reason]);
      near(told.score, score, `score of token ${at}`);
      near(told.threshold, threshold, `threshold of token ${at}`);
      near(told.logprob, logprob, `logprob of token ${at}`);
    });
    const consults = events.filter(({ type }) => type === "consult");
    assert.deepEqual(consults.map(({ index, outcome, requested, answered }) => [index, outcome, requested, answered]), one.consults);
    const { text, finishReason, usage, cloudShare, budget } = events.at(-1);
    const { edge: byEdge, cloud, wasted, corrections, calls, failed } = usage;
    const { bucket, ...counts } = one.finished;
    assert.deepEqual({ text, finishReason, edge: byEdge, cloud, wasted, corrections, calls, failed, cloudShare }, counts);
    assert.ok(budget instanceof Budget);
    near(budget.bucket, bucket, "bucket");
    await new Promise(setImmediate);
    if (policy.asks) gateway.close();
    assert.deepEqual(left, []);
  });
}
