// About one token: who wrote it and why, and what both models would have. It follows the pointer and
// the arrow keys; once pinned it stays, and can be used.
import { byId, el, fill } from "./dom.js";
import { redraw, state } from "./state.js";
import { milliseconds, percent, reasonInWords, whoWrote } from "./wording.js";

export function drawTokenPanel() {
  const panel = byId("details");
  const { answer, number, pinned = false } = state.token ?? {};
  const token = answer?.tokens[number];
  const before = panel.classList.contains("pinned");
  panel.classList.toggle("pinned", pinned);
  panel.hidden = !token;
  fill(panel, [pinned, token ?? null], () => (token ? about(token, answer, pinned) : []));
  if (pinned && !before) panel.querySelector("button").focus();
}

function about(token, answer, pinned) {
  const rows = Array.from({ length: Math.max(token.edge.length, token.cloud.length) });
  const models = ["edge", "cloud"].filter((name) => token[name].length);
  return [
    pinned && el("button", { class: "close", type: "button", onclick: closeTokenPanel }, "Close"),
    el("p", {}, el("bdi", {}, `“${token.text}”`), ` ${whoWrote(token)}`),
    el("p", { class: "note" }, reasonInWords(token, answer)),
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, models.map((name) => el("th", { colspan: 2, scope: "col" }, name)))),
      el("tbody", {}, rows.map((_, place) => el("tr", {}, models.map((name) => cells(token[name][place]))))),
    ),
    el("details", { class: "note" }, el("summary", {}, "Details"), measured(token).join(", ")),
  ];
}

function measured(token) {
  const threshold = token.threshold?.toFixed(3) ?? "–";
  const [name, value] = token.ratio == null ? ["score", token.score] : ["ratio", token.ratio];
  const score = value == null ? [] : [`${name} ${value.toFixed(3)} (threshold ${threshold})`];
  return [token.reason.replaceAll("_", " "), ...score, ...(token.wait >= 0.001 ? [`waited ${milliseconds(token.wait)}`] : [])];
}

function cells(one) {
  const chance = one?.logprob == null ? null : Math.exp(one.logprob);
  return [el("td", {}, one ? el("bdi", {}, JSON.stringify(one.token).slice(1, -1)) : ""), el("td", {}, chance === null ? "" : percent(chance))];
}

// The focus goes back to the answer.
export function closeTokenPanel() {
  document.querySelector(".token.chosen")?.closest(".text").focus();
  state.token = null;
  redraw();
}
