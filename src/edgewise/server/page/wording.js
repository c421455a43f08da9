// What the page says of tokens, numbers and questions.
import { faultOf, inVain, isUnread } from "./answer.js";

export const NAMES = { pair: "Pair", edge: "Edge alone", cloud: "Cloud alone" };

// The bundled pair was trained to find these words around a question; readers need not.
const AROUND = /^Question: ([^]*) Answer and Reasoning:$/;
export const wrapped = (question) => `Question: ${question} Answer and Reasoning:`;
export const isWrapped = (prompt) => AROUND.test(prompt);
export const bare = (prompt) => AROUND.exec(prompt)?.[1] ?? prompt;

const KINDS = {
  edge: "written by the edge",
  fallback: "written by the edge; the consult failed",
  confirmed: "written by the cloud, as the edge would have",
  alone: "written by the cloud",
};

export function whoWrote(token) {
  const had = token.reason === "corrected" ? "had" : "would have";
  if (token.kind === "changed") return `written by the cloud; the edge ${had} written “${visible(token.draft.text)}”`;
  return KINDS[token.kind === "fallback" && !inVain(token) ? "edge" : token.kind];
}

// Why a consult that was wanted was not made.
const HELD = {
  circuit_open: "consults are paused after failures; one is tried again soon",
  budget: "the share is spent for now, and comes back with every token",
  cap: "the answer's cap is spent",
  cost: "a consult would cost more than the cloud alone, or a limit is spent",
  blocked: "what would be sent may not leave this device",
  mid_word: "the cloud is asked between words, and no wish came there",
  reasoning: "the cloud cannot go on inside of a block of reasoning",
  no_cloud: "there is no cloud",
};
const OTHERS = {
  below_threshold: "the router was sure enough of it",
  critical: "the router was not sure of the edge's token",
  span: "it came with the token before it",
  forced: "the answer's form allows nothing else",
  edge_lost: "the edge model's server is gone",
};

// Of the first reason that held one back in this answer, if there is one.
export const heldBack = ({ tokens }) => HELD[Object.keys(HELD).find((name) => tokens.some((token) => token.reason === name))];

export function reasonInWords(token, { mode, verified }) {
  const { reason, source, threshold } = token;
  if (reason === "verified" && token.ratio == null) return "the cloud read the sentence and lets it stand";
  if (reason === "corrected" && token.ratio == null) return "the cloud let the edge's sentence not stand, and wrote this one";
  if (reason === "verified") return isSure(token) ? "it is the cloud's likeliest, too" : `the cloud lets it stand: ${ofLikeliest(token)}`;
  if (reason === "corrected") {
    const needed = threshold < 1 ? `it needs ${decimal(threshold)} to stand` : "here only the cloud's own choice stands";
    return `the edge's is at ${decimal(token.ratio)} of the cloud's likeliest; ${needed}`;
  }
  if (mode === "cloud" && source === "cloud") return "the cloud was to write all";
  if (mode === "edge" || (reason === "below_threshold" && threshold === null)) return "the cloud was not to be asked";
  if (verified && isUnread(token)) return `not verified: ${whyNot(token)}`;
  if (faultOf(token) && inVain(token)) return `the cloud was asked, and ${faultOf(token)}`;
  return HELD[reason] ? `the router was not sure of it, but ${HELD[reason]}` : (OTHERS[reason] ?? reason);
}

// A ratio as nobody would tell it from 1.
export const isSure = ({ ratio }) => ratio == null || ratio >= 0.995;
export const ofLikeliest = ({ ratio }) => `${decimal(ratio)} of its likeliest`;
export const whyNot = (token) => (faultOf(token) ? `the cloud ${faultOf(token)}` : (HELD[token.reason] ?? token.reason));
const decimal = (value) => ((value ?? 1) < 0.01 ? "under 0.01" : Number((value ?? 1).toPrecision(2)));

// What stands alone has no neighbours that show its spaces; a token without text ends the answer, or
// is a part of a character.
export const visible = (text) => text.trim() || (text.includes("\n") ? "⏎" : text ? "␣" : "∎");

export const milliseconds = (seconds) => `${(1000 * seconds).toFixed(0)} ms`;
export const inPercent = (share) => Number((100 * share).toFixed(4));
export const percent = (share) => `${(100 * share).toFixed(1)}%`;
export const plural = (count, one) => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;

// Parameters of a model.
export function size(count) {
  const [amount, unit] = count >= 1e9 ? [count / 1e9, "B"] : [count / 1e6, "M"];
  return `${amount >= 10 ? amount.toFixed(0) : amount.toFixed(1)} ${unit}`;
}
