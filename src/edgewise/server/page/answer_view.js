// One answer: its text with who wrote what, a sentence about it, its counts, and what can be done with it.
import { show } from "./actions.js";
import { caption } from "./caption.js";
import { el, fill } from "./dom.js";
import { markdown } from "./markdown.js";
import { line, rest } from "./meters.js";
import { copy, share } from "./sharing.js";
import { redraw, state } from "./state.js";
import { NAMES, visible } from "./wording.js";

const CLASSES = { edge: "", tail: "", fallback: " fallback", confirmed: " cloud confirmed", changed: " cloud changed", alone: " cloud alone", pending: " pending" };
const STEPS = { ArrowRight: 1, ArrowLeft: -1 };
const TIMES = 4; // as long as drawing a text took, so often it rests before it is drawn again
const LONGEST = 100_000; // characters that are formatted

export function answerView(turn, answer) {
  const text = el("div", {
    ...{ class: "text", dir: "auto", role: "group", tabindex: 0, "aria-label": "Answer; arrow keys go from token to token" },
    onkeydown: (event) => walk(event, answer, text),
    onblur: hide,
    onpointerover: (event) => !state.token?.pinned && point(event, answer),
    onpointerleave: hide,
    onclick: (event) => point(event, answer, { pinned: true }),
  });
  const problem = el("p", { class: "problem", role: "alert" });
  const about = el("p", { class: "caption" });
  const summary = el("summary");
  const counts = el("div");
  const meters = el("details", { class: "meters", "aria-live": "off", ontoggle: () => redraw() }, summary, counts);
  const told = el("span", { role: "status" });
  const button = (name, does) => el("button", { type: "button", onclick: async () => told.replaceChildren(await does()) }, name);
  const actions = el("div", { class: "actions", "aria-live": "off" }, button("Copy", () => copy(answer.said)), button("Share", () => share(turn)), told);
  const node = el("article", { class: "answer" }, el("h3", {}, NAMES[answer.mode]), text, problem, about, el("div", { class: "foot" }, meters, actions));
  let drawn = "";
  let next = 0;

  function draw() {
    const { struck, formatted } = state.settings;
    const look = `${answer.version} ${struck} ${formatted}`;
    const began = performance.now();
    if (look !== drawn && answer.busy && began < next) setTimeout(redraw, next - began);
    else if (look !== drawn) {
      drawn = look;
      text.replaceChildren(...written(answer, struck, formatted));
      next = performance.now() + TIMES * (performance.now() - began);
    }
    mark(text, answer);
    const said = answer.tokens.length > 0;
    node.setAttribute("aria-busy", answer.busy);
    const key = [answer.version, answer.busy, state.examples.length, state.health === null];
    fill(problem, [answer.problem, answer.cut], () => (answer.cut === null || answer.phase === "failed" ? [answer.problem] : []));
    fill(about, key, () => [...caption(turn, answer), ended(answer)]);
    meters.hidden = !said;
    actions.hidden = answer.busy || !said;
    if (!said) return;
    fill(summary, key, () => line(answer));
    if (meters.open) fill(counts, key, () => rest(answer));
  }

  return { node, draw };
}

function ended({ finish, phase }) {
  if (finish === "repeats") return "Ended, since the answer repeats itself.";
  if (phase === "stopped") return "Stopped.";
  return finish === "length" ? "Cut at the longest length." : "";
}

// The text as nodes, of which each token is at least one, unless it is all markup.
function written(answer, struck, formatted) {
  const items = [
    ...answer.tokens.map((token, number) => ({ text: token.shown, kind: token.kind, number, token })),
    { text: answer.tail, kind: "tail" },
    ...answer.pending.map(({ text }) => ({ text, kind: "pending" })),
  ];
  let source = "";
  for (const item of items) {
    item.start = source.length;
    source += item.text;
  }

  function leaf(start, end) {
    const nodes = [];
    for (let at = first(items, start); at < items.length && items[at].start < end; at += 1) {
      const item = items[at];
      const piece = item.text.slice(Math.max(0, start - item.start), end - item.start);
      if (piece) nodes.push(tokenNode(item, piece, struck && start <= item.start));
    }
    return nodes;
  }

  const nodes = formatted && source.length <= LONGEST ? markdown(source, leaf) : [el("p", { class: "plain" }, leaf(0, source.length))];
  // The cloud wrote on where the edge would have ended, or ended it: that has no text.
  const ends = items.filter(({ text, kind }) => kind === "changed" && !text).map((item) => tokenNode(item, "", struck));
  if (ends.length) (nodes.findLast((node) => node.tagName === "P") ?? nodes[nodes.push(el("p")) - 1]).append(...ends);
  return nodes;
}

// The first item that ends after `start`.
function first(items, start) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle].start + items[middle].text.length <= start) low = middle + 1;
    else high = middle;
  }
  return low;
}

function tokenNode({ kind, number, token }, piece, struck) {
  const attributes = { class: `token${CLASSES[kind]}`, "data-number": number, "data-reason": token?.reason };
  if (!["confirmed", "changed", "alone"].includes(kind)) return el("span", attributes, piece);
  // Spaces stand outside of what is marked.
  const space = kind === "alone" ? "" : /^\s*/.exec(piece)[0];
  const shown = piece.slice(space.length) || (kind === "changed" ? el("i", {}, visible(piece)) : "");
  const struckOut = kind === "changed" && struck ? el("rt", {}, el("del", {}, visible(token.draft.text))) : null;
  return el("span", attributes, shown ? [space, el("mark", {}, struckOut ? el("ruby", {}, shown, struckOut) : shown)] : space);
}

// The token that is looked at.
function mark(text, answer) {
  const number = state.token?.answer === answer ? state.token.number : -1;
  for (const node of text.querySelectorAll(".chosen")) if (Number(node.dataset.number) !== number) node.classList.remove("chosen");
  if (number >= 0) for (const node of text.querySelectorAll(`[data-number="${number}"]`)) node.classList.add("chosen");
}

// Arrows go from token to token; Enter keeps the panel open and goes there.
function walk(event, answer, text) {
  const chosen = state.token?.answer === answer ? state.token.number : -1;
  const step = STEPS[event.key];
  if (event.key === "Enter" && chosen >= 0) show({ answer, number: chosen, pinned: true });
  const numbers = [...new Set([...text.querySelectorAll("[data-number]")].map((node) => Number(node.dataset.number)))];
  if (!step || !numbers.length) return;
  event.preventDefault();
  const place = Math.min(numbers.length - 1, Math.max(0, numbers.indexOf(chosen) + step));
  show({ answer, number: numbers[place] });
}

function point(event, answer, { pinned = false } = {}) {
  if (event.target.closest("a")) return;
  const number = event.target.closest("[data-number]")?.dataset.number;
  if (number !== undefined) show({ answer, number: Number(number), pinned });
}

function hide() {
  if (!state.token?.pinned) show(null);
}
