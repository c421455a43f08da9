// The page's whole state, in one place. Views read it; who changes it calls `changed` or `redraw`.
import { Conversation } from "./conversation.js";
import { load, save } from "./keeping.js";

const DEFAULTS = {
  mode: "pair", // or "edge", "cloud", "beside"
  share: "", // percent of the tokens that the cloud may write; empty is what the server was started with
  temperature: "", // as typed; empty is the server's own
  limit: "",
  system: "",
  struck: true, // above a changed token stands what the edge would have written
  formatted: true,
  paced: true, // the bundled pair is shown at the pace of larger models
};

export const state = {
  conversation: new Conversation(),
  settings: { ...DEFAULTS },
  health: null, // what /health says
  gone: false, // the server does not answer
  sent: null, // rows of v1/sent, where the server tells them
  key: "", // never kept
  asksKey: false,
  underWay: null, // AbortController of what is being written
  token: null, // {answer, number, pinned}, which the details panel shows
  settingsOpen: false,
  warning: "", // what could not be kept
  examples: [], // questions of the first screen
};

let draw = () => {};
let drawing = false;
let dirty = false;

// `shown` is called once a frame while something changes.
export function subscribe(shown) {
  draw = shown;
}

// After a change of what is kept: the conversation, the settings.
export function changed() {
  dirty = true;
  redraw();
}

// After any other.
export function redraw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
}

export function restore() {
  const kept = load();
  for (const [name, value] of Object.entries(DEFAULTS)) {
    if (typeof kept.settings[name] === typeof value) state.settings[name] = kept.settings[name];
  }
  if (!["pair", "edge", "cloud", "beside"].includes(state.settings.mode)) state.settings.mode = DEFAULTS.mode;
  if (kept.conversation) state.conversation = kept.conversation;
  state.warning = kept.warning;
}

// Keeping costs more than drawing, so it is done once a second, and when the page is left.
export function keep() {
  if (!dirty) return;
  dirty = false;
  const warning = save(state);
  if (warning !== state.warning) {
    state.warning = warning;
    redraw();
  }
}
