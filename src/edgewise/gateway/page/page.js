// The page of a gateway: the edge model decodes in this browser, and consults the gateway.
//   model.js   the model's file, kept here; the router and where its threshold starts
//   answer.js  draws an answer
//   lib/       edgewise-web: edge, router, policy, gateway, the loop
import { AnswerView, el } from "./answer.js";
import { Breaker, Gateway, Latency, Policy, UsageError, stream, thresholdAt } from "./lib/index.js";
import { LARGE, allowed, edgeOf, fileOf, forgetAll, isKept, routerNamed, startsOf, trainedRouter } from "./model.js";

const byId = (id) => document.getElementById(id);
const NEUTRAL = [
  ["Explain", "Why is the sky blue?"],
  ["Write", "Write a short poem about a lighthouse."],
  ["Program", "Write a Python function that reverses the words of a sentence."],
  ["Calculate", "A train leaves at 9:40 and takes 85 minutes. When does it arrive? Think step by step."],
];
/** What the bundled pair knows. */
const EXAMPLES = [
  ["A sum", "Leo starts the day with 72 cards. Leo buys 10 more. Tara starts the day with 78 cards. Tara looks at all of them. Tara buys 8 more. What is the number of cards that Tara has at the end? Write the sums."],
  ["Another sum", "Ines has 37 books. Ines sells 10 of them. Ines leaves 1 at school. Eva has 85 books. Eva wins 9 in a game. What is the number of books that Eva has at the end? Put it as sums."],
  ["An analogy", "Put pennon beside a word as barbital stands beside barbiturate. Choices: flag, workplace, nucleon, pasta, dispenser. Give the reasons."],
  ["A word", "We are told that female is one kind of animal. Try wing first. What kind of thing does the word mouse name? Choices: rodent, sausage, antelope, procyonid, bird. Explain in sentences."],
];

const state = {
  config: null,
  edge: null,
  name: "",
  routers: new Map(),
  gateway: null,
  refused: false,
  breaker: new Breaker(),
  latency: new Latency(),
  disconnected: false,
  messages: [],
  budget: undefined,
  running: null,
  answers: 0,
  sent: [],
};

const say = (text) => (byId("state").textContent = text);
const megabytes = (bytes) => (bytes < 1e6 ? "under 1 MB" : `${Math.round(bytes / 1e6)} MB`);

function progress(part) {
  byId("progress").hidden = part === null;
  byId("progress").value = part ?? 0;
}

async function start() {
  allowed(() => navigator.serviceWorker?.register("sw.js"));
  keyFromAddress();
  const response = await fetch("config.json");
  if (!response.ok) throw new UsageError(`The gateway does not say what it serves (HTTP ${response.status}).`);
  state.config = await response.json();
  const { model, gateway, cloud_share: share } = state.config;
  showExamples(model.name);
  byId("key-label").hidden = !gateway.keys;
  byId("share").value = Math.round(100 * share);
  showShare();
  if (model.bytes >= LARGE && !(await isKept(model))) {
    say(`The model ${model.name} is ${megabytes(model.bytes)}. It is loaded once and kept in this browser.`);
    byId("confirm").hidden = false;
    byId("load").focus();
    await new Promise((done) => byId("load").addEventListener("click", done, { once: true }));
    byId("confirm").hidden = true;
  }
  say(`Loading the model (${megabytes(model.bytes)}).`);
  const file = await fileOf(model, progress);
  await use(file, model.name, model.sha256);
}

/** Decode with this file from now on. */
async function use(file, name, id) {
  say("Starting the model.");
  progress(null);
  byId("send").disabled = true;
  const { config } = state;
  await state.edge?.close();
  state.gateway?.close();
  state.edge = null;
  const [edge, , status] = await Promise.all([edgeOf(file), readRouters(id), askCloud()]);
  const same = edge.tokenizer === config.gateway.tokenizer;
  state.edge = edge;
  state.name = name;
  state.gateway = null;
  if (same) connect();
  byId("disconnect").disabled = !same;
  showModels();
  showExamples(name);
  byId("send").disabled = false;
  say(status === 401 ? alone() : "Ready.");
}

/** A gateway for this edge and this key. The one before sends nothing more: an answer under way goes on alone. */
function connect() {
  state.gateway?.disconnect();
  state.gateway = new Gateway(location.href, state.edge, { key: key(), onSent: left });
  if (state.disconnected) state.gateway.disconnect();
  state.breaker = new Breaker();
}

