// Keeps the page's own files, so that it opens without a network. The network goes first: what is kept
// is never older than what the gateway last served. A file is kept by its path alone: what follows `?`
// or `#` in an address may be a key. The model is kept by model.js.
const KEPT = "edgewise-page-files";
const BEFORE = "edgewise-page"; // kept whole addresses
const LIB = ["edge", "errors", "gateway", "health", "index", "loop", "msgpack", "policy", "protocol", "routers", "start", "text"];
const FILES = [
  "./",
  "page.css",
  "page.js",
  "answer.js",
  "model.js",
  "icon.svg",
  "page.webmanifest",
  "config.json",
  "engine/wllama.js",
  "engine/wllama.wasm",
  "engine/jinja.js",
  ...LIB.map((name) => `lib/${name}.js`),
];

const ROUTER = ["router/config.json", "router/model.safetensors"]; // not every gateway has one
const PATHS = new Set([...FILES, ...ROUTER].map((name) => new URL(name, location).pathname));

addEventListener("install", (event) => {
  skipWaiting();
  event.waitUntil(install());
});

addEventListener("activate", (event) => event.waitUntil(Promise.all([caches.delete(BEFORE), clients.claim()])));

addEventListener("fetch", (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== location.origin || !PATHS.has(pathname)) return;
  // What is kept would have the key.
  if (request.headers.has("Authorization")) return;
  event.respondWith(served(request, pathname));
});

async function install() {
  const cache = await caches.open(KEPT);
  await cache.addAll(FILES);
  const { router } = await (await cache.match("config.json")).json();
  if (router) await cache.addAll(ROUTER);
}

async function served(request, pathname) {
  let response;
  try {
    response = await fetch(request);
  } catch (error) {
    const kept = await caches.match(pathname, { cacheName: KEPT });
    if (kept) return kept;
    throw error;
  }
  if (response.ok && response.type === "basic") await keep(pathname, response.clone());
  return response;
}

async function keep(pathname, response) {
  try {
    await (await caches.open(KEPT)).put(pathname, response);
  } catch {
    // The device has no room for it: without a network the page has what was kept before.
  }
}
