// Why an answer has nothing of the cloud's.
import { inVain } from "./answer.js";
import { healthOf } from "./api.js";

const HELD = {
  no_cloud: "the server has no cloud model",
  circuit_open: "consults are paused after failures; one is tried again soon",
  budget: "the share is spent for now, and comes back with every token",
  cap: "the answer's cap is spent",
  cost: "a consult would cost more than the cloud alone, or a limit is spent",
  blocked: "what would be sent may not leave this device",
  mid_word: "the cloud is asked between words, and no wish came there",
  reasoning: "the cloud cannot go on inside of a block of reasoning",
};

// A sentence; "" where the cloud wrote some of it, was asked in vain, or was not to be asked.
export function whyNothing(turn, answer) {
  if (answer.busy || answer.mode === "edge" || !answer.tokens.length) return "";
  if (answer.usage?.edgewise.cloud_calls || answer.tokens.some((token) => token.source === "cloud" || inVain(token))) return "";
  return `Nothing was asked of the cloud: ${reason(turn, answer)}.`;
}

function reason(turn, { model, recorded, local, tokens }) {
  if (turn.local || local) return "the conversation is local";
  if (model.endsWith("@0")) return "the share is 0";
  // A recording has its own pair.
  if (!recorded && healthOf(model)?.cloud === null) return HELD.no_cloud;
  const held = Object.keys(HELD).find((name) => answerHas(tokens, name));
  if (held) return HELD[held];
  // Recordings may be older than the page.
  if (tokens.every((token) => token.threshold === undefined)) return "the router was never above its threshold";
  const scored = tokens.filter((token) => token.score != null && token.threshold != null);
  if (!scored.length) return "by the server's settings nothing of this conversation may leave, or nothing at all";
  const best = scored.reduce((one, other) => (other.score - other.threshold > one.score - one.threshold ? other : one));
  return `the router was never above its threshold (nearest: ${best.score.toFixed(3)} of ${best.threshold.toFixed(3)})`;
}

const answerHas = (tokens, name) => tokens.some((token) => token.reason === name);
