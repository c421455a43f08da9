// The chat page. Whatever a model writes is set as text, never as markup.

const NAMES = { pair: "pair", edge: "edge only", cloud: "cloud only" };
const FAULTS = {
  timeout: "no answer in time",
  unavailable: "cannot be reached",
  refused: "refused the key",
  rejected: "declined the request",
  protocol: "answered with something else",
  grammar: "wrote what the answer's form does not allow",
  circuit_open: "paused after failures",
};

const LOCAL = { edgewise: { cloud: "none" } };

const find = (id) => document.getElementById(id);
const settings = find("settings");
const columns = new Map(); // mode -> {log, messages}
let underWay = null; // AbortController of what is being written

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function mode() {
  return new FormData(settings).get("mode");
}

function modelOf(which) {
  if (which === "edge") return "edgewise:edge";
  if (which === "cloud") return "edgewise:cloud";
  return `edgewise@${Number(find("share").value) / 100}`;
}

function layOut() {
  const wanted = mode() === "beside" ? ["pair", "edge", "cloud"] : [mode()];
  const main = find("columns");
  main.replaceChildren();
  for (const which of wanted) {
    if (!columns.has(which)) {
      const section = find("column").content.cloneNode(true).firstElementChild;
      section.querySelector("h2").textContent = NAMES[which];
      columns.set(which, { section, log: section.querySelector(".log"), messages: [] });
    }
    main.append(columns.get(which).section);
  }
}

