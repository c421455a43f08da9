// The edge model and its router: from the gateway, once; then from this browser's own storage.
import { Edge, Mlp, UsageError, ownThresholds, routerNamed } from "./lib/index.js";

const KEPT = "edgewise-models";
/** Bytes from which on the page asks before it loads. */
export const LARGE = 100e6;

/**
 * What `does` finds or keeps in this browser; null where it has no room, or keeps nothing for this page:
 * without TLS, in some private windows, and where all cookies are blocked. Then any touch throws.
 */
export function allowed(does) {
  try {
    const found = does();
    return found?.catch ? found.catch(() => null) : found;
  } catch {
    return null;
  }
}

const keyOf = (model) => `${model.url}?sha256=${model.sha256}`;

export async function isKept(model) {
  return Boolean(await keptModel(model));
}

const keptModel = (model) => allowed(() => caches.match(keyOf(model), { cacheName: KEPT }));

/** The model's file; `onPart` is called with the part that has come. Throws where it is not what was named. */
export async function fileOf(model, onPart) {
  const kept = await keptModel(model);
  if (kept) return kept.blob();
  const response = await fetch(model.url, { cache: "no-store" });
  if (!response.ok) throw new UsageError(`The gateway does not hand out the model (HTTP ${response.status}).`);
  const parts = [];
  let size = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    size += value.length;
    if (size > model.bytes) break;
    onPart(size / model.bytes);
  }
  const file = new Blob(parts, { type: "application/octet-stream" });
  await requireSame(file, model);
  await allowed(async () => (await caches.open(KEPT)).put(keyOf(model), new Response(file)));
  return file;
}

async function requireSame(file, { bytes, sha256 }) {
  let same = file.size === bytes;
  if (same && crypto.subtle) {
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
    same = [...digest].map((one) => one.toString(16).padStart(2, "0")).join("") === sha256;
  }
  if (!same) throw new UsageError("The model did not come whole; load the page again.");
}

/** Ready to decode, in a worker of its own. */
export async function edgeOf(file) {
  const [{ Wllama }, { Template }] = await Promise.all([import("./engine/wllama.js"), import("./engine/jinja.js")]);
  const wasm = new URL("engine/wllama.wasm", import.meta.url).href;
  return Edge.load(file, { Wllama, Template, wasm });
}

/** The router that was trained for the gateway's model, if a browser can read it. */
export async function trainedRouter(described) {
  if (!described) return null;
  const [card, weights] = await Promise.all(described.files.map((name) => fetch(described.url + name)));
  try {
    const read = await card.json();
    return { router: new Mlp(read, await weights.arrayBuffer()), thresholds: thresholdsOf(read) };
  } catch (error) {
    if (error instanceof UsageError) return null;
    throw error;
  }
}

const thresholdsOf = (card) =>
  Object.entries(card.thresholds)
    .map(([share, threshold]) => [Number(share), threshold])
    .sort(([a], [b]) => a - b);

/** Where the threshold of `router` starts beside this edge, by share: measured once, then kept; none where `signal` stopped it. */
export async function startsOf(edge, name, router, id, onPart, signal) {
  const key = `edgewise.starts ${name} ${id}`;
  // Changed by hand, it is measured again.
  const kept = allowed(() => JSON.parse(localStorage.getItem(key)));
  if (Array.isArray(kept) && kept.every((pair) => pair?.length === 2 && pair.every((one) => one >= 0 && one <= 1))) return kept;
  const measured = await ownThresholds(edge, router, onPart, signal);
  if (!signal.aborted) allowed(() => localStorage.setItem(key, JSON.stringify(measured)));
  return measured;
}

export { routerNamed };

/** Everything that the page has kept, the key and the worker too. */
export async function forgetAll() {
  for (const kind of ["localStorage", "sessionStorage"]) {
    allowed(() => Object.keys(window[kind]).filter(isOwn).forEach((name) => window[kind].removeItem(name)));
  }
  // First the worker, which would keep the files again.
  await allowed(async () => (await navigator.serviceWorker.getRegistration())?.unregister());
  await allowed(async () => Promise.all((await caches.keys()).filter(isOwn).map((name) => caches.delete(name))));
}

const isOwn = (name) => /^edgewise[.-]/.test(name);
