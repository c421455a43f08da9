// What the page says of tokens, numbers and questions.
import { faultOf, inVain } from "./answer.js";

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
  changed: "written by the cloud, other than the edge would have",
  alone: "written by the cloud",
};

export const whoWrote = (token) => KINDS[token.kind === "fallback" && !inVain(token) ? "edge" : token.kind];

export function reasonInWords(token) {
  const name = token.reason.replaceAll("_", " ");
  if (token.reason === "cost") return `${name}: another consult would make the answer dearer than the cloud alone, or a limit is spent`;
  return faultOf(token) ? `${name}: the cloud ${faultOf(token)}` : name;
}

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
