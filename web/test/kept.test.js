// What the service worker of the gateway's page keeps.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { runInNewContext } from "node:vm";

const FILE = new URL("../../src/edgewise/gateway/page/sw.js", import.meta.url);
const HERE = "http://gateway.example";

/** The worker at work: what it keeps, and `asked`, which resolves to the reply, if it gives one. */
async function worker({ put = async () => {}, fetch = async () => ({ ok: true, type: "basic", clone: () => null }) } = {}) {
  const [kept, handlers] = [new Set(), {}];
  const cache = { put: async (address) => (await put(), kept.add(address.url ?? address)) };
  runInNewContext(await readFile(FILE, "utf8"), {
    URL,
    location: new URL(`${HERE}/page/sw.js`),
    addEventListener: (name, handler) => (handlers[name] = handler),
    caches: { open: async () => cache, match: async (address) => kept.has(address) && `kept ${address}` },
    fetch,
  });
  const asked = async (path, headers = {}) => {
    let given;
    handlers.fetch({ request: new Request(HERE + path, { headers }), respondWith: (reply) => (given = reply) });
    return given;
  };
  return { kept, asked };
}

test("of a key nothing is kept, wherever it stands", async () => {
  const { kept, asked } = await worker();
  for (let i = 0; i < 50; i += 1) {
    for (const path of ["", "page.css", "none.css", "router/config.json"]) await asked(`/page/${path}?key=ew-${i}#key=ew-${i}`);
  }
  await asked("/v1/models", { Authorization: "Bearer ew-key" });
  await asked("/page/config.json", { Authorization: "Bearer ew-key" });
  assert.deepEqual([...kept].sort(), ["/page/", "/page/page.css", "/page/router/config.json"]);
});

test("without a network the page has what was kept, by whatever address", async () => {
  let up = true;
  const fetch = async () => {
    if (!up) throw new TypeError("Failed to fetch");
    return { ok: true, type: "basic", clone: () => null };
  };
  const { asked } = await worker({ fetch });
  await asked("/page/");
  up = false;
  assert.equal(await asked("/page/?from=home#key=ew-key"), "kept /page/");
  await assert.rejects(asked("/page/page.css"), TypeError);
});

test("a device without room has what the gateway serves", async () => {
  const { kept, asked } = await worker({ put: () => Promise.reject(new Error("QuotaExceededError")) });
  assert.equal((await asked("/page/page.css")).ok, true);
  assert.equal(kept.size, 0);
});