const alone = () => `This device answers alone: the gateway ${key() ? "does not accept this key" : "wants a key"} (Settings).`;

function showModels() {
  const cloud = state.gateway ? state.cloud || "the gateway's model" : "no cloud: another vocabulary than the gateway's";
  byId("models").textContent = `${state.name} here + ${cloud}`;
}

/** Reads what the gateway serves, which it tells nobody without its key. Returns the reply's status, 0 without one. */
async function askCloud() {
  const status = await cloudStatus();
  if (status) state.refused = status === 401;
  return status;
}

async function cloudStatus() {
  if (state.disconnected) return 0;
  state.cloud = "";
  if (state.config.gateway.keys && !key()) return 401;
  const headers = key() ? { Authorization: `Bearer ${key()}` } : {};
  try {
    const response = await fetch("../v1/models", { headers, signal: AbortSignal.timeout(5000) });
    if (response.ok) state.cloud = `${(await response.json()).data[0].id}`;
    return response.status;
  } catch {
    // Without a network the page has no name for it, and answers alone.
    return 0;
  }
}

async function readRouters(id) {
  state.routers.clear();
  const trained = await trainedRouter(id === state.config.model.sha256 ? state.config.router : null);
  if (trained) state.routers.set("trained", trained);
  for (const name of ["max-prob", "entropy"]) state.routers.set(name, { router: routerNamed(name), thresholds: [] });
  byId("router").replaceChildren(...[...state.routers.keys()].map((name) => el("option", { value: name }, name)));
  state.id = id;
}

/** The router by its name, with where its threshold starts, if it may ask at all. */
async function measured(edge, name, asks) {
  const found = state.routers.get(name);
  if (asks && !found.thresholds.length) {
    say("The model answers a few short prompts, once, to set the router's threshold.");
    found.thresholds = await startsOf(edge, name, found.router, state.id, progress, state.running.signal);
    progress(null);
  }
  return found;
}

function left({ kind, ids, bytes }) {
  let row = state.sent.at(-1);
  if (row?.answer !== state.answers) {
    row = { answer: state.answers, consults: 0, prefetches: 0, ids: 0, bytes: 0 };
    state.sent.push(row);
  }
  row.ids += ids;
  row.bytes += bytes;
  if (kind === "consult") row.consults += 1;
  if (kind === "prefetch") row.prefetches += 1;
  const all = state.sent.reduce((sum, one) => ({ ids: sum.ids + one.ids, bytes: sum.bytes + one.bytes }), { ids: 0, bytes: 0 });
  byId("sent-sum").textContent = `${all.ids} token ids in ${all.bytes} bytes, to ${location.host}`;
  byId("sent-rows").replaceChildren(
    ...state.sent.map((one) => el("tr", {}, ...[one.answer, one.consults, one.prefetches, one.ids, one.bytes].map((cell) => el("td", {}, `${cell}`)))),
  );
}

async function answer(question) {
  const { edge } = state;
  const spelled = (id) => new TextDecoder().decode(edge.piece(id));
  state.messages.push({ role: "user", content: question });
  state.answers += 1;
  const cloudShare = byId("share").value / 100;
  const view = new AnswerView(question, spelled, cloudShare);
  byId("first").hidden = true;
  byId("turns").append(view.node);
  view.node.scrollIntoView({ block: "end" });
  state.running = new AbortController();
  showRunning();
  try {
    // A link would try again and again until the consult's deadline.
    const refused = state.refused && (await askCloud()) === 401;
    const gateway = refused ? null : state.gateway;
    const asks = Boolean(cloudShare && gateway?.allowed);
    const { router, thresholds } = await measured(edge, byId("router").value, asks);
    const policy = new Policy({ cloudShare, threshold: thresholdAt(thresholds, cloudShare) });
    const prompt = await edge.promptIds(worded(state.messages));
    const { breaker, latency, budget, running } = state;
    const maxTokens = Math.min(Math.max(1, byId("limit").valueAsNumber || 128), 4096);
    say("Answering.");
    const options = { edge, router, policy, gateway, breaker, latency, budget, maxTokens, signal: running.signal };
    for await (const event of stream(prompt, options)) {
      view.add(event);
      if (event.type === "consult" && event.outcome === "unavailable") explain();
      if (event.type === "finished") state.budget = event.budget;
    }
    state.messages.push({ role: "assistant", content: view.plain });
    if (byId("state").textContent === "Answering.") say(refused ? alone() : "Ready.");
  } catch (error) {
    // The question stands in the conversation without an answer: it is taken out again.
    state.messages.pop();
    view.fail(error.message);
    say("The answer ended with an error.");
    if (!(error instanceof UsageError)) console.error(error);
  } finally {
    state.running = null;
    showRunning();
    byId("prompt").focus();
  }
}