function headers() {
  const key = find("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

// One answer's place on the page.
class Answer {
  constructor(log) {
    this.article = find("answer").content.cloneNode(true).firstElementChild;
    this.text = this.article.querySelector(".text");
    this.timeline = this.article.querySelector(".timeline");
    this.tokens = []; // spans of tokens that stand
    this.pending = new Map(); // index -> span
    this.cloud = this.late = this.calls = 0;
    this.began = performance.now();
    this.chosen = -1;
    log.append(this.article);
    this.text.addEventListener("keydown", (event) => this.walk(event));
    this.text.addEventListener("blur", () => this.choose(-1));
    this.article.scrollIntoView({ block: "nearest" });
  }

  get said() {
    return this.tokens.map((span) => span.textContent).join("");
  }

  add(token, text) {
    for (const [index, span] of this.pending) {
      if (index <= token.index) {
        span.remove();
        this.pending.delete(index);
      }
    }
    const fault = FAULTS[token.reason] !== undefined;
    const kind = token.source === "cloud" ? " cloud" : fault ? " fallback" : "";
    const span = element("span", `token${kind}`, text);
    span.about = token;
    const number = this.tokens.length;
    span.addEventListener("pointerenter", () => describe(token));
    span.addEventListener("pointerleave", () => describe(null));
    span.addEventListener("click", () => this.choose(number));
    this.text.insertBefore(span, this.pending.values().next().value ?? null);
    this.tokens.push(span);
    const bar = element("span", kind.trim());
    // Below a sum of one they would not fill the line.
    bar.style.flexGrow = 1000 * token.seconds;
    bar.title = `${token.text} (${(1000 * token.seconds).toFixed(0)} ms)`;
    this.timeline.append(bar);
    if (token.source === "cloud") this.cloud += 1;
    // Asked for in vain: the cloud share counts it, as the usage at the end does.
    if (token.reason === "timeout") this.late += 1;
    if (token.source === "cloud" && token.reason !== "span") this.calls += 1;
    // A pause follows from what failed before it, which says more.
    if (fault && !(this.complained && token.reason === "circuit_open")) {
      this.complain(`The cloud ${FAULTS[token.reason]} (${token.reason}); the edge model stood in.`);
    }
    this.count();
  }

  // Text that no token shows: what was held back until the end.
  finish(text) {
    if (text) {
      const span = element("span", "token", text);
      this.text.append(span);
      this.tokens.push(span);
    }
  }

  guess(index, text) {
    const span = element("span", "token pending", text);
    this.text.append(span);
    this.pending.set(index, span);
  }

  forget() {
    for (const span of this.pending.values()) span.remove();
    this.pending.clear();
  }

  count() {
    const seconds = (performance.now() - this.began) / 1000;
    const counted = this.timeline.childElementCount;
    this.set("share", `${((100 * (this.cloud + this.late)) / counted).toFixed(1)}%`);
    this.set("calls", String(this.calls));
    this.set("rate", (counted / seconds).toFixed(1));
    if (counted === 1) this.set("first", `${(1000 * seconds).toFixed(0)} ms`);
  }

  settle(usage, timing) {
    this.forget();
    if (usage) {
      this.set("share", `${(100 * usage.edgewise.cloud_share).toFixed(1)}%`);
      this.set("calls", String(usage.edgewise.cloud_calls));
      if (usage.edgewise.cost) this.tellCost(usage.edgewise.cost);
    }
    if (timing) {
      this.set("first", `${(1000 * timing.ttft).toFixed(0)} ms`);
      this.set("rate", (this.timeline.childElementCount / timing.total).toFixed(1));
    }
    this.article.scrollIntoView({ block: "nearest" });
    const tokens = this.timeline.childElementCount;
    this.timeline.setAttribute("aria-label", `Timeline of ${tokens} tokens, ${this.cloud} by the cloud`);
  }

  // Against what the cloud alone would have cost.
  tellCost(cost) {
    const money = (amount) => `${cost.estimated ? "about " : ""}${amount.toLocaleString("en", { maximumSignificantDigits: 3 })} ${cost.currency}`;
    this.set("paid", money(cost.paid));
    this.set("saved", money(cost.saved));
    for (const hidden of this.article.querySelectorAll(".cost")) hidden.hidden = false;
  }

  set(counter, text) {
    this.article.querySelector(`[data-counter=${counter}]`).textContent = text;
  }

  complain(text) {
    const problem = this.article.querySelector(".problem");
    if (problem.textContent !== text) problem.textContent = text;
    problem.hidden = false;
    this.complained = true;
  }

  walk(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !this.tokens.length) return;
    event.preventDefault();
    this.choose(Math.min(this.tokens.length - 1, Math.max(0, this.chosen + step)));
  }

  choose(number) {
    this.tokens[this.chosen]?.classList.remove("chosen");
    this.chosen = number;
    this.tokens[number]?.classList.add("chosen");
    describe(this.tokens[number]?.about ?? null);
  }
}

const COST = ": another consult would make the answer dearer than the cloud alone, or a limit is spent";

function describe(token) {
  const panel = find("details");
  panel.hidden = !token;
  if (!token) return;
  const score = token.score === null ? "" : `, score ${token.score.toFixed(3)}`;
  const wait = token.wait >= 0.001 ? `, waited ${(1000 * token.wait).toFixed(0)} ms` : "";
  const fault = FAULTS[token.reason] ? `: the cloud ${FAULTS[token.reason]}` : token.reason === "cost" ? COST : "";
  panel.replaceChildren(
    element("p", "", `“${token.text}” by the ${token.source}`),
    element("p", "", `${token.reason.replaceAll("_", " ")}${fault}${score}${wait}`),
    candidates(token),
  );
}

function candidates(token) {
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const name of ["edge", "", "cloud", ""]) head.append(element("th", "", name));
  const rows = Math.max(token.edge.length, token.cloud.length);
  for (let i = 0; i < rows; i += 1) {
    const row = table.insertRow();
    for (const one of [token.edge[i], token.cloud[i]]) {
      row.insertCell().textContent = one ? JSON.stringify(one.token).slice(1, -1) : "";
      row.insertCell().textContent = one ? `${(100 * Math.exp(one.logprob)).toFixed(1)}%` : "";
    }
  }
  return table;
}

