// The link to a gateway, as tests/cloud/test_gateway_cloud.py has it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Gateway } from "../src/index.js";

const vocabulary = { tokenizer: "", size: 258, eosIds: new Set() };

/** A gateway that cannot be reached; `tries` counts connections. */
function away() {
  const tries = [];
  const connect = () => {
    const socket = { readyState: 3, close() {} };
    tries.push(socket);
    queueMicrotask(() => socket.onclose());
    return socket;
  };
  return { tries, gateway: new Gateway("http://127.0.0.1/", vocabulary, { connect }) };
}

test("a link that cannot be made is tried until the deadline, which says why", async () => {
  const { tries, gateway } = away();
  await assert.rejects(gateway.ask([1], { deadline: 1 }), { reason: "unavailable" });
  assert.ok(tries.length > 2);
});

test("who disconnects is not connected again", async () => {
  const { tries, gateway } = away();
  const asked = gateway.ask([1], { deadline: 30 });
  gateway.disconnect();
  await assert.rejects(asked, { reason: "unavailable" });
  const before = tries.length;
  await new Promise((done) => setTimeout(done, 200));
  assert.equal(tries.length, before);
});

test("who disconnects while it connects sends nothing", async () => {
  const sent = [];
  const socket = { readyState: 0, close() {}, send: (data) => sent.push(data) };
  const gateway = new Gateway("http://127.0.0.1/", vocabulary, { connect: () => socket, onSent: ({ kind }) => sent.push(kind) });
  const opening = gateway.open();
  await new Promise(setImmediate);
  gateway.disconnect();
  socket.onopen();
  assert.deepEqual(sent, []);
  await assert.rejects(opening, { reason: "unavailable" });
});
