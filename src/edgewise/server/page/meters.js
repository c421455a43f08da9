// An answer's counts: one line, then the rest.
import { inVain } from "./answer.js";
import { el } from "./dom.js";
import { CLOUD, DISTANCE, EDGE } from "./pace.js";
import { state } from "./state.js";
import { heldBack, inPercent, milliseconds, percent, plural } from "./wording.js";

const cloudOf = ({ tokens }) => tokens.filter((token) => token.source === "cloud").length;

// The share that the answer may have; null where a threshold decides.
const allowedTo = ({ model }) => (model.includes("@") ? Number(model.split("@")[1]) : (state.health?.cloud_share ?? null));

// The share that it had, with what was asked for and dropped: that counts, too.
function usedBy(answer) {
  const late = answer.tokens.filter((token) => token.reason === "timeout").length;
  return answer.usage?.edgewise.cloud_share ?? (cloudOf(answer) + late) / answer.tokens.length;
}

export function line(answer) {
  const { tokens, lasted, mode } = answer;
  const allowed = allowedTo(answer);
  const parts = [["tokens", plural(tokens.length, "token")]];
  if (mode === "pair" && state.health?.cloud !== null) {
    const used = percent(usedBy(answer));
    parts.push(["share", `${cloudOf(answer)} by the cloud (${allowed === null ? used : `used ${used} of ${inPercent(allowed)}%`})`]);
  }
  if (lasted) parts.push(["time", `${lasted.toFixed(1)} s`], ["rate", `${(tokens.length / lasted).toFixed(0)} tokens/s`]);
  return parts.map(([name, text], place) => [place ? " · " : "", el("span", { "data-counter": name }, text)]);
}

export function rest(answer) {
  return [
    el("dl", {}, counts(answer).map(([name, title, text]) => el("div", {}, el("dt", {}, title), el("dd", { "data-counter": name }, text)))),
    answer.mode === "pair" && !answer.busy && aboutShare(answer),
    answer.paced && el("p", {}, `Shown at the pace of larger models: the edge writes ${EDGE} tokens/s, the cloud ${CLOUD} and is ${DISTANCE} ms away.`),
  ];
}

// Why it had more than was allowed, or much less.
function aboutShare(answer) {
  const [used, allowed] = [usedBy(answer), allowedTo(answer)];
  if (allowed === null || !cloudOf(answer)) return null;
  if (used > allowed) return el("p", {}, "The share holds over all answers: one may have what others left, or eight tokens before any.");
  if (used >= allowed / 2) return null;
  return el("p", {}, `Less than allowed: ${heldBack(answer) ?? (answer.verified ? "the cloud lets the other tokens stand" : "elsewhere the router was below its threshold")}.`);
}

// What nobody counted is a dash.
function counts(answer) {
  const { tokens, usage, timing } = answer;
  const own = usage?.edgewise;
  const brought = tokens.filter((token) => token.source === "cloud" && token.reason !== "span");
  const changed = brought.filter((token) => token.kind === "changed").length;
  const calls = own?.cloud_calls ?? brought.length + tokens.filter(inVain).length;
  const found = [["first", "first token", milliseconds(timing?.ttft ?? tokens[0].seconds)]];
  if (answer.mode === "edge") return found;
  if (answer.mode === "pair") found.push(["calls", "changed / consulted", `${changed} / ${calls}`]);
  return own ? [...found, ...atTheEnd(own, cloudOf(answer))] : found;
}

function atTheEnd({ cloud_calls, cloud_prompt_cached, cloud_prompt_computed, sent, cost, tiers }, cloud) {
  const count = (known) => (known == null ? "–" : known.toLocaleString("en"));
  // The meter is that of answered consults; what the others made the cloud read nobody knows.
  const read = cloud_calls && !cloud ? [null, null] : [cloud_prompt_cached, cloud_prompt_computed];
  const found = [
    ["read", "prompts cached / computed", read.map(count).join(" / ")],
    ["bytes", "left this device", `${count(sent?.bytes)} bytes`],
    ...(tiers ?? []).map((one) => ["tier", one.cloud, `wanted ${one.wanted}, calls ${one.calls}, wrote ${one.wrote}`]),
  ];
  if (!cost) return found;
  // Against what the cloud alone would have cost.
  const money = (amount) => `${cost.estimated ? "about " : ""}${amount.toLocaleString("en", { maximumSignificantDigits: 3 })} ${cost.currency}`;
  return [...found, ["paid", "paid", money(cost.paid)], ["alone", "cloud alone", money(cost.alone)], ["saved", "saved", money(cost.saved)]];
}
