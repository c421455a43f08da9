// Requests to the server.
import { isChunk, isExamples, isHealth, isSent } from "./shapes.js";
import { redraw, state } from "./state.js";
import { inPercent } from "./wording.js";

function headers() {
  return { "Content-Type": "application/json", ...(state.key ? { Authorization: `Bearer ${state.key}` } : {}) };
}

export function modelOf(mode) {
  if (mode !== "pair") return `edgewise:${mode}`;
  return state.settings.share === "" ? "edgewise" : `edgewise@${Number(state.settings.share) / 100}`;
}

// Where the dial stands, in percent; null where a threshold decides, and not a share.
export function shareNow() {
  const { health, settings } = state;
  if (settings.share !== "") return Number(settings.share);
  return health?.cloud_share == null ? null : inPercent(health.cloud_share);
}

// A streamed reply. Raises an Error with the server's sentence where it refuses.
export function ask({ model, mode, seed }, messages, signal) {
  const { limit, system } = state.settings;
  return streamed("v1/chat/completions", signal, {
    model,
    messages: [...(system.trim() ? [{ role: "system", content: system }] : []), ...messages],
    ...(limit === "" ? {} : { max_completion_tokens: Number(limit) }),
    ...(seed === null ? {} : { seed }),
    stream_options: { include_usage: true },
    // Where the cloud is to write all, what the edge drafts meanwhile is nobody's concern.
    edgewise: { provenance: true, pending: mode !== "cloud" },
  });
}

// The same, for the edge model's own words after token ids. Nothing is sent to the cloud for them.
export function askEdge(prompt, written, signal) {
  const { limit } = state.settings;
  return streamed("v1/completions", signal, {
    model: "edgewise:edge",
    prompt,
    ...(limit === "" ? {} : { max_tokens: Math.max(1, Number(limit) - written) }),
    edgewise: { provenance: true },
  });
}

async function* streamed(path, signal, asked) {
  const body = JSON.stringify({ ...asked, ...drawing(), stream: true });
  const response = await reach(path, { method: "POST", headers: headers(), signal, body });
  if (!response.ok) throw new Error(await reasonOf(response));
  yield* chunksOf(response);
}

// What is typed, else as /health says that a chat draws.
function drawing() {
  const { temperature = null, top_k, top_p, min_p } = state.health ?? {};
  const typed = state.settings.temperature;
  const warmth = typed === "" ? temperature : Number(typed);
  return {
    ...(warmth !== null && { temperature: warmth }),
    ...(top_k && { top_k }), ...(top_p && top_p < 1 && { top_p }), ...(min_p && { min_p }),
  };
}

// Whether nothing is drawn, so that a question has one answer.
export const isGreedy = () => drawing().temperature === 0;

// The JSON objects of a stream of server-sent events.
async function* chunksOf(response) {
  let rest = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(brokeOff);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data: ") && line !== "data: [DONE]") yield read(line.slice(6));
      }
    }
  } finally {
    // Else the server would go on writing for nobody; one that broke off has said so already.
    reader.cancel().catch(() => {});
  }
}

function brokeOff(error) {
  if (error.name === "AbortError") throw error;
  throw new Error("The connection to the server broke off; what was written stays.", { cause: error });
}

function read(text) {
  try {
    const chunk = JSON.parse(text);
    if (isChunk(chunk)) return chunk;
  } catch {
    // It is no chunk either.
  }
  throw new Error("The server sent something else than an answer; what was written stays.");
}

// A response. Raises an Error with a sentence where there is no server: browsers say "Failed to fetch".
async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Start it again, then ask again: your question is kept.", { cause: error });
  }
}

async function reasonOf(response) {
  if (response.status === 401) Object.assign(state, { asksKey: true, settingsOpen: true });
  const said = await response.json().catch(unread);
  const message = said?.error?.message;
  return typeof message === "string" ? message : `The server answered with HTTP ${response.status}.`;
}

// The JSON of a response that is what was asked for. Raises an Error with a sentence where it is not.
async function checked(response, is) {
  if (!response.ok) throw new Error(await reasonOf(response));
  const value = await response.json().catch(unread);
  if (!is(value)) throw new Error("The server sent something else than was asked for.");
  return value;
}

function unread(error) {
  if (error.name === "AbortError") throw error;
  return undefined;
}

// What runs, and what has left.
export async function refresh() {
  await Promise.all([readHealth(), readSent()]);
  redraw();
}

async function readHealth() {
  try {
    state.health = await checked(await fetch("health", { headers: headers() }), isHealth);
    state.gone = false;
  } catch {
    state.gone = true;
  }
}

// What the record says has left, counts alone.
async function readSent() {
  try {
    const response = await fetch("v1/sent", { headers: headers() });
    state.sent = response.ok ? (await checked(response, isSent)).data : null;
  } catch {
    // `gone` says it.
  }
}

export async function readExamples() {
  try {
    state.examples = await checked(await fetch("examples.json"), isExamples);
  } catch {
    // `gone` says it.
  }
  redraw();
}
