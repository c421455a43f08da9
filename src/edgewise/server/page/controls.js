// The header, the settings, and the form where questions are written.
import { canDisconnect, modesNow, newChat, send, set, stop, disconnect } from "./actions.js";
import { shareNow } from "./api.js";
import { byId } from "./dom.js";
import { changed, redraw, state } from "./state.js";
import { onEnter } from "./turns.js";
import { size } from "./wording.js";

const prompt = byId("prompt");

export function drawControls() {
  header();
  settings();
  form();
}

function header() {
  const { conversation, gone, health } = state;
  const trouble = gone ? "The server does not answer; start it again with edgewise serve." : health?.cloud_paused ? "The cloud is paused after failures." : "";
  byId("models").hidden = Boolean(trouble);
  byId("models").textContent = byId("models").title = models(health);
  if (byId("trouble").textContent !== trouble) byId("trouble").textContent = byId("trouble").title = trouble;
  byId("local").setAttribute("aria-pressed", conversation.local);
  byId("local").setAttribute("aria-disabled", fixed());
  document.body.classList.toggle("local", conversation.local);
  const note = conversation.local ? "Nothing of this chat from here on leaves this device, until a new one begins." : "";
  if (byId("local-note").textContent !== note) byId("local-note").textContent = note;
  byId("warning").textContent = state.warning;
}

// Once something was said here, it stays so until a new chat begins.
const fixed = () => state.conversation.local && state.conversation.turns.some((turn) => turn.local);

function models(health) {
  if (!health) return "";
  const one = (name, parameters) => (parameters ? `${name} (${size(parameters)})` : name);
  const edge = one(health.bundled ? "bundled edge" : health.edge, health.edge_parameters);
  return health.cloud ? `${edge} + ${one(health.bundled ? "bundled cloud" : health.cloud, health.cloud_parameters)}` : `${edge}, no cloud`;
}

function settings() {
  const { asksKey, health, settings, settingsOpen } = state;
  // What a reload has kept and nobody sees would be a riddle.
  const own = ["system", "temperature", "limit"].some((name) => settings[name] !== "");
  const button = byId("settings-button");
  button.textContent = own ? "Settings (set)" : "Settings";
  button.setAttribute("aria-expanded", settingsOpen);
  byId("key-label").hidden = !asksKey;
  byId("paced-label").hidden = !health?.bundled;
  byId("temperature").placeholder = health?.temperature ?? "the server's";
  if (byId("settings").hidden === !settingsOpen) return;
  byId("settings").hidden = !settingsOpen;
  if (settingsOpen) byId(asksKey ? "key" : "system").focus();
}

function form() {
  const { conversation, health, settings, underWay } = state;
  const closed = conversation.local;
  const mode = modesNow().length > 1 ? "beside" : modesNow()[0];
  for (const input of document.getElementsByName("mode")) {
    input.checked = input.value === mode;
    input.disabled = closed && ["cloud", "beside"].includes(input.value);
  }
  for (const id of ["modes", "dial"]) byId(id).hidden = health?.cloud === null;
  const share = shareNow();
  const dial = byId("share");
  if (document.activeElement !== dial || settings.share === "") dial.value = share ?? 0;
  dial.disabled = closed || ["edge", "cloud"].includes(mode);
  const dialled = health?.threshold != null ? `threshold ${health.threshold}` : health?.verify === "exact" ? "exact" : "";
  byId("share-value").textContent = share !== null ? `${share}%` : dialled;
  byId("disconnect").hidden = !underWay;
  byId("disconnect").disabled = !Object.values(conversation.turns.at(-1)?.answers ?? {}).some(canDisconnect);
  byId("send").textContent = underWay ? "Stop" : "Send";
  byId("send").classList.toggle("stop", Boolean(underWay));
}

// On a phone it would bring up the keyboard over the first screen.
export function focusField() {
  if (matchMedia("(pointer: fine)").matches) prompt.focus();
}

function ask(event) {
  event.preventDefault();
  const text = prompt.value.trim();
  if (!text || state.underWay) return;
  prompt.value = "";
  send(text);
}

export function listen() {
  byId("ask").addEventListener("submit", ask);
  prompt.addEventListener("keydown", onEnter(ask));
  byId("send").addEventListener("click", (event) => {
    // One button, so that it keeps the focus.
    if (!state.underWay) return;
    event.preventDefault();
    stop();
  });
  byId("disconnect").addEventListener("click", () => {
    byId("send").focus();
    disconnect();
  });
  byId("modes").addEventListener("change", (event) => set("mode", event.target.value));
  byId("share").addEventListener("input", (event) => set("share", event.target.value));
  byId("new").addEventListener("click", () => {
    newChat();
    focusField();
  });
  byId("local").addEventListener("click", () => {
    if (fixed()) return;
    // What is being written was asked for with the cloud.
    stop();
    state.conversation.local = !state.conversation.local;
    changed();
  });
  byId("settings-button").addEventListener("click", () => {
    state.settingsOpen = !state.settingsOpen;
    redraw();
  });
  document.querySelector("main").addEventListener("pointerdown", () => {
    state.settingsOpen = false;
    redraw();
  });
  byId("key").addEventListener("input", (event) => (state.key = event.target.value));
  // What is no number, or none that the server takes, is marked and not kept.
  for (const name of ["system", "temperature", "limit"]) {
    byId(name).value = state.settings[name];
    byId(name).addEventListener("input", ({ target }) => target.checkValidity() && set(name, target.value));
  }
  for (const name of ["struck", "formatted", "paced"]) {
    byId(name).checked = state.settings[name];
    byId(name).addEventListener("change", ({ target }) => set(name, target.checked));
  }
}
