// Keeps the page's own files, so that it opens without a network. The network goes first: what is kept
// is never older than what the gateway last served. The model is kept by model.js.
const KEPT = "edgewise-page";
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

addEventListener("install", (event) => {
  skipWaiting();
  event.waitUntil(caches.open(KEPT).then((cache) => cache.addAll(FILES)));
});

addEventListener("activate", (event) => event.waitUntil(clients.claim()));

addEventListener("fetch", (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== location.origin || pathname.endsWith(".gguf")) return;
  // What is kept would have the key.
  if (request.headers.has("Authorization")) return;
  event.respondWith(served(request));
});

async function served(request) {
  const cache = await caches.open(KEPT);
  try {
    const response = await fetch(request);
    if (response.ok && response.type === "basic") await cache.put(request, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request, { ignoreSearch: true });
    if (kept) return kept;
    throw error;
  }
}
