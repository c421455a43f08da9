// What a reload finds again: the conversation and the settings, never the API key.
import { Conversation } from "./conversation.js";
import { isConversation } from "./shapes.js";

const CONVERSATION = "edgewise.conversation";
const SETTINGS = "edgewise.settings";

// {conversation or null, settings, notice}
export function load() {
  try {
    const found = JSON.parse(localStorage.getItem(CONVERSATION) ?? "null");
    const settings = JSON.parse(localStorage.getItem(SETTINGS) ?? "null") ?? {};
    if (found === null || isConversation(found)) return { conversation: found && Conversation.from(found), settings, notice: "" };
  } catch {
    // No JSON, or nothing is kept for this page at all.
  }
  return { conversation: null, settings: {}, notice: "The conversation that was kept cannot be read; this is a new one." };
}

// Says what could not be kept; "" where all was.
export function save({ conversation, settings }) {
  for (const lean of [false, true]) {
    try {
      localStorage.setItem(SETTINGS, JSON.stringify(settings));
      localStorage.setItem(CONVERSATION, JSON.stringify(plain(conversation, lean)));
      return "";
    } catch {
      // Too much for this browser: once more without the candidates, which are most of it.
    }
  }
  return "The browser keeps no more of this conversation; a reload will lose what came last.";
}

function plain({ local, turns }, lean) {
  return {
    local,
    turns: turns.map(({ prompt, local, recording, answers }) => ({
      prompt,
      local,
      recording,
      answers: Object.fromEntries(Object.entries(answers).map(([mode, answer]) => [mode, answer.toJSON(lean)])),
    })),
  };
}