// The JSON objects of a stream of server-sent events.
async function* chunksOf(response) {
  let rest = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

async function ask(which, prompt, signal) {
  const { log, messages } = columns.get(which);
  // The mark travels with the message, in later turns too.
  let mark = find("local").checked ? LOCAL : {};
  log.append(element("p", `question${mark === LOCAL ? " local" : ""}`, prompt));
  const answer = new Answer(log);
  let usage, timing;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(),
      signal,
      body: JSON.stringify({
        model: modelOf(which),
        messages: [...messages, { role: "user", content: prompt, ...mark }],
        stream: true,
        stream_options: { include_usage: true },
        edgewise: { provenance: true, pending: true },
      }),
    });
    if (!response.ok) throw new Error(await reasonOf(response));
    for await (const chunk of chunksOf(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const text = chunk.choices[0]?.delta.content ?? "";
      if (chunk.choices[0]?.delta.edgewise) mark = LOCAL;
      const told = chunk.edgewise ?? {};
      if (told.pending) answer.guess(told.pending.index, told.pending.text);
      else if (told.rewound) answer.forget();
      else if (told.token) answer.add(told.token, text);
      else answer.finish(text);
      usage = chunk.usage ?? usage;
      timing = told.timing ?? timing;
    }
  } catch (error) {
    if (error.name !== "AbortError") answer.complain(error.message);
  }
  answer.settle(usage, timing);
  // Stopped or not, what was said stays said.
  if (answer.said) messages.push({ role: "user", content: prompt, ...mark }, { role: "assistant", content: answer.said, ...mark });
  if (mark === LOCAL) stayLocal();
}

// A conversation that is local stays so until a new one begins.
function stayLocal() {
  find("local").checked = find("local").disabled = true;
}

async function reasonOf(response) {
  if (response.status === 401) {
    find("key-field").hidden = false;
    find("key").focus();
  }
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with HTTP ${response.status}.`;
  }
}

async function send(event) {
  event.preventDefault();
  const field = find("prompt");
  const prompt = field.value.trim();
  if (!prompt || underWay) return;
  field.value = "";
  underWay = new AbortController();
  find("stop").hidden = false;
  find("send").hidden = true;
  const wanted = mode() === "beside" ? ["pair", "edge", "cloud"] : [mode()];
  await Promise.all(wanted.map((which) => ask(which, prompt, underWay.signal)));
  underWay = null;
  find("stop").hidden = true;
  find("send").hidden = false;
  field.focus();
  await Promise.all([tellStatus(), tellSent()]);
}

async function tellStatus() {
  try {
    const health = await (await fetch("health")).json();
    const trip = health.round_trip_seconds;
    const parts = [health.edge, health.cloud ? `with ${health.cloud}` : "without a cloud"];
    if (trip !== null) parts.push(`round trip ${(1000 * trip).toFixed(0)} ms`);
    if (health.cloud_paused) parts.push("cloud paused after failures");
    find("status").textContent = parts.join(", ");
    for (const which of ["cloud", "beside"]) {
      settings.querySelector(`[value=${which}]`).disabled = !health.cloud;
    }
  } catch {
    find("status").textContent = "the server does not answer";
  }
}

// What the record says has left, counts alone.
async function tellSent() {
  try {
    const response = await fetch("v1/sent", { headers: headers() });
    if (!response.ok) return;
    const { data } = await response.json();
    const all = (count) => data.reduce((sum, one) => sum + one[count], 0).toLocaleString("en");
    find("sent-sum").textContent = data.length ? `${all("bytes")} bytes, ${all("new_characters")} characters new` : "nothing";
    const rows = data.map((one) => {
      const row = element("tr");
      const counts = [one.consults, one.pushes, one.bytes, one.new_tokens, one.new_characters];
      const when = new Date(1000 * one.at).toLocaleTimeString();
      for (const cell of [when, one.conversation, one.host, ...counts.map((n) => n.toLocaleString("en"))]) row.append(element("td", "", cell));
      return row;
    });
    find("sent").querySelector("tbody").replaceChildren(...rows);
  } catch {
    // The status line says that the server does not answer.
  }
}

find("sent").addEventListener("toggle", tellSent);
settings.addEventListener("change", layOut);
settings.addEventListener("submit", (event) => event.preventDefault());
find("share").addEventListener("input", () => {
  find("share-value").textContent = `${find("share").value}%`;
});
find("new").addEventListener("click", () => {
  underWay?.abort();
  columns.clear();
  find("local").checked = find("local").disabled = false;
  layOut();
});
find("stop").addEventListener("click", () => underWay?.abort());
find("ask").addEventListener("submit", send);
find("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
layOut();
tellStatus();
tellSent();
