// Whether a text gives the answer that a recorded question is known to have.
import { state } from "./state.js";

// true or false; null where the answer is not known.
export function isRight(prompt, text) {
  const recording = state.recordings.find((one) => one.prompt === prompt);
  return recording ? says(text, recording.expected) : null;
}

// What is concluded counts, else all that is said.
function says(text, expected) {
  const concluded = text.split(/answer is/i).at(-1);
  const literal = expected.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(`(^|[^\\p{L}\\p{N}])${literal}($|[^\\p{L}\\p{N}])`, "iu").test(concluded);
}

export const mark = (right) => (right === null ? "" : right ? "✓" : "✗");
export const inWords = (right) => (right === null ? "not known" : right ? "right" : "wrong");
