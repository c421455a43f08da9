// What left this device, by the server's record: counts for each answer, under its conversation.
import { refresh } from "./api.js";
import { byId, el, fill } from "./dom.js";
import { state } from "./state.js";

const COUNTS = ["consults", "prefetches", "bytes", "tokens"];
const number = (count) => count.toLocaleString("en");

byId("sent").addEventListener("toggle", refresh);

export function drawSent() {
  const { sent } = state;
  byId("sent-sum").textContent = sent ? (sent.length ? `${number(summed(sent).bytes)} bytes` : "nothing") : "not known";
  byId("sent-why").textContent = sent
    ? "Bodies of messages to the cloud, of the server's last answers; counts, never text. A model in the server's process is sent nothing."
    : "The server does not tell: it asks for its key, or has several; GET /v1/sent shows it to who runs it.";
  byId("sent").querySelector(".scroll").hidden = !sent?.length;
  const table = byId("sent").querySelector("table");
  fill(table, sent ?? [], () => [table.tHead, [...Map.groupBy(sent ?? [], (one) => one.conversation)].map(conversation)]);
}

function conversation([name, answers]) {
  const hosts = [...new Set(answers.map((one) => one.host))].join(", ");
  const rows = answers.map((one) => el("tr", {}, el("td", {}, new Date(1000 * one.at).toLocaleTimeString()), el("td", {}, one.host ?? ""), cells(one)));
  return el("tbody", {}, el("tr", { class: "whole" }, el("th", { scope: "row" }, `conversation ${name}`), el("td", {}, hosts), cells(summed(answers))), rows);
}

const cells = (counts) => COUNTS.map((count) => el("td", {}, number(counts[count])));

function summed(answers) {
  return Object.fromEntries(COUNTS.map((count) => [count, answers.reduce((sum, one) => sum + one[count], 0)]));
}
