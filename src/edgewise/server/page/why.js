// Why an answer has nothing of the cloud's.
import { state } from "./state.js";

const HELD = {
  no_cloud: "the server has no cloud model",
  circuit_open: "consults are paused after failures; one is tried again soon",
  budget: "the share is spent for now, and comes back with every token",
  cap: "the answer's cap is spent",
  cost: "a consult would cost more than the cloud alone, or a limit is spent",
  withheld: "what would be sent may not leave this device",
  mid_word: "the cloud is asked between words, and no wish came there",
  reasoning: "the cloud cannot go on inside of a block of reasoning",
};

// A sentence; "" where the cloud wrote some of it, was asked in vain, or was not to be asked.
export function whyNothing(turn, answer) {
  if (answer.busy || answer.mode === "edge" || !answer.tokens.length) return "";
  if (answer.usage?.edgewise.cloud_calls || answer.tokens.some((token) => token.source === "cloud")) return "";
  return `Nothing was asked of the cloud: ${reason(turn, answer)}.`;
}

function reason(turn, { model, local, tokens }) {
  if (turn.local || local) return "the conversation is local";
  if (model === "edgewise@0") return "the share is 0";
  if (state.health && !state.health.cloud && !answerHas(tokens, "no_cloud")) return HELD.no_cloud;
  const held = Object.keys(HELD).find((name) => answerHas(tokens, name));
  if (held) return HELD[held];
  const scored = tokens.filter((token) => token.score !== null && token.threshold != null);
  if (!scored.length) return "by the server's settings nothing of this conversation may leave, or nothing at all";
  const best = scored.reduce((one, other) => (other.score - other.threshold > one.score - one.threshold ? other : one));
  return `the router was never above its threshold (nearest: ${best.score.toFixed(3)} of ${best.threshold.toFixed(3)})`;
}

const answerHas = (tokens, name) => tokens.some((token) => token.reason === name);