/** A browser does not tell a page that a key was refused; a request does. */
async function explain() {
  if ((await askCloud()) === 401) say(alone());
}

/** The bundled model is a toy: it knows single questions, in the wording of the demo. */
function worded(messages) {
  if (state.name !== "bundled") return messages;
  return [{ role: "user", content: `Question: ${messages.at(-1).content} Answer and Reasoning:` }];
}

function showRunning() {
  byId("send").textContent = state.running ? "Stop" : "Send";
  byId("send").classList.toggle("stop", Boolean(state.running));
  for (const id of ["new", "file", "router"]) byId(id).disabled = Boolean(state.running);
}

function showShare() {
  byId("share-value").textContent = `${byId("share").value}%`;
}

const KEY = "edgewise.key";
const key = () => byId("key").value.trim();

/** A link may bring the key after `#`, which no browser sends; it is taken out of the address. */
function keyFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  byId("key").value = given ?? allowed(() => sessionStorage.getItem(KEY)) ?? "";
  if (!given) return;
  history.replaceState(null, "", location.pathname);
  allowed(() => sessionStorage.setItem(KEY, given));
}

/** Consults with the key that the field has now. */
async function useKey() {
  if (!state.gateway) return;
  connect();
  const status = await askCloud();
  showModels();
  if (!state.running) say(status === 401 ? alone() : "Ready.");
}

/** Whether an input method is composing. Safari ends that before the Enter which confirms it; the key's code still tells. */
const composes = (event) => event.isComposing || event.keyCode === 229;

function showExamples(name) {
  byId("examples").replaceChildren(...(name === "bundled" ? EXAMPLES : NEUTRAL).map(example));
}

function example([title, question]) {
  const choose = () => {
    newChat();
    byId("prompt").value = question;
    byId("ask").requestSubmit();
  };
  return el("li", {}, el("button", { type: "button", onclick: choose }, el("b", {}, title), el("span", {}, question)));
}

function newChat() {
  state.messages = [];
  byId("turns").replaceChildren();
  byId("first").hidden = false;
  byId("prompt").focus();
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (state.running) return state.running.abort();
  const question = byId("prompt").value.trim();
  if (!question || !state.edge) return undefined;
  byId("prompt").value = "";
  return answer(question);
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || composes(event)) return;
  event.preventDefault();
  if (!state.running) byId("ask").requestSubmit();
});
byId("disconnect").addEventListener("click", () => {
  state.disconnected = !state.disconnected;
  byId("disconnect").setAttribute("aria-pressed", `${state.disconnected}`);
  if (state.disconnected) state.gateway?.disconnect();
  else {
    state.gateway?.reconnect();
    state.breaker = new Breaker();
  }
  say(state.disconnected ? "Disconnected: nothing leaves this device." : "Connected again.");
});
byId("share").addEventListener("input", showShare);
byId("new").addEventListener("click", newChat);
byId("key").addEventListener("change", () => {
  allowed(() => sessionStorage.setItem(KEY, key()));
  useKey();
});
// Such a link in the address of a page that is open loads nothing.
addEventListener("hashchange", () => {
  keyFromAddress();
  useKey();
});
byId("router").addEventListener("change", () => (state.budget = undefined));
byId("file").addEventListener("change", async ({ target }) => {
  const [file] = target.files;
  if (!file) return;
  newChat();
  use(file, file.name, `${file.name} ${file.size}`).catch(failed);
});
byId("forget").addEventListener("click", async () => {
  byId("key").value = "";
  await Promise.all([forgetAll(), useKey()]);
  byId("kept").textContent = "Nothing is kept any more; the next visit loads the model again.";
});
function toggleSettings(open) {
  byId("settings").hidden = !open;
  byId("settings-button").setAttribute("aria-expanded", `${open}`);
}
byId("settings-button").addEventListener("click", () => toggleSettings(byId("settings").hidden));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || composes(event) || byId("settings").hidden) return;
  toggleSettings(false);
  byId("settings-button").focus();
});
function failed(error) {
  progress(null);
  say(error.message);
  if (!(error instanceof UsageError)) console.error(error);
}
byId("prompt").focus();
start().catch(failed);
