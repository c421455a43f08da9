// What the page calls things.

export const MODES = ["pair", "edge", "cloud"];
export const NAMES = { pair: "pair", edge: "edge only", cloud: "cloud only", beside: "side by side" };

// Reasons of tokens whose consult failed (`Fault`), as the end of "The cloud ...".
export const FAULTS = {
  timeout: "gave no answer in time",
  unavailable: "cannot be reached",
  refused: "refused the key",
  rejected: "declined the request",
  protocol: "answered with something else",
  grammar: "wrote what the answer's form does not allow",
  circuit_open: "is paused after failures",
};

const MORE = {
  ...Object.fromEntries(Object.entries(FAULTS).map(([reason, text]) => [reason, `the cloud ${text}`])),
  cost: "another consult would make the answer dearer than the cloud alone, or a limit is spent",
};

export function reasonInWords(reason) {
  const name = reason.replaceAll("_", " ");
  return MORE[reason] ? `${name}: ${MORE[reason]}` : name;
}

export const KINDS = {
  edge: "written by the edge",
  fallback: "written by the edge, where the cloud was asked in vain",
  confirmed: "written by the cloud, as the edge would have",
  changed: "written by the cloud, other than the edge would have",
  cloud: "written by the cloud",
};

// A token that has no text of its own: the end of an answer, or part of a character.
export const UNSEEN = "∎";

export const milliseconds = (seconds) => `${(1000 * seconds).toFixed(0)} ms`;
export const percent = (share) => `${(100 * share).toFixed(1)}%`;
