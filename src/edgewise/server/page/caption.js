// One sentence about an answer: what the cloud did, and what came of it as far as that is known.
import { inVain, isUnread } from "./answer.js";
import { el } from "./dom.js";
import { state } from "./state.js";
import { heldBack, isSure, isWrapped, ofLikeliest, plural, visible, whyNot, wrapped } from "./wording.js";

const SHOWN = 3; // changes

// Nodes.
export function caption(turn, answer) {
  if (answer.cut !== null) return [`You disconnected the cloud after ${plural(answer.cut, "token")}; the edge ${answer.busy ? "writes" : "wrote"} the rest. `, judged(turn, answer)];
  if (answer.busy || !answer.tokens.length) return [];
  const toy = state.health?.bundled && !isWrapped(turn.prompt);
  const told = toy && el("span", { class: "note" }, "The bundled pair knows sums and word puzzles alone. For real questions: edgewise serve --edge smollm2");
  return [...done(turn, answer), judged(turn, answer), slower(turn, answer), told];
}

function done(turn, answer) {
  const { mode, tokens } = answer;
  const count = plural(tokens.length, "token");
  if (state.health?.cloud === null) return [];
  if (mode === "edge") return [`The edge wrote all ${count}. `];
  const cloud = tokens.filter((token) => token.source === "cloud");
  const changed = tokens.filter((token) => token.kind === "changed");
  const more = changed.length > SHOWN ? ` and ${changed.length - SHOWN} more` : "";
  const shown = changed.slice(0, SHOWN).flatMap((token, place) => [place ? ", " : "", change(token)]);
  if (answer.verified) return [`Verified by the cloud, which corrected ${changed.length || "none"} of ${count}`, shown.length ? ": " : "", ...shown, more, ...verification(tokens), ". "];
  if (cloud.length === tokens.length) return [`The cloud wrote all ${count}. `];
  if (changed.length) return [`The cloud changed ${changed.length} of ${count}: `, ...shown, `${more}. `];
  if (cloud.some((token) => token.kind === "alone")) return [`The cloud wrote ${cloud.length} of ${count}. `];
  if (cloud.length) return [`The cloud was asked for ${cloud.length} of ${count} and agreed with the edge. `];
  if (answer.usage?.edgewise.cloud_calls || tokens.some(inVain)) return [`The edge wrote all ${count}. `];
  return [`Nothing was asked of the cloud: ${reason(turn, answer)}. `];
}

// The least sure token that stands, and what was not verified.
function verification(tokens) {
  const [least] = tokens.filter((token) => token.reason === "verified" && !isSure(token)).sort((one, other) => one.ratio - other.ratio);
  const left = tokens.filter(isUnread).map(whyNot);
  return [
    least ? `; least sure: “${visible(least.text)}”, ${ofLikeliest(least)}` : "",
    ...[...new Set(left)].map((why) => `; ${left.filter((one) => one === why).length} not verified: ${why}`),
  ];
}

const change = (token) => el("span", { class: "change" }, el("del", {}, visible(token.draft.text)), " → ", el("b", {}, visible(token.shown)));

// Of the examples it is known what is right, and what the edge alone says.
function judged(turn, answer) {
  const example = answer.greedy && answer.phase === "done" && state.health?.bundled && state.examples.find((one) => wrapped(one.question) === turn.prompt);
  if (!example) return "";
  const right = answer.said.trimEnd().endsWith(` ${example.right}.`);
  const changed = answer.tokens.filter((token) => token.kind === "changed").length;
  if (right && answer.mode === "pair" && changed) return el("span", {}, `Without ${changed > 1 ? "them" : "it"}: ${example.edge}, `, el("b", { class: "wrong" }, "wrong"), ".");
  return right ? el("b", { class: "right" }, `${example.right} is right.`) : el("span", {}, "That is ", el("b", { class: "wrong" }, "wrong"), `: it is ${example.right}.`);
}

// Side by side, of the pair: the cloud alone was done before.
function slower({ answers: { cloud } }, { mode, lasted, paced, phase }) {
  if (mode !== "pair" || paced || phase !== "done" || cloud?.phase !== "done" || cloud.lasted >= lasted) return null;
  return el("span", {}, ` Here the cloud alone was faster: ${cloud.lasted.toFixed(1)} s.`);
}

function reason(turn, { model, local, tokens }) {
  if (turn.local || local) return "this chat is kept here";
  if (model.endsWith("@0")) return "the share is 0";
  const held = heldBack({ tokens });
  if (held) return held;
  const scored = tokens.filter((token) => token.score != null && token.threshold != null);
  if (!scored.length) return "by the server's settings nothing of this conversation may leave, or nothing at all";
  const best = scored.reduce((one, other) => (other.score - other.threshold > one.score - one.threshold ? other : one));
  return `the router was never above its threshold (nearest: ${best.score.toFixed(3)} of ${best.threshold.toFixed(3)})`;
}
