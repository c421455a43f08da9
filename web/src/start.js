// Where the threshold of an uncalibrated router starts: at its scores of the edge's own writing
// (routers/start.py). Once for a model and a router; the caller keeps it.
import { Policy } from "./policy.js";
import { stream } from "./loop.js";

export const SHARES = [0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5];
export const PROMPTS = [
  "Why is the sky blue? Answer in two sentences.",
  "A shop sells 14 boxes of 6 pens at 3 dollars a box, and half of them again on Tuesday. How much does it take in? Explain each step.",
  "Write a Python function that returns the second largest number of a list.",
  "Where would you put a plate after washing it? A. table B. cupboard C. garden D. car. Explain, then name the letter.",
  "Write a short letter to a neighbour whose dog barks at night.",
];
export const TOKENS = 40;

/** `[share, threshold]` pairs, none where `signal` stopped it; `onToken` is called with the part that is done. */
export async function ownThresholds(edge, router, onToken = () => {}, signal) {
  const scores = [];
  const policy = new Policy({ cloudShare: 0 });
  for (const [number, content] of PROMPTS.entries()) {
    const prompt = await edge.promptIds([{ role: "user", content }]);
    if (prompt.length + TOKENS > edge.context) continue;
    for await (const event of stream(prompt, { edge, router, policy, maxTokens: TOKENS, signal })) {
      if (event.type !== "token") continue;
      scores.push(event.score);
      onToken((number + (event.index + 1) / TOKENS) / PROMPTS.length);
    }
    if (signal?.aborted) return [];
  }
  scores.sort((a, b) => a - b);
  return scores.length ? SHARES.map((share) => [share, quantile(scores, 1 - share)]) : [];
}

function quantile(sorted, part) {
  const at = part * (sorted.length - 1);
  const low = sorted[Math.floor(at)];
  return low + (sorted[Math.ceil(at)] - low) * (at % 1);
}

/** The threshold for `share`, between the two nearest shares; 0.5 where nothing is known. */
export function thresholdAt(pairs, share) {
  if (!pairs.length) return 0.5;
  const above = pairs.findIndex(([known]) => known >= share);
  if (above === 0) return pairs[0][1];
  if (above < 0) return pairs.at(-1)[1];
  const [[low, atLow], [high, atHigh]] = [pairs[above - 1], pairs[above]];
  return atLow + ((atHigh - atLow) * (share - low)) / (high - low);
}
