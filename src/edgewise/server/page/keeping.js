// What a reload finds again: the conversation and the settings, never the API key. Each tab keeps its
// own; one that is new begins with what any of them kept last.
import { Conversation } from "./conversation.js";
import { isConversation } from "./shapes.js";

const CONVERSATION = "edgewise.conversation";
const SETTINGS = "edgewise.settings";
const KINDS = ["sessionStorage", "localStorage"];
const NONE = "This browser keeps nothing for this page; a reload begins a new chat.";

// A browser that blocks it, with all cookies or in a private window, throws at every touch.
function storage(kind) {
  try {
    return window[kind];
  } catch {
    return null;
  }
}

const storages = () => KINDS.map(storage).filter(Boolean);

// {conversation or null, settings, warning}
export function load() {
  const stores = storages();
  if (!stores.length) return { conversation: null, settings: {}, warning: NONE };
  try {
    const store = stores.find((one) => one.getItem(CONVERSATION)) ?? stores.at(-1);
    const found = JSON.parse(store.getItem(CONVERSATION) ?? "null");
    const settings = JSON.parse(store.getItem(SETTINGS) ?? "null") ?? {};
    if (found === null || isConversation(found)) return { conversation: found && Conversation.from(found), settings, warning: "" };
  } catch {
    // No JSON.
  }
  return { conversation: null, settings: {}, warning: "The conversation that was kept cannot be read; this is a new one." };
}

// Says what could not be kept; "" where all was.
export function save({ conversation, settings }) {
  if (!storages().length) return NONE;
  const whole = kept(conversation, settings, false);
  // Too much for this browser: once more without the candidates, which are most of it.
  const full = KINDS.filter((kind) => !put(kind, whole)).filter((kind) => !put(kind, kept(conversation, settings, true)));
  if (!full.length) return "";
  const lost = full.includes("sessionStorage") ? "a reload will lose what came last" : "what came last is lost with this tab";
  return `The browser keeps no more of this conversation; ${lost}.`;
}

const kept = (conversation, settings, lean) => ({ [SETTINGS]: JSON.stringify(settings), [CONVERSATION]: JSON.stringify(plain(conversation, lean)) });

// Whether there is such a storage, and it had room.
function put(kind, texts) {
  try {
    for (const [name, text] of Object.entries(texts)) storage(kind).setItem(name, text);
    return true;
  } catch {
    return false;
  }
}

function plain({ local, turns }, lean) {
  const answered = (answers) => Object.fromEntries(Object.entries(answers).map(([mode, answer]) => [mode, answer.toJSON(lean)]));
  return { local, turns: turns.map(({ prompt, local, answers }) => ({ prompt, local, answers: answered(answers) })) };
}
