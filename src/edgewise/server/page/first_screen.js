// What a newcomer sees: one sentence, and questions to ask.
import { send } from "./actions.js";
import { byId, el, fill } from "./dom.js";
import { CLOUD, DISTANCE, EDGE } from "./pace.js";
import { state } from "./state.js";
import { wrapped } from "./wording.js";

const NEUTRAL = [
  { title: "Explain", question: "Why is the sky blue?" },
  { title: "Write", question: "Write a short poem about a lighthouse." },
  { title: "Program", question: "Write a Python function that reverses the words of a sentence." },
  { title: "Calculate", question: "A train leaves at 9:40 and takes 85 minutes. When does it arrive? Think step by step." },
];

export function drawFirstScreen() {
  const { conversation, examples, health, settings } = state;
  const bundled = Boolean(health?.bundled);
  byId("first").hidden = conversation.turns.length > 0;
  byId("lead").textContent = bundled ? "The small model alone gets each of these wrong. Try one:" : "Ask anything, or begin with one of these:";
  fill(byId("examples"), [bundled, examples, health === null], () => (bundled ? examples : health ? NEUTRAL : []).map((one) => example(one, bundled)));
  byId("toy").hidden = !bundled;
  const pace = settings.paced ? `They are shown at the pace of larger ones: the edge writes ${EDGE} tokens/s, the cloud ${CLOUD} and is ${DISTANCE} ms away. ` : "";
  fill(byId("toy"), pace, () => ["Both models are bundled toys for sums and word puzzles. ", pace, "For real questions: ", el("code", {}, "edgewise serve --edge smollm2")]);
}

function example({ title, question }, bundled) {
  return el("li", {}, el("button", { type: "button", onclick: () => send(bundled ? wrapped(question) : question) }, el("strong", {}, title), " ", el("span", {}, question)));
}
