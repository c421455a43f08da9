// An answer's counts: one line, then the rest.
import { inVain } from "./answer.js";
import { el } from "./dom.js";
import { CLOUD, DISTANCE, EDGE } from "./pace.js";
import { state } from "./state.js";
import { milliseconds, percent, plural } from "./wording.js";

const cloudOf = ({ tokens }) => tokens.filter((token) => token.source === "cloud").length;

export function line(answer) {
  const { tokens, lasted, mode } = answer;
  const cloud = cloudOf(answer);
  const parts = [["tokens", plural(tokens.length, "token")]];
  if (mode === "pair" && state.health?.cloud !== null) parts.push(["share", `${cloud} by the cloud (${percent(cloud / tokens.length)})`]);
  if (lasted) parts.push(["time", `${lasted.toFixed(1)} s`], ["rate", `${(tokens.length / lasted).toFixed(0)} tokens/s`]);
  return parts.map(([name, text], place) => [place ? " · " : "", el("span", { "data-counter": name }, text)]);
}

export function rest(answer) {
  return [
    el("dl", {}, counts(answer).map(([name, title, text]) => el("div", {}, el("dt", {}, title), el("dd", { "data-counter": name }, text)))),
    aboveShare(answer) && el("p", {}, "A short answer may have two cloud tokens above the share."),
    answer.paced && el("p", {}, `Shown at the pace of larger models: the edge writes ${EDGE} tokens/s, the cloud ${CLOUD} and is ${DISTANCE} ms away.`),
  ];
}

function aboveShare(answer) {
  const share = answer.model.includes("@") ? Number(answer.model.split("@")[1]) : state.health?.cloud_share;
  return answer.mode === "pair" && share != null && cloudOf(answer) > share * answer.tokens.length;
}

// What nobody counted is a dash.
function counts(answer) {
  const { tokens, usage, timing } = answer;
  const own = usage?.edgewise;
  // Asked for in vain: the cloud share counts it, as the usage at the end does.
  const late = tokens.filter((token) => token.reason === "timeout").length;
  const brought = tokens.filter((token) => token.source === "cloud" && token.reason !== "span");
  const changed = brought.filter((token) => token.kind === "changed").length;
  const calls = brought.length + tokens.filter(inVain).length;
  const found = [["first", "first token", milliseconds(timing?.ttft ?? tokens[0].seconds)]];
  if (answer.mode === "edge") return found;
  found.push(["calls", "changed / consulted", `${own?.correction_tokens ?? changed} / ${own?.cloud_calls ?? calls}`]);
  if (answer.mode === "pair") found.push(["dial", "share with what was dropped", percent(own?.cloud_share ?? (cloudOf(answer) + late) / tokens.length)]);
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
