// What the service worker of the gateway's page keeps.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { runInNewContext } from "node:vm";

const FILE = new URL("../../src/edgewise/gateway/page/sw.js", import.meta.url);
const HERE = "http://gateway.example";

test("nothing that a key was sent for is kept", async () => {
  const [kept, handlers] = [[], {}];
  runInNewContext(await readFile(FILE, "utf8"), {
    URL,
    location: { origin: HERE },
    addEventListener: (name, handler) => (handlers[name] = handler),
    caches: { open: async () => ({ put: async (request) => kept.push(request.url) }) },
    fetch: async () => ({ ok: true, type: "basic", clone: () => null }),
  });
  const replies = [];
  const asked = (path, headers) =>
    handlers.fetch({
      request: new Request(HERE + path, { headers }),
      respondWith: (reply) => replies.push(reply),
    });
  asked("/page/page.css", {});
  asked("/v1/models", { Authorization: "Bearer ew-key" });
  await Promise.all(replies);
  assert.deepEqual(kept, [`${HERE}/page/page.css`]);
});
